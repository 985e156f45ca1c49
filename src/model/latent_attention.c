/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention. See latent_attention.h. */
#include "model/latent_attention.h"

#include "nn/nn.h"
#include "op/ops.h"

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

ds_value ds_model_latent_attention(ds_nn *nn, ds_value x, ds_value table, ds_value first,
                                   const ds_latent_params *p)
{
    const int64_t key = p->plain + p->rotated;
    const int64_t width = key > p->value ? key : p->value;
    const ds_value all = queries(nn, p, x);
    const ds_value turned =
        rotate(nn, p, side_by_side(nn, ds_nn_slice(nn, all, 3, p->plain, p->rotated)), table);
    const ds_value q[2] = {ds_nn_slice(nn, all, 3, 0, p->plain), by_heads(nn, turned, p->n_heads)};
    const ds_value narrow =
        project(nn, p, "kv_a_proj_with_mqa", x, p->kv_rank + p->rotated, p->bias);
    const ds_value one = rotate(nn, p, ds_nn_slice(nn, narrow, -1, p->kv_rank, p->rotated), table);
    const ds_value latent =
        ds_nn_rms_norm(nn, "kv_a_layernorm", ds_nn_slice(nn, narrow, -1, 0, p->kv_rank), p->eps);
    const ds_value kv =
        by_heads(nn, project(nn, p, "kv_b_proj", latent, p->n_heads * (p->plain + p->value), false),
                 p->n_heads);
    const ds_value k[2] = {ds_nn_slice(nn, kv, 3, 0, p->plain), shared_key(nn, p, one, turned)};
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
