/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that carry a state. See nn_delta.h. */
#include "nn/nn_delta.h"

#include "nn/nn.h"
#include "op/paged_state.h"

/* Whether what such layers need is built for the trace; else the error names both. */
static bool may_carry(ds_nn *nn)
{
    const ds_trace *t = &nn->trace;
    if (t->sequence_ranks > 1) {
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

/* Rows of what a layer carries. */
static int64_t n_carried(const ds_nn *nn)
{
    const ds_paged *paged = nn->trace.paged;
    if (paged == NULL) {
        return nn->trace.batch;
    }
    return paged->states > 0 ? paged->states : paged->sequences;
}

/* What a layer carries from piece to piece of each sequence. */
static ds_value state_cell(ds_nn *nn, const char *name, ds_meta meta)
{
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, name, path, sizeof path);
    const ds_cell_info info = {.name = path, .kind = DS_CELL_STATE, .meta = meta, .of = DS_NONE};
    return dsi_nn_cell(nn, &info);
}

/* Of each sequence: positions before this piece; the last position of it that counts. Of many in a
 * row: each token's sequence and position. */
static void progress(ds_nn *nn, ds_value *two)
{
    const ds_paged *paged = nn->trace.paged;
    const ds_shape b = ds_shape_1d(nn->trace.batch);
    const int64_t n = nn->trace.seq_length;
    if (paged != NULL) {
        two[0] = ds_nn_input(nn, "sequence", DS_DTYPE_I32, ds_shape_1d(n));
        two[1] = ds_nn_input(nn, "positions", DS_DTYPE_I32, ds_shape_2d(1, n));
        /* which a batch is told, whether or not a layer has keys */
        (void)ds_nn_input(nn, "tables", DS_DTYPE_I32, ds_shape_2d(paged->sequences, paged->table));
        (void)ds_nn_input(nn, "slots", DS_DTYPE_I32, ds_shape_1d(n));
        return;
    }
    two[0] = ds_nn_input(nn, "kv_offset", DS_DTYPE_I32, b);
    two[1] = ds_nn_input(nn, "last", DS_DTYPE_I32, b);
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
                          ds_shape_3d(n_carried(nn), width - 1, ds_shape_last(meta.shape))};
    ds_value in[5] = {x, w, state_cell(nn, name, held)};
    progress(nn, in + 3);
    const ds_op *op =
        nn->trace.paged != NULL ? &dsi_op_paged_causal_conv : &dsi_op_causal_conv_step;
    return ds_nn_apply(nn, op, NULL, in, 5);
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
                           ds_shape_4d(n_carried(nn), p->n_heads, p->key_dim, p->value_dim)};
    in[5] = state_cell(nn, name, state);
    progress(nn, in + 6);
    const ds_op *op = nn->trace.paged != NULL ? &dsi_op_paged_delta_rule : &dsi_op_delta_rule_step;
    return ds_nn_apply(nn, op, &attrs, in, 8);
}
