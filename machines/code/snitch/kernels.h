/*
 * Kernels of the cluster in plain C, by which those that use its streams and loop buffers can be tried. `*_pitch` are
 * elements from one row to the next.
 */
#ifndef PENSTOCK_CLUSTER_KERNELS_H
#define PENSTOCK_CLUSTER_KERNELS_H

#include <stdint.h>

/* c[m, n] += a[m, k] * b[k, n] */
static inline void cluster_gemm(int64_t m, int64_t n, int64_t k, const void *a, int64_t a_pitch, const void *b,
                                int64_t b_pitch, void *c, int64_t c_pitch) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float sum = ((float *)c)[i * c_pitch + j];
      for (int64_t l = 0; l < k; l++)
        sum += ((const float *)a)[i * a_pitch + l] * ((const float *)b)[l * b_pitch + j];
      ((float *)c)[i * c_pitch + j] = sum;
    }
}

/* c[m, n] = 0 */
static inline void cluster_clear(int64_t m, int64_t n, void *c, int64_t c_pitch) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) ((float *)c)[i * c_pitch + j] = 0;
}

/* c[m, n] += x[m, n] */
static inline void cluster_add(int64_t m, int64_t n, const void *x, int64_t x_pitch, void *c, int64_t c_pitch) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) ((float *)c)[i * c_pitch + j] += ((const float *)x)[i * x_pitch + j];
}

/* c[m, n] = max(c[m, n], 0) */
static inline void cluster_relu(int64_t m, int64_t n, void *c, int64_t c_pitch) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      float *at = &((float *)c)[i * c_pitch + j];
      if (*at < 0) *at = 0;
    }
}

#endif
