/* SPDX-License-Identifier: Apache-2.0 */
/* linear and linear_dw: rules. See ops.h for what they compute. */
#include "base/blocks.h"
#include "op/op_place.h"
#include "op/op_util.h"

static ds_shape weight_shape(int64_t transposed, int64_t n_in, int64_t n_out)
{
    return transposed != 0 ? ds_shape_2d(n_in, n_out) : ds_shape_2d(n_out, n_in);
}

static ds_status check_out_dtype(const ds_infer *call, int64_t dtype)
{
    if (dtype != 0 &&
        (dtype < 0 || dtype >= DS_DTYPE_COUNT || !dsi_dtype_is_float((ds_dtype)dtype))) {
        return dsi_op_bad_attr(call, "out_dtype is %lld, expected 0 or a float dtype",
                               (long long)dtype);
    }
    return DS_OK;
}

static ds_status linear_infer(ds_infer *call)
{
    const dsi_linear_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(check_out_dtype(call, a->out_dtype));
    if (a->activation < DSI_ACT_NONE || a->activation > DSI_ACT_GELU_ERF) {
        return dsi_op_bad_attr(call, "activation is %lld, expected 0 to %d",
                               (long long)a->activation, DSI_ACT_GELU_ERF);
    }
    const ds_meta x = call->in[0];
    const ds_meta w = dsi_op_in(call, 1);
    const int64_t k = ds_shape_last(x.shape);
    const uint32_t in_dim = a->transposed != 0 ? 0 : 1;
    const bool blocks =
        dsi_is_blocks(w.dtype) && a->transposed == 0 && k % dsi_block_length(w.dtype) == 0;
    if ((w.dtype != x.dtype && !blocks) || w.shape.n_dims != 2 || w.shape.dims[in_dim] != k) {
        return dsi_op_bad(call, 1, "w",
                          a->transposed != 0 ? "%s[%lld,out] (in,out)" : "%s[out,%lld] (out,in)",
                          ds_dtype_name(x.dtype), (long long)k);
    }
    const ds_dtype dtype = a->out_dtype != 0 ? (ds_dtype)a->out_dtype : x.dtype;
    const int64_t o = w.shape.dims[1 - in_dim];
    const ds_shape shape = dsi_shape_with_last(x.shape, o);
    DS_TRY(dsi_op_may(call, 2, "bias", x.dtype, ds_shape_1d(o)));
    DS_TRY(dsi_op_may(call, 3, "residual", dtype, shape));
    call->out[0] = dsi_meta_of(dtype, shape);
    if (a->save_pre != 0) {
        call->out[1] = call->out[0];
    }
    return DS_OK;
}

static void linear_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->m = ds_shape_rows(call->in[0].shape);
    cost_out->n = ds_shape_last(call->out[0].shape);
    cost_out->k = ds_shape_last(call->in[0].shape);
    cost_out->flops = 2.0 * dsi_op_count(call->out[0]) * (double)cost_out->k;
    cost_out->bytes = dsi_op_bytes(call);
}

/* The value before the activation: saved, or computed again. */
static ds_status pre_activation(ds_grad *call, ds_value *out)
{
    dsi_linear_attrs a = *(const dsi_linear_attrs *)call->attrs;
    if (a.save_pre != 0) {
        *out = call->out[1];
        return DS_OK;
    }
    a.activation = DSI_ACT_NONE;
    const ds_value in[3] = {call->in[0], call->in[1], call->n_in > 2 ? call->in[2] : DS_NONE};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_linear, &a, in, 3, outs));
    *out = outs[0];
    return DS_OK;
}

/* Gradient of the sum before the activation, in x's dtype; DS_NONE when none flows. */
static ds_status grad_of_pre(ds_grad *call, ds_value *out)
{
    const dsi_linear_attrs *a = call->attrs;
    ds_value d = call->d_out[0];
    if (d != DS_NONE && a->activation != DSI_ACT_NONE) {
        const dsi_act_attrs act = {.kind = a->activation};
        ds_value pre;
        DS_TRY(pre_activation(call, &pre));
        DS_TRY(dsi_emit2(call, &dsi_op_activation_backward, &act, d, pre, &d));
    }
    if (a->save_pre != 0 && call->d_out[1] != DS_NONE) {
        if (d == DS_NONE) {
            d = call->d_out[1];
        } else {
            DS_TRY(dsi_emit2(call, &dsi_op_add, NULL, d, call->d_out[1], &d));
        }
    }
    *out = d;
    return d == DS_NONE ? DS_OK
                        : dsi_emit_cast(call, d, dsi_grad_meta(call, call->in[0]).dtype, out);
}

static ds_status linear_grad(ds_grad *call)
{
    const dsi_linear_attrs *a = call->attrs;
    dsi_grad_clear(call);
    if (call->d_out[0] != DS_NONE) {
        DS_TRY(dsi_grad_give(call, 3, call->d_out[0]));
    }
    ds_value d;
    DS_TRY(grad_of_pre(call, &d));
    if (d == DS_NONE) {
        return DS_OK;
    }
    ds_value outs[DS_MAX_OUT];
    if (dsi_grad_wants(call, 0)) {
        const dsi_linear_attrs dx = {.transposed = a->transposed == 0};
        const ds_value in[2] = {d, call->in[1]};
        DS_TRY(dsi_emit(call, &dsi_op_linear, &dx, in, 2, outs));
        DS_TRY(dsi_grad_give(call, 0, outs[0]));
    }
    const bool wants_bias = dsi_grad_wants(call, 2);
    if (dsi_grad_wants(call, 1)) {
        const dsi_linear_dw_attrs dw = {.transposed = a->transposed, .with_bias = wants_bias};
        const ds_value in[2] = {call->in[0], d};
        DS_TRY(dsi_emit(call, &dsi_op_linear_dw, &dw, in, 2, outs));
        DS_TRY(dsi_grad_give(call, 1, outs[0]));
        return wants_bias ? dsi_grad_give(call, 2, outs[1]) : DS_OK;
    }
    if (wants_bias) {
        DS_TRY(dsi_emit1(call, &dsi_op_sum_rows, NULL, d, &d));
        DS_TRY(dsi_grad_give(call, 2, d));
    }
    return DS_OK;
}

