/* SPDX-License-Identifier: Apache-2.0 */
/* embedding, embedding_dw and embedding_blocks: rules. */
#include "base/blocks.h"
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status embedding_infer(ds_infer *call)
{
    const ds_meta table = dsi_op_in(call, 0);
    const ds_meta ids = dsi_op_in(call, 1);
    if (!dsi_dtype_is_float(table.dtype) || table.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "table", "a float tensor (V,C)");
    }
    if (ids.dtype != DS_DTYPE_I32 || ids.shape.n_dims >= DS_MAX_DIMS) {
        return dsi_op_bad(call, 1, "ids", "i32 with at most %d dimensions", DS_MAX_DIMS - 1);
    }
    const ds_meta positions = dsi_op_in(call, 2);
    if (dsi_op_has(call, 2)) {
        if (positions.dtype != table.dtype || positions.shape.n_dims != 2 ||
            positions.shape.dims[1] != table.shape.dims[1]) {
            return dsi_op_bad(call, 2, "position table", "%s[P,%lld]", ds_dtype_name(table.dtype),
                              (long long)table.shape.dims[1]);
        }
        DS_TRY(dsi_op_need(call, 3, "positions", DS_DTYPE_I32, ids.shape));
    } else if (dsi_op_has(call, 3)) {
        return dsi_op_bad(call, 3, "positions", "none without a position table");
    }
    ds_shape shape = ids.shape;
    shape.dims[shape.n_dims++] = table.shape.dims[1];
    call->out[0] = dsi_meta_of(table.dtype, shape);
    return DS_OK;
}

static void embedding_cost(const ds_infer *call, ds_cost *cost_out)
{
    const double moved = (double)ds_meta_bytes(call->out[0]);
    const double n_tables = dsi_op_has(call, 2) ? 2.0 : 1.0;
    cost_out->flops = (n_tables - 1.0) * dsi_op_count(call->out[0]);
    cost_out->bytes = (n_tables + 1.0) * moved + n_tables * (double)ds_meta_bytes(call->in[1]);
}

/* Gradient of table `table` read through the indices at input `ids`. */
static ds_status table_grad(ds_grad *call, uint32_t table, uint32_t ids)
{
    if (!dsi_grad_wants(call, table)) {
        return DS_OK;
    }
    const ds_meta meta = dsi_grad_meta(call, call->in[table]);
    const dsi_embedding_dw_attrs attrs = {.n_rows = meta.shape.dims[0]};
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_embedding_dw, &attrs, call->in[ids], call->d_out[0], &d));
    return dsi_grad_give(call, table, d);
}

static ds_status embedding_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(table_grad(call, 0, 1));
    return table_grad(call, 2, 3);
}

const ds_op dsi_op_embedding = {
    .version = DS_OP_VERSION,
    .name = "embedding",
    .op_class = DS_CLASS_EMBEDDING,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_c * _c *", .out = "*c", .split = "*c"),
    .doc = "table (V,C), ids i32 (..), [position table (P,C), positions i32 (..)] → (..,C): "
           "table[id] + position_table[position]. An id out of range is an error that names it.",
    .n_in_min = 2,
    .n_in_max = 4,
    .n_out = 1,
    .infer = embedding_infer,
    .grad = embedding_grad,
    .cost = embedding_cost,
};

static ds_status embedding_dw_infer(ds_infer *call)
{
    const dsi_embedding_dw_attrs *a = call->attrs;
    const ds_meta ids = dsi_op_in(call, 0);
    if (ids.dtype != DS_DTYPE_I32) {
        return dsi_op_bad(call, 0, "ids", "i32");
    }
    if (a->n_rows < 1) {
        return dsi_op_bad_attr(call, "n_rows is %lld, expected at least 1", (long long)a->n_rows);
    }
    DS_TRY(dsi_op_need_float(call, 1, "dy", 1));
    const ds_meta dy = call->in[1];
    ds_shape want = ids.shape;
    if (want.n_dims < DS_MAX_DIMS) {
        want.dims[want.n_dims++] = ds_shape_last(dy.shape);
    }
    DS_TRY(dsi_op_need(call, 1, "dy", dy.dtype, want));
    call->out[0] =
        dsi_meta_of(dsi_stat_dtype(dy.dtype), ds_shape_2d(a->n_rows, ds_shape_last(dy.shape)));
    return dsi_op_may(call, 2, "dtable_in", call->out[0].dtype, call->out[0].shape);
}

static const ds_attr embedding_dw_attrs[] = {DSI_ATTR_INT(dsi_embedding_dw_attrs, n_rows)};

const ds_op dsi_op_embedding_dw = {
    .version = DS_OP_VERSION,
    .name = "embedding_dw",
    .op_class = DS_CLASS_EMBEDDING_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = "* *c _c", .out = "_c<01+2", .split = "*c", .sums = "*", .linear = "12"),
    .doc =
        "ids i32 (..), dy (..,C), [dtable_in f32 (V,C)] → dtable f32 (V,C): dtable_in, or 0, plus "
        "the rows of dy in token order.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_embedding_dw_attrs),
    .attrs = embedding_dw_attrs,
    .n_attrs = DSI_N(embedding_dw_attrs),
    .infer = embedding_dw_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status embedding_blocks_infer(ds_infer *call)
{
    const dsi_embedding_blocks_attrs *a = call->attrs;
    const ds_meta table = dsi_op_in(call, 0);
    const ds_meta ids = dsi_op_in(call, 1);
    if (!dsi_is_blocks(table.dtype) || table.shape.n_dims != 2 ||
        ds_shape_last(table.shape) % dsi_block_length(table.dtype) != 0) {
        return dsi_op_bad(call, 0, "table", "whole blocks (V,C)");
    }
    if (ids.dtype != DS_DTYPE_I32 || ids.shape.n_dims >= DS_MAX_DIMS) {
        return dsi_op_bad(call, 1, "ids", "i32 with at most %d dimensions", DS_MAX_DIMS - 1);
    }
    if (a->dtype <= 0 || a->dtype >= DS_DTYPE_COUNT || !dsi_dtype_is_float((ds_dtype)a->dtype)) {
        return dsi_op_bad_attr(call, "dtype is %lld, expected a float dtype", (long long)a->dtype);
    }
    ds_shape shape = ids.shape;
    shape.dims[shape.n_dims++] = table.shape.dims[1];
    call->out[0] = dsi_meta_of((ds_dtype)a->dtype, shape);
    return DS_OK;
}

static void embedding_blocks_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 2.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->out[0]);
}

static const ds_attr embedding_blocks_attrs[] = {DSI_ATTR_INT(dsi_embedding_blocks_attrs, dtype)};

const ds_op dsi_op_embedding_blocks = {
    .version = DS_OP_VERSION,
    .name = "embedding_blocks",
    .op_class = DS_CLASS_EMBEDDING,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "__ *", .out = "*_", .split = "*"),
    .doc = "table (V,C) in blocks, ids i32 (..) → (..,C) in dtype: the rows' values, rounded once. "
           "An id out of range is an error that names it.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_embedding_blocks_attrs),
    .attrs = embedding_blocks_attrs,
    .n_attrs = DSI_N(embedding_blocks_attrs),
    .infer = embedding_blocks_infer,
    .cost = embedding_blocks_cost,
};
