/* SPDX-License-Identifier: Apache-2.0 */
/* A custom operator for tests. See own_op.h. */
#include "common/own_op.h"

static ds_status scale_infer(ds_infer *call)
{
    const ds_meta x = call->in[0];
    const ds_meta w = call->in[1];
    if (x.dtype != DS_DTYPE_F32 || w.dtype != DS_DTYPE_F32 || w.shape.n_dims != 1 ||
        w.shape.dims[0] != ds_shape_last(x.shape)) {
        return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: w is not f32 (C) of x f32 (..,C)",
                       call->op->name);
    }
    call->out[0] = x;
    return DS_OK;
}

static ds_status dw_infer(ds_infer *call)
{
    if (!ds_shape_equal(call->in[0].shape, call->in[1].shape)) {
        return ds_fail(call->ctx, DS_ERR_SHAPE, "%s: dy is not like x", call->op->name);
    }
    call->out[0] = (ds_meta){DS_DTYPE_F32, ds_shape_1d(ds_shape_last(call->in[0].shape))};
    return DS_OK;
}

static ds_status scale_run(const ds_kernel_call *call)
{
    const float *x = call->in[0].data;
    const float *w = call->in[1].data;
    float *y = call->out[0].data;
    const int64_t width = ds_shape_last(call->in[0].meta.shape);
    for (int64_t i = 0; i < ds_shape_count(call->in[0].meta.shape); ++i) {
        y[i] = x[i] * w[i % width];
    }
    return DS_OK;
}

static ds_status dw_run(const ds_kernel_call *call)
{
    const float *x = call->in[0].data;
    const float *dy = call->in[1].data;
    float *dw = call->out[0].data;
    const int64_t width = ds_shape_last(call->in[0].meta.shape);
    for (int64_t c = 0; c < width; ++c) {
        dw[c] = 0.0f;
    }
    for (int64_t i = 0; i < ds_shape_count(call->in[0].meta.shape); ++i) {
        dw[i % width] += x[i] * dy[i];
    }
    return DS_OK;
}

/* dx = dy·w, by the operator itself; dw by the other. */
static ds_status grad_by(ds_grad *call, const ds_op *dw_op)
{
    ds_value out[DS_MAX_OUT];
    call->d_in[0] = call->d_in[1] = DS_NONE;
    if (call->needs[0]) {
        const ds_value in[2] = {call->d_out[0], call->in[1]};
        DS_TRY(ds_graph_apply(call->graph, call->op, NULL, in, 2, out));
        call->d_in[0] = out[0];
    }
    if (call->needs[1]) {
        const ds_value in[2] = {call->in[0], call->d_out[0]};
        DS_TRY(ds_graph_apply(call->graph, dw_op, NULL, in, 2, out));
        call->d_in[1] = out[0];
    }
    return DS_OK;
}

static ds_status scale_grad(ds_grad *call)
{
    return grad_by(call, &own_scale_dw);
}

static ds_status plain_grad(ds_grad *call)
{
    return grad_by(call, &own_plain_dw);
}

#define KERNEL(id, op_name, run_fn)                                                                \
    static const ds_kernel id##_ref = {                                                            \
        .version = DS_OP_VERSION, .name = "ref", .op = (op_name), .run = (run_fn)};                \
    static const ds_kernel *const id##_kernels[] = {&id##_ref, NULL}

KERNEL(scale, "own_scale", scale_run);
KERNEL(scale_dw, "own_scale_dw", dw_run);
KERNEL(plain, "own_plain", scale_run);
KERNEL(plain_dw, "own_plain_dw", dw_run);

#define OWN(op_name, text, infer_fn, grad_fn, list)                                                \
    .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 2, .n_in_max = 2,      \
    .n_out = 1, .infer = (infer_fn), .grad = (grad_fn), .kernels = (list)

static const ds_place_rule scale_place = {
    .in = "*c c", .out = "*c", .split = "*c", .linear = "0|1"};
static const ds_place_rule dw_place = {
    .in = "*c *c", .out = "c", .split = "*c", .sums = "*", .linear = "0|1"};

const ds_op own_scale = {OWN("own_scale", "x, w → x·w.", scale_infer, scale_grad, scale_kernels),
                         .op_class = DS_CLASS_ELEMENTWISE, .role = DS_ROLE_COMPUTE,
                         .again = DS_AGAIN_CHEAP, .place = &scale_place};
const ds_op own_scale_dw = {OWN("own_scale_dw", "x, dy → dw.", dw_infer, NULL, scale_dw_kernels),
                            .op_class = DS_CLASS_REDUCE, .place = &dw_place};
const ds_op own_plain = {OWN("own_plain", "x, w → x·w.", scale_infer, plain_grad, plain_kernels)};
const ds_op own_plain_dw = {OWN("own_plain_dw", "x, dy → dw.", dw_infer, NULL, plain_dw_kernels)};
