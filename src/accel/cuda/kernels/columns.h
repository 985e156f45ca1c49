/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of columns.cu. Operands as in op/ops.h, columns.c. */
#ifndef DSC_COLUMNS_H
#define DSC_COLUMNS_H

#include <stdint.h>

enum { DSC_LIST_THREADS = 256 };

typedef struct dsc_columns_args {
    const void *x; /* whole, or a rank's slice of n_slice elements */
    void *out;
    const float *top, *more, *factor, *cell;
    const int32_t *rank, *index;
    int32_t *index_out;
    const double *sums, *weights; /* sums: (n_ranks,columns) */
    double *totals;               /* (columns) */
    unsigned char *chosen;        /* (columns) */
    int64_t rows, columns, n_slice, k, n_ranks, n;
    int32_t x_dtype, out_dtype;
} dsc_columns_args;

#endif
