/* SPDX-License-Identifier: Apache-2.0 */
/* document_end, filled_end and shift_labels: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status document_end_infer(ds_infer *call)
{
    const ds_meta first = dsi_op_in(call, 0);
    if (first.dtype != DS_DTYPE_I32 || first.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "first", "i32 (B,T)");
    }
    call->out[0] = first;
    return DS_OK;
}

const ds_op dsi_op_document_end = {
    .version = DS_OP_VERSION,
    .name = "document_end",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "b_", .out = "b_", .split = "b"),
    .doc = "first i32 (B,T) → end i32 (B,T): the position behind the last that has the same "
           "`first` in a row with it, so the end of each position's document.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .infer = document_end_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status filled_end_infer(ds_infer *call)
{
    DS_TRY(document_end_infer(call));
    return dsi_op_need(call, 1, "ids", DS_DTYPE_I32, call->in[0].shape);
}

static const ds_attr filled_attrs[] = {DSI_ATTR_INT(dsi_filled_attrs, pad)};

const ds_op dsi_op_filled_end = {
    .version = DS_OP_VERSION,
    .name = "filled_end",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "b_ b_", .out = "b_", .split = "b"),
    .doc = "first, ids i32 (B,T) → end i32 (B,T): document_end, or before that the first id of the "
           "document that is `pad`.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_filled_attrs),
    .attrs = filled_attrs,
    .n_attrs = DSI_N(filled_attrs),
    .infer = filled_end_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status shift_labels_infer(ds_infer *call)
{
    const ds_meta labels = dsi_op_in(call, 0);
    if (labels.dtype != DS_DTYPE_I32 || labels.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "labels", "i32 (B,T)");
    }
    call->out[0] = labels;
    return dsi_op_need(call, 1, "first", DS_DTYPE_I32, labels.shape);
}

static const ds_attr shift_labels_attrs[] = {DSI_ATTR_INT(dsi_shift_labels_attrs, start),
                                             DSI_ATTR_INT(dsi_shift_labels_attrs, pad)};

const ds_op dsi_op_shift_labels = {
    .version = DS_OP_VERSION,
    .name = "shift_labels",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "b_ b_", .out = "b_", .split = "b"),
    .doc =
        "labels, first i32 (B,T) → i32 (B,T): what a decoder reads that learns these labels, the "
        "one before each, `pad` for -100, and `start` where a document begins.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_shift_labels_attrs),
    .attrs = shift_labels_attrs,
    .n_attrs = DSI_N(shift_labels_attrs),
    .infer = shift_labels_infer,
    .cost = dsi_cost_elementwise,
};
