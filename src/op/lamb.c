/* SPDX-License-Identifier: Apache-2.0 */
/* lamb_moments, lamb_sums, lamb: LAMB in three steps, so that it works on slices: the norms of a
 * whole tensor are what stands between them. docs/internals/optim.md states the arithmetic. */
#include "base/exact_bins.h"
#include "op/op_place.h"
#include "op/op_update.h"

/* The operands stand where every update has them. */
enum { IN_FIRST, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };

static ds_status moments_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    const ds_meta m = dsi_op_in(call, IN_FIRST);
    DS_TRY(dsi_op_need_state(call, IN_FIRST, "exp_avg", m.shape));
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_GRAD, "grad", call->in[IN_GRAD].dtype, m.shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, scalar));
    if (dsi_op_has(call, IN_MASTER)) {
        return dsi_op_bad(call, IN_MASTER, "master", "none");
    }
    DS_TRY(dsi_op_need_state(call, IN_STATE, "exp_avg_sq", m.shape));
    call->out[0] = m;
    call->out[1] = (ds_meta){0};
    call->out[2] = dsi_op_in(call, IN_STATE);
    return DS_OK;
}

static ds_status sums_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, 0).shape;
    DS_TRY(dsi_op_need_state(call, 0, "exp_avg", shape));
    DS_TRY(dsi_op_need_state(call, 1, "exp_avg_sq", shape));
    DS_TRY(dsi_op_need_float(call, 2, "weight", 0));
    DS_TRY(dsi_op_need(call, 2, "weight", call->in[2].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, 3));
    call->out[0] = dsi_meta_of(DS_DTYPE_F64, ds_shape_1d(2 * DSI_EXACT_WIDE));
    return DS_OK;
}

static ds_status lamb_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_adam(call));
    DS_TRY(dsi_op_need(call, IN_GRAD, "sums", DS_DTYPE_F64, ds_shape_1d(2 * DSI_EXACT_WIDE)));
    return DS_OK;
}

static void lamb_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 8.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr lamb_attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t writes_moments[] = {IN_FIRST, IN_MASTER, IN_STATE};
static const int8_t writes_weights[] = {IN_FIRST, IN_MASTER};

#define LAMB_OP(op_name, n_inputs, n_outputs, writes_of, op_flags, infer_fn, role_is, place_is,    \
                text)                                                                              \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n_inputs),        \
        .n_in_max = (n_inputs), .n_out = (n_outputs), .flags = (op_flags),                         \
        .attrs_bytes = sizeof(dsi_optim_attrs), .attrs = lamb_attrs, .n_attrs = DSI_N(lamb_attrs), \
        .writes = (writes_of), .infer = (infer_fn), .cost = lamb_cost,                             \
        .op_class = (role_is) == DS_ROLE_UPDATE ? DS_CLASS_OPTIMIZER : DS_CLASS_REDUCE,            \
        .role = (role_is), .again = DS_AGAIN_COSTLY, .place = (place_is),                          \
    }

const ds_op dsi_op_lamb_moments = LAMB_OP(
    "lamb_moments", IN_STATE + 1, 3, writes_moments, DS_OP_INPLACE, moments_infer, DS_ROLE_UPDATE,
    DSI_PLACE(.in = "* * _ . * *", .out = "* * *", .split = "*",
              .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
    "exp_avg (written), grad, hyper f32 (8), factor f32 (), none, exp_avg_sq (written) → "
    "exp_avg, none, exp_avg_sq: the moments of LAMB.");
const ds_op dsi_op_lamb_sums = LAMB_OP(
    "lamb_sums", 4, 1, NULL, 0, sums_infer, DS_ROLE_COMPUTE,
    DSI_PLACE(.in = "* * * _", .out = "_", .split = "*", .sums = "*",
              .flags = DS_PLACE_ADDS_ALL | DSI_PLACE_EXACT | DSI_PLACE_SLICES),
    "exp_avg, exp_avg_sq, weight, hyper f32 (8) → f64 (38): the exact sums of the squares of "
    "the weight and of its update before the trust ratio, each as sum_squares without top.");
const ds_op dsi_op_lamb =
    LAMB_OP("lamb", IN_STATE_SQ + 1, 2, writes_weights, DS_OP_INPLACE, lamb_infer, DS_ROLE_UPDATE,
            DSI_PLACE(.in = "* _ _ . * * *", .out = "* *", .split = "*",
                      .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
            "param (written), sums f64 (38) of the whole tensor, hyper f32 (8), none, [master f32, "
            "written], exp_avg, exp_avg_sq → param, [master]: updated, the trust ratio clamped to "
            "[min_coeff, max_coeff].");
