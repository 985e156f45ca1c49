/* SPDX-License-Identifier: Apache-2.0 */
/* What ds_train's flags lack or contradict, and what the environment makes of them. See train.h. */
#include "base/number.h"
#include "ckpt/ckpt_begun.h"
#include "common/hub_flag.h"
#include "common/train.h"

#include <stdlib.h>
#include <string.h>

ds_status train_options_missing(ds_ctx *ctx, const train_options *o)
{
    if ((o->model == NULL) == (o->model_config == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --model_config FILE");
    }
    if (o->data.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--data PATH is missing: what to train on");
    }
    return DS_OK;
}

/* The accelerator that counts alone: what a run on it saves is no result. */
static bool computes_nothing(const char *accelerator)
{
    return accelerator != NULL && strncmp(accelerator, "null", 4) == 0 &&
           (accelerator[4] == 0 || accelerator[4] == ':');
}

static ds_status check_preference(ds_ctx *ctx, const train_options *o)
{
    ds_preference p;
    DS_TRY(preference_read(ctx, &o->preference, &p));
    if (p.loss == DS_PREFERENCE_KTO && o->data_weights.n > 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--data_weights draws at random, and kto reads its data in order; leave it "
                       "out, or take --loss_type apo_zero_unpaired");
    }
    if (o->mlm_given && strcmp(o->preference.objective, "mlm") != 0) {
        return ds_fail(ctx, DS_ERR_ARG, "--mlm_probability is of --objective mlm, not of %s",
                       o->preference.objective);
    }
    if ((o->labels.n > 0 || o->num_labels > 0) &&
        (train_task(o) == DS_TASK_TOKENS || train_task(o) == DS_TASK_CONTRAST)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--labels and --num_labels are of classification, not of "
                       "--objective %s",
                       o->preference.objective);
    }
    if (strcmp(o->problem_type, "auto") != 0 && train_task(o) != DS_TASK_SEQUENCE_CLASSES) {
        return ds_fail(ctx, DS_ERR_ARG, "--problem_type is of --objective classes, not of %s",
                       o->preference.objective);
    }
    if ((o->pooling_given || o->scale_given || o->negatives > 0 || o->gather_across_devices ||
         o->mini_batch > 0) &&
        train_task(o) != DS_TASK_CONTRAST) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--pooling, --scale, --negatives, --gather_across_devices and --mini_batch "
                       "are of --objective embeddings, not of %s",
                       o->preference.objective);
    }
    if (o->truncation_mode == NULL) {
        return DS_OK;
    }
    if (p.loss == DS_PREFERENCE_NONE || p.loss == DS_PREFERENCE_REWARD) {
        return ds_fail(ctx, DS_ERR_ARG, "--truncation_mode is not of --objective %s",
                       o->preference.objective);
    }
    return strcmp(o->too_long, "drop") == 0
               ? ds_fail(ctx, DS_ERR_ARG,
                         "--truncation_mode and --too_long drop exclude each "
                         "other")
               : DS_OK;
}

/* Each of several adapters learns one path of --data. */
static ds_status check_adapters(ds_ctx *ctx, const train_options *o)
{
    const size_t n = o->adapter.names.n;
    if (n > 0 && o->data.n != n) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--adapters has %zu names for the %zu paths of --data: give one each (a "
                       "pattern in quotes is one path)",
                       n, o->data.n);
    }
    for (size_t i = 0; i < n; ++i) {
        if (train_path_is_written(o->adapter.names.items[i])) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "--adapters: the name \"%s\" is that of something else in OUTPUT",
                           o->adapter.names.items[i]);
        }
    }
    return n > 0 && o->eval_data.n > 0
               ? ds_fail(ctx, DS_ERR_ARG,
                         "--eval_data with --adapters: it does not say which adapter a row is of; "
                         "take --eval_fraction")
               : DS_OK;
}

