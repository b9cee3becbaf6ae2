/* What nvcc puts before every source, without what no kernel of a test uses: a fortieth of the lines.
 *
 * Declares kernels' variables, their launch and assert(), and the types and functions of cuda_runtime_api.h.
 */
#ifndef __CUDA_RUNTIME_H__
#define __CUDA_RUNTIME_H__
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/host_config.h"
#include "builtin_types.h"
#include "cuda_runtime_api.h"
#include "device_launch_parameters.h"
#include <assert.h>

extern "C" {
extern __host__ __device__ __cudart_builtin__ void __assert_fail(const char *, const char *, unsigned,
                                                                 const char *) noexcept;
extern __host__ __device__ unsigned __cudaPushCallConfiguration(dim3, dim3 = 1, size_t = 0, struct CUstream_st * = 0);
extern cudaError_t __cudaGetKernel(cudaKernel_t *, const void *);
extern cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
}

/* Stubs call it. */
static inline cudaError_t __cudaLaunchKernel_helper(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                                    size_t shared_bytes, cudaStream_t stream)
{
    return __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

#ifdef __CUDACC_EXTENDED_LAMBDA__
#include <functional>
#include <utility>

/* Where cudafe++ sees it, it declares what wraps lambdas. */
struct __device_builtin__ __nv_lambda_preheader_injection {};
#endif
#endif
