/* SPDX-License-Identifier: Apache-2.0 */
/* attention_sinks and its gradient (Xiao et al., "Efficient Streaming Language Models with
 * Attention Sinks", 2024; learned, a score a head, in gpt-oss, 2025): rules. A key of no value adds
 * e^sink to the sum under a query's softmax, so that all that attention gives is less by one
 * factor. */
#include "op/op_place.h"
#include "op/op_util.h"

/* y at `at`, then lse and sinks. */
static ds_status check(const ds_infer *call, uint32_t at)
{
    const dsi_sinks_attrs *a = call->attrs;
    const ds_meta y = dsi_op_in(call, at);
    DS_TRY(dsi_op_need_float(call, at, "y", 3));
    if (a->n_heads < 1 || y.shape.n_dims != 3 || y.shape.dims[2] % a->n_heads != 0) {
        return dsi_op_bad_attr(call,
                               "n_heads is %lld, expected a divisor of the width of y (B,T,H·D)",
                               (long long)a->n_heads);
    }
    DS_TRY(dsi_op_need(call, at + 1, "lse", dsi_stat_dtype(y.dtype),
                       ds_shape_3d(y.shape.dims[0], a->n_heads, y.shape.dims[1])));
    return dsi_op_need(call, at + 2, "sinks", y.dtype, ds_shape_1d(a->n_heads));
}

static ds_status sinks_infer(ds_infer *call)
{
    DS_TRY(check(call, 0));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status sinks_backward_infer(ds_infer *call)
{
    DS_TRY(check(call, 1));
    DS_TRY(dsi_op_need(call, 0, "dy", call->in[1].dtype, call->in[1].shape));
    call->out[0] = call->in[1];
    call->out[1] = call->in[2];
    call->out[2] = dsi_meta_of(call->in[2].dtype, call->in[3].shape);
    return DS_OK;
}

static ds_status sinks_grad(ds_grad *call)
{
    const ds_value in[4] = {call->d_out[0], call->in[0], call->in[1], call->in[2]};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_emit(call, &dsi_op_attention_sinks_backward, call->attrs, in, 4, out));
    for (uint32_t i = 0; i < 3; ++i) {
        DS_TRY(dsi_grad_give(call, i, out[i]));
    }
    return DS_OK;
}

static void adapt_heads(ds_place_case *c)
{
    const dsi_sinks_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = c->units[1] = a->n_heads;
    c->hint = "the ranks that share the heads must divide n_heads";
}

static void sinks_local(const ds_infer *local, void *attrs)
{
    ((dsi_sinks_attrs *)attrs)->n_heads = local->in[2].shape.dims[0];
}

static void sinks_backward_local(const ds_infer *local, void *attrs)
{
    ((dsi_sinks_attrs *)attrs)->n_heads = local->in[3].shape.dims[0];
}

static const ds_attr sinks_attrs[] = {DSI_ATTR_INT(dsi_sinks_attrs, n_heads)};

const ds_op dsi_op_attention_sinks = {
    .version = DS_OP_VERSION,
    .name = "attention_sinks",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "bth bht h", .out = "bth", .split = "hbt", .adapt = adapt_heads,
                       .local = sinks_local),
    .doc =
        "y (B,T,H·D), lse f32 (B,H,T) of attention, sinks (H) → (B,T,H·D): y·sigmoid(lse - sink), "
        "what attention gives with one more key a head, of that score and without value.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_sinks_attrs),
    .attrs = sinks_attrs,
    .n_attrs = DSI_N(sinks_attrs),
    .infer = sinks_infer,
    .grad = sinks_grad,
    .cost = dsi_cost_elementwise,
};

const ds_op dsi_op_attention_sinks_backward = {
    .version = DS_OP_VERSION,
    .name = "attention_sinks_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bth bth bht h", .out = "bth bht h", .split = "hbt", .sums = "bt",
                       .linear = "0", .adapt = adapt_heads, .local = sinks_backward_local),
    .doc = "dy, y (B,T,H·D), lse f32 (B,H,T), sinks (H) → dy of attention (B,T,H·D), dlse f32 "
           "(B,H,T), dsinks f32 (H), summed in the order of samples and positions.",
    .n_in_min = 4,
    .n_in_max = 4,
    .n_out = 3,
    .attrs_bytes = sizeof(dsi_sinks_attrs),
    .attrs = sinks_attrs,
    .n_attrs = DSI_N(sinks_attrs),
    .infer = sinks_backward_infer,
    .cost = dsi_cost_elementwise,
};
