/* SPDX-License-Identifier: Apache-2.0 */
/* What a run minimizes: the task, a preference loss, a teacher. See run_spec.h. */
#include "base/reserved.h"
#include "compile/memory_policy.h"
#include "compile/run_spec_impl.h"
#include "model/adapter.h"
#include "nn/nn.h"

#include <math.h>

static bool smooths(ds_preference_loss loss)
{
    return loss == DS_PREFERENCE_SIGMOID || loss == DS_PREFERENCE_ROBUST ||
           loss == DS_PREFERENCE_EXO_PAIR || loss == DS_PREFERENCE_SIMPO;
}

/* What excludes a teacher; NULL: nothing. */
static const char *excludes_teacher(const ds_engine_params *params, const ds_config_values *v)
{
    return params->loss != NULL         ? "a loss of the program"
           : params->preference != NULL ? "a preference loss"
           : params->adapter != NULL ? "an adapter (--lora; its names would be the teacher's too)"
           : v->pipeline_stages > 1 ? "pipeline.stages above 1 (the teacher's layers have no stage)"
           : ds_model_get_info(params->model)->encoder ? "an encoder"
                                                       : NULL;
}

static ds_status read_distillation(ds_ctx *ctx, const ds_engine_params *params,
                                   const ds_config_values *v, ds_distillation *out)
{
    const ds_distillation *d = params->distillation;
    *out = (ds_distillation){0};
    if (d == NULL) {
        return DS_OK;
    }
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_distillation", d));
    if (d->teacher == NULL || d->weights == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "distillation: teacher and weights must be given");
    }
    if (!(d->weight > 0.0 && d->weight <= 1.0) || !(d->temperature > 0.0) ||
        !isfinite(d->temperature) || !(d->mix >= 0.0 && d->mix <= 1.0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "distillation: weight is %g, temperature %g and mix %g; expected above 0 to "
                       "1, above 0, and 0 to 1",
                       d->weight, d->temperature, d->mix);
    }
    const char *other = excludes_teacher(params, v);
    if (other != NULL || ds_model_get_info(d->teacher)->encoder) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "distillation beside %s is not built",
                       other != NULL ? other : "a teacher that is an encoder");
    }
    *out = *d;
    return DS_OK;
}

/* What a preference loss has of numbers, and of which it is not. */
static ds_status read_preference(ds_ctx *ctx, const ds_engine_params *params, ds_preference *out)
{
    const ds_preference *p = params->preference;
    if (p == NULL) {
        *out = (ds_preference){0};
        return DS_OK;
    }
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_preference", p));
    const char *name = ds_preference_loss_name(p->loss);
    if (name == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "preference: %d is no ds_preference_loss", (int)p->loss);
    }
    if (params->loss != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "the preference loss \"%s\" and a loss of the program exclude each other",
                       name);
    }
    if (!(p->beta > 0.0) || !isfinite(p->beta)) {
        return ds_fail(ctx, DS_ERR_ARG, "beta is %g; of \"%s\" it must be above 0", p->beta, name);
    }
    if (!(p->label_smoothing >= 0.0 && p->label_smoothing < 0.5) ||
        (p->label_smoothing > 0.0 && !smooths(p->loss))) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "label_smoothing is %g; it is from 0 to below 0.5, and above 0 only of "
                       "sigmoid, robust, exo_pair and simpo; the loss is \"%s\"",
                       p->label_smoothing, name);
    }
    if (p->loss == DS_PREFERENCE_EXO_PAIR && p->label_smoothing <= 0.0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "exo_pair takes the logarithm of label_smoothing, which is 0; give some "
                       "value above, such as 0.001");
    }
    if (!(p->desirable_weight >= 0.0) || !(p->undesirable_weight >= 0.0) ||
        p->desirable_weight + p->undesirable_weight <= 0.0 ||
        !isfinite(p->desirable_weight + p->undesirable_weight)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "desirable_weight is %g and undesirable_weight %g; they must be 0 or above, "
                       "and one of them above 0",
                       p->desirable_weight, p->undesirable_weight);
    }
    if (!isfinite(p->gamma) || !(p->center >= 0.0) || !isfinite(p->center)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "gamma is %g and center %g; expected finite numbers, the second 0 or above",
                       p->gamma, p->center);
    }
    *out = *p;
    return DS_OK;
}

