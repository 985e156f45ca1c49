/* SPDX-License-Identifier: Apache-2.0 */
/* linear_logprob, the log-probabilities of given tokens fused with the output projection, and its
 * backward operator: rules. Unlike linear_cross_entropy it keeps a number for each row, which a
 * loss of whole sequences needs. */
#include "op/op_place.h"
#include "op/op_util.h"

/* x (..,C) at input i, w and targets behind it. */
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

static ds_status linear_logprob_infer(ds_infer *call)
{
    DS_TRY(check_projection(call, 0));
    const ds_meta x = call->in[0];
    call->out[0] = dsi_meta_of(dsi_stat_dtype(x.dtype), dsi_shape_lead(x.shape));
    call->out[1] = call->out[0];
    return DS_OK;
}

static void cost_of(const ds_infer *call, uint32_t x, double products, ds_cost *cost_out)
{
    const int64_t weights = ds_shape_count(call->in[x + 1].shape);
    const int64_t width = ds_shape_last(call->in[x].shape);
    cost_out->m = ds_shape_rows(call->in[x].shape);
    cost_out->n = weights / (width > 0 ? width : 1);
    cost_out->k = width;
    cost_out->flops = 2.0 * products * (double)cost_out->m * (double)weights;
    cost_out->bytes = dsi_op_bytes(call);
}

static void linear_logprob_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 0, 1.0, cost_out);
}

static void linear_logprob_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_ce_backward_attrs *a = call->attrs;
    const double products = 1.0 + (a->no_dx == 0 ? 1.0 : 0.0) + (a->no_dw == 0 ? 1.0 : 0.0);
    cost_of(call, 1, products, cost_out); /* the logits again, dx, dw */
    cost_out->again = cost_out->flops / products;
}

static ds_status linear_logprob_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(dsi_grad_refuse(call, 1, "lse"));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    const ds_value in[5] = {call->d_out[0], call->in[0], call->in[1], call->in[2], call->out[1]};
    const dsi_ce_backward_attrs attrs = {.ce = *(const dsi_ce_attrs *)call->attrs,
                                         .no_dx = !dsi_grad_wants(call, 0),
                                         .no_dw = !dsi_grad_wants(call, 1)};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_linear_logprob_backward, &attrs, in, 5, outs));
    DS_TRY(dsi_grad_give(call, 0, outs[0]));
    return dsi_grad_give(call, 1, outs[1]);
}

static const ds_attr attrs_of_forward[] = {
    DSI_ATTR_INT(dsi_ce_attrs, ignore_index),
    DSI_ATTR_INT(dsi_ce_attrs, transposed),
    DSI_ATTR_INT(dsi_ce_attrs, counted),
};

const ds_op dsi_op_linear_logprob = {
    .version = DS_OP_VERSION,
    .name = "linear_logprob",
    .op_class = DS_CLASS_LOSS,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ __ *", .out = "* *", .split = "*"),
    .doc = "x (..,C), w (V,C) or, transposed, (C,V), targets i32 (..) → logp f32 (..), the log of "
           "the softmax of x·wᵀ at the target, 0 where it is ignore_index; lse f32 (..). Logits "
           "stay fp32 and are never whole in memory.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = attrs_of_forward,
    .n_attrs = DSI_N(attrs_of_forward),
    .infer = linear_logprob_infer,
    .grad = linear_logprob_grad,
    .cost = linear_logprob_cost,
};

static ds_status linear_logprob_backward_infer(ds_infer *call)
{
    const dsi_ce_backward_attrs *a = call->attrs;
    DS_TRY(check_projection(call, 1));
    const ds_meta x = call->in[1];
    const ds_dtype stat = dsi_stat_dtype(x.dtype);
    const ds_shape rows = dsi_shape_lead(x.shape);
    const ds_meta dw = dsi_meta_of(stat, call->in[2].shape);
    DS_TRY(dsi_op_need(call, 0, "dlogp", stat, rows));
    DS_TRY(dsi_op_need(call, 4, "lse", stat, rows));
    if (a->no_dw != 0 && dsi_op_has(call, 5)) {
        return dsi_op_bad(call, 5, "dw_in", "none, since no_dw is 1");
    }
    if (a->no_dx == 0) {
        call->out[0] = x;
    }
    if (a->no_dw == 0) {
        call->out[1] = dw;
    }
    return dsi_op_may(call, 5, "dw_in", dw.dtype, dw.shape);
}

static const ds_attr attrs_of_backward[] = {
    {"ignore_index", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.ignore_index)},
    {"transposed", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.transposed)},
    {"counted", DS_ATTR_INT, offsetof(dsi_ce_backward_attrs, ce.counted)},
    DSI_ATTR_INT(dsi_ce_backward_attrs, no_dx),
    DSI_ATTR_INT(dsi_ce_backward_attrs, no_dw),
};

const ds_op dsi_op_linear_logprob_backward = {
    .version = DS_OP_VERSION,
    .name = "linear_logprob_backward",
    .op_class = DS_CLASS_LOSS_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* *_ __ * * __", .out = "*_<01234 __<01234+5", .split = "*",
                       .sums = "*", .linear = "05"),
    .doc = "dlogp f32 (..), x, w, targets, lse, [dw_in f32] → [dx (..,C)], [dw f32 in w's layout "
           "(dw_in is added to the finished sums)]; no_dx and no_dw leave one out. The gradient of "
           "the logits is rounded to x's dtype before the two products.",
    .n_in_min = 5,
    .n_in_max = 6,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_ce_backward_attrs),
    .attrs = attrs_of_backward,
    .n_attrs = DSI_N(attrs_of_backward),
    .infer = linear_logprob_backward_infer,
    .cost = linear_logprob_backward_cost,
};
