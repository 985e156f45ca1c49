/* SPDX-License-Identifier: Apache-2.0 */
/* schedule_free, schedule_free_point: AdamW without a schedule (Defazio et al., "The Road Less
 * Scheduled", 2024). docs/internals/optim.md states the arithmetic. */
#include "op/op_place.h"
#include "op/op_update.h"

/* The operands stand where every update has them; the average in the place of the parameter. */
enum { IN_AVERAGE, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_Z, IN_SQUARES };
enum { OF_AVERAGE, OF_Z, OF_HYPER };

static ds_status update_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, IN_AVERAGE).shape;
    DS_TRY(dsi_op_need(call, IN_AVERAGE, "average", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_GRAD, "grad", call->in[IN_GRAD].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, (ds_shape){0}));
    DS_TRY(dsi_op_need_absent(call, IN_MASTER, "master"));
    DS_TRY(dsi_op_need(call, IN_Z, "z", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_state(call, IN_SQUARES, "exp_avg_sq", shape));
    call->out[0] = call->in[IN_AVERAGE];
    call->out[1] = (ds_meta){0};
    call->out[2] = call->in[IN_Z];
    call->out[3] = call->in[IN_SQUARES];
    return DS_OK;
}

static ds_status point_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, OF_AVERAGE).shape;
    DS_TRY(dsi_op_need(call, OF_AVERAGE, "average", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need(call, OF_Z, "z", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_hyper(call, OF_HYPER));
    call->out[0] = call->in[OF_AVERAGE];
    return DS_OK;
}

static void each_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 16.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr update_attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const ds_attr point_attrs[] = {DSI_ATTR_INT(dsi_point_attrs, average)};
static const int8_t writes[] = {IN_AVERAGE, IN_MASTER, IN_Z, IN_SQUARES};

const ds_op dsi_op_schedule_free = {
    .version = DS_OP_VERSION,
    .name = "schedule_free",
    .doc = "average f32 (written), grad, hyper f32 (8), factor f32 (), none, z f32 (written), "
           "exp_avg_sq (written) → average, none, z, exp_avg_sq: schedule-free AdamW by the "
           "gradient of the point between z and the average.",
    .n_in_min = IN_SQUARES + 1,
    .n_in_max = IN_SQUARES + 1,
    .n_out = 4,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_optim_attrs),
    .attrs = update_attrs,
    .n_attrs = DSI_N(update_attrs),
    .writes = writes,
    .infer = update_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ . * * *", .out = "* * * *", .split = "*",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
};

const ds_op dsi_op_schedule_free_point = {
    .version = DS_OP_VERSION,
    .name = "schedule_free_point",
    .doc = "average f32, z f32, hyper f32 (8) → f32: the point between the two, beta1·average + (1 "
           "- beta1)·z; with `average` the average itself.",
    .n_in_min = OF_HYPER + 1,
    .n_in_max = OF_HYPER + 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_point_attrs),
    .attrs = point_attrs,
    .n_attrs = DSI_N(point_attrs),
    .infer = point_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS),
};
