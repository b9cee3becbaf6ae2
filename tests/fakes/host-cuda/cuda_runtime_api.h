// What drivers of models ask of CUDA's runtime; runtime.cpp has it without a GPU.
#pragma once
#include <stddef.h>

typedef struct Queue* cudaStream_t;
typedef struct Event* cudaEvent_t;
enum cudaError_t { cudaSuccess = 0, cudaErrorNoKernelImageForDevice = 209 };
enum { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor, cudaEventDisableTiming, cudaStreamNonBlocking };

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* found);
cudaError_t cudaDeviceGetAttribute(int* value, int attribute, int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int flags);
