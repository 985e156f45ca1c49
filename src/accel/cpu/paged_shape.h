/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of paged_attention share: the check of its integers, and where a key lies. */
#ifndef DSI_ACCEL_CPU_PAGED_SHAPE_H
#define DSI_ACCEL_CPU_PAGED_SHAPE_H

#include "op/alibi.h"
#include "op/ops.h"
#include "op/paged_cell.h"

#include <string.h>

typedef struct paged_shape {
    const dsi_paged_attrs *a;
    int64_t n_tokens, n_blocks, block, n_sequences, n_table; /* T, N, P, S, M */
    int64_t d, group, q_stride, kv_stride;                   /* elements a token */
    int64_t kv_head;                                         /* elements of a head in the cells */
    ds_dtype kv_type;
    int64_t n_distances; /* that have a bias of their own; 0: none has */
    bool bends;          /* scores are capped or biased before the softmax */
} paged_shape;

static inline paged_shape paged_shape_of(const ds_kernel_sig *sig)
{
    const dsi_paged_attrs *a = sig->attrs;
    const ds_dtype kv_type = sig->in[1].dtype;
    const bool has_bias = sig->n_in > 7 && sig->in[7].dtype != DS_DTYPE_NONE;
    return (paged_shape){.a = a,
                         .n_tokens = sig->in[0].shape.dims[1],
                         .n_blocks = sig->in[1].shape.dims[0],
                         .block = sig->in[1].shape.dims[1],
                         .n_sequences = sig->in[3].shape.dims[0],
                         .n_table = sig->in[3].shape.dims[1],
                         .d = a->head_dim,
                         .group = a->n_heads / a->n_kv_heads,
                         .q_stride = a->n_heads * a->head_dim,
                         .kv_stride = sig->in[1].shape.dims[2],
                         .kv_head = dsi_paged_head(kv_type, a->head_dim),
                         .kv_type = kv_type,
                         .n_distances = has_bias ? sig->in[7].shape.dims[3] : 0,
                         .bends = a->cap > 0.0 || a->alibi > 0.0 || has_bias};
}

/* The integers of a call. */
typedef struct paged_data {
    const int32_t *tables, *sequence, *positions;
    const float *bias;        /* [head][n_distances], the nearest last; NULL: none */
    int64_t head0, all_heads; /* the first head's number among all, and how many those are */
} paged_data;

static inline paged_data paged_data_of(const ds_kernel_call *call)
{
    const dsi_paged_attrs *a = call->sig->attrs;
    const bool has_heads = call->sig->n_in > 6 && call->in[6].meta.dtype != DS_DTYPE_NONE;
    const bool has_bias = call->sig->n_in > 7 && call->in[7].meta.dtype != DS_DTYPE_NONE;
    return (paged_data){.bias = has_bias ? call->in[7].data : NULL,
                        .tables = call->in[3].data,
                        .sequence = call->in[4].data,
                        .positions = call->in[5].data,
                        .head0 = has_heads ? ((const int32_t *)call->in[6].data)[0] : 0,
                        .all_heads = has_heads ? a->all_heads : a->n_heads};
}

/* What head h subtracts from a score for each position between query and key. */
static inline double paged_slope(const paged_shape *s, const paged_data *x, int64_t h)
{
    return s->a->alibi > 0.0 ? dsi_alibi_slope(s->a->alibi, x->all_heads, x->head0 + h) : 0.0;
}

/* Where the bias of a distance is among a head's. */
static inline int64_t paged_bias_at(const paged_shape *s, int64_t distance)
{
    return distance < s->n_distances ? s->n_distances - 1 - distance : 0;
}

/* The scale of a head of an i8 cell, whose codes these are. */
static inline float paged_scale(const int8_t *codes, int64_t d)
{
    float scale;
    memcpy(&scale, codes + d, sizeof scale);
    return scale;
}

/* First key that a query at the position sees. */
static inline int64_t paged_first(const paged_shape *s, int64_t position)
{
    const int64_t window = s->a->window;
    return window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
}

/* Token t's position, its sequence and the blocks that it reads are in range. */
static inline ds_status paged_check_token(const ds_kernel_call *call, const paged_shape *s,
                                          const paged_data *x, int64_t t)
{
    const int64_t position = x->positions[t];
    if (x->sequence[t] >= s->n_sequences || position < 0 || position >= s->n_table * s->block) {
        return ds_fail(call->ctx, DS_ERR_ARG,
                       "paged_attention: token %lld is position %lld of sequence %d, but there are "
                       "%lld sequences of %lld positions",
                       (long long)t, (long long)position, x->sequence[t], (long long)s->n_sequences,
                       (long long)(s->n_table * s->block));
    }
    const int32_t *table = x->tables + x->sequence[t] * s->n_table;
    for (int64_t i = paged_first(s, position) / s->block; i <= position / s->block; ++i) {
        if (table[i] < 0 || table[i] >= s->n_blocks) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "paged_attention: block %lld of sequence %d is %d, but there are %lld",
                           (long long)i, x->sequence[t], table[i], (long long)s->n_blocks);
        }
    }
    return DS_OK;
}

static inline ds_status paged_check(const ds_kernel_call *call, const paged_shape *s,
                                    const paged_data *x)
{
    for (int64_t t = 0; t < s->n_tokens; ++t) {
        if (x->sequence[t] >= 0) {
            DS_TRY(paged_check_token(call, s, x, t));
        }
    }
    return DS_OK;
}

#endif
