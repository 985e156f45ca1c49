/* SPDX-License-Identifier: Apache-2.0 */
/* The best step of a run, early stopping, and the weights of the model folder. Called by the loop,
 * by train_resume.c and at the end; the rule is best_step.c.
 *
 * 1. Every rank feeds the same loss, a sum over ranks: all decide the same.
 * 2. With --load_best_model_at_end each new best is saved at its step, and the engine is told its
 *    tag before, so that no save removes it: at any moment the best step has a checkpoint.
 * 3. A checkpoint holds what was known at its step, its own evaluation included.
 */
#include "common/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG_BYTES = 64, PATH_BYTES = 4096 };

static const char metric_name[] = "eval_loss";

bool train_best_is_asked(const train_options *o)
{
    return o->load_best || o->early_patience > 0 || o->best_metric != NULL;
}

static best_rule rule_of(const train_options *o)
{
    return (best_rule){.greater = o->greater_is_better,
                       .patience = o->early_patience,
                       .threshold = o->early_threshold};
}

static ds_status check_metric(ds_ctx *ctx, const char *name)
{
    const char *plain = strncmp(name, "eval_", 5) == 0 ? name + 5 : name;
    return strcmp(plain, "loss") == 0
               ? DS_OK
               : ds_fail(ctx, DS_ERR_ARG,
                         "--metric_for_best_model %s: evaluations compute the loss and nothing "
                         "else; give loss or eval_loss, which are the same",
                         name);
}

ds_status train_best_conflict(ds_ctx *ctx, const train_options *o)
{
    const char *asks = o->load_best             ? "load_best_model_at_end"
                       : o->early_patience > 0  ? "early_stopping_patience"
                       : o->best_metric != NULL ? "metric_for_best_model"
                                                : NULL;
    if (asks == NULL && (o->greater_given || o->early_threshold_given)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s needs %s",
                       o->greater_given ? "greater_is_better" : "early_stopping_threshold",
                       o->greater_given ? "--load_best_model_at_end or --early_stopping_patience"
                                        : "--early_stopping_patience");
    }
    if (o->early_threshold_given && o->early_patience == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--early_stopping_threshold needs --early_stopping_patience");
    }
    if (asks == NULL) {
        return DS_OK;
    }
    DS_TRY(o->best_metric != NULL ? check_metric(ctx, o->best_metric) : DS_OK);
    if (o->eval_interval == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--%s needs --eval_interval N, with --eval_data or --eval_fraction: which "
                       "step is the best is known from evaluations during the run",
                       asks);
    }
    if (o->load_best && o->output == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--load_best_model_at_end needs --output DIR");
    }
    return DS_OK;
}

/* ---- evaluations ----------------------------------------------------------------------------- */

/* Losses over other data do not compare: what was the best so far is no longer known. */
static void check_tokens(train_run *run, double tokens)
{
    if (run->best_tokens > 0.0 && run->best_tokens != tokens) {
        if (ds_comm_rank(run->comm) == 0) {
            ds_log(run->ctx, DS_LOG_WARN,
                   "evaluations were over %.0f tokens, now they are over %.0f: the best step is "
                   "looked for anew",
                   run->best_tokens, tokens);
        }
        run->best = (best_step){0};
        run->best_saved = 0;
    }
    run->best_tokens = tokens;
}

void train_best_feed(train_run *run, uint64_t step, double loss, double tokens)
{
    const best_rule rule = rule_of(run->options);
    if (!train_best_is_asked(run->options) || step == run->best.newest || !train_is_finite(run)) {
        return;
    }
    check_tokens(run, tokens);
    /* no token counted: nothing is known of this step, and it is not the best */
    (void)best_step_feed(&run->best, &rule, tokens > 0.0 ? loss : NAN, step);
    run->stops_early = best_step_stops(&run->best, &rule);
}

bool train_best_needs_save(const train_run *run, uint64_t step)
{
    return run->options->load_best && run->best.step == step && run->best_saved != step;
}

static ds_status keep(train_run *run)
{
    char tag[TAG_BYTES];
    (void)snprintf(tag, sizeof tag, "global_step%llu", (unsigned long long)run->best_saved);
    return ds_engine_keep_tag(run->engine, run->best_saved > 0 ? tag : NULL);
}

