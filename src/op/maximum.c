/* SPDX-License-Identifier: Apache-2.0 */
/* max_last, the largest element of each row, and its gradient: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status max_last_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    const ds_meta x = call->in[0];
    if (ds_shape_last(x.shape) == 0) {
        return dsi_op_bad(call, 0, "x", "at least one element in the last dim");
    }
    call->out[0] = dsi_meta_of(x.dtype, dsi_shape_lead(x.shape));
    return DS_OK;
}

static ds_status max_last_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[3] = {call->d_out[0], call->in[0], call->out[0]};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_max_last_backward, NULL, in, 3, out));
    return dsi_grad_give(call, 0, out[0]);
}

static void read_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status max_last_backward_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "x", 1));
    const ds_meta x = call->in[1];
    DS_TRY(dsi_op_need(call, 0, "dy", x.dtype, dsi_shape_lead(x.shape)));
    DS_TRY(dsi_op_need(call, 2, "y", x.dtype, dsi_shape_lead(x.shape)));
    call->out[0] = x;
    return DS_OK;
}

const ds_op dsi_op_max_last = {
    .version = DS_OP_VERSION,
    .name = "max_last",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_", .out = "*", .split = "*"),
    .doc = "x (..,C) → (..): the largest element of each row; NaN where one is NaN.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .infer = max_last_infer,
    .grad = max_last_grad,
    .cost = read_cost,
};

const ds_op dsi_op_max_last_backward = {
    .version = DS_OP_VERSION,
    .name = "max_last_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* *_ *", .out = "*_", .split = "*", .linear = "0"),
    .doc = "dy (..), x (..,C), y (..) → dx (..,C): dy where x is y, in equal parts where several "
           "are, 0 elsewhere; NaN in a row whose y is NaN.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .infer = max_last_backward_infer,
    .cost = dsi_cost_elementwise,
};