static const ds_attr linear_attrs[] = {
    DSI_ATTR_INT(dsi_linear_attrs, transposed),
    DSI_ATTR_INT(dsi_linear_attrs, activation),
    DSI_ATTR_INT(dsi_linear_attrs, save_pre),
    DSI_ATTR_INT(dsi_linear_attrs, out_dtype),
};

static void adapt_linear(ds_place_case *c)
{
    const dsi_linear_attrs *a = c->attrs;
    if (a->transposed != 0) {
        dsi_place_swap_dims(c->in[1]);
    }
    if (a->activation != DSI_ACT_NONE) { /* of the finished sum only */
        dsi_place_drop(c->split, 'k');
        c->n_groups = 0;
        c->hint = "an activation needs the finished sum";
    }
}

const ds_op dsi_op_linear = {
    .version = DS_OP_VERSION,
    .name = "linear",
    .op_class = DS_CLASS_LINEAR,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*k ok o *o", .out = "*o<01+23 *o<01+2", .split = "*ok", .sums = "k",
                       .linear = "023|123", .adapt = adapt_linear),
    .doc = "x (..,K), w (O,K) or, transposed, (K,O), [bias (O)], [residual (..,O)] → y (..,O), "
           "[pre (..,O)]: activation(x·wᵀ + bias) + residual; pre is the sum before the "
           "activation, saved on request.",
    .n_in_min = 2,
    .n_in_max = 4,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_linear_attrs),
    .attrs = linear_attrs,
    .n_attrs = DSI_N(linear_attrs),
    .infer = linear_infer,
    .grad = linear_grad,
    .cost = linear_cost,
};

static ds_status linear_dw_infer(ds_infer *call)
{
    const dsi_linear_dw_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(dsi_op_need_float(call, 1, "dy", 1));
    DS_TRY(check_out_dtype(call, a->out_dtype));
    const ds_meta x = call->in[0];
    const ds_meta dy = call->in[1];
    const int64_t k = ds_shape_last(x.shape);
    const int64_t o = ds_shape_last(dy.shape);
    DS_TRY(dsi_op_need(call, 1, "dy", x.dtype, dsi_shape_with_last(x.shape, o)));
    const ds_dtype sum = dsi_stat_dtype(x.dtype);
    const ds_dtype dtype = a->out_dtype != 0 ? (ds_dtype)a->out_dtype : sum;
    call->out[0] = dsi_meta_of(dtype, weight_shape(a->transposed, k, o));
    DS_TRY(dsi_op_may(call, 2, "dw_in", sum, call->out[0].shape));
    if (a->with_bias != 0) {
        call->out[1] = dsi_meta_of(dtype, ds_shape_1d(o));
        DS_TRY(dsi_op_may(call, 3, "dbias_in", sum, call->out[1].shape));
    } else if (dsi_op_has(call, 3)) {
        return dsi_op_bad(call, 3, "dbias_in", "none, since with_bias is 0");
    }
    return DS_OK;
}

static void linear_dw_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->m = ds_shape_last(call->in[0].shape);
    cost_out->n = ds_shape_last(call->in[1].shape);
    cost_out->k = ds_shape_rows(call->in[0].shape);
    cost_out->flops = 2.0 * dsi_op_count(call->in[0]) * (double)cost_out->n;
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr linear_dw_attrs[] = {
    DSI_ATTR_INT(dsi_linear_dw_attrs, transposed),
    DSI_ATTR_INT(dsi_linear_dw_attrs, with_bias),
    DSI_ATTR_INT(dsi_linear_dw_attrs, out_dtype),
};

static void adapt_linear_dw(ds_place_case *c)
{
    const dsi_linear_dw_attrs *a = c->attrs;
    if (a->transposed != 0) {
        dsi_place_swap_dims(c->in[2]);
        dsi_place_swap_dims(c->out[0]);
    }
}

const ds_op dsi_op_linear_dw = {
    .version = DS_OP_VERSION,
    .name = "linear_dw",
    .op_class = DS_CLASS_LINEAR_DW,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*k *o ok o", .out = "ok<01+2 o<1+3", .split = "*ok", .sums = "*",
                       .linear = "123", .adapt = adapt_linear_dw),
    .doc =
        "x (..,K), dy (..,O), [dw_in], [dbias_in] → dw (O,K) or, transposed, (K,O), [dbias (O)]: "
        "weight and bias gradients of linear, summed over rows in row order; *_in are added to "
        "the finished sums.",
    .n_in_min = 2,
    .n_in_max = 4,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_linear_dw_attrs),
    .attrs = linear_dw_attrs,
    .n_attrs = DSI_N(linear_dw_attrs),
    .infer = linear_dw_infer,
    .cost = linear_dw_cost,
};
