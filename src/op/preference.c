/* SPDX-License-Identifier: Apache-2.0 */
/* preference, the losses of preference training, and its backward operator: rules. The formulas:
 * deepspeed/preference.h. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <deepspeed/preference.h>

static const struct {
    const char *name;
    double beta;
    bool unpaired;
    bool no_reference;
} losses[DS_PREFERENCE_LOSSES] = {
    [DS_PREFERENCE_SIGMOID] = {"sigmoid", 0.1, false, false},
    [DS_PREFERENCE_HINGE] = {"hinge", 0.1, false, false},
    [DS_PREFERENCE_IPO] = {"ipo", 0.1, false, false},
    [DS_PREFERENCE_ROBUST] = {"robust", 0.1, false, false},
    [DS_PREFERENCE_EXO_PAIR] = {"exo_pair", 0.1, false, false},
    [DS_PREFERENCE_NCA_PAIR] = {"nca_pair", 0.1, false, false},
    [DS_PREFERENCE_BCO_PAIR] = {"bco_pair", 0.1, false, false},
    [DS_PREFERENCE_SPPO_HARD] = {"sppo_hard", 0.1, false, false},
    [DS_PREFERENCE_APO_ZERO] = {"apo_zero", 0.1, false, false},
    [DS_PREFERENCE_APO_DOWN] = {"apo_down", 0.1, false, false},
    [DS_PREFERENCE_SIGMOID_NORM] = {"sigmoid_norm", 0.1, false, false},
    [DS_PREFERENCE_SIMPO] = {"simpo", 0.1, false, true},
    [DS_PREFERENCE_ORPO] = {"orpo", 0.1, false, true},
    [DS_PREFERENCE_REWARD] = {"reward", 1.0, false, true},
    [DS_PREFERENCE_KTO] = {"kto", 0.1, true, false},
    [DS_PREFERENCE_APO_UNPAIRED] = {"apo_zero_unpaired", 0.1, true, false},
};

static bool is_known(int64_t loss)
{
    return loss > DS_PREFERENCE_NONE && loss < DS_PREFERENCE_LOSSES;
}

ds_preference ds_preference_default(ds_preference_loss loss)
{
    return (ds_preference){.loss = loss,
                           .beta = is_known(loss) ? losses[loss].beta : 0.0,
                           .gamma = loss == DS_PREFERENCE_SIMPO ? 0.5 : 0.0,
                           .desirable_weight = 1.0,
                           .undesirable_weight = 1.0};
}

const char *ds_preference_loss_name(ds_preference_loss loss)
{
    return is_known(loss) ? losses[loss].name : NULL;
}

bool ds_preference_is_paired(ds_preference_loss loss)
{
    return is_known(loss) && !losses[loss].unpaired;
}

bool ds_preference_has_reference(const ds_preference *preference)
{
    return is_known(preference->loss) && !losses[preference->loss].no_reference &&
           !preference->reference_free;
}

/* logp at input i, the others behind it. */
static ds_status check_batch(const ds_infer *call, uint32_t i)
{
    const dsi_preference_attrs *a = call->attrs;
    if (!is_known(a->loss)) {
        return dsi_op_bad_attr(call, "loss is %lld, expected one of ds_preference_loss",
                               (long long)a->loss);
    }
    if (!(a->beta > 0.0) || !(a->label_smoothing >= 0.0 && a->label_smoothing < 0.5)) {
        return dsi_op_bad_attr(call,
                               "beta is %g and label_smoothing %g, expected above 0 and 0 to "
                               "below 0.5",
                               a->beta, a->label_smoothing);
    }
    const bool paired = ds_preference_is_paired((ds_preference_loss)a->loss);
    const ds_meta logp = dsi_op_in(call, i);
    DS_TRY(dsi_op_need_float(call, i, "logp", 2));
    if (logp.shape.n_dims != 2 || dsi_stat_dtype(logp.dtype) != logp.dtype ||
        (paired && logp.shape.dims[0] % 2 != 0)) {
        return dsi_op_bad(call, i, "logp", "f32[R,T], R even for pairs");
    }
    const ds_shape rows = ds_shape_1d(logp.shape.dims[0]);
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need(call, i + 1, "counted", DS_DTYPE_I32, logp.shape));
    DS_TRY(a->loss == DS_PREFERENCE_ORPO
               ? dsi_op_need(call, i + 2, "targets", DS_DTYPE_I32, logp.shape)
               : dsi_op_may(call, i + 2, "targets", DS_DTYPE_I32, logp.shape));
    DS_TRY(dsi_op_may(call, i + 3, "ref", DS_DTYPE_F32, rows));
    DS_TRY(paired ? dsi_op_may(call, i + 4, "labels", DS_DTYPE_I32, rows)
                  : dsi_op_need(call, i + 4, "labels", DS_DTYPE_I32, rows));
    return a->loss == DS_PREFERENCE_KTO ? dsi_op_need(call, i + 5, "kl", DS_DTYPE_F32, scalar)
                                        : dsi_op_may(call, i + 5, "kl", DS_DTYPE_F32, scalar);
}

