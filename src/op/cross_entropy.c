/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy, fused with the output projection or not, and their backward operators: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

/* loss, lse, count over rows of shape `rows`. */
static void loss_outputs(ds_infer *call, ds_dtype act, ds_shape rows)
{
    const ds_dtype stat = dsi_stat_dtype(act);
    const ds_shape scalar = {0};
    call->out[0] = dsi_meta_of(stat, scalar);
    call->out[1] = dsi_meta_of(stat, rows);
    call->out[2] = dsi_meta_of(stat, scalar);
}

/* The count at input i, there or not as `counted` says. */
static ds_status check_count(const ds_infer *call, const dsi_ce_attrs *a, uint32_t i, ds_dtype act)
{
    const ds_shape scalar = {0};
    if (a->counted == 0) {
        return dsi_op_has(call, i) ? dsi_op_bad(call, i, "count", "none, since counted is 0")
                                   : DS_OK;
    }
    return dsi_op_need(call, i, "count", dsi_stat_dtype(act), scalar);
}

/* Divided by a given count, the loss of some rows is a term of the sum over all, and the gradients
 * are; nothing is a mean. */
static void adapt_counted(ds_place_case *c, const dsi_ce_attrs *a)
{
    if (a->counted != 0) {
        c->flags &= ~(uint32_t)DS_PLACE_MEAN_ROWS;
        c->means = 0;
    }
}

/* x (..,C) at input i and w at i+1; rows of x. */
static ds_status check_projection(const ds_infer *call, uint32_t i)
{
    const dsi_ce_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, i, "x", 1));
    const ds_meta x = call->in[i];
    const ds_meta w = dsi_op_in(call, i + 1);
    const int64_t c = ds_shape_last(x.shape);
    if (w.dtype != x.dtype || w.shape.n_dims != 2 ||
        w.shape.dims[a->transposed != 0 ? 0 : 1] != c) {
        return dsi_op_bad(call, i + 1, "w", a->transposed != 0 ? "%s[%lld,V]" : "%s[V,%lld]",
                          ds_dtype_name(x.dtype), (long long)c);
    }
    return dsi_op_need(call, i + 2, "targets", DS_DTYPE_I32, dsi_shape_lead(x.shape));
}

/* Columns of w (V,C) or (C,V): V. */
static int64_t vocabulary(const dsi_ce_attrs *a, ds_meta w)
{
    return w.shape.dims[a->transposed != 0 ? 1 : 0];
}

static ds_status linear_cross_entropy_infer(ds_infer *call)
{
    const dsi_linear_ce_attrs *a = call->attrs;
    DS_TRY(check_projection(call, 0));
    const ds_meta x = call->in[0];
    loss_outputs(call, x.dtype, dsi_shape_lead(x.shape));
    DS_TRY(check_count(call, &a->ce, 3, x.dtype));
    if (a->keep != 0) {
        call->out[3] = dsi_meta_of(dsi_stat_dtype(x.dtype),
                                   dsi_shape_with_last(x.shape, vocabulary(&a->ce, call->in[1])));
    }
    return DS_OK;
}

/* Products of rows with a weight (vocabulary,width). */
static void cost_of(const ds_infer *call, int64_t rows, ds_meta weight, int64_t width,
                    double products, ds_cost *cost_out)
{
    const int64_t weights = ds_shape_count(weight.shape);
    cost_out->flops = 2.0 * products * (double)rows * (double)weights;
    cost_out->bytes = dsi_op_bytes(call);
    cost_out->m = rows;
    cost_out->n = weights / (width > 0 ? width : 1);
    cost_out->k = width;
}

static void linear_cross_entropy_cost(const ds_infer *call, ds_cost *cost_out)
{
    const ds_shape x = call->in[0].shape;
    cost_of(call, ds_shape_rows(x), call->in[1], ds_shape_last(x), 1.0, cost_out);
}

static void linear_cross_entropy_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_ce_backward_attrs *a = call->attrs;
    const double products = 1.0 + (a->no_dx == 0 ? 1.0 : 0.0) + (a->no_dw == 0 ? 1.0 : 0.0);
    const ds_shape x = call->in[1].shape;
    cost_of(call, ds_shape_rows(x), call->in[2], ds_shape_last(x), products,
            cost_out); /* the logits again, dx, dw */
    cost_out->again = cost_out->flops / products;
}

static ds_status refuse_statistics(ds_grad *call)
{
    DS_TRY(dsi_grad_refuse(call, 1, "lse"));
    return dsi_grad_refuse(call, 2, "count");
}

