// What an object of nvcc asks of CUDA's runtime, without a GPU: a launch is not run but told, for tests of what one asks.
#include <stddef.h>
#include <stdlib.h>

struct dim3 {
  unsigned x, y, z;
};

long long launches, blocks, threads, memory_bytes;

int cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments, size_t asked_bytes,
                     void *stream) {
  (void)kernel, (void)arguments, (void)stream;
  ++launches;
  blocks = (long long)grid.x * grid.y * grid.z;
  threads = (long long)block.x * block.y * block.z;
  memory_bytes = (long long)asked_bytes;
  return 0;
}

int cudaGetLastError(void) { return 0; }
void **__cudaRegisterFatBinary(void *binary) { return (void)binary, NULL; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void) {}
int __cudaGetKernel(void) { abort(); }
int __cudaLaunchKernel(void) { abort(); }
int __cudaPopCallConfiguration(void) { abort(); }
