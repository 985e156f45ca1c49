/* SPDX-License-Identifier: Apache-2.0 */
/* first_moment, frozen_adam: Adam in two steps, between which ranks exchange the first moment, the
 * second one being frozen (1-bit Adam). docs/internals/optim.md states the arithmetic. */
#include "op/op_place.h"
#include "op/op_update.h"

enum { MOMENT, GRAD, HYPER, FACTOR, SCALING };
/* The operands stand where every update has them. */
enum { IN_PARAM, IN_MOMENT, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };

static ds_status first_moment_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    const ds_shape shape = dsi_op_in(call, MOMENT).shape;
    DS_TRY(dsi_op_need_state(call, MOMENT, "exp_avg", shape));
    DS_TRY(dsi_op_need_float(call, GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, GRAD, "grad", call->in[GRAD].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, HYPER));
    DS_TRY(dsi_op_may(call, FACTOR, "factor", DS_DTYPE_F32, scalar));
    DS_TRY(dsi_op_may(call, SCALING, "scaling", DS_DTYPE_F32, scalar));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, shape);
    return DS_OK;
}

static ds_status frozen_adam_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_adam(call));
    DS_TRY(dsi_op_need(call, IN_MOMENT, "moment", DS_DTYPE_F32, call->out[0].shape));
    call->out[2] = dsi_op_in(call, IN_STATE);
    return DS_OK;
}

static void each_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 8.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

const ds_op dsi_op_first_moment = {
    .version = DS_OP_VERSION,
    .name = "first_moment",
    .doc =
        "exp_avg, grad, hyper f32 (8), [factor f32 ()], [scaling f32 ()] → f32: what adam makes of "
        "exp_avg, times scaling.",
    .n_in_min = 4,
    .n_in_max = 5,
    .n_out = 1,
    .infer = first_moment_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ . .", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS),
};

static const ds_attr adam_attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t writes_weights[] = {IN_PARAM, IN_MASTER, IN_STATE};

const ds_op dsi_op_frozen_adam = {
    .version = DS_OP_VERSION,
    .name = "frozen_adam",
    .doc = "param (written), moment f32, hyper f32 (8), none, [master f32, written], exp_avg "
           "(written), exp_avg_sq → param, [master], exp_avg: AdamW's update without bias "
           "correction by this first moment, the second one being as it is.",
    .n_in_min = IN_STATE_SQ + 1,
    .n_in_max = IN_STATE_SQ + 1,
    .n_out = 3,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_optim_attrs),
    .attrs = adam_attrs,
    .n_attrs = DSI_N(adam_attrs),
    .writes = writes_weights,
    .infer = frozen_adam_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ . * * *", .out = "* * *", .split = "*",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
};
