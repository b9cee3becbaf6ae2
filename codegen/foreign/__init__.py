"""Plans one compiler call of another build system."""
