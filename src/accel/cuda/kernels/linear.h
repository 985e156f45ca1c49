/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of linear.cu. Operands as in op/ops.h, linear.c; absent ones are NULL. */
#ifndef DSC_LINEAR_H
#define DSC_LINEAR_H

#include <stdint.h>

typedef struct dsc_linear_args {
    const void *x, *w, *bias, *residual;
    void *y, *pre;
    int64_t rows, n_in, n_out;
    int32_t transposed, activation;
    int32_t bias_dtype, y_dtype; /* pre and residual have y's */
    int32_t copies;              /* rows of x, and of w, begin at multiples of 16 bytes */
} dsc_linear_args;

typedef struct dsc_linear_dw_args {
    const void *x, *dy;
    const float *dw_in, *dbias_in; /* or NULL */
    void *dw, *dbias;
    int64_t rows, n_in, n_out;
    int32_t transposed, dw_dtype;
} dsc_linear_dw_args;

/* Tiles of y that a block makes, and its threads. */
enum { DSC_PLAIN_TILE = 16, DSC_MMA_TILE = 64, DSC_MMA_THREADS = 128 };

typedef float plain_tile[DSC_PLAIN_TILE][DSC_PLAIN_TILE + 1]; /* in shared memory */

#endif
