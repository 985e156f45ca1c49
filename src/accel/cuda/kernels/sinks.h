/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of sinks.cu. Operands as in op/ops.h. */
#ifndef DSC_SINKS_H
#define DSC_SINKS_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

typedef struct dsc_sinks_args {
    const void *y, *sinks;
    const float *lse;
    const void *gradient; /* of the backward pass */
    void *dy;             /* the result; of the backward pass that of y */
    float *dlse, *dsinks;
    int64_t n_batch, n_queries, n_heads, head_dim;
} dsc_sinks_args;

enum { DSC_MOST_RANK = 1024 };

typedef struct dsc_slot_args {
    const void *y, *x, *a, *b;
    const int32_t *slots;
    void *out;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_tokens, n_slots, n_in, n_out, rank;
} dsc_slot_args;

#endif
