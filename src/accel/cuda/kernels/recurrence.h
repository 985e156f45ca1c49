/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of causal_conv.cu, decay.cu and delta_rule.cu. Operands as in op/ops.h; absent ones are
 * NULL. */
#ifndef DSC_RECURRENCE_H
#define DSC_RECURRENCE_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

typedef struct dsc_conv_args {
    const void *x, *w, *dy;
    const int32_t *first;
    const int32_t *offset, *last;       /* of a step: of each sample */
    const int32_t *sequence, *position; /* of tokens of several sequences */
    void *y, *cell, *dx;
    float *dw;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_batch, length, channels, k;
    int64_t n_cells; /* rows of the cell */
    int32_t w_dtype, dw_dtype, cell_dtype;
} dsc_conv_args;

typedef struct dsc_decay_args {
    const void *a, *a_log, *dt;
    const float *dg;
    void *g;
    void *da, *da_log, *ddt;
    int64_t rows, heads;
    int32_t rate_dtype, dt_dtype; /* of a_log and dt, and of their gradients */
    int32_t da_log_dtype, ddt_dtype, g_dtype;
} dsc_decay_args;

/* Heads up to this wide; a block has so many columns of one head's state. */
enum { DSC_DELTA_DIM = 256, DSC_DELTA_WARPS = 8, DSC_DELTA_ROWS = 32, DSC_DELTA_CHUNK = 64 };

typedef struct dsc_delta_args {
    const void *q, *k, *v, *beta, *dy;
    const float *g;
    const int32_t *first;
    const int32_t *offset, *last;       /* of a step: of each sample */
    const int32_t *sequence, *position; /* of tokens of several sequences */
    void *y;
    float *states;              /* forward: written, or NULL; backward: read */
    float *cell;                /* of a step, and of tokens of several sequences */
    float *work;                /* backward: what delta_rule.cu says */
    float *dq_parts, *dk_parts; /* (B,H,T,D): what each head of values adds */
    void *dq, *dk, *dv, *dbeta;
    float *dg;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_batch, length, heads, key_heads, key_dim, value_dim;
    int64_t n_chunks, n_cells;
    float scale, eps;
} dsc_delta_args;

#endif
