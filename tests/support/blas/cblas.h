/* SPDX-License-Identifier: Apache-2.0 */
/* Products of matrices as BLAS defines them, in plain loops, which end the program for what BLAS does not take. */
#ifndef CBLAS_H
#define CBLAS_H

#include <stdlib.h>

enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };

static inline void openblas_set_num_threads(int count) {
  if (count != 1) abort();
}

static inline void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE trans_a, enum CBLAS_TRANSPOSE trans_b,
                               int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb,
                               float beta, float *c, int ldc) {
  const int a_is_stored_by_k = trans_a == CblasTrans, b_is_stored_by_n = trans_b == CblasTrans;
  if (order != CblasRowMajor || m < 1 || n < 1 || k < 1 || ldc < n) abort();
  if (lda < (a_is_stored_by_k ? m : k) || ldb < (b_is_stored_by_n ? k : n)) abort();
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int l = k - 1; l >= 0; --l) {
        sum += (a_is_stored_by_k ? a[l * lda + i] : a[i * lda + l]) * (b_is_stored_by_n ? b[j * ldb + l] : b[l * ldb + j]);
      }
      c[i * ldc + j] = beta == 0.0f ? alpha * sum : beta * c[i * ldc + j] + alpha * sum;
    }
  }
}

#endif
