/*
 * Kernels for 8-bit integers in the manner of CMSIS-NN: sums of 32 bits, which a shift, two bounds and a cast narrow.
 *
 * `*_pitch` are elements from one row to the next, those of nn_copy and nn_clear bytes. They are plain C, so that a
 * program is the same on any host; kernels that use SMLAD have the same signatures.
 */
#ifndef PENSTOCK_NN_S8_H
#define PENSTOCK_NN_S8_H

#include <stdint.h>
#include <string.h>

#define NN_DTCM_BYTES 131072

/* start.c has them for the core, nn_host.h for a host. */
extern unsigned char nn_dtcm[NN_DTCM_BYTES];
void nn_begin(void);

/* Copy rows of `bytes` each. */
static inline void nn_copy(int64_t rows, int64_t bytes, const void *from, int64_t from_pitch, void *to,
                           int64_t to_pitch) {
  for (int32_t i = 0; i < rows; i++)
    memcpy((char *)to + i * to_pitch, (const char *)from + i * from_pitch, (size_t)bytes);
}

/* Rows of `bytes` zeros each. */
static inline void nn_clear(int64_t rows, int64_t bytes, void *to, int64_t to_pitch) {
  for (int32_t i = 0; i < rows; i++) memset((char *)to + i * to_pitch, 0, (size_t)bytes);
}

/* acc[m, n] += x[m, k] * w[k, n] */
static inline void nn_mat_mult_s8(int64_t m, int64_t n, int64_t k, const void *x, int64_t x_pitch, const void *w,
                                  int64_t w_pitch, void *acc, int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++) {
    const int8_t *row = (const int8_t *)x + i * x_pitch;
    for (int32_t j = 0; j < n; j++) {
      const int8_t *column = (const int8_t *)w + j;
      int32_t sum = ((int32_t *)acc)[i * acc_pitch + j];
      for (int32_t l = 0; l < k; l++, column += w_pitch) sum += row[l] * *column;
      ((int32_t *)acc)[i * acc_pitch + j] = sum;
    }
  }
}

/* acc[m, n] += x[m, n] * w[n] */
static inline void nn_depthwise_s8(int64_t m, int64_t n, const void *x, int64_t x_pitch, const void *w, void *acc,
                                   int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++)
      ((int32_t *)acc)[i * acc_pitch + j] += ((const int8_t *)x)[i * x_pitch + j] * ((const int8_t *)w)[j];
}

/* acc[m, n] += x[m, n] */
static inline void nn_add_s32(int64_t m, int64_t n, const void *x, int64_t x_pitch, void *acc, int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++)
      ((int32_t *)acc)[i * acc_pitch + j] += ((const int32_t *)x)[i * x_pitch + j];
}

/* acc[m, n] >>= bits, 0 to 31, towards minus infinity */
static inline void nn_shift_s32(int64_t m, int64_t n, int64_t bits, void *acc, int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++) ((int32_t *)acc)[i * acc_pitch + j] >>= bits;
}

/* acc[m, n] = max(acc[m, n], bound) */
static inline void nn_max_s32(int64_t m, int64_t n, int64_t bound, void *acc, int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++) {
      int32_t *at = &((int32_t *)acc)[i * acc_pitch + j];
      if (*at < bound) *at = (int32_t)bound;
    }
}

/* acc[m, n] = min(acc[m, n], bound) */
static inline void nn_min_s32(int64_t m, int64_t n, int64_t bound, void *acc, int64_t acc_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++) {
      int32_t *at = &((int32_t *)acc)[i * acc_pitch + j];
      if (*at > bound) *at = (int32_t)bound;
    }
}

/* y[m, n] = acc[m, n], its low 8 bits */
static inline void nn_narrow_s8(int64_t m, int64_t n, const void *acc, int64_t acc_pitch, void *y, int64_t y_pitch) {
  for (int32_t i = 0; i < m; i++)
    for (int32_t j = 0; j < n; j++)
      ((int8_t *)y)[i * y_pitch + j] = (int8_t)(uint8_t)((const uint32_t *)acc)[i * acc_pitch + j];
}

#endif
