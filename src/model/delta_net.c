/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention by the gated delta rule. See delta_net.h. */
#include "model/delta_net.h"

#include "nn/nn_delta.h"
#include "op/ops.h"

#include <math.h>

static const double UNIT_EPS = 1e-6; /* of the lengths of q and k, whatever the norm's is */
static const double MOST_DECAY = 16.0;

/* x projected to what each head of keys needs of several things, widths[i] numbers of the i-th, and
 * these apart: parts_out[i] is (B,T,HK·widths[i]). */
static void project(ds_nn *nn, const ds_delta_net_params *p, const char *name, ds_value x,
                    const int64_t *widths, uint32_t n, ds_value *parts_out)
{
    int64_t each = 0;
    for (uint32_t i = 0; i < n; ++i) {
        each += widths[i];
        parts_out[i] = DS_NONE;
    }
    const ds_value all = ds_nn_linear(
        nn, name, x, &(ds_linear_params){.n_out = p->n_key_heads * each, .init_std = p->init_std});
    if (ds_nn_status(nn) < 0) {
        return;
    }
    const ds_shape s = ds_nn_meta(nn, all).shape;
    const ds_value groups =
        ds_nn_reshape(nn, all, ds_shape_4d(s.dims[0], s.dims[1], p->n_key_heads, each));
    int64_t at = 0;
    for (uint32_t i = 0; i < n; at += widths[i++]) {
        parts_out[i] = ds_nn_reshape(nn, ds_nn_slice(nn, groups, -1, at, widths[i]),
                                     ds_shape_3d(s.dims[0], s.dims[1], p->n_key_heads * widths[i]));
    }
}

/* q, k and v each through its channels of the convolution. */
static void convolve(ds_nn *nn, const ds_delta_net_params *p, ds_value first, ds_value *qkv)
{
    static const char *const cells[3] = {"q", "k", "v"};
    const int64_t keys = p->n_key_heads * p->key_dim;
    const int64_t widths[3] = {keys, keys, p->n_heads * p->value_dim};
    ds_nn_push(nn, "conv1d");
    const ds_value w = ds_nn_param(nn, "weight", ds_shape_3d(2 * keys + widths[2], 1, p->kernel),
                                   (ds_init){.kind = DS_INIT_NORMAL, .std = p->init_std}, false);
    int64_t at = 0;
    for (int i = 0; i < 3; at += widths[i++]) {
        const ds_value own = ds_nn_slice(nn, w, 0, at, widths[i]);
        qkv[i] = ds_nn_activation(nn, dsi_nn_causal_conv(nn, cells[i], qkv[i], own, first),
                                  p->activation);
    }
    ds_nn_pop(nn);
}

/* f32 (B,T,H) */
static ds_value decay(ds_nn *nn, const ds_delta_net_params *p, ds_value a)
{
    const ds_shape heads = ds_shape_1d(p->n_heads);
    const ds_value in[3] = {
        a,
        ds_nn_param(nn, "A_log", heads, (ds_init){.kind = DS_INIT_LOG_UNIFORM, .std = MOST_DECAY},
                    true),
        ds_nn_param(nn, "dt_bias", heads, (ds_init){.kind = DS_INIT_ONES}, true)};
    return ds_nn_apply(nn, &dsi_op_decay, NULL, in, 3);
}

/* The norm of each head of y, times silu(z). */
static ds_value gated_norm(ds_nn *nn, const ds_delta_net_params *p, ds_value y, ds_value z)
{
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_shape flat = ds_nn_meta(nn, y).shape;
    const ds_shape heads = ds_shape_4d(flat.dims[0], flat.dims[1], p->n_heads, p->value_dim);
    const ds_value normed = ds_nn_rms_norm(nn, "norm", ds_nn_reshape(nn, y, heads), p->eps);
    return ds_nn_glu(nn, z, ds_nn_reshape(nn, normed, flat), DS_ACT_SILU);
}

ds_value ds_model_delta_net(ds_nn *nn, ds_value x, ds_value first, const ds_delta_net_params *p)
{
    const int64_t share = p->n_heads / p->n_key_heads;
    const int64_t values = share * p->value_dim;
    ds_value qkvz[4];
    ds_value ba[2];
    project(nn, p, "in_proj_qkvz", x, (const int64_t[]){p->key_dim, p->key_dim, values, values}, 4,
            qkvz);
    project(nn, p, "in_proj_ba", x, (const int64_t[]){share, share}, 2, ba);
    convolve(nn, p, first, qkvz);
    const ds_value y =
        dsi_nn_delta_rule(nn, "state", qkvz, decay(nn, p, ba[1]), ds_nn_sigmoid(nn, ba[0]), first,
                          &(dsi_delta_params){.n_heads = p->n_heads,
                                              .n_key_heads = p->n_key_heads,
                                              .key_dim = p->key_dim,
                                              .value_dim = p->value_dim,
                                              .scale = 1.0 / sqrt((double)p->key_dim),
                                              .eps = UNIT_EPS});
    return gated_norm(nn, p, y, qkvz[3]);
}
