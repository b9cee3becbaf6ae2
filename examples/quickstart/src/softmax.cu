// Softmax of the rows of a matrix, one block a row, the row kept in tiles of one element a thread.
#include <cuda_runtime.h>

#include "reduce.cuh"

constexpr int kThreads = 256;

__global__ void softmax_kernel(int columns, const float* __restrict__ in, float* __restrict__ out) {
    const float* row = in + static_cast<size_t>(blockIdx.x) * columns;
    float* result = out + static_cast<size_t>(blockIdx.x) * columns;

    float highest = Maximum::identity();
    for (int c = threadIdx.x; c < columns; c += kThreads) {
        highest = fmaxf(highest, row[c]);
    }
    highest = reduce_block<Maximum, kThreads>(highest);

    float total = Sum::identity();
    for (int c = threadIdx.x; c < columns; c += kThreads) {
        total += expf(row[c] - highest);
    }
    total = reduce_block<Sum, kThreads>(total);

    for (int c = threadIdx.x; c < columns; c += kThreads) {
        result[c] = expf(row[c] - highest) / total;
    }
}

extern "C" int softmax(int rows, int columns, const float* in, float* out, cudaStream_t stream) {
    if (rows > 0 && columns > 0) {
        softmax_kernel<<<rows, kThreads, 0, stream>>>(columns, in, out);
    }
    return static_cast<int>(cudaGetLastError());
}
