/* SPDX-License-Identifier: Apache-2.0 */
/* 1-bit LAMB: what its warm-up leaves, and LAMB in steps between which ranks exchange the first
 * moment, the second one being frozen: rules. Whole tensors only, on every rank.
 * docs/internals/optim.md states the arithmetic. */
#include "base/exact_bins.h"
#include "op/op_place.h"
#include "op/op_update.h"

/* The operands stand where every update has them. */
enum { IN_PARAM, IN_RATIO, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };

static ds_status need_scalar(const ds_infer *call, uint32_t i, const char *name)
{
    const ds_shape scalar = {0};
    return dsi_op_need(call, i, name, DS_DTYPE_F32, scalar);
}

static ds_status average_infer(ds_infer *call)
{
    DS_TRY(need_scalar(call, 0, "ratio"));
    DS_TRY(dsi_op_need(call, 1, "sums", DS_DTYPE_F64, ds_shape_1d(2 * DSI_EXACT_WIDE)));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status root_infer(ds_infer *call)
{
    const dsi_onebit_lamb_attrs *a = call->attrs;
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need(call, 0, "sums", DS_DTYPE_F64, ds_shape_1d(DSI_EXACT_WIDE)));
    if (a->count < 1) {
        return dsi_op_bad_attr(call, "count is %lld, expected at least 1", (long long)a->count);
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, scalar);
    return DS_OK;
}

static ds_status freeze_infer(ds_infer *call)
{
    static const char *const names[] = {"scaling", "factor", "united", "own"};
    for (uint32_t i = 0; i < 4; ++i) {
        DS_TRY(need_scalar(call, i, names[i]));
    }
    call->out[0] = call->in[0];
    call->out[1] = call->in[1];
    return DS_OK;
}

static ds_status moments_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, 0).shape;
    DS_TRY(dsi_op_need_state(call, 0, "exp_avg", shape));
    DS_TRY(dsi_op_need(call, 1, "moment", DS_DTYPE_F32, shape));
    DS_TRY(need_scalar(call, 2, "scaling"));
    DS_TRY(dsi_op_need(call, 3, "fresh", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_hyper(call, 4));
    call->out[0] = call->in[0];
    call->out[1] = call->in[3];
    return DS_OK;
}

static ds_status factor_infer(ds_infer *call)
{
    const ds_shape shape = dsi_op_in(call, 2).shape;
    DS_TRY(need_scalar(call, 0, "factor"));
    DS_TRY(need_scalar(call, 1, "ratio"));
    DS_TRY(dsi_op_need_state(call, 2, "exp_avg", shape));
    DS_TRY(dsi_op_need_state(call, 3, "exp_avg_sq", shape));
    DS_TRY(dsi_op_need(call, 4, "fresh", DS_DTYPE_F32, shape));
    DS_TRY(dsi_op_need_float(call, 5, "weight", 0));
    DS_TRY(dsi_op_need(call, 5, "weight", call->in[5].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, 6));
    call->out[0] = call->in[0];
    call->out[1] = call->in[1];
    return DS_OK;
}

static ds_status lamb_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_adam(call));
    DS_TRY(need_scalar(call, IN_RATIO, "ratio"));
    return DS_OK;
}

static void cost_of(const ds_infer *call, ds_cost *cost_out)
{
    double most = 0.0;
    for (uint32_t i = 0; i < call->n_in; ++i) {
        const double n = dsi_op_has(call, i) ? dsi_op_count(call->in[i]) : 0.0;
        most = n > most ? n : most;
    }
    cost_out->flops = 8.0 * most;
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr attrs_of[] = {
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, eps),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, max_coeff),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, min_coeff),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, coeff_beta),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, factor_max),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, factor_min),
    DSI_ATTR_REAL(dsi_onebit_lamb_attrs, factor_threshold),
    DSI_ATTR_INT(dsi_onebit_lamb_attrs, count),
};
static const int8_t writes_first[] = {0};
static const int8_t writes_first_two[] = {0, 1};
static const int8_t writes_moments[] = {0, 3};
static const int8_t writes_factor[] = {0, -1};
static const int8_t writes_weights[] = {IN_PARAM, IN_MASTER};

#define LAMB_OP(op_name, n_inputs, n_outputs, writes_of, op_flags, infer_fn, role_is, out_words,   \
                text)                                                                              \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n_inputs),        \
        .n_in_max = (n_inputs), .n_out = (n_outputs), .flags = (op_flags),                         \
        .attrs_bytes = sizeof(dsi_onebit_lamb_attrs), .attrs = attrs_of,                           \
        .n_attrs = DSI_N(attrs_of), .writes = (writes_of), .infer = (infer_fn), .cost = cost_of,   \
        .op_class = (role_is) == DS_ROLE_UPDATE ? DS_CLASS_OPTIMIZER : DS_CLASS_REDUCE,            \
        .role = (role_is), .again = DS_AGAIN_COSTLY,                                               \
        .place = DSI_PLACE(.in = "_", .out = (out_words)),                                         \
    }

const ds_op dsi_op_average_ratio =
    LAMB_OP("average_ratio", 2, 1, writes_first, 0, average_infer, DS_ROLE_WRITE, "_",
            "ratio f32 () (written), sums f64 (38) as lamb_sums makes them → the running average, "
            "by coeff_beta, of trust ratios that are not 1.");
const ds_op dsi_op_root_mean =
    LAMB_OP("root_mean", 1, 1, NULL, 0, root_infer, DS_ROLE_COMPUTE, "_",
            "f64 (19) as sum_squares makes it without top → f32 (): the root of the mean of count "
            "squares.");
const ds_op dsi_op_freeze_lamb =
    LAMB_OP("freeze_lamb", 4, 2, writes_first_two, 0, freeze_infer, DS_ROLE_WRITE, "_ _",
            "scaling, factor (both written), united, own, all f32 () → united/own, or 1 where that "
            "is no number, and 1.");
const ds_op dsi_op_frozen_lamb_moments =
    LAMB_OP("frozen_lamb_moments", 5, 2, writes_moments, 0, moments_infer, DS_ROLE_WRITE, "_ _",
            "exp_avg (written), moment f32, scaling f32 (), fresh f32 (written), hyper f32 (8) → "
            "moment/scaling, and the second moment of the gradients that make these.");
const ds_op dsi_op_frozen_lamb_factor =
    LAMB_OP("frozen_lamb_factor", 7, 2, writes_factor, 0, factor_infer, DS_ROLE_WRITE, "_ _",
            "factor f32 () (written), ratio f32 (), exp_avg, exp_avg_sq, fresh f32, weight, hyper "
            "f32 (8) → factor: the largest quotient of the two second moments' roots, within its "
            "bounds; ratio·factor.");
const ds_op dsi_op_frozen_lamb =
    LAMB_OP("frozen_lamb", IN_STATE_SQ + 1, 2, writes_weights, DS_OP_INPLACE, lamb_infer,
            DS_ROLE_UPDATE, "_ _",
            "param (written), ratio f32 (), hyper f32 (8), none, [master f32, written], exp_avg, "
            "exp_avg_sq → param, [master]: LAMB's update by this trust ratio.");
