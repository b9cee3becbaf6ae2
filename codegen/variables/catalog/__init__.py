"""The rows of the table of environment variables, one module a family."""
