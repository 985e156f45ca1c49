/* SPDX-License-Identifier: Apache-2.0 */
/* From flags to a preference loss. See preference_flags.h. */
#include "common/preference_flags.h"

#include <string.h>

/* The loss of an objective, or DS_PREFERENCE_NONE. */
static ds_preference_loss loss_of(const preference_flags *f)
{
    static const struct {
        const char *objective;
        ds_preference_loss loss;
    } rows[] = {{"dpo", DS_PREFERENCE_SIGMOID},
                {"kto", DS_PREFERENCE_KTO},
                {"orpo", DS_PREFERENCE_ORPO},
                {"simpo", DS_PREFERENCE_SIMPO},
                {"reward", DS_PREFERENCE_REWARD}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (f->objective != NULL && strcmp(f->objective, rows[i].objective) == 0) {
            return rows[i].loss;
        }
    }
    return DS_PREFERENCE_NONE;
}

/* --loss_type, which must be one of the objective's. */
static ds_status read_type(ds_ctx *ctx, const preference_flags *f, ds_preference_loss *loss)
{
    const bool dpo = *loss == DS_PREFERENCE_SIGMOID;
    if (f->loss_type == NULL) {
        return DS_OK;
    }
    if (!dpo && *loss != DS_PREFERENCE_KTO) {
        return ds_fail(ctx, DS_ERR_ARG, "--loss_type is of --objective dpo and kto, not of %s",
                       f->objective);
    }
    for (int k = 1; k < DS_PREFERENCE_LOSSES; ++k) {
        const ds_preference_loss named = (ds_preference_loss)k;
        if (strcmp(ds_preference_loss_name(named), f->loss_type) == 0 &&
            ds_preference_is_paired(named) == dpo) {
            *loss = named;
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_ARG, "--loss_type %s is not of --objective %s: expected %s",
                   f->loss_type, f->objective,
                   dpo ? "sigmoid, hinge, ipo, robust, exo_pair, nca_pair, bco_pair, sppo_hard, "
                         "apo_zero, apo_down or sigmoid_norm"
                       : "kto or apo_zero_unpaired");
}

/* A flag that was given, and whether the objective reads it. */
typedef struct use {
    const char *flag;
    bool given, read;
} use;

ds_status preference_read(ds_ctx *ctx, const preference_flags *f, ds_preference *out)
{
    ds_preference_loss loss = loss_of(f);
    const bool kto = loss == DS_PREFERENCE_KTO;
    const bool dpo = loss == DS_PREFERENCE_SIGMOID;
    const bool trains = loss != DS_PREFERENCE_NONE;
    const use uses[] = {
        {"beta", f->beta_given, trains && loss != DS_PREFERENCE_REWARD},
        {"label_smoothing", f->smoothing_given, dpo || loss == DS_PREFERENCE_SIMPO},
        {"reference_free", f->reference_free, dpo},
        {"simpo_gamma", f->gamma_given, loss == DS_PREFERENCE_SIMPO},
        {"desirable_weight", f->desirable_given, kto},
        {"undesirable_weight", f->undesirable_given, kto},
        {"center_rewards_coefficient", f->center_given, loss == DS_PREFERENCE_REWARD}};
    DS_TRY(read_type(ctx, f, &loss));
    for (size_t i = 0; i < sizeof uses / sizeof uses[0]; ++i) {
        if (uses[i].given && !uses[i].read) {
            return ds_fail(ctx, DS_ERR_ARG, "--%s is not of --objective %s", uses[i].flag,
                           f->objective);
        }
    }
    ds_preference p = ds_preference_default(loss);
    p.reference_free = f->reference_free;
    p.beta = f->beta_given ? f->beta : p.beta;
    p.label_smoothing = f->smoothing_given               ? f->label_smoothing
                        : loss == DS_PREFERENCE_EXO_PAIR ? 0.001
                                                         : 0.0;
    p.gamma = f->gamma_given ? f->gamma : p.gamma;
    p.center = f->center_given ? f->center : p.center;
    p.desirable_weight = f->desirable_given ? f->desirable_weight : p.desirable_weight;
    p.undesirable_weight = f->undesirable_given ? f->undesirable_weight : p.undesirable_weight;
    *out = p;
    return DS_OK;
}
