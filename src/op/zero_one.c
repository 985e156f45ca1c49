/* SPDX-License-Identifier: Apache-2.0 */
/* 0/1 Adam: updates that a rank makes for itself, and what the mean of the ranks' makes of them:
 * rules. docs/internals/optim.md states the arithmetic. */
#include "op/op_place.h"
#include "op/op_update.h"

/* The operands stand where every update has them. */
enum {
    IN_PARAM,
    IN_X,
    IN_HYPER,
    IN_FACTOR,
    IN_MASTER,
    IN_STATE,
    IN_STATE_SQ,
    IN_LOCAL,
    IN_LRS,
    IN_WEIGHT
};

static ds_status times_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    if (call->in[0].dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, 0, "x", "f32, bf16 or f16");
    }
    DS_TRY(dsi_op_need(call, 1, "factor", DS_DTYPE_F32, scalar));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, call->in[0].shape);
    return DS_OK;
}

/* Parameter and master, the first two outputs. */
static ds_status weights_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_weights(call));
    return dsi_op_need_state(call, IN_STATE_SQ, "exp_avg_sq", call->out[0].shape);
}

/* The written states, the last three outputs. */
static ds_status local_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(weights_infer(call));
    const ds_shape shape = call->out[0].shape;
    DS_TRY(dsi_op_need_state(call, IN_STATE, "exp_avg", shape));
    DS_TRY(dsi_op_need(call, IN_LOCAL, "local", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need(call, IN_LRS, "lrs", DS_DTYPE_F32, scalar));
    call->out[2] = call->in[IN_STATE];
    call->out[3] = call->in[IN_LOCAL];
    call->out[4] = call->in[IN_LRS];
    return DS_OK;
}

static ds_status adam_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(local_infer(call));
    DS_TRY(dsi_op_need_float(call, IN_X, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_X, "grad", call->in[IN_X].dtype, call->out[0].shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    return dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, scalar);
}

static ds_status take_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, 0).shape;
    DS_TRY(dsi_op_need(call, 0, "local", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_state(call, 1, "exp_avg_sq", shape));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status put_infer(ds_infer *call)
{
    DS_TRY(local_infer(call));
    DS_TRY(dsi_op_need(call, IN_X, "mean", DS_DTYPE_F32, call->out[0].shape));
    DS_TRY(dsi_op_need(call, IN_WEIGHT, "weight", DS_DTYPE_F32, call->out[0].shape));
    DS_TRY(dsi_op_need_absent(call, IN_HYPER, "hyper"));
    call->out[5] = call->in[IN_WEIGHT];
    return dsi_op_need_absent(call, IN_FACTOR, "factor");
}

static void each_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 8.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

const ds_op dsi_op_times = {
    .version = DS_OP_VERSION,
    .name = "times",
    .doc = "x (bf16, f16 or f32), factor f32 () → f32: x·factor.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .infer = times_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* .", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS),
};

static const ds_attr optim_attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t writes_all[] = {IN_PARAM, IN_MASTER, IN_STATE, IN_LOCAL, IN_LRS, IN_WEIGHT};

#define LOCAL_OP(op_name, n_inputs, n_outputs, writes_of, infer_fn, out_words, text)               \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n_inputs),        \
        .n_in_max = (n_inputs), .n_out = (n_outputs), .flags = DS_OP_INPLACE,                      \
        .attrs_bytes = sizeof(dsi_optim_attrs), .attrs = optim_attrs,                              \
        .n_attrs = DSI_N(optim_attrs), .writes = (writes_of), .infer = (infer_fn),                 \
        .cost = each_cost, .op_class = DS_CLASS_OPTIMIZER, .role = DS_ROLE_UPDATE,                 \
        .again = DS_AGAIN_COSTLY, .place = DSI_PLACE(.in = "_", .out = (out_words)),               \
    }

const ds_op dsi_op_local_adam = LOCAL_OP(
    "local_adam", IN_LRS + 1, 5, writes_all, adam_infer, "_ _ _ _ .",
    "param (written), grad, hyper f32 (8), factor f32 (), [master f32, written], exp_avg "
    "(written), exp_avg_sq, local f32 (written), lrs f32 () (written) → param, [master], exp_avg, "
    "local, lrs: frozen_adam by this gradient; its update is added to local, its rate to lrs.");
const ds_op dsi_op_local_take = {
    .version = DS_OP_VERSION,
    .name = "local_take",
    .doc = "local f32, exp_avg_sq → f32: local·(sqrt(exp_avg_sq) + eps).",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_optim_attrs),
    .attrs = optim_attrs,
    .n_attrs = DSI_N(optim_attrs),
    .infer = take_infer,
    .cost = each_cost,
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS),
};
const ds_op dsi_op_local_put = LOCAL_OP(
    "local_put", IN_WEIGHT + 1, 6, writes_all, put_infer, "_ _ _ _ . _",
    "param (written), mean f32, none, none, [master f32, written], exp_avg (written), exp_avg_sq, "
    "local f32, lrs f32 (), weight f32 (all written) → param, [master], weight: "
    "weight + mean/(sqrt(exp_avg_sq) + eps), exp_avg -mean/lrs, local and lrs 0.");
