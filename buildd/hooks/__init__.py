"""Files that run in users' programs, found through PYTHONPATH: standard library and the user's packages only."""
