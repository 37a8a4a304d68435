/*
 * What programs for the cluster are written with: transfers of the runtime of Snitch, and kernels that all cores work on.
 *
 * With PENSTOCK_MODEL defined, exactly one file of a program includes "snrt_model.h"; else the runtime is linked.
 */
#ifndef PENSTOCK_CLUSTER_H
#define PENSTOCK_CLUSTER_H

#include <stddef.h>
#include <stdint.h>

#define CLUSTER_TCDM_BYTES 131072

#ifdef PENSTOCK_MODEL

typedef uint32_t snrt_dma_txid_t;

/* Start to copy `repeat` rows of `size` bytes; the number of the transfer. */
snrt_dma_txid_t snrt_dma_start_2d(void *dst, const void *src, size_t size, size_t dst_stride, size_t src_stride,
                                  size_t repeat);
/* Wait until this transfer, and so all before it, is complete. */
void snrt_dma_wait(snrt_dma_txid_t id);
void snrt_dma_wait_all(void);
void cluster_begin(void);

extern unsigned char cluster_tcdm[CLUSTER_TCDM_BYTES];

#else

#include "snrt.h"
static inline void cluster_begin(void) {}
#define cluster_tcdm ((unsigned char *)snrt_l1_next())

#endif

#include "kernels.h"

#endif
