// Reductions over a block: first inside each warp, then over the warps through shared memory.
#pragma once

struct Maximum {
    static __device__ float identity() { return -INFINITY; }
    static __device__ float apply(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
    static __device__ float identity() { return 0.0f; }
    static __device__ float apply(float a, float b) { return a + b; }
};

template <typename Op, int Threads>
__device__ float reduce_block(float value) {
    static_assert(Threads % 32 == 0 && Threads <= 1024, "whole warps, and at most 32 of them");
    __shared__ float partial[32];
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    for (int offset = 16; offset > 0; offset /= 2) {
        value = Op::apply(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    if (lane == 0) {
        partial[warp] = value;
    }
    __syncthreads();
    value = lane < Threads / 32 ? partial[lane] : Op::identity();
    for (int offset = 16; offset > 0; offset /= 2) {
        value = Op::apply(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    __syncthreads();  // `partial` may be used again by the next reduction
    return value;
}
