"""Calls generated kernels and models from Python."""
