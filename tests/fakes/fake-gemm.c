// A GEMM on the host with the interface of generated ones: -DTYPE, -DA_ROW, -DB_ROW, -DBIAS, -DTANH, -DFAULT (see below).
// -DFP8=N: of fp8 with N bits of mantissa; TYPE is that of the result then. -DBATCHED: of many problems.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#ifdef FP8
#define ELEMENT unsigned char
static float value_of(ELEMENT bits) {
  const int exponent = bits >> FP8 & (1 << (7 - FP8)) - 1, lowest = 2 - (1 << (6 - FP8)) - FP8;
  const int mantissa = (bits & (1 << FP8) - 1) | (exponent ? 1 << FP8 : 0);
  return ldexpf(bits & 0x80 ? -mantissa : mantissa, lowest + (exponent ? exponent - 1 : 0));
}
#else
#define ELEMENT TYPE
static float value_of(ELEMENT number) { return (float)number; }
#endif

static int one(const void *a, const void *b, const void *c, void *d, int m, int n, int k, float alpha, float beta,
               void *workspace, void *stream) {
  const ELEMENT *left = a, *right = b;
  const TYPE *bias = c;
  TYPE *out = d;
  (void)beta, (void)workspace, (void)stream;
  if (FAULT == 1) return -4;    // refuses
  if (FAULT == 2) abort();      // crashes
  for (int i = 0; i < m; i++)
    for (int j = 0; j < n; j++) {
      float sum = 0;
      for (int p = 0; p < k; p++)
        sum += value_of(left[A_ROW ? i * k + p : p * m + i]) * value_of(right[B_ROW ? p * n + j : j * k + p]);
      if (FAULT == 3 && i == m - 1 && j == n - 1) continue;  // forgets an element
      if (FAULT == 4 && j == 0) sum += 1;                    // a column is wrong
      const float value = alpha * sum + (BIAS ? (float)bias[j] : 0.0f);
      out[(size_t)i * n + j] = (TYPE)(TANH ? tanhf(value) : BIAS ? fmaxf(value, 0.0f) : value);
    }
  return 0;
}

#ifdef BATCHED
size_t gemm_workspace_bytes(int m, int n, int k, int batch) { return (size_t)(m + n + k) * batch; }

int gemm_run(const void *a, const void *b, const void *c, void *d, int m, int n, int k, int batch, float alpha, float beta,
             void *workspace, void *stream) {
  int status = 0;
  for (size_t i = 0; i < (size_t)batch && !status; i++) {
    const void *left = (const ELEMENT *)a + i * m * k, *right = (const ELEMENT *)b + i * n * k;
    status = one(left, right, c, (TYPE *)d + i * m * n, m, n, k, alpha, beta, workspace, stream);
  }
  return status;
}
#else
size_t gemm_workspace_bytes(int m, int n, int k) { return (size_t)(m + n + k); }

int gemm_run(const void *a, const void *b, const void *c, void *d, int m, int n, int k, float alpha, float beta,
             void *workspace, void *stream) {
  return one(a, b, c, d, m, n, k, alpha, beta, workspace, stream);
}
#endif
