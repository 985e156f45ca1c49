/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of prune.cu. Operands as in op/ops.h, prune.c. */
#ifndef DSC_PRUNE_H
#define DSC_PRUNE_H

#include <stdint.h>

/* As op/ops.h has them, which cuda_prune.c compares. */
enum { DSC_TOP_VALUE, DSC_TOP_MAGNITUDE, DSC_TOP_ROW };
enum { DSC_MASK_ELEMENTS, DSC_MASK_ROWS, DSC_MASK_HEADS };
enum {
    DSC_TOP_THREADS = 128,
    DSC_TOP_BLOCKS = 64, /* that count, at most */
    DSC_TOP_BITS = 4,    /* of a key, that are found at a time */
    DSC_TOP_DIGITS = 1 << DSC_TOP_BITS,
    DSC_TOP_RUN = 64 /* elements whose equal ones a thread counts */
};

/* The key of the last one that is kept, as far as it is known, and how many with it are. */
typedef struct dsc_top_state {
    int64_t count;
    uint32_t key, known;
} dsc_top_state;

typedef struct dsc_top_args {
    const void *x;
    void *mask; /* bool, or f32 */
    dsc_top_state *state;
    int64_t *counts; /* (n_blocks, digits) of one step */
    int64_t *equal;  /* of each run those with the last key, then those before it */
    uint32_t *keys;
    int64_t n, n_runs, keep;
    int64_t outs, ins; /* of DSC_TOP_ROW: x (O,I) */
    uint32_t n_blocks, shift;
    int32_t dtype, by, transposed, as_bytes;
} dsc_top_args;

typedef struct dsc_mask_args {
    const void *w, *mask, *dy;
    const float *on;
    void *y; /* w masked, or the gradient of the mask, f32 */
    int64_t n, n_mask;
    int64_t outs, ins, heads; /* of w (O,I) */
    int32_t dtype, mask_dtype, along, transposed;
} dsc_mask_args;

#endif