static ds_status linear_cross_entropy_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(refuse_statistics(call));
    DS_TRY(dsi_grad_refuse(call, 3, "logits"));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[6] = {call->d_out[0], call->in[0],  call->in[1],
                            call->in[2],    call->out[1], call->out[2]};
    const dsi_linear_ce_attrs *a = call->attrs;
    const dsi_ce_backward_attrs attrs = {
        .ce = a->ce, .no_dx = !dsi_grad_wants(call, 0), .no_dw = !dsi_grad_wants(call, 1)};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_linear_cross_entropy_backward, &attrs, in, 6, outs));
    DS_TRY(dsi_grad_give(call, 0, outs[0]));
    return dsi_grad_give(call, 1, outs[1]);
}

static const ds_attr ce_attrs[] = {
    DSI_ATTR_INT(dsi_ce_attrs, ignore_index),
    DSI_ATTR_INT(dsi_ce_attrs, transposed),
    DSI_ATTR_INT(dsi_ce_attrs, counted),
};

static const ds_attr linear_ce_attrs[] = {
    {"ignore_index", DS_ATTR_INT, offsetof(dsi_linear_ce_attrs, ce.ignore_index)},
    {"transposed", DS_ATTR_INT, offsetof(dsi_linear_ce_attrs, ce.transposed)},
    {"counted", DS_ATTR_INT, offsetof(dsi_linear_ce_attrs, ce.counted)},
    DSI_ATTR_INT(dsi_linear_ce_attrs, keep),
};

/* Of the forward operators: the count that comes in goes out, and is of all rows. */
static void adapt_forward(ds_place_case *c, const dsi_ce_attrs *a, uint32_t count)
{
    adapt_counted(c, a);
    if (a->counted != 0) {
        c->computed[2] = 1u << count;
    }
}

static void adapt_linear_cross_entropy(ds_place_case *c)
{
    adapt_forward(c, &((const dsi_linear_ce_attrs *)c->attrs)->ce, 3);
}

const ds_op dsi_op_linear_cross_entropy = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy",
    .op_class = DS_CLASS_LOSS,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = "*_ __ * .", .out = ". * . *_", .split = "*", .sums = "*", .means = "0",
                  .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_linear_cross_entropy),
    .doc = "x (..,C), w (V,C) or, transposed, (C,V), targets i32 (..) [, counted: count f32 ()] → "
           "loss f32 () mean over rows whose target is not ignore_index (0 when there are none; "
           "their sum / count where that is given), lse f32 (..), count f32 (), "
           "[logits f32 (..,V)]. Logits stay fp32 and are never whole in memory unless keep is 1.",
    .n_in_min = 3,
    .n_in_max = 4,
    .n_out = 4,
    .attrs_bytes = sizeof(dsi_linear_ce_attrs),
    .attrs = linear_ce_attrs,
    .n_attrs = DSI_N(linear_ce_attrs),
    .infer = linear_cross_entropy_infer,
    .grad = linear_cross_entropy_grad,
    .cost = linear_cross_entropy_cost,
};

/* dloss at 0; lse and count at lse, lse+1. */
static ds_status check_saved(const ds_infer *call, ds_dtype act, uint32_t lse, ds_shape rows)
{
    const ds_dtype stat = dsi_stat_dtype(act);
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need(call, 0, "dloss", stat, scalar));
    DS_TRY(dsi_op_need(call, lse, "lse", stat, rows));
    return dsi_op_need(call, lse + 1, "count", stat, scalar);
}

static ds_status linear_cross_entropy_backward_infer(ds_infer *call)
{
    DS_TRY(check_projection(call, 1));
    const ds_meta x = call->in[1];
    DS_TRY(check_saved(call, x.dtype, 4, dsi_shape_lead(x.shape)));
    const dsi_ce_backward_attrs *a = call->attrs;
    const ds_meta dw = dsi_meta_of(dsi_stat_dtype(x.dtype), call->in[2].shape);
    if (a->no_dw != 0 && dsi_op_has(call, 6)) {
        return dsi_op_bad(call, 6, "dw_in", "none, since no_dw is 1");
    }
    if (a->no_dx == 0) {
        call->out[0] = x;
    }
    if (a->no_dw == 0) {
        call->out[1] = dw;
    }
    return dsi_op_may(call, 6, "dw_in", dw.dtype, dw.shape);
}

static const ds_attr ce_backward_attrs[] = {
    {"ignore_index", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.ignore_index)},
    {"transposed", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.transposed)},
    {"counted", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.counted)},
    DSI_ATTR_INT(dsi_ce_backward_attrs, no_dx),
    DSI_ATTR_INT(dsi_ce_backward_attrs, no_dw),
};