static ds_status preference_infer(ds_infer *call)
{
    DS_TRY(check_batch(call, 0));
    const ds_meta logp = call->in[0];
    const ds_shape scalar = {0};
    call->out[0] = dsi_meta_of(logp.dtype, scalar);
    call->out[1] = call->out[0];
    call->out[2] = dsi_meta_of(logp.dtype, ds_shape_1d(logp.shape.dims[0]));
    call->out[3] = dsi_meta_of(logp.dtype, ds_shape_1d(DSI_PREFERENCE_SUMS));
    return DS_OK;
}

static void preference_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = dsi_op_count(dsi_op_in(call, call->op == &dsi_op_preference ? 0 : 1));
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status preference_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    DS_TRY(dsi_grad_refuse(call, 1, "count"));
    DS_TRY(dsi_grad_refuse(call, 2, "logps"));
    DS_TRY(dsi_grad_refuse(call, 3, "sums"));
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value in[7] = {call->d_out[0], DS_NONE, DS_NONE, DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    ds_value outs[DS_MAX_OUT];
    for (uint32_t i = 0; i < call->n_in; ++i) {
        in[1 + i] = call->in[i];
    }
    DS_TRY(dsi_emit(call, &dsi_op_preference_backward, call->attrs, in, 1 + call->n_in, outs));
    return dsi_grad_give(call, 0, outs[0]);
}

static const ds_attr preference_attrs[] = {
    DSI_ATTR_INT(dsi_preference_attrs, loss),
    DSI_ATTR_REAL(dsi_preference_attrs, beta),
    DSI_ATTR_REAL(dsi_preference_attrs, label_smoothing),
    DSI_ATTR_REAL(dsi_preference_attrs, gamma),
    DSI_ATTR_REAL(dsi_preference_attrs, center),
    DSI_ATTR_REAL(dsi_preference_attrs, desirable_weight),
    DSI_ATTR_REAL(dsi_preference_attrs, undesirable_weight),
};

const ds_op dsi_op_preference = {
    .version = DS_OP_VERSION,
    .name = "preference",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "__ __ __ _ _ .", .out = ". . _ _"),
    .doc = "logp f32 (R,T), counted i32 (R,T), [targets i32 (R,T)], [ref f32 (R)], [labels i32 "
           "(R)], [kl f32 ()] → loss f32 (), count f32 () of pairs or rows with a counted target, "
           "logps f32 (R), sums f32 (11): a loss of preference training. Pairs: the first half of "
           "the rows is chosen, the second rejected.",
    .n_in_min = 2,
    .n_in_max = 6,
    .n_out = 4,
    .attrs_bytes = sizeof(dsi_preference_attrs),
    .attrs = preference_attrs,
    .n_attrs = DSI_N(preference_attrs),
    .infer = preference_infer,
    .grad = preference_grad,
    .cost = preference_cost,
};

static ds_status preference_backward_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(check_batch(call, 1));
    DS_TRY(dsi_op_need(call, 0, "dloss", call->in[1].dtype, scalar));
    call->out[0] = call->in[1];
    return DS_OK;
}

const ds_op dsi_op_preference_backward = {
    .version = DS_OP_VERSION,
    .name = "preference_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = ". __ __ __ _ _ .", .out = "__", .linear = "0"),
    .doc = "dloss f32 (), logp, counted, [targets], [ref], [labels], [kl] → dlogp f32 (R,T).",
    .n_in_min = 3,
    .n_in_max = 7,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_preference_attrs),
    .attrs = preference_attrs,
    .n_attrs = DSI_N(preference_attrs),
    .infer = preference_backward_infer,
    .cost = preference_cost,
};
