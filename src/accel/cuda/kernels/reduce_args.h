/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of reduce.cu. Operands as in op/ops.h, reduce.c and maximum.c. */
#ifndef DSC_REDUCE_ARGS_H
#define DSC_REDUCE_ARGS_H

#include <stdint.h>

/* A tensor as (rows,columns). */
typedef struct dsc_reduce_args {
    const void *x;
    const void *y_saved, *dy; /* of max_last_backward */
    void *y;
    int64_t rows, columns;
    float divisor; /* of the sum over all */
    int32_t x_dtype, y_dtype;
} dsc_reduce_args;

enum { DSC_EXPAND_ONE, DSC_EXPAND_LAST, DSC_EXPAND_ROWS };

/* Element i of y is x's only one, that of i's row or that of its column. */
typedef struct dsc_expand_args {
    const void *x;
    void *y;
    int64_t n, columns;
    int32_t x_dtype, y_dtype, kind;
} dsc_expand_args;

typedef struct dsc_bmm_args {
    const void *a, *b;
    void *y;
    int64_t n_items, rows, columns, n_in;
    int64_t a_size, b_size;                   /* elements an item */
    int64_t a_down, a_right, b_down, b_right; /* elements between neighbours */
    int32_t y_dtype;
} dsc_bmm_args;

#endif
