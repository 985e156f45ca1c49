/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that carry a state. See nn_delta.h. */
#include "nn/nn_delta.h"

#include "nn/nn.h"

/* Whether what such layers need is built for the trace; else the error names both. */
static bool may_carry(ds_nn *nn)
{
    const ds_trace *t = &nn->trace;
    if (t->paged != NULL) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the model has layers of linear attention, whose state goes on from token to "
                   "token; many sequences in a batch, as ds_serve runs them, are not built with "
                   "them: use ds_generate");
    } else if (t->sequence_ranks > 1) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the model has layers of linear attention, whose state goes on from position to "
                   "position; sequence_parallel_size %lld is not built with them: set it to 1",
                   (long long)t->sequence_ranks);
    } else if (t->sequence_chunk > 0) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the model has layers of linear attention; sequences in chunks are not built "
                   "with them: leave \"sequence_parallel.chunk_size\" out");
    }
    return ds_nn_status(nn) >= 0;
}

/* What a layer carries from piece to piece of each sequence. */
static ds_value state_cell(ds_nn *nn, const char *name, ds_meta meta)
{
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, name, path, sizeof path);
    const ds_cell_info info = {.name = path, .kind = DS_CELL_KV, .meta = meta, .of = DS_NONE};
    return dsi_nn_cell(nn, &info);
}

/* Of each sequence: positions before this piece; the last position of it that counts. */
static void progress(ds_nn *nn, ds_value *offset_and_last)
{
    const ds_shape b = ds_shape_1d(nn->trace.batch);
    offset_and_last[0] = ds_nn_input(nn, "kv_offset", DS_DTYPE_I32, b);
    offset_and_last[1] = ds_nn_input(nn, "last", DS_DTYPE_I32, b);
}

ds_value dsi_nn_causal_conv(ds_nn *nn, const char *name, ds_value x, ds_value w, ds_value first)
{
    const ds_meta meta = ds_nn_meta(nn, x);
    const int64_t width = ds_shape_last(ds_nn_meta(nn, w).shape);
    if (!may_carry(nn)) {
        return DS_NONE;
    }
    if (nn->trace.mode != DS_TRACE_GENERATE || width < 2) {
        const ds_value in[3] = {x, w, first};
        return ds_nn_apply(nn, &dsi_op_causal_conv, NULL, in, first != DS_NONE ? 3 : 2);
    }
    const ds_meta held = {meta.dtype,
                          ds_shape_3d(nn->trace.batch, width - 1, ds_shape_last(meta.shape))};
    ds_value in[5] = {x, w, state_cell(nn, name, held)};
    progress(nn, in + 3);
    return ds_nn_apply(nn, &dsi_op_causal_conv_step, NULL, in, 5);
}

ds_value dsi_nn_delta_rule(ds_nn *nn, const char *name, const ds_value *qkv, ds_value g,
                           ds_value beta, ds_value first, const dsi_delta_params *p)
{
    const dsi_delta_attrs attrs = {.n_heads = p->n_heads,
                                   .n_key_heads = p->n_key_heads,
                                   .key_dim = p->key_dim,
                                   .scale = p->scale,
                                   .eps = p->eps};
    ds_value in[8] = {qkv[0], qkv[1], qkv[2], g, beta, first};
    if (!may_carry(nn)) {
        return DS_NONE;
    }
    if (nn->trace.mode != DS_TRACE_GENERATE) {
        return ds_nn_apply(nn, &dsi_op_delta_rule, &attrs, in, first != DS_NONE ? 6 : 5);
    }
    const ds_meta state = {DS_DTYPE_F32,
                           ds_shape_4d(nn->trace.batch, p->n_heads, p->key_dim, p->value_dim)};
    in[5] = state_cell(nn, name, state);
    progress(nn, in + 6);
    return ds_nn_apply(nn, &dsi_op_delta_rule_step, &attrs, in, 8);
}
