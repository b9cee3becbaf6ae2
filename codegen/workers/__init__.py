"""Scripts that run under the client's own Python. Each imports only the standard library and its own package."""
