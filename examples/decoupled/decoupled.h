/* SPDX-License-Identifier: Apache-2.0 */
/* A machine of three units, each of which takes its commands from a queue of its own, and tokens from the others. */
#include <stdint.h>
#include <string.h>

enum { LOAD, EXECUTE, STORE, UNITS };                             /* units */
enum { PUSH, POP, MOVE, CLEAR, PRODUCT, ADD };                    /* commands */
#define SUMS 0x10000                                              /* where the accumulators begin */

#ifdef PENSTOCK_MODEL
void decoupled(int unit, int command, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t rows, uint64_t columns,
               uint64_t depth);
void decoupled_fence(void);
#else /* a window of eight words a unit, the last of which is the doorbell; and one that reads 0 when all is done */
#define WINDOW ((volatile uint64_t *)0x10000000)
static inline void decoupled(int unit, int command, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t rows,
                             uint64_t columns, uint64_t depth) {
  volatile uint64_t *at = WINDOW + unit * 8;
  at[0] = a, at[1] = b, at[2] = c, at[3] = d, at[4] = rows, at[5] = columns, at[6] = depth, at[7] = (uint64_t)command;
}
static inline void decoupled_fence(void) {
  while (WINDOW[UNITS * 8]) continue;
}
#endif
