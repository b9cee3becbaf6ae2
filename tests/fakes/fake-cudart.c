// The few functions of CUDA's runtime that measure.cu calls, on the host's memory: a device that has always finished.
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaSetDevice(int device) { return device; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) { return *value = 1 << 20, (void)attribute, device; }
int cudaMalloc(void **place, size_t size) {
  if (getenv("FAKE_CUDART_TELLS") != NULL) fprintf(stderr, "cudaMalloc %zu\n", size);
  return (*place = malloc(size)) == NULL ? 2 : 0;
}
int cudaFree(void *place) { return free(place), 0; }
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return memcpy(to, from, size), (void)kind, 0; }
int cudaMemset(void *place, int value, size_t size) { return memset(place, value, size), 0; }
int cudaMemsetAsync(void *place, int value, size_t size, void *stream) {
  return memset(place, value, size < 4096 ? size : 4096), (void)stream, 0;
}
int cudaStreamCreate(void **stream) { return *stream = NULL, 0; }
int cudaStreamSynchronize(void *stream) { return (void)stream, 0; }
int cudaGetLastError(void) { return 0; }
const char *cudaGetErrorString(int status) { return (void)status, "an error"; }
int cudaEventCreate(double **event) { return (*event = malloc(sizeof(double))) == NULL ? 2 : 0; }
int cudaEventDestroy(double *event) { return free(event), 0; }
int cudaEventRecord(double *event, void *stream) { return *event = now_ms(), (void)stream, 0; }
int cudaEventSynchronize(double *event) { return (void)event, 0; }
int cudaEventElapsedTime(float *ms, const double *begin, const double *end) { return *ms = (float)(*end - *begin), 0; }
