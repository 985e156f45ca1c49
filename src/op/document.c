/* SPDX-License-Identifier: Apache-2.0 */
/* document_end: rules. */
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
