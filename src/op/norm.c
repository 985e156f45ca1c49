/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm and rms_norm with their backward operators: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status check_eps(const ds_infer *call)
{
    const dsi_norm_attrs *a = call->attrs;
    if (!(a->eps >= 0.0)) {
        return dsi_op_bad_attr(call, "eps is %g, expected at least 0", a->eps);
    }
    if (!(a->shift >= -1e6 && a->shift <= 1e6)) {
        return dsi_op_bad_attr(call, "shift is %g, expected a number", a->shift);
    }
    return DS_OK;
}

static ds_status layer_norm_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(check_eps(call));
    if (((const dsi_norm_attrs *)call->attrs)->shift != 0.0) {
        return dsi_op_bad_attr(call, "shift is of rms_norm alone");
    }
    const ds_meta x = call->in[0];
    const ds_shape channel = ds_shape_1d(ds_shape_last(x.shape));
    DS_TRY(dsi_op_may(call, 1, "w", x.dtype, channel));
    DS_TRY(dsi_op_may(call, 2, "b", x.dtype, channel));
    call->out[0] = x;
    call->out[1] = dsi_meta_of(dsi_stat_dtype(x.dtype), dsi_shape_lead(x.shape));
    call->out[2] = call->out[1];
    return DS_OK;
}

static void norm_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 8.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status layer_norm_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(dsi_grad_refuse(call, 1, "mean"));
    DS_TRY(dsi_grad_refuse(call, 2, "rstd"));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const bool has_bias = call->n_in > 2 && call->in[2] != DS_NONE;
    const dsi_norm_backward_attrs attrs = {.has_bias = has_bias};
    const ds_value in[5] = {call->d_out[0], call->in[0], call->in[1], call->out[1], call->out[2]};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_layer_norm_backward, &attrs, in, 5, outs));
    DS_TRY(dsi_grad_give(call, 0, outs[0]));
    if (call->in[1] != DS_NONE) {
        DS_TRY(dsi_grad_give(call, 1, outs[1]));
    }
    return has_bias ? dsi_grad_give(call, 2, outs[2]) : DS_OK;
}

static const ds_attr norm_attrs[] = {DSI_ATTR_REAL(dsi_norm_attrs, eps),
                                     DSI_ATTR_REAL(dsi_norm_attrs, shift)};

const ds_op dsi_op_layer_norm = {
    .version = DS_OP_VERSION,
    .name = "layer_norm",
    .op_class = DS_CLASS_NORM,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*_ _ _", .out = "*_ * *", .split = "*"),
    .doc = "x (..,C), [w (C)], [b (C)] → y (..,C), mean f32 (..), rstd f32 (..): "
           "y = (x-mean)·rstd·w + b over the last dim, rstd = 1/sqrt(variance + eps).",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 3,
    .attrs_bytes = sizeof(dsi_norm_attrs),
    .attrs = norm_attrs,
    .n_attrs = DSI_N(norm_attrs),
    .infer = layer_norm_infer,
    .grad = layer_norm_grad,
    .cost = norm_cost,
};

/* dy, x, w (of layer_norm: [w]) and n_stats statistics, then [dres]; outputs dx, dw. */
static ds_status backward_common(ds_infer *call, uint32_t n_stats)
{
    DS_TRY(dsi_op_need_float(call, 0, "dy", 1));
    const ds_meta dy = call->in[0];
    const ds_dtype stat = dsi_stat_dtype(dy.dtype);
    const ds_shape channel = ds_shape_1d(ds_shape_last(dy.shape));
    DS_TRY(dsi_op_need(call, 1, "x", dy.dtype, dy.shape));
    DS_TRY(n_stats > 1 ? dsi_op_may(call, 2, "w", dy.dtype, channel)
                       : dsi_op_need(call, 2, "w", dy.dtype, channel));
    for (uint32_t i = 0; i < n_stats; ++i) {
        const char *name = i + 1 < n_stats ? "mean" : "rstd";
        DS_TRY(dsi_op_need(call, 3 + i, name, stat, dsi_shape_lead(dy.shape)));
    }
    DS_TRY(dsi_op_may(call, 3 + n_stats, "dres", dy.dtype, dy.shape));
    call->out[0] = dy;
    if (dsi_op_has(call, 2)) {
        call->out[1] = dsi_meta_of(stat, channel);
    }
    return DS_OK;
}

