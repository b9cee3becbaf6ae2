"""Files that run in the user's own programs: found by PYTHONPATH, standard library and the user's packages only."""
