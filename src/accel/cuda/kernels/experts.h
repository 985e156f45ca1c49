/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of experts.cu and grouped_linear.cu. Operands as in op/ops.h, experts.c; absent ones
 * are NULL. */
#ifndef DSC_EXPERTS_H
#define DSC_EXPERTS_H

#include "accel/cuda/kernels/fault.h"
#include "accel/cuda/kernels/linear.h"

typedef struct dsc_rows_args {
    const void *x; /* of spread_rows: tokens; else rows */
    const void *dy;
    const int32_t *place;
    const float *weights;
    void *y;
    float *dweights;
    dsc_fault *fault;
    uint64_t call;
    int64_t tokens, n_choices, columns, n_rows;
} dsc_rows_args;

/* Rows [offsets[s],offsets[s + 1]) are segment s, of expert s % n_experts; those behind the last
 * become zeros. Of `linear`: x, w, y, the sizes of one expert, rows: all of them. */
typedef struct dsc_grouped_args {
    dsc_linear_args linear;
    const int32_t *offsets;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_segments, n_experts;
} dsc_grouped_args;

/* Segment of source s and expert e: s·n_experts + e. */
typedef struct dsc_grouped_dw_args {
    dsc_linear_dw_args linear; /* dw_in, dw: of all experts */
    const int32_t *offsets;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_sources, n_experts;
} dsc_grouped_dw_args;

/* Rows whose sum is made at once, before it is added to that of the rows before. */
enum { DSC_GROUPED_SUM = 4096 };

#endif
