/* SPDX-License-Identifier: Apache-2.0 */
/* Which candidates are run, and in which order. See tune_impl.h.
 *
 * The model-based order starts from the predictions and corrects them by what was measured: by the
 * mean ratio of a stage's measured and predicted times, or of all where a stage was not run yet.
 */
#include "tune/tune_impl.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t dsi_tune_rows(const dsi_tune *t, const dsi_tune_candidate *c)
{
    const int64_t shared = c->shared > 0 ? c->shared : 1;
    return c->micro_batch * c->accumulation * (int64_t)t->n_data_ranks / shared;
}

/* ---- scores: more is better ---- */

double dsi_tune_score(const dsi_tune *t, const dsi_tune_candidate *c)
{
    switch ((ds_autotuning_metric)t->options.metric) {
    case DS_METRIC_LATENCY:
        return -c->metrics.latency;
    case DS_METRIC_FLOPS:
        return c->metrics.flops;
    case DS_METRIC_FORWARD:
        return -c->metrics.forward;
    case DS_METRIC_BACKWARD:
        return -c->metrics.backward;
    case DS_METRIC_STEP:
        return -c->metrics.step;
    case DS_METRIC_THROUGHPUT:
        break;
    }
    return c->metrics.throughput;
}

/* Without a device's times, operations stand for seconds. */
static double work_of(const dsi_tune_candidate *c)
{
    const dsi_prediction *p = &c->prediction;
    return !c->predicted ? 0.0 : p->seconds > 0.0 ? p->seconds : p->hardware_flops;
}

static double score_of(const dsi_tune *t, const dsi_tune_candidate *c, double seconds)
{
    if (seconds <= 0.0) {
        return 0.0;
    }
    switch ((ds_autotuning_metric)t->options.metric) {
    case DS_METRIC_THROUGHPUT:
        return (double)dsi_tune_rows(t, c) / seconds;
    case DS_METRIC_FLOPS:
        return c->prediction.model_flops / seconds;
    case DS_METRIC_LATENCY:
    case DS_METRIC_FORWARD:
    case DS_METRIC_BACKWARD:
    case DS_METRIC_STEP:
        break;
    }
    return -seconds;
}

double dsi_tune_expected(const dsi_tune *t, const dsi_tune_candidate *c)
{
    return score_of(t, c, work_of(c));
}

/* Measured over predicted times: of a stage, else of all; 1 before the first. */
static double correction(const dsi_tune *t, int64_t stage)
{
    double sum[2] = {0.0, 0.0};
    double n[2] = {0.0, 0.0};
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (c->state != DSI_TUNE_MEASURED || work_of(c) <= 0.0) {
            continue;
        }
        for (int own = 0; own < 2; ++own) {
            if (own == 0 || c->stage == stage) {
                sum[own] += c->metrics.latency / work_of(c);
                n[own] += 1.0;
            }
        }
    }
    return n[1] > 0.0 ? sum[1] / n[1] : n[0] > 0.0 ? sum[0] / n[0] : 1.0;
}

/* Where scores are even: of what is not predicted at all the smaller micro-batch, which is safe;
 * without times the larger micro-batch, which has less overhead; with them
 * what needs less memory; then the lower stage and fewer changes. */
static bool wins_tie(const dsi_tune_candidate *a, const dsi_tune_candidate *b)
{
    const bool timed = a->prediction.seconds > 0.0;
    if (a->stage == b->stage && a->micro_batch != b->micro_batch) {
        return timed || !a->predicted ? a->micro_batch < b->micro_batch
                                      : a->micro_batch > b->micro_batch;
    }
    if (a->stage != b->stage) {
        return a->stage < b->stage;
    }
    if (a->prediction.need != b->prediction.need) {
        return a->prediction.need < b->prediction.need;
    }
    return a->n_settings < b->n_settings;
}

static bool beats(const dsi_tune_candidate *a, double x, const dsi_tune_candidate *b, double y)
{
    const double even = a->prediction.seconds > 0.0 ? 0.005 : 1e-6;
    return fabs(x - y) > even * fabs(x) ? x > y : wins_tie(a, b);
}

bool dsi_tune_is_better(const dsi_tune *t, const dsi_tune_candidate *a, const dsi_tune_candidate *b)
{
    return beats(a, dsi_tune_expected(t, a), b, dsi_tune_expected(t, b));
}

/* ---- who is run ---- */

/* The best of its stage and micro-batch. */
static bool leads(const dsi_tune *t, uint32_t at)
{
    const dsi_tune_candidate *c = &t->items[at];
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *o = &t->items[i];
        if (i != at && o->state == DSI_TUNE_OPEN && !o->chosen && o->stage == c->stage &&
            o->micro_batch == c->micro_batch && dsi_tune_is_better(t, o, c)) {
            return false;
        }
    }
    return true;
}

/* Micro-batches that are run should show something: the ratio to those that are chosen already. */
static bool is_apart(const dsi_tune *t, const dsi_tune_candidate *c)
{
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *o = &t->items[i];
        const double ratio = (double)c->micro_batch / (double)o->micro_batch;
        if (o->chosen && o->stage == c->stage && ratio < 1.4 && ratio > 1.0 / 1.4) {
            return false;
        }
    }
    return true;
}

static uint32_t best_leader(const dsi_tune *t, const bool *leader, int64_t stage, bool apart)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (leader[i] && !c->chosen && c->stage == stage && (!apart || is_apart(t, c)) &&
            (best == UINT32_MAX || dsi_tune_is_better(t, c, &t->items[best]))) {
            best = i;
        }
    }
    return best;
}

/* The smallest micro-batch that is expected to be nearly as good as the best: what grows beyond it
 * costs memory and changes the batch for little. */
