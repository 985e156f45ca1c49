/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention. See latent_attention.h. */
#include "model/latent_attention.h"

#include "nn/nn.h"
#include "op/ops.h"

#include <math.h>

static ds_value project(ds_nn *nn, const ds_latent_params *p, const char *name, ds_value x,
                        int64_t n_out, bool bias)
{
    return ds_nn_linear(nn, name, x,
                        &(ds_linear_params){.n_out = n_out, .bias = bias, .init_std = p->init_std});
}

/* (B,T,H·D) → (B,T,H,D) */
static ds_value by_heads(ds_nn *nn, ds_value x, int64_t n_heads)
{
    const ds_shape flat = ds_nn_meta(nn, x).shape;
    return ds_nn_status(nn) < 0 ? DS_NONE
                                : ds_nn_reshape(nn, x,
                                                ds_shape_4d(flat.dims[0], flat.dims[1], n_heads,
                                                            flat.dims[2] / n_heads));
}

/* (B,T,H,D) → (B,T,H·D) */
static ds_value side_by_side(ds_nn *nn, ds_value x)
{
    const ds_shape heads = ds_nn_meta(nn, x).shape;
    return ds_nn_status(nn) < 0 ? DS_NONE
                                : ds_nn_reshape(nn, x,
                                                ds_shape_3d(heads.dims[0], heads.dims[1],
                                                            heads.dims[2] * heads.dims[3]));
}

static ds_value rotate(ds_nn *nn, const ds_latent_params *p, ds_value x, ds_value table)
{
    return p->pairs ? ds_nn_rope_pairs(nn, x, table, p->rotated)
                    : ds_nn_rope(nn, x, table, p->rotated);
}

/* Heads (B,T,H,D) of zeros behind what they are, to `width`. */
static ds_value widen(ds_nn *nn, ds_value x, int64_t width)
{
    const int64_t own = ds_shape_last(ds_nn_meta(nn, x).shape);
    const dsi_pad_attrs attrs = {.dim = 3, .after = width - own};
    return own == width ? x : ds_nn_apply(nn, &dsi_op_pad, &attrs, &x, 1);
}

/* The key (B,T,R) that all heads share, once a head: (B,T,H,R). */
static ds_value shared_key(ds_nn *nn, const ds_latent_params *p, ds_value key, ds_value like)
{
    const ds_shape one = ds_nn_meta(nn, key).shape;
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_value in[2] = {
        ds_nn_cast(nn, key, DS_DTYPE_F32),
        ds_nn_reshape(nn, like, ds_shape_4d(one.dims[0], one.dims[1], p->rotated, p->n_heads))};
    return ds_nn_transpose(nn, ds_nn_apply(nn, &dsi_op_expand_last, NULL, in, 2), 2, 3);
}

/* Queries (B,T,H,plain + rotated), positions left out. */
static ds_value queries(ds_nn *nn, const ds_latent_params *p, ds_value x)
{
    const int64_t width = p->n_heads * (p->plain + p->rotated);
    if (p->q_rank == 0) {
        return by_heads(nn, project(nn, p, "q_proj", x, width, false), p->n_heads);
    }
    const ds_value narrow = project(nn, p, "q_a_proj", x, p->q_rank, p->bias);
    return by_heads(nn,
                    project(nn, p, "q_b_proj", ds_nn_rms_norm(nn, "q_a_layernorm", narrow, p->eps),
                            width, false),
                    p->n_heads);
}

/* What all ways to attend begin with. */
typedef struct operands {
    ds_value plain;  /* of queries (B,T,H,plain) */
    ds_value turned; /* the rest of them (B,T,H·rotated) */
    ds_value latent; /* what keys and values are made of (B,T,kv_rank) */
    ds_value key;    /* the key that all heads share (B,T,rotated) */
} operands;

/* ---- whole heads ---- */

static ds_value attend_whole(ds_nn *nn, const operands *x, ds_value first,
                             const ds_latent_params *p, int64_t width)
{
    const ds_value q[2] = {x->plain, by_heads(nn, x->turned, p->n_heads)};
    const ds_value kv = by_heads(
        nn, project(nn, p, "kv_b_proj", x->latent, p->n_heads * (p->plain + p->value), false),
        p->n_heads);
    const ds_value k[2] = {ds_nn_slice(nn, kv, 3, 0, p->plain),
                           shared_key(nn, p, x->key, x->turned)};
    const ds_value v = ds_nn_slice(nn, kv, 3, p->plain, p->value);
    const ds_value y =
        ds_nn_attention(nn, side_by_side(nn, widen(nn, ds_nn_concat(nn, q, 2, 3), width)),
                        side_by_side(nn, widen(nn, ds_nn_concat(nn, k, 2, 3), width)),
                        side_by_side(nn, widen(nn, v, width)), first,
                        &(ds_attention_params){.n_heads = p->n_heads,
                                               .n_kv_heads = p->n_heads,
                                               .head_dim = width,
                                               .scale = p->scale,
                                               .dropout = p->dropout});
    return width == p->value
               ? y
               : side_by_side(nn, ds_nn_slice(nn, by_heads(nn, y, p->n_heads), 3, 0, p->value));
}

