"""Changes on disk, and the watched targets that they concern."""