static uint32_t thriftiest(const dsi_tune *t, const bool *leader, int64_t stage, uint32_t best)
{
    const double most = dsi_tune_expected(t, &t->items[best]);
    uint32_t found = best;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (leader[i] && c->stage == stage && c->prediction.seconds > 0.0 &&
            dsi_tune_expected(t, c) >= most - DSI_TUNE_LITTLE * fabs(most) &&
            c->micro_batch < t->items[found].micro_batch) {
            found = i;
        }
    }
    return found;
}

static void choose_of_stage(dsi_tune *t, const bool *leader, int64_t stage, int64_t most)
{
    for (int64_t k = 0; k < most; ++k) {
        uint32_t best = best_leader(t, leader, stage, k > 0);
        best = best == UINT32_MAX ? best_leader(t, leader, stage, false) : best;
        if (best == UINT32_MAX) {
            return;
        }
        best = k == 0 ? thriftiest(t, leader, stage, best) : best;
        t->items[best].chosen = true;
    }
}

static bool any_predicted(const dsi_tune *t)
{
    for (uint32_t i = 0; i < t->n_items; ++i) {
        if (t->items[i].predicted) {
            return true;
        }
    }
    return false;
}

void dsi_tune_choose(dsi_tune *t)
{
    bool leader[DSI_TUNE_CEILING] = {false};
    for (uint32_t i = 0; i < t->n_items; ++i) { /* candidates of the axes are chosen already */
        const dsi_tune_candidate *c = &t->items[i];
        leader[i] = c->state == DSI_TUNE_OPEN && !c->chosen && leads(t, i);
    }
    for (uint32_t s = 0; s < t->space.n_stages; ++s) {
        /* without predictions micro-batches rise until one fails or is no better */
        const int64_t most = any_predicted(t) ? t->options.num_micro_batches : DSI_TUNE_CEILING;
        choose_of_stage(t, leader, t->space.stages[s], most);
    }
    for (uint32_t i = 0; i < t->n_items; ++i) {
        dsi_tune_candidate *c = &t->items[i];
        if (c->state == DSI_TUNE_OPEN && !c->chosen) {
            c->state = DSI_TUNE_SKIPPED;
            (void)snprintf(c->why, sizeof c->why, "predicted no better than those that were run");
        }
    }
}

/* ---- what comes next ---- */

/* Those that need no less than one that ran out of memory would do so too. */
static void skip_larger(dsi_tune *t)
{
    for (uint32_t f = 0; f < t->n_items; ++f) {
        const dsi_tune_candidate *failed = &t->items[f];
        if (failed->state != DSI_TUNE_FAILED || failed->failure != DSI_FAILURE_MEMORY) {
            continue;
        }
        for (uint32_t i = 0; i < t->n_items; ++i) {
            dsi_tune_candidate *c = &t->items[i];
            const bool known =
                c->predicted && failed->predicted && c->prediction.need != failed->prediction.need;
            const bool more =
                known ? c->prediction.need > failed->prediction.need
                      : c->stage == failed->stage && c->micro_batch >= failed->micro_batch;
            if (c->state == DSI_TUNE_OPEN && more) {
                c->state = DSI_TUNE_SKIPPED;
                (void)snprintf(c->why, sizeof c->why,
                               "needs no less than %.100s, which had no room", failed->name);
            }
        }
    }
}

static int64_t trials_since_best(const dsi_tune *t)
{
    return t->best == UINT32_MAX ? 0 : (int64_t)(t->n_trials - t->best_trial);
}

static uint32_t tried_of(const dsi_tune *t, int64_t stage)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        n += c->stage == stage && (c->state == DSI_TUNE_MEASURED || c->state == DSI_TUNE_FAILED);
    }
    return n;
}

static bool goes_before(const dsi_tune *t, uint32_t a, uint32_t b)
{
    const dsi_tune_candidate *x = &t->items[a];
    const dsi_tune_candidate *y = &t->items[b];
    if (t->options.tuner == DS_TUNER_RANDOM) {
        return dsi_rng_u32(1, 0, 0, a) < dsi_rng_u32(1, 0, 0, b);
    }
    if (t->options.tuner == DS_TUNER_GRID) {
        return x->stage != y->stage               ? x->stage < y->stage
               : x->micro_batch != y->micro_batch ? x->micro_batch < y->micro_batch
                                                  : a < b;
    }
    if (x->prediction.seconds <= 0.0 && x->stage != y->stage) {
        const uint32_t n = tried_of(t, x->stage); /* no difference between stages: take turns */
        const uint32_t m = tried_of(t, y->stage);
        if (n != m) {
            return n < m;
        }
    }
    return beats(x, score_of(t, x, work_of(x) * correction(t, x->stage)), y,
                 score_of(t, y, work_of(y) * correction(t, y->stage)));
}

uint32_t dsi_tune_next(dsi_tune *t)
{
    uint32_t next = UINT32_MAX;
    t->ended = NULL;
    skip_larger(t);
    if (t->options.early_stopping > 0 && trials_since_best(t) >= t->options.early_stopping) {
        t->ended = "no gain in the last trials (autotuning.tuner_early_stopping)";
    } else if ((int64_t)t->n_trials >= t->options.num_trials) {
        t->ended = "the number of trials is reached (autotuning.tuner_num_trials)";
    } else if (t->best == UINT32_MAX && t->n_other_failures >= 3) {
        t->ended = "three trials failed, and not for want of memory or time";
    }
    for (uint32_t i = 0; t->ended == NULL && i < t->n_items; ++i) {
        if (t->items[i].state == DSI_TUNE_OPEN && (next == UINT32_MAX || goes_before(t, i, next))) {
            next = i;
        }
    }
    return next;
}
