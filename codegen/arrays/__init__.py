"""The kinds `rowwise` and `elementwise`: kernels over arrays."""
