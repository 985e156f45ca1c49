/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a preference trace, in the place of the cross entropy: deepspeed/preference.h. Called
 * by nn_layers.c. */
#include "nn/nn.h"
#include "op/ops.h"

/* f32 (R,T): of each target its log-probability; of REWARD each position's score. */
static ds_value rows_of(ds_nn *nn, ds_value x, ds_value weight, ds_value targets, ds_shape shape)
{
    if (nn->trace.preference->loss == DS_PREFERENCE_REWARD) {
        return ds_nn_reshape(nn, ds_nn_matmul(nn, x, weight, false, DS_DTYPE_F32), shape);
    }
    const dsi_ce_attrs attrs = {.ignore_index = -100};
    const ds_value in[3] = {x, weight, targets};
    ds_value out[DS_MAX_OUT];
    dsi_nn_apply_all(nn, &dsi_op_linear_logprob, &attrs, in, 3, out);
    return out[0];
}

ds_value dsi_nn_preference(ds_nn *nn, ds_value x, ds_value weight, ds_value targets)
{
    const ds_preference *p = nn->trace.preference;
    const dsi_preference_attrs attrs = {.loss = p->loss,
                                        .beta = p->beta,
                                        .label_smoothing = p->label_smoothing,
                                        .gamma = p->gamma,
                                        .center = p->center,
                                        .desirable_weight = p->desirable_weight,
                                        .undesirable_weight = p->undesirable_weight};
    const bool orpo = p->loss == DS_PREFERENCE_ORPO;
    ds_value in[6] = {DS_NONE, targets, DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT] = {DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_shape shape = ds_nn_meta(nn, targets).shape; /* (R,T) */
    const ds_shape rows = ds_shape_1d(shape.dims[0]);
    in[0] = rows_of(nn, x, weight, targets, shape);
    if (orpo) {
        in[1] = ds_nn_input(nn, "completion", DS_DTYPE_I32, shape);
        in[2] = targets;
    }
    if (ds_preference_has_reference(p)) {
        in[3] = ds_nn_input(nn, "ref_logps", DS_DTYPE_F32, rows);
    }
    if (!ds_preference_is_paired(p->loss)) {
        in[4] = ds_nn_input(nn, "labels", DS_DTYPE_I32, rows);
    }
    if (p->loss == DS_PREFERENCE_KTO) {
        in[5] = ds_nn_input(nn, "kl", DS_DTYPE_F32, (ds_shape){0});
    }
    dsi_nn_apply_all(nn, &dsi_op_preference, &attrs, in, 6, out);
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    ds_nn_output(nn, "loss", out[0]);
    ds_nn_output(nn, "count", out[1]);
    ds_nn_output(nn, "logps", out[2]);
    ds_nn_output(nn, "preference_sums", out[3]);
    return out[0];
}
