/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of paged_write.cu, paged_attention.cu and paged_mma.cu. Operands as in op/ops.h,
 * paged.c; cells as in op/paged_cell.h; absent ones are NULL. */
#ifndef DSC_PAGED_H
#define DSC_PAGED_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

/* Widest head that the plain kernel takes, a warp a token and head. */
enum { DSC_MOST_PAGED_HEAD_DIM = 512, DSC_PAGED_WARPS = 4 };

typedef struct dsc_paged_write_args {
    const void *x;
    void *cell;
    const int32_t *slots;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_tokens, columns, n_slots; /* columns of x */
    int64_t head_dim;                   /* of a cell in codes */
    int32_t x_dtype, cell_dtype;
} dsc_paged_write_args;

typedef struct dsc_paged_args {
    const void *q, *k, *v;
    const int32_t *tables, *sequence, *positions;
    const int32_t *heads; /* the first one's number among all */
    const float *biases;  /* [head][n_distances], the nearest last */
    void *y;
    float *lse;
    dsc_fault *fault;
    uint64_t call;
    int64_t n_tokens, n_sequences, n_table, block, n_blocks;
    int64_t n_heads, n_kv_heads, head_dim, all_heads, window, n_distances;
    int64_t kv_stride, kv_head; /* elements of a position, of a head, in the cells */
    int32_t kv_dtype, alibi_rounded, copies;
    float scale, cap;
    double alibi;
} dsc_paged_args;

enum { DSC_PAGED_CODES = 5 }; /* kv_dtype: i8, as ds_dtype has it */

#endif
