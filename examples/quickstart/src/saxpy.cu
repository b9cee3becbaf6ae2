// y = a * x + y, one element a thread in a grid-stride loop.
#include <cuda_runtime.h>

__global__ void saxpy_kernel(int n, float a, const float* __restrict__ x, float* __restrict__ y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        y[i] = a * x[i] + y[i];
    }
}

extern "C" int saxpy(int n, float a, const float* x, float* y, cudaStream_t stream) {
    constexpr int threads = 256;
    const int blocks = n < 1024 * threads ? (n + threads - 1) / threads : 1024;
    if (blocks > 0) {
        saxpy_kernel<<<blocks, threads, 0, stream>>>(n, a, x, y);
    }
    return static_cast<int>(cudaGetLastError());
}
