/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of block_linear.cu: weights in blocks (base/blocks.h). */
#ifndef DSC_BLOCK_LINEAR_ARGS_H
#define DSC_BLOCK_LINEAR_ARGS_H

#include "accel/cuda/kernels/fault.h"
#include "accel/cuda/kernels/linear.h"

/* A block of threads has 32 columns, which are two panels, and 8 rows; a warp a block of 32 values
 * of each, 8 of them at a time. */
enum { DSC_BLOCK_COLUMNS = 32, DSC_BLOCK_WARPS = 8 };

/* As ds_dtype has them. */
enum { DSC_Q8_0 = 10, DSC_Q4_0, DSC_Q4_1, DSC_Q5_0, DSC_Q5_1, DSC_Q4_K, DSC_Q5_K, DSC_Q6_K };

/* x as bytes: q (rows,n_in); of each block of 32 its scale and the sums of its halves. */
typedef struct dsc_block_linear_args {
    dsc_linear_args linear; /* x: in its dtype, w: panels */
    int8_t *q;
    float *scale;
    int32_t *sums;
    int64_t n_blocks, n_panels, panel_bytes;
} dsc_block_linear_args;

typedef struct dsc_embedding_blocks_args {
    const void *table;
    const int32_t *ids;
    void *y;
    dsc_fault *fault;
    uint64_t call;
    int64_t n, columns, n_rows, panel_bytes;
    int32_t type, y_dtype;
} dsc_embedding_blocks_args;

#endif