static void adapt_backward(ds_place_case *c, const dsi_ce_attrs *a, uint32_t count)
{
    adapt_counted(c, a);
    for (uint32_t o = 0; o < c->n_out && a->counted != 0; ++o) {
        c->added[o] &= ~(1u << count);
    }
}

static void adapt_linear_cross_entropy_backward(ds_place_case *c)
{
    adapt_backward(c, &((const dsi_ce_backward_attrs *)c->attrs)->ce, 5);
}

static void adapt_kept(ds_place_case *c)
{
    adapt_backward(c, c->attrs, 5);
}

static void adapt_cross_entropy_backward(ds_place_case *c)
{
    adapt_backward(c, c->attrs, 4);
}

const ds_op dsi_op_linear_cross_entropy_backward = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy_backward",
    .op_class = DS_CLASS_LOSS_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = ". *_ __ * * . __", .out = "*_<01234+5 __<01234+56", .split = "*",
                       .sums = "*", .linear = "06", .means = "01", .flags = DS_PLACE_MEAN_ROWS,
                       .adapt = adapt_linear_cross_entropy_backward),
    .doc = "dloss f32 (), x, w, targets, lse, count, [dw_in f32] → [dx (..,C)], [dw f32 in w's "
           "layout (dw_in is added to the finished sums)]; no_dx and no_dw leave one out. The "
           "gradient of the logits is rounded to x's dtype before the two products.",
    .n_in_min = 6,
    .n_in_max = 7,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_ce_backward_attrs),
    .attrs = ce_backward_attrs,
    .n_attrs = DSI_N(ce_backward_attrs),
    .infer = linear_cross_entropy_backward_infer,
    .cost = linear_cross_entropy_backward_cost,
};

/* ---- of kept logits: dx and dw apart
 * ---------------------------------------------------- */
/* logits at i, targets, lse and count behind them. */
static ds_status check_kept(const ds_infer *call, uint32_t i, ds_dtype act, ds_shape rows,
                            int64_t vocab)
{
    ds_shape whole = rows;
    whole.dims[whole.n_dims++] = vocab;
    DS_TRY(dsi_op_need(call, i, "logits", dsi_stat_dtype(act), whole));
    DS_TRY(dsi_op_need(call, i + 1, "targets", DS_DTYPE_I32, rows));
    return check_saved(call, act, i + 2, rows);
}

static ds_status linear_cross_entropy_dx_infer(ds_infer *call)
{
    const dsi_ce_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 1, "w", 2));
    const ds_meta w = call->in[1];
    const ds_shape logits = dsi_op_in(call, 2).shape;
    if (w.shape.n_dims != 2 || logits.n_dims < 1) {
        return dsi_op_bad(call, 2, "logits", "(..,V) beside a w of two dims");
    }
    DS_TRY(check_kept(call, 2, w.dtype, dsi_shape_lead(logits), vocabulary(a, w)));
    const int64_t width = w.shape.dims[a->transposed != 0 ? 0 : 1];
    call->out[0] = dsi_meta_of(w.dtype, dsi_shape_with_last(logits, width));
    return DS_OK;
}

static void linear_cross_entropy_dx_cost(const ds_infer *call, ds_cost *cost_out)
{
    const int64_t width = ds_shape_last(call->out[0].shape);
    cost_of(call, ds_shape_rows(call->in[2].shape), call->in[1], width, 1.0, cost_out);
}

const ds_op dsi_op_linear_cross_entropy_dx = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy_dx",
    .op_class = DS_CLASS_LOSS_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = ". __ *_ * * .", .out = "*_<01234+5", .split = "*", .sums = "*",
                  .linear = "0", .means = "0", .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_kept),
    .doc = "dloss f32 (), w, logits f32 (..,V), targets, lse, count → dx (..,C): what "
           "linear_cross_entropy_backward makes, from logits that were kept.",
    .n_in_min = 6,
    .n_in_max = 6,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = linear_cross_entropy_dx_infer,
    .cost = linear_cross_entropy_dx_cost,
};

static ds_status linear_cross_entropy_dw_infer(ds_infer *call)
{
    const dsi_ce_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 1, "x", 1));
    const ds_meta x = call->in[1];
    const int64_t width = ds_shape_last(x.shape);
    const int64_t vocab = ds_shape_last(dsi_op_in(call, 2).shape);
    DS_TRY(check_kept(call, 2, x.dtype, dsi_shape_lead(x.shape), vocab));
    const ds_shape w = a->transposed != 0 ? ds_shape_2d(width, vocab) : ds_shape_2d(vocab, width);
    call->out[0] = dsi_meta_of(dsi_stat_dtype(x.dtype), w);
    return dsi_op_may(call, 6, "dw_in", call->out[0].dtype, w);
}

