/* SPDX-License-Identifier: Apache-2.0 */
/* Issues a stream of commands through gemmini.h on its model. Little-endian words of 64 bits come in: the number of
 * regions; of each, bytes and whether it is writable; then commands of eight words. The regions go out. */
#include "gemmini.h"
#include "model.h"

enum { CONFIG_EX, CONFIG_LD, CONFIG_ST, MVIN, MVOUT, PRELOAD, COMPUTE, FLUSH, FENCE, FILL, ROCC, PUT };

static uint8_t *base[8];

static float scale_of(uint64_t bits) {
  uint32_t word = (uint32_t)bits;
  float scale;
  memcpy(&scale, &word, sizeof scale);
  return scale;
}

static uint8_t *at(uint64_t region, uint64_t offset) { return region == UINT64_MAX ? NULL : base[region] + offset; }

static void issue(const uint64_t *w) {
  switch (w[0]) {
    case CONFIG_EX: gemmini_config_ex((enum gemmini_activation)w[1], w[2], w[3]); break;
    case CONFIG_LD: gemmini_config_ld(w[1], w[2], w[3], scale_of(w[4]), (int)w[5]); break;
    case CONFIG_ST: gemmini_config_st(w[1], (enum gemmini_activation)w[2], scale_of(w[3])); break;
    case MVIN: gemmini_mvin_by((unsigned)w[1], at(w[2], w[3]), (uint32_t)w[4], w[5], w[6]); break;
    case MVOUT: gemmini_mvout(at(w[1], w[2]), (uint32_t)w[3], w[4], w[5]); break;
    case PRELOAD: gemmini_preload((uint32_t)w[1], w[2], w[3], (uint32_t)w[4], w[5], w[6]); break;
    case COMPUTE:
      if (w[1]) gemmini_compute_preloaded((uint32_t)w[2], w[3], w[4], (uint32_t)w[5], w[6], w[7]);
      else gemmini_compute_accumulated((uint32_t)w[2], w[3], w[4], (uint32_t)w[5], w[6], w[7]);
      break;
    case FLUSH: gemmini_flush(); break;
    case FENCE: gemmini_fence(); break;
    case FILL:
      for (uint64_t i = 0; i < w[3]; i++) base[w[1]][w[2] + i] = (uint8_t)(w[4] + i * w[5]);
      break;
    case PUT: memcpy(base[w[1]] + w[2], &w[4], w[3]); break;
    case ROCC: gemmini_rocc(w[1], w[2], (unsigned)w[3]); break;
  }
}

int main(void) {
  uint64_t count = 0, sizes[8], words[8];
  if (fread(&count, 8, 1, stdin) != 1 || count > 8) return 2;
  for (uint64_t i = 0; i < count; i++) {
    static const char *const names[] = {"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"};
    uint64_t region[2];
    if (fread(region, 8, 2, stdin) != 2) return 2;
    sizes[i] = region[0];
    base[i] = calloc(1, sizes[i]);
    gemmini_region(names[i], base[i], sizes[i], (int)region[1]);
  }
  while (fread(words, 8, 8, stdin) == 8) issue(words);
  for (uint64_t i = 0; i < count; i++) fwrite(base[i], 1, sizes[i], stdout);
  return 0;
}
