/* SPDX-License-Identifier: Apache-2.0 */
/* softmax and softmax_backward: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status softmax_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    call->out[0] = call->in[0];
    return DS_OK;
}

static void softmax_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 12.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status softmax_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_softmax_backward, NULL, call->d_out[0], call->out[0], &d));
    return dsi_grad_give(call, 0, d);
}

const ds_op dsi_op_softmax = {
    .version = DS_OP_VERSION,
    .name = "softmax",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*_", .out = "*_", .split = "*"),
    .doc = "x (..,C) → exp(x - max) / sum over the last dim.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .infer = softmax_infer,
    .grad = softmax_grad,
    .cost = softmax_cost,
};

static ds_status softmax_backward_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "dy", 1));
    DS_TRY(dsi_op_need(call, 1, "y", call->in[0].dtype, call->in[0].shape));
    call->out[0] = call->in[0];
    return DS_OK;
}

const ds_op dsi_op_softmax_backward = {
    .version = DS_OP_VERSION,
    .name = "softmax_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ *_", .out = "*_", .split = "*", .linear = "0"),
    .doc = "dy, y (..,C) → dx = y·(dy - sum of dy·y over the last dim).",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .infer = softmax_backward_infer,
    .cost = softmax_cost,
};
