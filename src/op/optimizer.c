/* SPDX-License-Identifier: Apache-2.0 */
/* adam, ademamix, sgd, lion, adagrad: rules. docs/internals/optim.md states the arithmetic. */
#include "op/op_place.h"
#include "op/op_update.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE };

/* need..most moments follow the master weights. */
static ds_status optimizer_infer(ds_infer *call, uint32_t need, uint32_t most)
{
    static const char *const names[] = {"state 0", "state 1", "state 2"};
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_infer_weights(call));
    const ds_shape shape = call->out[0].shape;
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_GRAD, "grad", call->in[IN_GRAD].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, scalar));
    for (uint32_t i = 0; i < most; ++i) {
        if (i < need || dsi_op_has(call, IN_STATE + i)) {
            DS_TRY(dsi_op_need_state(call, IN_STATE + i, names[i], shape));
        }
        call->out[2 + i] = dsi_op_in(call, IN_STATE + i);
    }
    return DS_OK;
}

static ds_status two_states_infer(ds_infer *call)
{
    return optimizer_infer(call, 2, 2);
}

static ds_status three_states_infer(ds_infer *call)
{
    return optimizer_infer(call, 3, 3);
}

static ds_status one_state_infer(ds_infer *call)
{
    return optimizer_infer(call, 1, 1);
}

static ds_status sgd_infer(ds_infer *call)
{
    return optimizer_infer(call, 0, 1);
}

static void optimizer_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 16.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr optim_attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t optim_writes[] = {IN_PARAM, IN_MASTER, IN_STATE, IN_STATE + 1, IN_STATE + 2};

#define UPDATE(in_words, out_words)                                                                \
    DSI_PLACE(.in = (in_words), .out = (out_words), .split = "*",                                  \
              .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE)
#define OPTIM_OP(op_name, text, least, n_states, infer_fn, in_place, place_is)                     \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name),                                               \
        .doc = "param, grad, hyper f32 (8), factor f32 (), [master f32], " text,                   \
        .n_in_min = (least), .n_in_max = IN_STATE + (n_states), .n_out = 2 + (n_states),           \
        .flags = (in_place), .attrs_bytes = sizeof(dsi_optim_attrs), .attrs = optim_attrs,         \
        .n_attrs = DSI_N(optim_attrs), .writes = optim_writes, .infer = (infer_fn),                \
        .cost = optimizer_cost, .op_class = DS_CLASS_OPTIMIZER, .role = DS_ROLE_UPDATE,            \
        .again = DS_AGAIN_COSTLY, .place = (place_is),                                             \
    }

const ds_op dsi_op_adam =
    OPTIM_OP("adam",
             "exp_avg, exp_avg_sq → the same, updated: Adam (adamw 0, decay "
             "added to the gradient) or AdamW (adamw 1).",
             7, 2, two_states_infer, DS_OP_INPLACE, UPDATE("* * _ . * * *", "* * * *"));
const ds_op dsi_op_ademamix = OPTIM_OP(
    "ademamix",
    "exp_avg, exp_avg_sq, exp_avg_slow → the same, updated: AdEMAMix, whose step is of two "
    "first moments (Pagliardini et al. 2024).",
    8, 3, three_states_infer, DS_OP_INPLACE, UPDATE("* * _ . * * * *", "* * * * *"));
const ds_op dsi_op_sgd =
    OPTIM_OP("sgd",
             "[momentum buffer] → the same, updated: SGD with momentum beta1, dampening, "
             "Nesterov.",
             4, 1, sgd_infer, DS_OP_INPLACE, UPDATE("* * _ . * *", "* * *"));
const ds_op dsi_op_lion =
    OPTIM_OP("lion", "exp_avg → the same, updated: Lion, the sign of a zero update being 0.", 6, 1,
             one_state_infer, DS_OP_INPLACE, UPDATE("* * _ . * *", "* * *"));
const ds_op dsi_op_adagrad =
    OPTIM_OP("adagrad", "exp_avg_sq → the same, updated: Adagrad, decay added to the gradient.", 6,
             1, one_state_infer, DS_OP_INPLACE, UPDATE("* * _ . * *", "* * *"));
