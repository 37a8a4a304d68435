/*
 * A model of the transfers of the runtime, for programs on any host.
 *
 * A transfer is done as late as it may be, when it is waited for: from its start until then what it writes is poisoned,
 * so that a program that does not wait computes something else, and so does one that overwrites what it reads. With the
 * variable SNRT_SEED=N a start or a wait may do some of those under way, by a sequence of N. Transfers are done in order.
 * The memory of the cluster is poisoned at first. Faults end the program: an access outside of the memory of the
 * cluster, two transfers of which one writes what the other is still to write or read, the end of a wait for none.
 */
#ifndef PENSTOCK_SNRT_MODEL_H
#define PENSTOCK_SNRT_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster.h"

_Alignas(64) unsigned char cluster_tcdm[CLUSTER_TCDM_BYTES];

#define SNRT_IN_FLIGHT 64
#define SNRT_POISON 0xff /* as a float: not a number */

typedef struct {
  unsigned char *dst;
  const unsigned char *src;
  size_t size, dst_stride, src_stride, repeat;
} snrt_transfer;

static snrt_transfer snrt_transfers[SNRT_IN_FLIGHT];
static uint32_t snrt_started, snrt_done;
static uint64_t snrt_state;

static void snrt_fault(const char *what) {
  printf("transfer %u: %s\n", snrt_started, what);
  exit(1);
}

void cluster_begin(void) {
  memset(cluster_tcdm, SNRT_POISON, sizeof cluster_tcdm);
  const char *seed = getenv("SNRT_SEED");
  snrt_state = seed ? strtoull(seed, 0, 10) * 2 + 1 : 0;
}

static void snrt_do_next(void) {
  const snrt_transfer *it = &snrt_transfers[snrt_done++ % SNRT_IN_FLIGHT];
  for (size_t row = 0; row < it->repeat; row++)
    memcpy(it->dst + row * it->dst_stride, it->src + row * it->src_stride, it->size);
}

static void snrt_do_some(void) {
  while (snrt_state && snrt_done != snrt_started) {
    snrt_state = snrt_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    if (snrt_state >> 63) break;
    snrt_do_next();
  }
}

static int snrt_is_tcdm(const unsigned char *at) {
  return at >= cluster_tcdm && at < cluster_tcdm + sizeof cluster_tcdm;
}

static int snrt_meet(const unsigned char *one, size_t size, size_t stride, size_t rows, const unsigned char *other,
                     size_t other_size, size_t other_stride, size_t other_rows) {
  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < other_rows; j++)
      if (one + i * stride < other + j * other_stride + other_size && other + j * other_stride < one + i * stride + size)
        return 1;
  return 0;
}

snrt_dma_txid_t snrt_dma_start_2d(void *dst, const void *src, size_t size, size_t dst_stride, size_t src_stride,
                                  size_t repeat) {
  snrt_do_some();
  if (snrt_started - snrt_done == SNRT_IN_FLIGHT) snrt_do_next();
  snrt_transfer it = {dst, src, size, dst_stride, src_stride, repeat};
  if (size && repeat) {
    if (snrt_is_tcdm(it.dst) && !snrt_is_tcdm(it.dst + (repeat - 1) * dst_stride + size - 1)) snrt_fault("it ends outside");
    if (snrt_is_tcdm(it.src) && !snrt_is_tcdm(it.src + (repeat - 1) * src_stride + size - 1)) snrt_fault("it ends outside");
  }
  for (uint32_t id = snrt_done; id != snrt_started; id++) {
    const snrt_transfer *other = &snrt_transfers[id % SNRT_IN_FLIGHT];
    if (snrt_meet(it.dst, size, dst_stride, repeat, other->dst, other->size, other->dst_stride, other->repeat) ||
        snrt_meet(it.dst, size, dst_stride, repeat, other->src, other->size, other->src_stride, other->repeat) ||
        snrt_meet(it.src, size, src_stride, repeat, other->dst, other->size, other->dst_stride, other->repeat))
      snrt_fault("it meets one that is not complete");
  }
  for (size_t row = 0; row < repeat; row++) memset(it.dst + row * dst_stride, SNRT_POISON, size);
  snrt_transfers[snrt_started % SNRT_IN_FLIGHT] = it;
  return snrt_started++;
}

void snrt_dma_wait(snrt_dma_txid_t id) {
  if ((int32_t)(id - snrt_started) >= 0) snrt_fault("a wait for one that was not started");
  while ((int32_t)(id - snrt_done) >= 0) snrt_do_next();
  snrt_do_some();
}

void snrt_dma_wait_all(void) {
  while (snrt_done != snrt_started) snrt_do_next();
}

#endif
