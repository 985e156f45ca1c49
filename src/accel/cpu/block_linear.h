/* SPDX-License-Identifier: Apache-2.0 */
/* linear with a weight in blocks: the one arithmetic of every kernel, whatever the number of rows.
 *
 * A block of 32 values of x is rounded to bytes: scale dx = amax/127, q = x·(127/amax) to the
 * nearest even, zeros where amax is below 2^-119; a block with a value that is not finite has a
 * scale of NaN. The sum of a block's 32 products is a whole number and exact. Blocks are added in
 * order: y = fma(dw·dx, sum, y), from 0, in fp32, of Q6_K a half of each after the other; where the
 * weight's blocks have a minimum, y = fma(mw·dx, sum of q, y) next. dw and mw of K types are exact
 * products in fp32. Then bias, activation, residual and one rounding, as ref_linear.c.
 */
#ifndef DSI_ACCEL_CPU_BLOCK_LINEAR_H
#define DSI_ACCEL_CPU_BLOCK_LINEAR_H

#include "accel/cpu/ref/ref_act.h"
#include "base/blocks.h"

typedef struct block_shape {
    ds_dtype type; /* of the weight */
    int64_t m, n, k, n_blocks, n_panels;
} block_shape;

static inline block_shape block_shape_of(const ds_kernel_sig *sig)
{
    const int64_t k = ds_shape_last(sig->in[0].shape);
    const int64_t n = ds_shape_last(sig->out[0].shape);
    return (block_shape){.type = sig->in[1].dtype,
                         .m = ds_shape_rows(sig->in[0].shape),
                         .n = n,
                         .k = k,
                         .n_blocks = k / DSI_BLOCK,
                         .n_panels = (n + DSI_BLOCK_ROWS - 1) / DSI_BLOCK_ROWS};
}

enum { BLOCK_GROUP = 8 };

/* Below it 127/amax is not finite: such a block is zeros. */
#define BLOCK_LEAST 0x1p-119f

/* x as bytes, in a workspace: groups of BLOCK_GROUP rows, the last one of the rest, each block by
 * block, so that what a kernel reads of a group lies in one line. */
typedef struct block_x {
    int8_t *q;        /* [group][n_blocks][rows of the group][DSI_BLOCK] */
    float *scale;     /* [group][n_blocks][rows of the group] */
    int32_t *correct; /* likewise, [parts] of each: what unsigned weights add too much, negative;
                       * of types with a minimum the sum of q */
} block_x;

/* Rows of the group of `row`. */
static inline int64_t block_group_rows(const block_shape *s, int64_t row)
{
    const int64_t rest = s->m - row / BLOCK_GROUP * BLOCK_GROUP;
    return rest < BLOCK_GROUP ? rest : BLOCK_GROUP;
}

/* Where block b of a row is, in blocks. */
static inline int64_t block_x_index(const block_shape *s, int64_t row, int64_t b)
{
    const int64_t in_group = row % BLOCK_GROUP;
    return (row - in_group) * s->n_blocks + b * block_group_rows(s, row) + in_group;
}

static inline int32_t block_correction(ds_dtype type, int32_t sum)
{
    return dsi_block_has_minimum(type) ? sum : -sum * dsi_block_offset(type);
}

static inline size_t block_round(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline size_t block_x_bytes(const block_shape *s)
{
    const size_t n = (size_t)(s->m * s->n_blocks);
    return block_round((size_t)(s->m * s->k)) + block_round(n * sizeof(float)) +
           block_round(n * (size_t)dsi_block_parts(s->type) * sizeof(int32_t));
}

static inline block_x block_x_at(const block_shape *s, void *base)
{
    char *scale = (char *)base + block_round((size_t)(s->m * s->k));
    char *correct = scale + block_round((size_t)(s->m * s->n_blocks) * sizeof(float));
    return (block_x){base, (float *)(void *)scale, (int32_t *)(void *)correct};
}

static inline bool block_linear_supports(const ds_kernel_sig *sig)
{
    return dsi_is_blocks(sig->in[1].dtype) && sig->in[0].dtype != DS_DTYPE_F64 &&
           (sig->n_out < 2 || sig->out[1].dtype == DS_DTYPE_NONE);
}

/* Everything after the sum of element `at`, in column o. */
static inline void block_linear_finish(const ds_kernel_call *call, int64_t at, int64_t o, float sum)
{
    const dsi_linear_attrs *a = call->sig->attrs;
    if (ref_has(call, 2)) {
        sum = sum + ref_get(&call->in[2], o);
    }
    sum = ref_act(a->activation, sum);
    if (ref_has(call, 3)) {
        sum = sum + ref_get(&call->in[3], at);
    }
    ref_set(&call->out[0], at, sum);
}

#endif
