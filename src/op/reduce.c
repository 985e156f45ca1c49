/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and means, and their transposes fill and expand: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status sum_all_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    call->out[0] = dsi_meta_of(dsi_stat_dtype(call->in[0].dtype), scalar);
    return DS_OK;
}

static ds_status mean_all_infer(ds_infer *call)
{
    DS_TRY(sum_all_infer(call));
    if (ds_shape_count(call->in[0].shape) == 0) {
        return dsi_op_bad(call, 0, "x", "at least one element");
    }
    return DS_OK;
}

static ds_status sum_last_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    const ds_meta x = call->in[0];
    call->out[0] = dsi_meta_of(dsi_stat_dtype(x.dtype), dsi_shape_lead(x.shape));
    return DS_OK;
}

static ds_status sum_rows_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    const ds_meta x = call->in[0];
    call->out[0] = dsi_meta_of(dsi_stat_dtype(x.dtype), ds_shape_1d(ds_shape_last(x.shape)));
    return DS_OK;
}

static ds_status fill_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need_float(call, 0, "like", 0));
    DS_TRY(dsi_op_need(call, 1, "s", dsi_stat_dtype(call->in[0].dtype), scalar));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status expand_last_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "like", 1));
    const ds_meta like = call->in[1];
    DS_TRY(dsi_op_need(call, 0, "x", dsi_stat_dtype(like.dtype), dsi_shape_lead(like.shape)));
    call->out[0] = like;
    return DS_OK;
}

static ds_status expand_rows_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "like", 1));
    const ds_meta like = call->in[1];
    const ds_shape row = ds_shape_1d(ds_shape_last(like.shape));
    DS_TRY(dsi_op_need(call, 0, "x", dsi_stat_dtype(like.dtype), row));
    call->out[0] = like;
    return DS_OK;
}

/* The sum reads x once; fill and expand only write. */
static void sum_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static void spread_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = (double)ds_meta_bytes(call->out[0]);
}

static ds_status give_fill(ds_grad *call, ds_value s)
{
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_fill, NULL, call->in[0], s, &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status sum_all_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK : give_fill(call, call->d_out[0]);
}

static ds_status mean_all_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const double n = (double)ds_shape_count(dsi_grad_meta(call, call->in[0]).shape);
    const dsi_scale_attrs attrs = {.factor = 1.0 / n};
    ds_value s;
    DS_TRY(dsi_emit1(call, &dsi_op_scale, &attrs, call->d_out[0], &s));
    return give_fill(call, s);
}

static ds_status give_expanded(ds_grad *call, const ds_op *op)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit2(call, op, NULL, call->d_out[0], call->in[0], &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status sum_last_grad(ds_grad *call)
{
    return give_expanded(call, &dsi_op_expand_last);
}

static ds_status sum_rows_grad(ds_grad *call)
{
    return give_expanded(call, &dsi_op_expand_rows);
}

static ds_status give_sum(ds_grad *call, const ds_op *op, uint32_t input)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, op, NULL, call->d_out[0], &d));
    return dsi_grad_give(call, input, d);
}

static ds_status fill_grad(ds_grad *call)
{
    return give_sum(call, &dsi_op_sum_all, 1);
}

static ds_status expand_last_grad(ds_grad *call)
{
    return give_sum(call, &dsi_op_sum_last, 0);
}

static ds_status expand_rows_grad(ds_grad *call)
{
    return give_sum(call, &dsi_op_sum_rows, 0);
}

#define REDUCE_OP(op_name, class_is, place_is, text, n, infer_fn, grad_fn, cost_fn)                \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n),               \
        .n_in_max = (n), .n_out = 1, .infer = (infer_fn), .grad = (grad_fn), .cost = (cost_fn),    \
        .op_class = (class_is), .role = DS_ROLE_COMPUTE, .again = DS_AGAIN_COSTLY,                 \
        .place = (place_is),                                                                       \
    }

const ds_op dsi_op_sum_all =
    REDUCE_OP("sum_all", DS_CLASS_REDUCE,
              DSI_PLACE(.in = "*", .out = ".", .split = "*", .sums = "*", .linear = "0",
                        .flags = DS_PLACE_ADDS_ALL),
              "x → f32 (): the sum of all elements.", 1, sum_all_infer, sum_all_grad, sum_cost);
const ds_op dsi_op_mean_all =
    REDUCE_OP("mean_all", DS_CLASS_REDUCE,
              DSI_PLACE(.in = "*", .out = ".", .split = "*", .sums = "*", .linear = "0",
                        .means = "0", .flags = DS_PLACE_MEAN),
              "x → f32 (): the mean of all elements.", 1, mean_all_infer, mean_all_grad, sum_cost);
const ds_op dsi_op_sum_last = REDUCE_OP(
    "sum_last", DS_CLASS_REDUCE,
    DSI_PLACE(.in = "*c", .out = "*", .split = "*c", .sums = "c", .linear = "0"),
    "x (..,C) → f32 (..): sums over the last dim.", 1, sum_last_infer, sum_last_grad, sum_cost);
const ds_op dsi_op_sum_rows =
    REDUCE_OP("sum_rows", DS_CLASS_REDUCE,
              DSI_PLACE(.in = "*c", .out = "c", .split = "*c", .sums = "*", .linear = "0"),
              "x (..,C) → f32 (C): sums over all dims but the last, in row order.", 1,
              sum_rows_infer, sum_rows_grad, sum_cost);
const ds_op dsi_op_fill = REDUCE_OP(
    "fill", DS_CLASS_ELEMENTWISE, DSI_PLACE(.in = "* .", .out = "*", .split = "*", .linear = "1"),
    "like, s f32 () → a tensor as like, every element s rounded to its dtype.", 2, fill_infer,
    fill_grad, spread_cost);
const ds_op dsi_op_expand_last =
    REDUCE_OP("expand_last", DS_CLASS_ELEMENTWISE,
              DSI_PLACE(.in = "* *c", .out = "*c", .split = "*c", .linear = "0"),
              "x f32 (..), like (..,C) → x repeated along the last dim, as like.", 2,
              expand_last_infer, expand_last_grad, spread_cost);
const ds_op dsi_op_expand_rows =
    REDUCE_OP("expand_rows", DS_CLASS_ELEMENTWISE,
              DSI_PLACE(.in = "c *c", .out = "*c", .split = "*c", .linear = "0"),
              "x f32 (C), like (..,C) → x repeated in every row, as like.", 2, expand_rows_infer,
              expand_rows_grad, spread_cost);
