/* SPDX-License-Identifier: Apache-2.0 */
/* Keys and values of many sequences in blocks, for layers that call paged_write and
 * paged_attention by themselves: those whose scores have a bias of a table, and those that see a
 * source. Of ds_nn_attention, attention_paged (nn_layers.c) makes both. */
#include "base/reserved.h"
#include "nn/nn.h"
#include "op/paged_cell.h"

#include <math.h>

static bool is_paged(ds_nn *nn, const char *call)
{
    if (ds_nn_status(nn) >= 0 && (nn->trace.mode != DS_TRACE_GENERATE || nn->trace.paged == NULL)) {
        ds_nn_fail(nn, DS_ERR_STATE, "%s: this trace has no sequences in blocks (ds_trace.paged)",
                   call);
    }
    return ds_nn_status(nn) >= 0;
}

ds_value ds_nn_paged_write(ds_nn *nn, const char *name, ds_value x, int64_t head_dim)
{
    if (!is_paged(nn, "ds_nn_paged_write")) {
        return DS_NONE;
    }
    if (head_dim < 1 || ds_shape_last(ds_nn_meta(nn, x).shape) % head_dim != 0) {
        ds_nn_fail(nn, DS_ERR_ARG, "ds_nn_paged_write: heads of %lld do not make up x",
                   (long long)head_dim);
        return DS_NONE;
    }
    const ds_paged *paged = nn->trace.paged;
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, name, path, sizeof path);
    const ds_meta meta = ds_nn_meta(nn, x);
    const ds_dtype type = paged->kv_type != DS_DTYPE_NONE ? paged->kv_type : meta.dtype;
    const int64_t width = ds_shape_last(meta.shape) / head_dim * dsi_paged_head(type, head_dim);
    const dsi_paged_write_attrs attrs = {.head_dim = type == DS_DTYPE_I8 ? head_dim : 0};
    const ds_cell_info info = {.name = path,
                               .kind = DS_CELL_KV,
                               .meta = {type, ds_shape_3d(paged->blocks, paged->block, width)},
                               .of = DS_NONE};
    const ds_value slots =
        ds_nn_input(nn, "slots", DS_DTYPE_I32, ds_shape_1d(nn->trace.seq_length));
    const ds_value in[3] = {dsi_nn_cell(nn, &info), x, slots};
    return ds_nn_apply(nn, &dsi_op_paged_write, &attrs, in, 3);
}

/* What is not passed on is refused. */
static bool is_built(ds_nn *nn, const ds_attention_params *p)
{
    if (p->window != 0 || p->dropout != 0.0 || p->cap != 0.0 || p->alibi != 0.0 ||
        p->sinks != NULL || p->all_keys) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "ds_nn_paged_attention: window, dropout, cap, alibi, sinks and all_keys are not "
                   "built with it; see ds_nn_attention");
    }
    return ds_nn_status(nn) >= 0;
}

ds_value ds_nn_paged_attention(ds_nn *nn, ds_value q, ds_value keys, ds_value values, ds_value bias,
                               bool of_source, const ds_attention_params *params)
{
    if (!is_paged(nn, "ds_nn_paged_attention") ||
        !dsi_nn_ok(nn,
                   DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_attention_params", params)) ||
        !is_built(nn, params)) {
        return DS_NONE;
    }
    const ds_paged *paged = nn->trace.paged;
    const int64_t n = nn->trace.seq_length;
    const dsi_paged_attrs attrs = {
        .n_heads = params->n_heads,
        .n_kv_heads = params->n_kv_heads,
        .head_dim = params->head_dim,
        .scale = params->scale > 0.0 ? params->scale : 1.0 / sqrt((double)params->head_dim)};
    ds_value made[DS_MAX_OUT];
    const ds_value in[8] = {
        q,
        keys,
        values,
        ds_nn_input(nn, of_source ? "source_tables" : "tables", DS_DTYPE_I32,
                    ds_shape_2d(paged->sequences, paged->table)),
        ds_nn_input(nn, "sequence", DS_DTYPE_I32, ds_shape_1d(n)),
        ds_nn_input(nn, of_source ? "source_last" : "positions", DS_DTYPE_I32, ds_shape_2d(1, n)),
        DS_NONE,
        bias};
    dsi_nn_apply_all(nn, &dsi_op_paged_attention, &attrs, in, bias != DS_NONE ? 8 : 6, made);
    return ds_nn_status(nn) >= 0 ? made[0] : DS_NONE;
}

/* One number, i32: the last of the first n. */
static ds_value number(ds_nn *nn, int64_t n)
{
    const dsi_row_numbers_attrs rows = {.n_rows = n};
    const dsi_slice_attrs last = {.dim = 0, .start = n - 1, .length = 1};
    const ds_value all = ds_nn_apply(nn, &dsi_op_row_numbers, &rows, NULL, 0);
    return ds_nn_apply(nn, &dsi_op_slice, &last, &all, 1);
}

/* One query of relative_bias, at the last of as many positions as have biases of their own. */
ds_value ds_nn_distance_bias(ds_nn *nn, const char *name, const ds_relative_params *params)
{
    if (!is_paged(nn, "ds_nn_distance_bias") ||
        !dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_relative_params", params))) {
        return DS_NONE;
    }
    const int64_t positions = nn->trace.kv_length;
    const int64_t n = params->max_distance < positions ? params->max_distance + 1 : positions;
    const dsi_relative_attrs attrs = {
        .n_buckets = params->n_buckets, .max_distance = params->max_distance, .n_keys = n};
    const ds_init init = {DS_INIT_NORMAL, params->init_std > 0.0 ? params->init_std : 0.02};
    ds_nn_push(nn, "%s", name);
    const ds_value table =
        ds_nn_param(nn, "weight", ds_shape_2d(params->n_buckets, params->n_heads), init, false);
    ds_nn_pop(nn);
    const ds_value in[4] = {table, ds_nn_reshape(nn, number(nn, 1), ds_shape_2d(1, 1)), DS_NONE,
                            number(nn, n)};
    const ds_value bias = ds_nn_apply(nn, &dsi_op_relative_bias, &attrs, in, 4);
    return ds_nn_cast(nn, bias, DS_DTYPE_F32);
}
