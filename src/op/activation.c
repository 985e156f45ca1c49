/* SPDX-License-Identifier: Apache-2.0 */
/* activation and glu with their backward operators: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status check_kind(const ds_infer *call)
{
    const dsi_act_attrs *a = call->attrs;
    if (a->kind < DSI_ACT_NONE || a->kind > DSI_ACT_GELU_ERF) {
        return dsi_op_bad_attr(call, "kind is %lld, expected 0 to %d", (long long)a->kind,
                               DSI_ACT_GELU_ERF);
    }
    return DS_OK;
}

/* n float inputs of one dtype and shape, which output 0 (and 1, for two outputs) has too. */
static ds_status same_infer(ds_infer *call, uint32_t n, const char *const *names)
{
    DS_TRY(check_kind(call));
    DS_TRY(dsi_op_need_float(call, 0, names[0], 0));
    for (uint32_t i = 1; i < n; ++i) {
        DS_TRY(dsi_op_need(call, i, names[i], call->in[0].dtype, call->in[0].shape));
    }
    for (uint32_t i = 0; i < call->n_out; ++i) {
        call->out[i] = call->in[0];
    }
    return DS_OK;
}

static ds_status activation_infer(ds_infer *call)
{
    static const char *const names[] = {"x"};
    return same_infer(call, 1, names);
}

static ds_status activation_backward_infer(ds_infer *call)
{
    static const char *const names[] = {"dy", "x"};
    return same_infer(call, 2, names);
}

static ds_status glu_infer(ds_infer *call)
{
    static const char *const names[] = {"gate", "up"};
    return same_infer(call, 2, names);
}

static ds_status glu_backward_infer(ds_infer *call)
{
    static const char *const names[] = {"dy", "gate", "up"};
    return same_infer(call, 3, names);
}

static void cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 16.0 * dsi_op_count(call->out[0]); /* counts tanh or exp as some ten */
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status activation_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(
        dsi_emit2(call, &dsi_op_activation_backward, call->attrs, call->d_out[0], call->in[0], &d));
    return dsi_grad_give(call, 0, d);
}

static ds_status glu_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[3] = {call->d_out[0], call->in[0], call->in[1]};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_glu_backward, call->attrs, in, 3, outs));
    DS_TRY(dsi_grad_give(call, 0, outs[0]));
    return dsi_grad_give(call, 1, outs[1]);
}

static const ds_attr act_attrs[] = {DSI_ATTR_INT(dsi_act_attrs, kind)};

#define ACT_OP(op_name, text, n, outs, infer_fn, grad_fn, op_flags, again_is, place_is)            \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n),               \
        .n_in_max = (n), .n_out = (outs), .flags = (op_flags),                                     \
        .attrs_bytes = sizeof(dsi_act_attrs), .attrs = act_attrs, .n_attrs = DSI_N(act_attrs),     \
        .infer = (infer_fn), .grad = (grad_fn), .cost = cost, .op_class = DS_CLASS_ELEMENTWISE,    \
        .role = DS_ROLE_COMPUTE, .again = (again_is), .place = (place_is),                         \
    }

const ds_op dsi_op_activation = ACT_OP(
    "activation", "x → act(x); kind 0 identity, 1 GELU (tanh form), 2 SiLU, 3 GELU (erf form).", 1,
    1, activation_infer, activation_grad, DS_OP_INPLACE, DS_AGAIN_CHEAP, DSI_PLACE_EACH(""));
const ds_op dsi_op_activation_backward =
    ACT_OP("activation_backward", "dy, x → dx = dy·act'(x); kinds as activation.", 2, 1,
           activation_backward_infer, NULL, DS_OP_INPLACE, DS_AGAIN_COSTLY, DSI_PLACE_EACH("0"));
const ds_op dsi_op_glu =
    ACT_OP("glu", "gate, up → act(gate)·up: SwiGLU with kind 2, GeGLU with kinds 1 and 3.", 2, 1,
           glu_infer, glu_grad, DS_OP_INPLACE, DS_AGAIN_CHEAP, DSI_PLACE_EACH(""));
const ds_op dsi_op_glu_backward = ACT_OP(
    "glu_backward", "dy, gate, up → dgate = dy·up·act'(gate), dup = dy·act(gate).", 3, 2,
    glu_backward_infer, NULL, 0, DS_AGAIN_COSTLY,
    DSI_PLACE(.in = "*", .out = "* *", .split = "*", .linear = "0", .flags = DS_PLACE_ELEMENTS));
