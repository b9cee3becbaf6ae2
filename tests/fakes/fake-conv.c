// A convolution on the host with the interface of generated ones: stride 2 and 1, padding 1 and 0, dilation 1 and 2.
// -DBIAS: with one, and relu. -DFAULT=4: a filter is wrong.
#include <math.h>
#include <stddef.h>

typedef long long ll;

static int convolve(const _Float16 *x, const _Float16 *weight, const _Float16 *bias, _Float16 *y, ll n, ll h, ll w, ll c,
                    ll k, ll r, ll s, ll p, ll q) {
  if (p != (h + 2 - r) / 2 + 1 || q != w - 2 * (s - 1)) return -4;
  for (ll at = 0; at < n * p * q * k; at++) {
    const ll filter = at % k, column = at / k % q, row = at / k / q % p, image = at / k / q / p;
    float sum = 0;
    for (ll i = 0; i < r; i++)
      for (ll j = 0; j < s; j++) {
        const ll above = 2 * row - 1 + i, left = column + 2 * j;
        if (above < 0 || above >= h) continue;
        for (ll z = 0; z < c; z++)
          sum += (float)x[((image * h + above) * w + left) * c + z] * (float)weight[((filter * r + i) * s + j) * c + z];
      }
    if (FAULT == 4 && filter == 0) sum += 1;
    y[at] = (_Float16)(bias ? fmaxf(sum + (float)bias[filter], 0.0f) : sum);
  }
  return 0;
}

#ifdef BIAS
int conv_run(const void *x, const void *weight, const void *bias, void *y, ll n, ll h, ll w, ll c, ll k, ll r, ll s, ll p,
             ll q, void *stream) {
  (void)stream;
  return convolve(x, weight, bias, y, n, h, w, c, k, r, s, p, q);
}
#else
int conv_run(const void *x, const void *weight, void *y, ll n, ll h, ll w, ll c, ll k, ll r, ll s, ll p, ll q,
             void *stream) {
  (void)stream;
  return convolve(x, weight, NULL, y, n, h, w, c, k, r, s, p, q);
}
#endif