ds_status train_options_conflict(ds_ctx *ctx, const train_options *o)
{
    DS_TRY(adapter_flags_check(ctx, &o->adapter));
    DS_TRY(check_adapters(ctx, o));
    if (o->model != NULL && o->model_config != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --model DIR or --model_config FILE");
    }
    if (o->model_config != NULL && o->data.n > 0 && o->tokenizer == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--model_config needs --tokenizer DIR, FILE or the word bytes");
    }
    if (o->eval_data.n > 0 && o->eval_fraction > 0.0) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --eval_data or --eval_fraction");
    }
    if (o->eval_interval > 0 && o->eval_data.n == 0 && o->eval_fraction <= 0.0) {
        return ds_fail(ctx, DS_ERR_ARG, "--eval_interval needs --eval_data or --eval_fraction");
    }
    DS_TRY(train_best_conflict(ctx, o));
    DS_TRY(check_preference(ctx, o));
    if (o->steps > 0 && o->epochs > 0.0) {
        return ds_fail(ctx, DS_ERR_ARG, "give either --steps N or --epochs X");
    }
    if (o->fp16 && o->bf16) {
        return ds_fail(ctx, DS_ERR_ARG, "--fp16 and --bf16 exclude each other");
    }
    if (o->strict && o->allow_unknown_keys) {
        return ds_fail(ctx, DS_ERR_ARG, "--strict and --allow_unknown_keys exclude each other");
    }
    if (o->trace_steps != NULL && o->trace == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--trace_steps needs --trace FILE");
    }
    if (o->restart_data && !o->resume_given) {
        return ds_fail(ctx, DS_ERR_ARG, "--restart_data needs --resume");
    }
    if (o->overwrite && o->output == NULL && o->metrics == NULL && o->trace == NULL &&
        o->report == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--overwrite needs --output DIR, or --metrics, --trace or --report FILE");
    }
    if ((o->resume_given || o->save_interval > 0) && o->output == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--resume and --save_interval need --output DIR");
    }
    if (computes_nothing(o->accelerator) && (o->output != NULL || o->sample != NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--accelerator null computes nothing, so that %s would hold what nothing "
                       "trained; leave out %s, or take another accelerator",
                       o->output != NULL ? "--output" : "--sample",
                       o->output != NULL ? "--output" : "--sample");
    }
    return DS_OK;
}

ds_status train_options_find(ds_ctx *ctx, train_options *o, uint32_t needs)
{
    const uint32_t tokenizer = o->tokenizer == NULL && o->data.n > 0 ? DS_HUB_TOKENIZER : 0;
    DS_TRY(hub_flag_find(ctx, "model", &o->model, o->model_revision, needs | tokenizer,
                         &o->model_found));
    DS_TRY(hub_flag_find(ctx, "teacher", &o->teacher.teacher, NULL, needs, &o->teacher.found));
    return hub_flag_find(ctx, "tokenizer", &o->tokenizer, o->tokenizer_revision, DS_HUB_TOKENIZER,
                         &o->tokenizer_found);
}

ds_status train_options_weights(ds_ctx *ctx, train_options *o)
{
    const dsi_arg_list *texts = &o->data_weights;
    if (texts->n == 0) {
        return DS_OK;
    }
    if (texts->n != o->data.n) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--data_weights has %zu numbers for the %zu paths of --data: give one each "
                       "(a pattern in quotes is one path)",
                       texts->n, o->data.n);
    }
    o->weights = calloc(texts->n, sizeof *o->weights);
    if (o->weights == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for --data_weights");
    }
    for (o->n_weights = 0; o->n_weights < texts->n; ++o->n_weights) {
        const char *text = texts->items[o->n_weights];
        double *weight = &o->weights[o->n_weights];
        if (!dsi_number_real(text, weight) || !(*weight > 0.0)) {
            return ds_fail(ctx, DS_ERR_ARG, "--data_weights: expected a number above 0, got \"%s\"",
                           text);
        }
    }
    return DS_OK;
}

/* A job started again by the launcher goes on from its newest checkpoint, if it has saved one. What
 * an earlier run saved there is not its own. */
static ds_status resume_after_restart(ds_ctx *ctx, train_options *o)
{
    const char *count = getenv("DS_RESTART_COUNT");
    if (count == NULL || count[strspn(count, "0")] == '\0' || o->output == NULL ||
        o->resume_given) {
        return DS_OK;
    }
    o->restarted = true;
    return dsi_ckpt_begun_has_new(ctx, o->output, &o->resume_given);
}

/* A trial of the autotuner is the user's own command: it must leave the user's files as they are.
 */
static void spare_files(train_options *o)
{
    const char *trial = getenv("DS_AUTOTUNING_TRIAL");
    o->trial = trial != NULL && trial[0] != '\0';
    if (o->trial) {
        o->metrics = o->sample = o->trace = o->trace_steps = o->report = NULL;
        o->output = o->resume_given ? o->output : NULL; /* to read from */
        o->overwrite = o->load_best = o->greater_is_better = o->greater_given = false;
        o->best_metric = NULL;
        o->early_patience = 0;
        o->early_threshold_given = false;
        o->save_interval = o->eval_interval = o->keep_last = 0;
    }
}

ds_status train_options_adjust(ds_ctx *ctx, train_options *o)
{
    DS_TRY(resume_after_restart(ctx, o));
    spare_files(o);
    return DS_OK;
}