static ds_status read_task(ds_ctx *ctx, const ds_engine_params *params, ds_task_params *out)
{
    enum { MOST_NEGATIVES = 64 };
    *out = params->task_params != NULL ? *params->task_params : (ds_task_params){0};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_task_params", out));
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_contrast", &out->contrast));
    if (params->task != DS_TASK_CONTRAST) {
        return DS_OK;
    }
    const ds_contrast *c = &out->contrast;
    if (!(c->scale > 0.0) || !isfinite(c->scale) || c->n_negatives > MOST_NEGATIVES) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "the loss of embeddings: scale is %g, n_negatives %u; expected above 0, and "
                       "%d at most",
                       c->scale, c->n_negatives, MOST_NEGATIVES);
    }
    if (c->gather_across_devices > 1) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "the loss of embeddings: gather_across_devices is %llu; expected 0 or 1",
                       (unsigned long long)c->gather_across_devices);
    }
    if (c->n_dense > DSI_MOST_DENSE || (c->n_dense > 0 && c->dense == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "the loss of embeddings: n_dense is %u; expected %d at most, and `dense`",
                       c->n_dense, DSI_MOST_DENSE);
    }
    for (uint32_t i = 0; i < c->n_dense; ++i) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_dense", &c->dense[i]));
    }
    const char *other = params->adapter != NULL        ? "an adapter (--lora)"
                        : params->distillation != NULL ? "distillation"
                        : params->preference != NULL   ? "a preference loss"
                                                       : NULL;
    return other == NULL ? DS_OK
                         : ds_fail(ctx, DS_ERR_UNSUPPORTED,
                                   "the loss of embeddings beside %s is not built", other);
}

/* A mini-batch keeps nothing of its layers, which is a recomputation of its own. */
static ds_status read_mini_batch(ds_ctx *ctx, dsi_engine_spec *spec)
{
    const ds_recompute asked = spec->recompute.mode;
    const uint64_t rows = spec->train.task_params.contrast.mini_batch;
    if (spec->train.task != DS_TASK_CONTRAST || rows == 0 ||
        rows >= (uint64_t)dsi_train_rows(&spec->train)) {
        return DS_OK;
    }
    if (asked != DS_RECOMPUTE_NONE && asked != DS_RECOMPUTE_AUTO) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "the loss of embeddings: mini_batch with "
                       "activation_checkpointing.recompute \"%s\" is not built: each mini-batch "
                       "is computed again as a whole; leave one of them out",
                       dsi_recompute_name(asked));
    }
    if (spec->zero.pp > 1) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "the loss of embeddings: mini_batch with pipeline.stages %u is not built; "
                       "leave one of them out",
                       spec->zero.pp);
    }
    spec->recompute = (dsi_recompute){.mode = DS_RECOMPUTE_FULL};
    return DS_OK;
}

/* What an adapter does not go with. */
static ds_status check_adapter(ds_ctx *ctx, const ds_engine_params *params,
                               const dsi_engine_spec *spec)
{
    if (params->adapter != NULL && spec->train.preference.loss == DS_PREFERENCE_REWARD) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "a reward model with an adapter: its new head would be frozen, and PEFT's "
                       "task_type is SEQ_CLS; train the model itself");
    }
    DS_TRY(dsi_adapter_check_pairs(params->adapter, params->model));
    const ds_model_info *info = ds_model_get_info(params->model);
    if (params->adapter != NULL && info->encoder && !info->pairs &&
        params->task == DS_TASK_TOKENS) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "an adapter of an encoder with its head for masked tokens is not built: "
                       "PEFT's task_type is SEQ_CLS or TOKEN_CLS (--objective classes or tags); "
                       "train the model itself");
    }
    const bool rows = params->adapter != NULL && dsi_adapter_has_rows(params->adapter);
    if (rows && (spec->train.task != DS_TASK_TOKENS || info->pairs ||
                 spec->train.preference.loss != DS_PREFERENCE_NONE)) {
        return ds_fail(
            ctx, DS_ERR_UNSUPPORTED,
            "several adapters that are trained in one run (--adapters) beside %s are not "
            "built: train one at a time",
            info->pairs                          ? "sources and targets"
            : spec->train.task != DS_TASK_TOKENS ? "classes or embeddings"
                                                 : "a preference loss");
    }
    return DS_OK;
}

ds_status dsi_run_read_losses(ds_ctx *ctx, const ds_engine_params *params,
                              const ds_config_values *v, dsi_engine_spec *spec)
{
    spec->train.loss = params->loss;
    spec->train.loss_user = params->loss_user;
    spec->train.task = params->task;
    spec->train.n_classes = params->n_classes;
    DS_TRY(read_task(ctx, params, &spec->train.task_params));
    DS_TRY(read_mini_batch(ctx, spec));
    DS_TRY(read_preference(ctx, params, &spec->train.preference));
    DS_TRY(read_distillation(ctx, params, v, &spec->train.distillation));
    return check_adapter(ctx, params, spec);
}