/* ---- what they are made of ---- */

/* x (B,T,H,D) times each head's matrix, weight (H,D,N) or, turned, (H,N,D): (B,T,H,N). */
static ds_value by_matrices(ds_nn *nn, ds_value x, ds_value weight, bool turned)
{
    const ds_shape s = ds_nn_meta(nn, x).shape;
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_value rows =
        ds_nn_reshape(nn, x, ds_shape_3d(s.dims[0] * s.dims[1], s.dims[2], s.dims[3]));
    const ds_value y =
        ds_nn_transpose(nn, ds_nn_bmm(nn, ds_nn_transpose(nn, rows, 0, 1), weight, turned), 0, 1);
    const int64_t n = ds_shape_last(ds_nn_meta(nn, y).shape);
    return ds_nn_reshape(nn, y, ds_shape_4d(s.dims[0], s.dims[1], s.dims[2], n));
}

/* kv_b_proj's weight, a matrix a head: (H,plain + value,kv_rank). */
static ds_value matrices(ds_nn *nn, const ds_latent_params *p)
{
    const int64_t rows = p->plain + p->value;
    const ds_init init = {.kind = DS_INIT_NORMAL, .std = p->init_std > 0.0 ? p->init_std : 0.02};
    ds_nn_push(nn, "kv_b_proj");
    const ds_value weight =
        ds_nn_param(nn, "weight", ds_shape_2d(p->n_heads * rows, p->kv_rank), init, false);
    ds_nn_pop(nn);
    return ds_nn_reshape(nn, weight, ds_shape_3d(p->n_heads, rows, p->kv_rank));
}

static ds_value attend_latent(ds_nn *nn, const operands *x, ds_value first,
                              const ds_latent_params *p, double scale)
{
    const int64_t rows = p->plain + p->value;
    const int64_t width = p->kv_rank + p->rotated;
    const ds_value weight = matrices(nn, p);
    /* zeros where the matrices have the rows of values: they are read as they lie */
    const ds_value q[2] = {by_matrices(nn, widen(nn, x->plain, rows), weight, false),
                           by_heads(nn, x->turned, p->n_heads)};
    const ds_value k[2] = {x->latent, x->key};
    const ds_value kept = ds_nn_concat(nn, k, 2, 2);
    const ds_value y = ds_nn_attention(
        nn, side_by_side(nn, ds_nn_concat(nn, q, 2, 3)), kept, kept, first,
        &(ds_attention_params){
            .n_heads = p->n_heads, .n_kv_heads = 1, .head_dim = width, .scale = scale});
    const ds_value sums = ds_nn_slice(nn, by_heads(nn, y, p->n_heads), 3, 0, p->kv_rank);
    return side_by_side(
        nn, ds_nn_slice(nn, by_matrices(nn, sums, weight, true), 3, p->plain, p->value));
}

ds_value ds_model_latent_attention(ds_nn *nn, ds_value x, ds_value table, ds_value first,
                                   const ds_latent_params *p)
{
    const ds_trace *trace = ds_nn_trace(nn);
    const int64_t key = p->plain + p->rotated;
    const int64_t width = key > p->value ? key : p->value;
    const ds_value all = queries(nn, p, x);
    const ds_value narrow =
        project(nn, p, "kv_a_proj_with_mqa", x, p->kv_rank + p->rotated, p->bias);
    const operands in = {
        .plain = ds_nn_slice(nn, all, 3, 0, p->plain),
        .turned =
            rotate(nn, p, side_by_side(nn, ds_nn_slice(nn, all, 3, p->plain, p->rotated)), table),
        .key = rotate(nn, p, ds_nn_slice(nn, narrow, -1, p->kv_rank, p->rotated), table),
        .latent = ds_nn_rms_norm(nn, "kv_a_layernorm", ds_nn_slice(nn, narrow, -1, 0, p->kv_rank),
                                 p->eps)};
    return trace->mode == DS_TRACE_GENERATE && trace->whole_heads == 0
               ? attend_latent(nn, &in, first, p,
                               p->scale > 0.0 ? p->scale : 1.0 / sqrt((double)width))
               : attend_whole(nn, &in, first, p, width);
}
