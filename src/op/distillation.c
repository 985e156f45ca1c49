/* SPDX-License-Identifier: Apache-2.0 */
/* distillation and its backward operator: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

enum { LSE = 1, COUNT = 2, HOT_LSE = 3, TEACHER_LSE = 4, INNER = 5 }; /* outputs */

static ds_status check_pair(const ds_infer *call, uint32_t i)
{
    DS_TRY(dsi_op_need_float(call, i, "logits", 1));
    const ds_meta logits = call->in[i];
    DS_TRY(dsi_op_need(call, i + 1, "teacher", DS_DTYPE_F32, logits.shape));
    return dsi_op_need(call, i + 2, "targets", DS_DTYPE_I32, dsi_shape_lead(logits.shape));
}

static ds_status distillation_infer(ds_infer *call)
{
    const dsi_distillation_attrs *a = call->attrs;
    const ds_shape scalar = {0};
    DS_TRY(check_pair(call, 0));
    const ds_dtype stat = dsi_stat_dtype(call->in[0].dtype);
    const ds_meta rows = dsi_meta_of(stat, dsi_shape_lead(call->in[0].shape));
    const ds_meta one = dsi_meta_of(stat, scalar);
    call->out[0] = one;
    call->out[LSE] = rows;
    call->out[COUNT] = one;
    call->out[HOT_LSE] = rows;
    call->out[TEACHER_LSE] = rows;
    call->out[INNER] = rows;
    if (a->ce.counted == 0) {
        return dsi_op_has(call, 3) ? dsi_op_bad(call, 3, "count", "none, since counted is 0")
                                   : DS_OK;
    }
    return dsi_op_need(call, 3, "count", stat, scalar);
}

static void distillation_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 40.0 * dsi_op_count(dsi_op_in(call, call->op->n_in_min > 4 ? 1 : 0));
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status distillation_grad(ds_grad *call)
{
    static const char *const statistics[] = {"", "lse", "count", "lse", "lse", "inner"};
    dsi_grad_clear(call);
    for (uint32_t i = LSE; i <= INNER; ++i) {
        DS_TRY(dsi_grad_refuse(call, i, statistics[i]));
    }
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    if (dsi_grad_wants(call, 1)) {
        return ds_fail(ds_graph_ctx(call->graph), DS_ERR_UNSUPPORTED,
                       "distillation: the teacher has no gradient; freeze its parameters");
    }
    const ds_value in[9] = {
        call->d_out[0],  call->in[0],      call->in[1],        call->in[2],
        call->out[LSE],  call->out[COUNT], call->out[HOT_LSE], call->out[TEACHER_LSE],
        call->out[INNER]};
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_distillation_backward, call->attrs, in, 9, outs));
    return dsi_grad_give(call, 0, outs[0]);
}

static const ds_attr attrs[] = {
    {"ignore_index", DS_ATTR_INT, offsetof(dsi_distillation_attrs, ce.ignore_index)},
    {"transposed", DS_ATTR_INT, offsetof(dsi_distillation_attrs, ce.transposed)},
    {"counted", DS_ATTR_INT, offsetof(dsi_distillation_attrs, ce.counted)},
    DSI_ATTR_REAL(dsi_distillation_attrs, weight),
    DSI_ATTR_REAL(dsi_distillation_attrs, temperature),
    DSI_ATTR_REAL(dsi_distillation_attrs, mix),
};

/* As of cross_entropy: divided by a given count, the loss of some rows is a term of a sum. */
static void adapt(ds_place_case *c, bool backward)
{
    const dsi_distillation_attrs *a = c->attrs;
    if (a->ce.counted == 0) {
        return;
    }
    c->flags &= ~(uint32_t)DS_PLACE_MEAN_ROWS;
    c->means = 0;
    if (backward) {
        c->added[0] &= ~(1u << 5);
    } else {
        c->computed[COUNT] = 1u << 3;
    }
}

static void adapt_forward(ds_place_case *c)
{
    adapt(c, false);
}

static void adapt_backward(ds_place_case *c)
{
    adapt(c, true);
}

const ds_op dsi_op_distillation = {
    .version = DS_OP_VERSION,
    .name = "distillation",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ *_ * .", .out = ". * . * * *", .split = "*", .sums = "*",
                       .means = "0", .flags = DS_PLACE_MEAN_ROWS, .adapt = adapt_forward),
    .doc =
        "logits (..,V), teacher f32 (..,V), targets i32 (..) [, counted: count f32 ()] → loss f32 "
        "() mean of (1-weight) cross entropy + weight temperature² divergence over rows whose "
        "target is not ignore_index, lse f32 (..), count f32 (); of logits / temperature lse "
        "f32 (..), the teacher's f32 (..), mean of log q - log m f32 (..). Source: "
        "deepspeed/distillation.h.",
    .n_in_min = 3,
    .n_in_max = 4,
    .n_out = 6,
    .attrs_bytes = sizeof(dsi_distillation_attrs),
    .attrs = attrs,
    .n_attrs = DSI_N(attrs),
    .infer = distillation_infer,
    .grad = distillation_grad,
    .cost = distillation_cost,
};

static ds_status distillation_backward_infer(ds_infer *call)
{
    static const char *const names[] = {"lse", "count", "lse", "lse", "inner"};
    const ds_shape scalar = {0};
    DS_TRY(check_pair(call, 1));
    const ds_meta logits = call->in[1];
    const ds_dtype stat = dsi_stat_dtype(logits.dtype);
    DS_TRY(dsi_op_need(call, 0, "dloss", stat, scalar));
    for (uint32_t i = 0; i < 5; ++i) {
        DS_TRY(dsi_op_need(call, 4 + i, names[i], stat,
                           i == 1 ? scalar : dsi_shape_lead(logits.shape)));
    }
    call->out[0] = logits;
    return DS_OK;
}

const ds_op dsi_op_distillation_backward = {
    .version = DS_OP_VERSION,
    .name = "distillation_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = ". *_ *_ * * . * * *", .out = "*_<01234678+5", .split = "*",
                       .sums = "*", .linear = "0", .means = "0", .flags = DS_PLACE_MEAN_ROWS,
                       .adapt = adapt_backward),
    .doc = "dloss f32 (), logits, teacher, targets, and what distillation gives beside its loss → "
           "dlogits; 0 in ignored rows.",
    .n_in_min = 9,
    .n_in_max = 9,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_distillation_attrs),
    .attrs = attrs,
    .n_attrs = DSI_N(attrs),
    .infer = distillation_backward_infer,
    .cost = distillation_cost,
};
