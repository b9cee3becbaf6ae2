"""Records the kernels that users' programs compile, to compile them again elsewhere."""
