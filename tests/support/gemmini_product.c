/* SPDX-License-Identifier: Apache-2.0 */
/* A product of 16x16 matrices on Gemmini, against loops. */
#include <errno.h>

#include "check.h"
#include "gemmini.h"
#ifdef PENSTOCK_MODEL
#include "model.h"
#endif

static int8_t a[16][16], b[16][16], c[16][16], expected[16][16];

int main(void) {
  if (errno) return 3;
  errno = 1; /* storage of the thread is there */
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) a[i][j] = (int8_t)((i * 3 + j) % 7 - 3), b[i][j] = (int8_t)((i + 5 * j) % 5 - 2);
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++)
      for (int k = 0; k < 16; k++) expected[i][j] = (int8_t)(expected[i][j] + a[i][k] * b[k][j]);
  gemmini_region("a", a, sizeof a, 0);
  gemmini_region("b", b, sizeof b, 0);
  gemmini_region("c", c, sizeof c, 1);
  gemmini_flush();
  gemmini_config_ex(GEMMINI_IDENTITY, 1, 1);
  gemmini_config_ld(0, 16, 0, 1.0f, 0);
  gemmini_config_st(16, GEMMINI_IDENTITY, 1.0f);
  gemmini_mvin_by(0, a, gemmini_spad(0), 16, 16);
  gemmini_mvin_by(0, b, gemmini_spad(16), 16, 16);
  gemmini_preload(gemmini_spad(16), 16, 16, gemmini_acc(0), 16, 16);
  gemmini_compute_preloaded(gemmini_spad(0), 16, 16, GEMMINI_NONE, 16, 16);
  gemmini_mvout(c, gemmini_acc(0), 16, 16);
  gemmini_fence();
#ifdef SPOIL
  expected[3][7]++;
#endif
  if (check_output("c", "i8", c, expected, sizeof c, 0)) return 1;
  printf("PASS\n");
  return 0;
}
