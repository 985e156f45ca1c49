/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of norm.cu. Operands as in op/ops.h, norm.c; absent ones are NULL. */
#ifndef DSC_NORM_H
#define DSC_NORM_H

#include <stdint.h>

typedef struct dsc_norm_args {
    const void *x, *w, *b;
    void *y;
    float *mean, *rstd;
    int64_t rows, columns;
    float eps, shift; /* shift: added to w */
    int32_t w_dtype, b_dtype;
} dsc_norm_args;

typedef struct dsc_norm_backward_args {
    const void *dy, *x, *w, *dres;
    const float *mean, *rstd;
    void *dx;
    float *dw, *db;
    int64_t rows, columns;
    float shift;
    int32_t w_dtype;
} dsc_norm_backward_args;

#endif
