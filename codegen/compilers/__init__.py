"""Finds compilers, describes them as tools, and reads their languages."""
