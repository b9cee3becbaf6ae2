// HIP on the host, for kernels as they are generated: a block's threads are threads, one block after another.
// -DOPERANDS=N: pointers that the kernel takes.
#pragma once
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

struct dim3 {
    unsigned x, y = 1, z = 1;
    dim3(unsigned x_, unsigned y_ = 1) : x(x_), y(y_) {}
};
using hipStream_t = void*;
using hipError_t = int;
constexpr int hipSuccess = 0;
inline thread_local dim3 threadIdx(0), blockIdx(0);
inline std::barrier<>* meeting = nullptr;

inline void __syncthreads() { meeting->arrive_and_wait(); }
inline int hipGetLastError() { return 0; }
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline void call(const void* kernel, void** given) {
    auto at = [&](int i) { return *static_cast<const void**>(given[i]); };
    const int *m = static_cast<int*>(given[OPERANDS]), *n = static_cast<int*>(given[OPERANDS + 1]);
    const int* k = static_cast<int*>(given[OPERANDS + 2]);
    const float *alpha = static_cast<float*>(given[OPERANDS + 3]), *beta = static_cast<float*>(given[OPERANDS + 4]);
    using P = const void*;
#if OPERANDS == 5
    reinterpret_cast<void (*)(P, P, P, P, P, int, int, int, float, float)>(const_cast<void*>(kernel))(
        at(0), at(1), at(2), at(3), at(4), *m, *n, *k, *alpha, *beta);
#else
    reinterpret_cast<void (*)(P, P, P, P, int, int, int, float, float)>(const_cast<void*>(kernel))(
        at(0), at(1), at(2), at(3), *m, *n, *k, *alpha, *beta);
#endif
}

inline int hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** given, size_t, hipStream_t) {
    for (unsigned number = 0; number < grid.x; ++number) {
        std::barrier<> all(block.x);
        meeting = &all;
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < block.x; ++i) {
            threads.emplace_back([=] {
                threadIdx = dim3(i), blockIdx = dim3(number);
                call(kernel, given);
            });
        }
        for (std::thread& one : threads) one.join();
    }
    return 0;
}
