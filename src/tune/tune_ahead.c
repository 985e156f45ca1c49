/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a search before its first trial: the data's rows, and the time. See tune_impl.h.
 */
#include "tune/tune_impl.h"

#include <math.h>
#include <stdio.h>

/* Of a trial: the processes, the model, its plan, and the launcher's grace at its end. */
static const double seconds_to_start = 3.0;

void dsi_tune_bound_batches(dsi_tune *t)
{
    dsi_tune_space *s = &t->space;
    const bool asks = t->planner_self != NULL && t->planner->rows != NULL && s->rows == 0;
    const uint64_t rows = asks ? t->planner->rows(t->planner_self) : 0;
    const double each = (double)s->accumulation * (double)t->n_data_ranks;
    uint32_t n = 0;
    while (n < s->n_batches && (double)s->batches[n] * each <= (double)rows) {
        ++n;
    }
    if (rows == 0 || n == s->n_batches) {
        return;
    }
    s->n_batches = n > 0 ? n : 1;
    ds_log(
        t->ctx, DS_LOG_JOB,
        "the data has %llu rows: micro-batches up to %lld are tried, so that a step takes no row "
        "twice",
        (unsigned long long)rows, (long long)s->batches[s->n_batches - 1]);
}

/* "40 s", "1:05 h". */
static const char *duration(double seconds, char *text, size_t n)
{
    const long long s = llround(seconds);
    if (s < 120) {
        (void)snprintf(text, n, "%lld s", s);
    } else if (s < 7200) {
        (void)snprintf(text, n, "%lld min", (s + 59) / 60);
    } else {
        (void)snprintf(text, n, "%lld:%02lld h", s / 3600, s / 60 % 60);
    }
    return text;
}

void dsi_tune_tell_time(const dsi_tune *t)
{
    const double most = t->params->trial_seconds;
    const double steps = (double)t->options.end_profile_step;
    double sum = 0.0;
    int64_t n = 0;
    bool timed = true;
    for (uint32_t i = 0; i < t->n_items && n < t->options.num_trials; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (c->state == DSI_TUNE_OPEN) {
            sum += fmin(most, seconds_to_start + steps * c->prediction.seconds);
            timed = timed && c->predicted && c->prediction.seconds > 0.0;
            ++n;
        }
    }
    if (n == 0) {
        return;
    }
    char about[32];
    char bound[32];
    (void)duration(sum, about, sizeof about);
    (void)duration((double)n * most, bound, sizeof bound);
    ds_log(t->ctx, DS_LOG_JOB,
           "at most %lld trial%s of %.0f steps: %s%s%sat most %s (--trial_seconds %g each)",
           (long long)n, n == 1 ? "" : "s", steps, timed ? "about " : "", timed ? about : "",
           timed ? " as predicted, " : "", bound, most);
}
