/* SPDX-License-Identifier: Apache-2.0 */
/* Binary operators with broadcast, and unary ones: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status binary_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "a", 0));
    DS_TRY(dsi_op_need_float(call, 1, "b", 0));
    const ds_meta a = call->in[0];
    const ds_meta b = call->in[1];
    const bool same = ds_shape_equal(a.shape, b.shape);
    const bool row = b.shape.n_dims == 1 && ds_shape_last(a.shape) == b.shape.dims[0];
    if (!same && !row && b.shape.n_dims != 0) {
        char text[96];
        return dsi_op_bad(call, 1, "b", "the shape of a (%s), its last dim alone, or a scalar",
                          ds_meta_text(a, text, sizeof text));
    }
    call->out[0] = a;
    return DS_OK;
}

/* Gives d, which has a's shape, to operand b: summed over what b was broadcast along. */
static ds_status give_b(ds_grad *call, ds_value d)
{
    const ds_shape a = dsi_grad_meta(call, call->in[0]).shape;
    const ds_shape b = dsi_grad_meta(call, call->in[1]).shape;
    if (!ds_shape_equal(a, b)) {
        const ds_op *sum = b.n_dims == 0 ? &dsi_op_sum_all : &dsi_op_sum_rows;
        DS_TRY(dsi_emit1(call, sum, NULL, d, &d));
    }
    return dsi_grad_give(call, 1, d);
}

static ds_status add_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_grad_give(call, 0, call->d_out[0]));
    return dsi_grad_wants(call, 1) ? give_b(call, call->d_out[0]) : DS_OK;
}

static ds_status sub_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_grad_give(call, 0, call->d_out[0]));
    if (!dsi_grad_wants(call, 1)) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, &dsi_op_neg, NULL, call->d_out[0], &d));
    return give_b(call, d);
}

static ds_status mul_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    if (dsi_grad_wants(call, 0)) {
        DS_TRY(dsi_emit2(call, &dsi_op_mul, NULL, call->d_out[0], call->in[1], &d));
        DS_TRY(dsi_grad_give(call, 0, d));
    }
    if (dsi_grad_wants(call, 1)) {
        DS_TRY(dsi_emit2(call, &dsi_op_mul, NULL, call->d_out[0], call->in[0], &d));
        DS_TRY(give_b(call, d));
    }
    return DS_OK;
}

/* da = dy/b; db = -(dy/b)·y. */
static ds_status div_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_div, NULL, call->d_out[0], call->in[1], &d));
    DS_TRY(dsi_grad_give(call, 0, d));
    if (dsi_grad_wants(call, 1)) {
        DS_TRY(dsi_emit2(call, &dsi_op_mul, NULL, d, call->out[0], &d));
        DS_TRY(dsi_emit1(call, &dsi_op_neg, NULL, d, &d));
        DS_TRY(give_b(call, d));
    }
    return DS_OK;
}

/* b is like a, or a row, or a scalar. */
static void adapt_broadcast(ds_place_case *c, bool keeps_zero)
{
    const ds_shape a = c->in_meta[0].shape;
    const ds_shape b = c->in_meta[1].shape;
    const bool scalar = b.n_dims == 0;
    if (ds_shape_equal(a, b)) {
        return;
    }
    c->in[1][0] = scalar ? '\0' : c->in[0][a.n_dims - 1];
    c->in[1][1] = '\0';
    if (!scalar || !keeps_zero) {
        c->flags &= ~(uint32_t)DS_PLACE_ELEMENTS;
    }
}

static void adapt_binary(ds_place_case *c)
{
    adapt_broadcast(c, false);
}

static void adapt_mul(ds_place_case *c)
{
    adapt_broadcast(c, true);
}

static void adapt_div(ds_place_case *c)
{
    adapt_broadcast(c, true);
    if (c->in_meta[1].shape.n_dims > 0) { /* 0/0 in the padding */
        c->flags &= ~(uint32_t)DS_PLACE_ELEMENTS;
    }
}

#define BINARY_OP(op_name, text, grad_fn, linear_in, adapt_fn)                                     \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 2, .n_in_max = 2,  \
        .n_out = 1, .flags = DS_OP_INPLACE, .infer = binary_infer, .grad = (grad_fn),              \
        .cost = dsi_cost_elementwise, .op_class = DS_CLASS_ELEMENTWISE, .role = DS_ROLE_COMPUTE,   \
        .again = DS_AGAIN_CHEAP,                                                                   \
        .place = DSI_PLACE(.in = "* *", .out = "*", .split = "*", .linear = (linear_in),           \
                           .flags = DS_PLACE_ELEMENTS, .adapt = (adapt_fn)),                       \
    }
#define BROADCAST "; b has a's shape, or is (C) for a (..,C), or a scalar; result in a's dtype."

