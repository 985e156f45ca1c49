/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of gradnorm.cu. Operands as in op/ops.h, gradnorm.c. */
#ifndef DSC_GRADNORM_H
#define DSC_GRADNORM_H

#include "accel/cuda/kernels/bin_layout.h"

#include <stdint.h>

enum { DSC_GRID_RUN = 1 << 19 /* of base/exact_sum.h */, DSC_MOST_PARTS = 16 };

typedef struct dsc_squares_args {
    const void *x;
    const float *top; /* largest magnitude of all; NULL: not known */
    double *parts;    /* (blocks, DSC_WIDE); with top (blocks, 2) */
    double *sum;      /* DSC_WIDE; with top 2 */
    int64_t n, n_parts;
    int32_t x_dtype;
} dsc_squares_args;

typedef struct dsc_parts_args {
    const double *in[DSC_MOST_PARTS];
    int64_t n[DSC_MOST_PARTS]; /* numbers of each */
    double *out;
    int64_t n_in, length;
} dsc_parts_args;

typedef struct dsc_largest_args {
    const void *in[DSC_MOST_PARTS]; /* of abs_max: one */
    float *out;
    int64_t n_in, n;
    int32_t x_dtype;
} dsc_largest_args;

typedef struct dsc_clip_args {
    const double *sum; /* DSC_WIDE; with top 2 */
    const float *top;  /* or NULL */
    const float *inverse_scale;
    float *norm, *factor;
    double max_norm;
} dsc_clip_args;

#endif