static void linear_cross_entropy_dw_cost(const ds_infer *call, ds_cost *cost_out)
{
    const ds_shape x = call->in[1].shape;
    cost_of(call, ds_shape_rows(x), call->out[0], ds_shape_last(x), 1.0, cost_out);
}

const ds_op dsi_op_linear_cross_entropy_dw = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy_dw",
    .op_class = DS_CLASS_LOSS_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = ". *_ *_ * * . __", .out = "__<01234+56", .split = "*", .sums = "*",
                  .linear = "06", .means = "0", .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_kept),
    .doc = "dloss f32 (), x (..,C), logits f32 (..,V), targets, lse, count, [dw_in f32] → dw f32 "
           "(V,C) or, transposed, (C,V): what linear_cross_entropy_backward makes, from logits "
           "that were kept.",
    .n_in_min = 6,
    .n_in_max = 7,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = linear_cross_entropy_dw_infer,
    .cost = linear_cross_entropy_dw_cost,
};

/* ---- of logits that somebody else made
 * -------------------------------------------------- */
static ds_status cross_entropy_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "logits", 1));
    const ds_shape rows = dsi_shape_lead(call->in[0].shape);
    DS_TRY(dsi_op_need(call, 1, "targets", DS_DTYPE_I32, rows));
    loss_outputs(call, call->in[0].dtype, rows);
    return check_count(call, call->attrs, 2, call->in[0].dtype);
}

static void cross_entropy_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 12.0 * dsi_op_count(dsi_op_in(call, call->op->n_in_min > 2 ? 1 : 0));
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status cross_entropy_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(refuse_statistics(call));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[5] = {call->d_out[0], call->in[0], call->in[1], call->out[1], call->out[2]};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_cross_entropy_backward, call->attrs, in, 5, outs));
    return dsi_grad_give(call, 0, outs[0]);
}

static void adapt_cross_entropy(ds_place_case *c)
{
    adapt_forward(c, c->attrs, 2);
}

const ds_op dsi_op_cross_entropy = {
    .version = DS_OP_VERSION,
    .name = "cross_entropy",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ * .", .out = ". * .", .split = "*", .sums = "*", .means = "0",
                       .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_cross_entropy),
    .doc = "logits (..,V), targets i32 (..) [, counted: count f32 ()] → loss f32 () mean over rows "
           "whose target is not ignore_index (0 when there are none; their sum / count where that "
           "is given), lse f32 (..), count f32 ().",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 3,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = cross_entropy_infer,
    .grad = cross_entropy_grad,
    .cost = cross_entropy_cost,
};

static ds_status cross_entropy_backward_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "logits", 1));
    const ds_meta logits = call->in[1];
    const ds_shape rows = dsi_shape_lead(logits.shape);
    DS_TRY(dsi_op_need(call, 2, "targets", DS_DTYPE_I32, rows));
    DS_TRY(check_saved(call, logits.dtype, 3, rows));
    call->out[0] = logits;
    return DS_OK;
}

const ds_op dsi_op_cross_entropy_backward = {
    .version = DS_OP_VERSION,
    .name = "cross_entropy_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = ". *_ * * .", .out = "*_<0123+4", .split = "*", .sums = "*", .linear = "0",
                  .means = "0", .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_cross_entropy_backward),
    .doc =
        "dloss f32 (), logits, targets, lse, count → dlogits = (softmax - target)·dloss/count; 0 "
        "in ignored rows.",
    .n_in_min = 5,
    .n_in_max = 5,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = cross_entropy_backward_infer,
    .cost = cross_entropy_cost,
};

/* ---- rows that count ---------------------------------------------------------------------------
 */
static ds_status count_targets_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    if (dsi_op_in(call, 0).dtype != DS_DTYPE_I32) {
        return dsi_op_bad(call, 0, "targets", "i32");
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, scalar);
    return DS_OK;
}

const ds_op dsi_op_count_targets = {
    .version = DS_OP_VERSION,
    .name = "count_targets",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = ".", .split = "*", .sums = "*"),
    .doc = "targets i32 (..) → count f32 (): those that are not ignore_index.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = count_targets_infer,
    .cost = dsi_cost_elementwise,
};