const ds_op dsi_op_add = BINARY_OP("add", "a, b → a + b" BROADCAST, add_grad, "01", adapt_binary);
const ds_op dsi_op_sub = BINARY_OP("sub", "a, b → a - b" BROADCAST, sub_grad, "01", adapt_binary);
const ds_op dsi_op_mul = BINARY_OP("mul", "a, b → a·b" BROADCAST, mul_grad, "0|1", adapt_mul);
const ds_op dsi_op_div = BINARY_OP("div", "a, b → a/b" BROADCAST, div_grad, "0", adapt_div);

static ds_status unary_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    call->out[0] = call->in[0];
    return DS_OK;
}

/* d = dy op v */
static ds_status give_binary(ds_grad *call, const ds_op *op, ds_value v)
{
    ds_value d;
    DS_TRY(dsi_emit2(call, op, NULL, call->d_out[0], v, &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status scale_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, &dsi_op_scale, call->attrs, call->d_out[0], &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status neg_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, &dsi_op_neg, NULL, call->d_out[0], &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status exp_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK : give_binary(call, &dsi_op_mul, call->out[0]);
}

static ds_status log_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK : give_binary(call, &dsi_op_div, call->in[0]);
}

static ds_status relu_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK
                                     : give_binary(call, &dsi_op_relu_backward, call->out[0]);
}

/* dy/(2y) */
static ds_status sqrt_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const dsi_scale_attrs half = {.factor = 0.5};
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_div, NULL, call->d_out[0], call->out[0], &d));
    DS_TRY(dsi_emit1(call, &dsi_op_scale, &half, d, &d));
    return dsi_grad_give(call, 0, d);
}

/* 2·dy·x */
static ds_status square_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const dsi_scale_attrs two = {.factor = 2.0};
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_mul, NULL, call->d_out[0], call->in[0], &d));
    DS_TRY(dsi_emit1(call, &dsi_op_scale, &two, d, &d));
    return dsi_grad_give(call, 0, d);
}

/* dy - dy·y² */
static ds_status tanh_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, &dsi_op_square, NULL, call->out[0], &d));
    DS_TRY(dsi_emit2(call, &dsi_op_mul, NULL, call->d_out[0], d, &d));
    return give_binary(call, &dsi_op_sub, d);
}

/* dy·(y - y²) */
static ds_status sigmoid_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, &dsi_op_square, NULL, call->out[0], &d));
    DS_TRY(dsi_emit2(call, &dsi_op_sub, NULL, call->out[0], d, &d));
    return give_binary(call, &dsi_op_mul, d);
}

static ds_status relu_backward_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "dy", 0));
    DS_TRY(dsi_op_need(call, 1, "y", call->in[0].dtype, call->in[0].shape));
    call->out[0] = call->in[0];
    return DS_OK;
}

#define UNARY_OP(op_name, text, grad_fn, place_is)                                                 \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 1, .n_in_max = 1,  \
        .n_out = 1, .flags = DS_OP_INPLACE, .infer = unary_infer, .grad = (grad_fn),               \
        .cost = dsi_cost_elementwise, .op_class = DS_CLASS_ELEMENTWISE, .role = DS_ROLE_COMPUTE,   \
        .again = DS_AGAIN_CHEAP, .place = (place_is),                                              \
    }

const ds_op dsi_op_neg = UNARY_OP("neg", "x → -x.", neg_grad, DSI_PLACE_EACH("0"));
const ds_op dsi_op_exp = UNARY_OP("exp", "x → e to the x.", exp_grad, DSI_PLACE_POINTS);
const ds_op dsi_op_log = UNARY_OP("log", "x → natural logarithm of x.", log_grad, DSI_PLACE_POINTS);
const ds_op dsi_op_sqrt = UNARY_OP("sqrt", "x → square root of x.", sqrt_grad, DSI_PLACE_EACH(""));
const ds_op dsi_op_tanh =
    UNARY_OP("tanh", "x → hyperbolic tangent of x.", tanh_grad, DSI_PLACE_EACH(""));
const ds_op dsi_op_sigmoid =
    UNARY_OP("sigmoid", "x → 1/(1 + exp(-x)).", sigmoid_grad, DSI_PLACE_POINTS);
const ds_op dsi_op_relu =
    UNARY_OP("relu", "x → the larger of x and 0; NaN stays.", relu_grad, DSI_PLACE_EACH(""));
const ds_op dsi_op_square = UNARY_OP("square", "x → x².", square_grad, DSI_PLACE_EACH(""));

static const ds_attr scale_attrs[] = {DSI_ATTR_REAL(dsi_scale_attrs, factor)};

const ds_op dsi_op_scale = {
    .version = DS_OP_VERSION,
    .name = "scale",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE_EACH("0"),
    .doc = "x → factor·x, factor rounded to fp32.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_scale_attrs),
    .attrs = scale_attrs,
    .n_attrs = DSI_N(scale_attrs),
    .infer = unary_infer,
    .grad = scale_grad,
    .cost = dsi_cost_elementwise,
};

const ds_op dsi_op_relu_backward = {
    .version = DS_OP_VERSION,
    .name = "relu_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE_EACH("0"),
    .doc = "dy, y → dy where y > 0, else 0.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .infer = relu_backward_infer,
    .cost = dsi_cost_elementwise,
};
