/* The memory of the core on a host: what nothing has written is no zero. */
#ifndef PENSTOCK_NN_HOST_H
#define PENSTOCK_NN_HOST_H

#include "nn_s8.h"

_Alignas(8) unsigned char nn_dtcm[NN_DTCM_BYTES];

void nn_begin(void) { memset(nn_dtcm, 0xa5, sizeof nn_dtcm); }

#endif
