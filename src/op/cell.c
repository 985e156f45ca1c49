/* SPDX-License-Identifier: Apache-2.0 */
/* store, accumulate, kv_write: rules of the nodes that write cells. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status store_infer(ds_infer *call)
{
    const ds_meta cell = dsi_op_in(call, 0);
    const ds_meta x = dsi_op_in(call, 1);
    const bool floats = dsi_dtype_is_float(cell.dtype) && dsi_dtype_is_float(x.dtype);
    if (!dsi_op_has(call, 1) || (!floats && x.dtype != cell.dtype) ||
        !ds_shape_equal(x.shape, cell.shape)) {
        char text[96];
        return dsi_op_bad(call, 1, "x", "what the cell holds: %s",
                          ds_meta_text(cell, text, sizeof text));
    }
    call->out[0] = cell;
    return DS_OK;
}

static const int8_t writes_first[] = {0};

const ds_op dsi_op_store = {
    .version = DS_OP_VERSION,
    .name = "store",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_STORE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* *", .out = "*", .split = "*", .linear = "01",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
    .doc = "cell, x of its shape → the cell's next version: x cast to the cell's dtype.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .writes = writes_first,
    .infer = store_infer,
};

static ds_status accumulate_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "cell", 0));
    DS_TRY(dsi_op_need_float(call, 1, "x", 0));
    const ds_meta cell = call->in[0];
    DS_TRY(dsi_op_need(call, 1, "x", call->in[1].dtype, cell.shape));
    call->out[0] = cell;
    return DS_OK;
}

const ds_op dsi_op_accumulate = {
    .version = DS_OP_VERSION,
    .name = "accumulate",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_ACCUMULATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* *", .out = "*", .split = "*", .linear = "01",
                       .flags = DS_PLACE_ELEMENTS),
    .doc =
        "cell, x of its shape → the cell's next version: cell + x in fp32, rounded to the cell's "
        "dtype.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .writes = writes_first,
    .infer = accumulate_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status kv_write_infer(ds_infer *call)
{
    const ds_meta cell = dsi_op_in(call, 0);
    const ds_meta x = dsi_op_in(call, 1);
    if (!dsi_op_has(call, 0) || cell.shape.n_dims != 3) {
        return dsi_op_bad(call, 0, "cell", "(B,Tmax,C)");
    }
    if (x.dtype != cell.dtype || x.shape.n_dims != 3 || x.shape.dims[0] != cell.shape.dims[0] ||
        x.shape.dims[1] > cell.shape.dims[1] || x.shape.dims[2] != cell.shape.dims[2]) {
        return dsi_op_bad(call, 1, "x", "%s[%lld,T,%lld] with T up to %lld",
                          ds_dtype_name(cell.dtype), (long long)cell.shape.dims[0],
                          (long long)cell.shape.dims[2], (long long)cell.shape.dims[1]);
    }
    DS_TRY(dsi_op_need(call, 2, "offset", DS_DTYPE_I32, ds_shape_1d(cell.shape.dims[0])));
    call->out[0] = cell;
    return DS_OK;
}

static void kv_write_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->in[1]);
}

const ds_op dsi_op_kv_write = {
    .version = DS_OP_VERSION,
    .name = "kv_write",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b_c b_c b", .out = "b_c", .split = "bc"),
    .doc =
        "cell (B,Tmax,C), x (B,T,C), offset i32 (B) → the cell's next version with rows offset[b] "
        "to offset[b]+T of sample b replaced by x. Rows beyond the cell are an error.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .writes = writes_first,
    .infer = kv_write_infer,
    .cost = kv_write_cost,
};