ds_status train_best_saving(train_run *run, uint64_t step)
{
    if (!train_best_is_asked(run->options) || step == 0 || run->best.step != step) {
        return DS_OK;
    }
    run->best_saved = step;
    return keep(run);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

json_t *train_best_state(const train_run *run)
{
    const best_step *b = &run->best;
    if (!train_best_is_asked(run->options)) {
        return NULL;
    }
    json_t *state = json_pack("{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:f}", "metric", metric_name,
                              "greater", (int)run->options->greater_is_better, "seen", (int)b->seen,
                              "newest", (json_int_t)b->newest, "step", (json_int_t)b->step, "saved",
                              (json_int_t)run->best_saved, "without", (json_int_t)b->without,
                              "tokens", run->best_tokens);
    if (b->step > 0 && isfinite(b->value)) { /* JSON has no infinity */
        (void)json_object_set_new(state, "value", json_real(b->value));
    }
    return state;
}

static uint64_t whole(const json_t *object, const char *key)
{
    const json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (uint64_t)value : 0;
}

static void read_state(train_run *run, const json_t *saved)
{
    const json_t *value = json_object_get(saved, "value");
    run->best = (best_step){.step = whole(saved, "step"),
                            .newest = whole(saved, "newest"),
                            .seen = json_is_true(json_object_get(saved, "seen")),
                            .without = (int64_t)whole(saved, "without"),
                            .value = json_number_value(value)};
    run->best_saved = whole(saved, "saved");
    run->best_tokens = json_number_value(json_object_get(saved, "tokens"));
    if (run->best.step > 0 && value == NULL) {
        run->best.value = run->options->greater_is_better ? INFINITY : -INFINITY;
    }
}

/* Rank 0 looks for all. */
static ds_status is_there(const train_run *run, uint64_t step, bool *there_out)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/global_step%llu", run->options->output,
                   (unsigned long long)step);
    double there = ds_comm_rank(run->comm) == 0 && access(path, R_OK | X_OK) == 0 ? 1.0 : 0.0;
    DS_TRY(ds_comm_sum(run->comm, &there, 1));
    *there_out = there > 0.0;
    return DS_OK;
}

static void begin_anew(train_run *run, const char *why, uint64_t step)
{
    if (ds_comm_rank(run->comm) == 0) {
        ds_log(run->ctx, DS_LOG_WARN, "the best step so far, %llu, %s: it is looked for anew",
               (unsigned long long)step, why);
    }
    run->best = (best_step){.newest = run->best.newest};
    run->best_saved = 0;
}

ds_status train_best_resume(train_run *run, const json_t *saved)
{
    const train_options *o = run->options;
    const best_rule rule = rule_of(o);
    bool there = false;
    if (saved == NULL || !train_best_is_asked(o)) {
        return DS_OK;
    }
    read_state(run, saved);
    const uint64_t step = run->best.step;
    DS_TRY(is_there(run, run->best_saved, &there));
    run->best_saved = there ? run->best_saved : 0;
    if (step > 0 && json_is_true(json_object_get(saved, "greater")) != o->greater_is_better) {
        begin_anew(run, "was found with the other --greater_is_better", step);
    } else if (step > 0 && o->load_best && run->best_saved != step) {
        begin_anew(run, "has no checkpoint in --output", step);
    }
    run->stops_early = best_step_stops(&run->best, &rule);
    return keep(run);
}

/* ---- words ----------------------------------------------------------------------------------- */

void train_best_text(const train_run *run, char *text, size_t n)
{
    const train_options *o = run->options;
    const best_step *b = &run->best;
    text[0] = '\0';
    if (!train_best_is_asked(o) || !b->seen) {
        return;
    }
    if (b->step == 0) {
        (void)snprintf(text, n, "; none so far is a number");
    } else if (b->step == b->newest) {
        (void)snprintf(text, n, ", the best so far");
    } else {
        (void)snprintf(text, n, "; best %.4f at step %llu", b->value, (unsigned long long)b->step);
    }
    if (o->early_patience > 0 && b->without > 0) {
        const size_t at = strlen(text);
        (void)snprintf(text + at, n - at, "; %lld of %lld in a row without improvement",
                       (long long)b->without, (long long)o->early_patience);
    }
}

void train_best_stop_text(const train_run *run, char *text, size_t n)
{
    const train_options *o = run->options;
    char more[64] = "";
    text[0] = '\0';
    if (!run->stops_early) {
        return;
    }
    if (o->early_threshold > 0.0) {
        (void)snprintf(more, sizeof more, " by more than %g", o->early_threshold);
    }
    (void)snprintf(text, n,
                   "stopped early: %lld evaluation%s in a row did not improve the validation "
                   "loss%s",
                   (long long)run->best.without, run->best.without == 1 ? "" : "s", more);
}

/* ---- the end --------------------------------------------------------------------------------- */

uint64_t train_steps_done(const train_run *run)
{
    return run->ended > 0 ? run->ended : ds_engine_global_steps(run->engine);
}

ds_status train_best_load(train_run *run)
{
    const train_options *o = run->options;
    const uint64_t step = ds_engine_global_steps(run->engine);
    char tag[TAG_BYTES];
    if (!o->load_best) {
        return DS_OK;
    }
    if (run->best.step == 0) {
        return ds_fail(run->ctx, DS_ERR_NUMERIC,
                       "--load_best_model_at_end: no evaluation of the run has a loss that is a "
                       "number, so no step is the best and no model folder is written; "
                       "\"ds_checkpoint export %s FOLDER\" writes that of the newest checkpoint",
                       o->output);
    }
    if (run->best.step != step) {
        run->ended = step;
        (void)snprintf(tag, sizeof tag, "global_step%llu", (unsigned long long)run->best.step);
        DS_TRY(ds_engine_load_checkpoint(run->engine, o->output, tag, NULL));
    }
    ds_log(run->ctx, DS_LOG_JOB, "the best model: step %llu, validation loss %.4f",
           (unsigned long long)run->best.step, run->best.value);
    return DS_OK;
}