static ds_status layer_norm_backward_infer(ds_infer *call)
{
    const dsi_norm_backward_attrs *a = call->attrs;
    DS_TRY(backward_common(call, 2));
    if (a->has_bias != 0) {
        call->out[2] =
            dsi_meta_of(call->in[3].dtype, ds_shape_1d(ds_shape_last(call->in[0].shape)));
    }
    return DS_OK;
}

static const ds_attr norm_backward_attrs[] = {DSI_ATTR_INT(dsi_norm_backward_attrs, has_bias)};

const ds_op dsi_op_layer_norm_backward = {
    .version = DS_OP_VERSION,
    .name = "layer_norm_backward",
    .op_class = DS_CLASS_NORM_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ *_ _ * * *_", .out = "*_ _<0134 _<0", .split = "*", .sums = "*",
                       .linear = "05"),
    .doc =
        "dy, x (..,C), [w (C)], mean, rstd f32 (..), [dres (..,C)] → dx (+ dres before rounding), "
        "[dw f32 (C)], [db f32 (C)]; dw and db are summed in row order.",
    .n_in_min = 5,
    .n_in_max = 6,
    .n_out = 3,
    .attrs_bytes = sizeof(dsi_norm_backward_attrs),
    .attrs = norm_backward_attrs,
    .n_attrs = DSI_N(norm_backward_attrs),
    .infer = layer_norm_backward_infer,
    .cost = norm_cost,
};

static ds_status rms_norm_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(check_eps(call));
    const ds_meta x = call->in[0];
    DS_TRY(dsi_op_need(call, 1, "w", x.dtype, ds_shape_1d(ds_shape_last(x.shape))));
    call->out[0] = x;
    call->out[1] = dsi_meta_of(dsi_stat_dtype(x.dtype), dsi_shape_lead(x.shape));
    return DS_OK;
}

static ds_status rms_norm_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(dsi_grad_refuse(call, 1, "rstd"));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[4] = {call->d_out[0], call->in[0], call->in[1], call->out[1]};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_rms_norm_backward, call->attrs, in, 4, outs));
    DS_TRY(dsi_grad_give(call, 0, outs[0]));
    return dsi_grad_give(call, 1, outs[1]);
}

const ds_op dsi_op_rms_norm = {
    .version = DS_OP_VERSION,
    .name = "rms_norm",
    .op_class = DS_CLASS_NORM,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*_ _", .out = "*_ *", .split = "*"),
    .doc =
        "x (..,C), w (C) → y (..,C), rstd f32 (..): y = x·rstd·(w + shift), rstd = 1/sqrt(mean of "
        "squares + eps).",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_norm_attrs),
    .attrs = norm_attrs,
    .n_attrs = DSI_N(norm_attrs),
    .infer = rms_norm_infer,
    .grad = rms_norm_grad,
    .cost = norm_cost,
};

static ds_status rms_norm_backward_infer(ds_infer *call)
{
    DS_TRY(check_eps(call));
    return backward_common(call, 1);
}

const ds_op dsi_op_rms_norm_backward = {
    .version = DS_OP_VERSION,
    .name = "rms_norm_backward",
    .op_class = DS_CLASS_NORM_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ *_ _ * *_", .out = "*_ _<013", .split = "*", .sums = "*",
                       .linear = "04"),
    .doc =
        "dy, x (..,C), w (C), rstd f32 (..), [dres (..,C)] → dx (+ dres before rounding), dw f32 "
        "(C), summed in row order.",
    .n_in_min = 4,
    .n_in_max = 5,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_norm_attrs),
    .attrs = norm_attrs,
    .n_attrs = DSI_N(norm_attrs),
    .infer = rms_norm_backward_infer,
    .cost = norm_cost,
};
