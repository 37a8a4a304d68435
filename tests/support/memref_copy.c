/* SPDX-License-Identifier: Apache-2.0 */
/* What code of MLIR calls to copy between memrefs with strides; MLIR's own is in a library that Debian does not ship. */
#include <stdint.h>
#include <string.h>

typedef struct { int64_t rank; void *descriptor; } unranked;

static void copy(int64_t bytes, int64_t rank, const int64_t *sizes, const char *from, const int64_t *from_strides,
                 char *to, const int64_t *to_strides) {
  if (rank == 0) {
    memcpy(to, from, bytes);
    return;
  }
  for (int64_t i = 0; i < *sizes; ++i)
    copy(bytes, rank - 1, sizes + 1, from + i * *from_strides * bytes, from_strides + 1, to + i * *to_strides * bytes,
         to_strides + 1);
}

/* A descriptor: two pointers, an offset, sizes, strides. */
void memrefCopy(int64_t bytes, unranked *source, unranked *target) {
  int64_t rank = source->rank, *from = source->descriptor, *to = target->descriptor;
  copy(bytes, rank, from + 3, (char *)from[1] + from[2] * bytes, from + 3 + rank, (char *)to[1] + to[2] * bytes,
       to + 3 + rank);
}
