/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv, its gradient, and causal_conv_step and paged_causal_conv, which go on from what a
 * cell holds: rules. */
#include "op/op_place.h"
#include "op/op_util.h"
#include "op/paged_state.h"

/* x (B,T,C) at `at`, then w (C,1,K). */
static ds_status check(const ds_infer *call, uint32_t at)
{
    const ds_meta x = dsi_op_in(call, at);
    const ds_meta w = dsi_op_in(call, at + 1);
    if (!dsi_dtype_is_float(x.dtype) || x.shape.n_dims != 3) {
        return dsi_op_bad(call, at, "x", "a float tensor (B,T,C)");
    }
    if (w.dtype != x.dtype || w.shape.n_dims != 3 || w.shape.dims[0] != x.shape.dims[2] ||
        w.shape.dims[1] != 1 || w.shape.dims[2] < 1) {
        return dsi_op_bad(call, at + 1, "w", "%s[%lld,1,K]", ds_dtype_name(x.dtype),
                          (long long)x.shape.dims[2]);
    }
    return DS_OK;
}

static ds_status conv_infer(ds_infer *call)
{
    DS_TRY(check(call, 0));
    const ds_shape x = call->in[0].shape;
    DS_TRY(dsi_op_may(call, 2, "first", DS_DTYPE_I32, ds_shape_2d(x.dims[0], x.dims[1])));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status conv_backward_infer(ds_infer *call)
{
    DS_TRY(check(call, 1));
    const ds_meta x = call->in[1];
    DS_TRY(dsi_op_need(call, 0, "dy", x.dtype, x.shape));
    DS_TRY(
        dsi_op_may(call, 3, "first", DS_DTYPE_I32, ds_shape_2d(x.shape.dims[0], x.shape.dims[1])));
    call->out[0] = x;
    call->out[1] = dsi_meta_of(dsi_stat_dtype(x.dtype), call->in[2].shape);
    return DS_OK;
}

static ds_status conv_step_infer(ds_infer *call)
{
    DS_TRY(check(call, 0));
    const ds_meta x = call->in[0];
    const int64_t b = x.shape.dims[0];
    const ds_shape held = ds_shape_3d(b, call->in[1].shape.dims[2] - 1, x.shape.dims[2]);
    DS_TRY(dsi_op_need(call, 2, "cell", x.dtype, held));
    DS_TRY(dsi_op_need(call, 3, "offset", DS_DTYPE_I32, ds_shape_1d(b)));
    DS_TRY(dsi_op_need(call, 4, "last", DS_DTYPE_I32, ds_shape_1d(b)));
    call->out[0] = x;
    call->out[1] = call->in[2];
    return DS_OK;
}

static ds_status paged_conv_infer(ds_infer *call)
{
    DS_TRY(check(call, 0));
    const ds_meta x = call->in[0];
    const ds_meta cell = dsi_op_in(call, 2);
    DS_TRY(dsi_op_need_tokens(call, 0, "x", 3));
    DS_TRY(dsi_op_need(
        call, 2, "cell", x.dtype,
        ds_shape_3d(cell.shape.dims[0], call->in[1].shape.dims[2] - 1, x.shape.dims[2])));
    call->out[0] = x;
    call->out[1] = cell;
    return DS_OK;
}

static void cost_of(const ds_infer *call, uint32_t at, double products, ds_cost *cost_out)
{
    cost_out->flops =
        2.0 * products * dsi_op_count(call->in[at]) * (double)call->in[at + 1].shape.dims[2];
    cost_out->bytes = dsi_op_bytes(call);
}

static void conv_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 0, 1.0, cost_out);
}

static void conv_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 1, 2.0, cost_out);
}

static ds_status conv_grad(ds_grad *call)
{
    const ds_value in[4] = {call->d_out[0], call->in[0], call->in[1],
                            call->n_in > 2 ? call->in[2] : DS_NONE};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_emit(call, &dsi_op_causal_conv_backward, NULL, in, call->n_in > 2 ? 4 : 3, out));
    DS_TRY(dsi_grad_give(call, 0, out[0]));
    return dsi_grad_give(call, 1, out[1]);
}

const ds_op dsi_op_causal_conv = {
    .version = DS_OP_VERSION,
    .name = "causal_conv",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "b__ ___ b_", .out = "b__", .split = "b"),
    .doc = "x (B,T,C), w (C,1,K), [first i32 (B,T)] → (B,T,C): in each channel the sum of "
           "w[j]·x[t-K+1+j] over the positions of t's document, which begins at first[t].",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .infer = conv_infer,
    .grad = conv_grad,
    .cost = conv_cost,
};

const ds_op dsi_op_causal_conv_backward = {
    .version = DS_OP_VERSION,
    .name = "causal_conv_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b__ b__ ___ b_", .out = "b__ ___<013", .split = "b", .sums = "b",
                       .linear = "0"),
    .doc = "dy, x (B,T,C), w (C,1,K), [first i32 (B,T)] → dx (B,T,C), dw f32 (C,1,K), summed in "
           "the order of samples and positions.",
    .n_in_min = 3,
    .n_in_max = 4,
    .n_out = 2,
    .infer = conv_backward_infer,
    .cost = conv_backward_cost,
};

static const int8_t step_writes[] = {-1, 2};

const ds_op dsi_op_causal_conv_step = {
    .version = DS_OP_VERSION,
    .name = "causal_conv_step",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b__ ___ b__ b b", .out = "b__ b__", .split = "b"),
    .doc = "x (B,T,C), w (C,1,K), cell (B,K-1,C), offset i32 (B), last i32 (B) → (B,T,C), the "
           "cell's next version: causal_conv of positions 0 to last behind what the cell holds "
           "(zeros where offset is 0), which becomes their last K-1; zeros behind last.",
    .n_in_min = 5,
    .n_in_max = 5,
    .n_out = 2,
    .writes = step_writes,
    .infer = conv_step_infer,
    .cost = conv_cost,
};

const ds_op dsi_op_paged_causal_conv = {
    .version = DS_OP_VERSION,
    .name = "paged_causal_conv",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "___ ___ ___ _ __", .out = "___ ___"),
    .doc = "x (1,T,C), w (C,1,K), cell (S,K-1,C), sequence i32 (T), positions i32 (1,T) → (1,T,C), "
           "the cell's next version: causal_conv_step of many sequences, whose tokens are "
           "neighbours at positions in a row; sequence: each token's row of the cell, zeros before "
           "position 0; -1: none, y is zeros.",
    .n_in_min = 5,
    .n_in_max = 5,
    .n_out = 2,
    .writes = step_writes,
    .infer = paged_conv_infer,
    .cost = conv_cost,
};
