"""The kinds `gemm` and `conv2d`: CUTLASS kernels, and plain HIP kernels for AMD."""
