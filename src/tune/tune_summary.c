/* SPDX-License-Identifier: Apache-2.0 */
/* What the user reads at the end, and the files of the best settings. See tune_impl.h. The first
 * table and its last line are DeepSpeed's. */
#include "tune/tune_impl.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 20, TERMINAL_LINES = 16, FILE_LINES = 400 };

#define GIB (1024.0 * 1024.0 * 1024.0)

static const char *const metric_names[] = {"throughput", "latency",  "FLOPS_per_gpu",
                                           "forward",    "backward", "step"};
static const char *const metric_units[] = {"samples/s",  "ms a step",   "TFLOP/s a rank",
                                           "ms forward", "ms backward", "ms of update"};

/* The value as the file of metrics has it: times in milliseconds. */
static double metric_value(const dsi_tune *t, const dsi_tune_candidate *c)
{
    const double score = dsi_tune_score(t, c);
    return t->options.metric == DS_METRIC_THROUGHPUT || t->options.metric == DS_METRIC_FLOPS
               ? score
               : -1e3 * score;
}

void dsi_tune_metric_text(const dsi_tune *t, const dsi_tune_candidate *c, char *text, size_t size)
{
    const double unit = t->options.metric == DS_METRIC_FLOPS ? 1e-12 : 1.0;
    (void)snprintf(text, size, "%.4g %s", unit * metric_value(t, c),
                   metric_units[t->options.metric]);
}

/* ---- DeepSpeed's table ---- */

/* The best that was measured of a stage, of all with -1. *n_out: how many were run. */
static uint32_t best_of(const dsi_tune *t, int64_t stage, uint32_t *n_out)
{
    uint32_t best = UINT32_MAX;
    *n_out = 0;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if ((stage >= 0 && c->stage != stage) ||
            (c->state != DSI_TUNE_MEASURED && c->state != DSI_TUNE_FAILED)) {
            continue;
        }
        *n_out += 1;
        if (c->state == DSI_TUNE_MEASURED &&
            (best == UINT32_MAX || dsi_tune_score(t, c) > dsi_tune_score(t, &t->items[best]))) {
            best = i;
        }
    }
    return best;
}

static void print_row(const dsi_tune *t, dsi_buf *text, const char *space, int64_t stage, int width)
{
    uint32_t n = 0;
    const uint32_t best = best_of(t, stage, &n);
    if (n == 0) {
        return;
    }
    dsi_buf_printf(text, "| %-12s | %15u | %15.6g | %-*s |\n", space, n,
                   best != UINT32_MAX ? metric_value(t, &t->items[best]) : 0.0, width,
                   best != UINT32_MAX ? t->items[best].name : "none");
}

static void print_spaces(const dsi_tune *t, dsi_buf *text, int width)
{
    static const char dashes[] = "-------------------------------------------------------------";
    char name[8];
    dsi_buf_printf(text, "| %-12s | %15s | %15s | %-*s |\n", "tuning_space", "num_experiments",
                   "best_metric_val", width, "best_exp_name");
    dsi_buf_printf(text, "| :%.11s | %.14s: | %.14s: | :%.*s |\n", dashes, dashes, dashes,
                   width - 1, dashes);
    for (int64_t stage = 0; stage < 4; ++stage) {
        (void)snprintf(name, sizeof name, "z%d", (int)stage);
        print_row(t, text, name, stage, width);
    }
    print_row(t, text, "global", -1, width);
}

/* ---- predicted and measured ---- */

static void print_columns(dsi_buf *text, bool is_known, double gib, double seconds, double rate)
{
    if (!is_known) {
        dsi_buf_printf(text, " %8s %8s %10s", "", "", "");
        return;
    }
    dsi_buf_printf(text, " %8.2f", gib);
    if (seconds > 0.0) {
        dsi_buf_printf(text, " %8.4f %10.2f", seconds, rate);
    } else {
        dsi_buf_printf(text, " %8s %10s", "", "");
    }
}

static void print_candidate(const dsi_tune *t, dsi_buf *text, const dsi_tune_candidate *c,
                            int width)
{
    const double rows = (double)dsi_tune_rows(t, c);
    const double seconds = c->prediction.seconds;
    const bool measured = c->state == DSI_TUNE_MEASURED;
    dsi_buf_printf(text, "%-*s", width, c->name);
    print_columns(text, c->predicted, (double)c->prediction.need / GIB, seconds,
                  seconds > 0.0 ? rows / seconds : 0.0);
    if (measured) {
        print_columns(text, true, c->metrics.memory / GIB, c->metrics.latency,
                      c->metrics.throughput);
        dsi_buf_puts(text, c == &t->items[t->best] ? "  best" : "");
        dsi_buf_puts(text, c->reused ? "  (from before)\n" : "\n");
    } else {
        dsi_buf_printf(text, "  %s%s\n", c->state == DSI_TUNE_FAILED ? "failed: " : "",
                       c->state == DSI_TUNE_OPEN ? "not run any more" : c->why);
    }
}

/* Those that were run first, then by what was expected. */
static int rank_of(const dsi_tune_candidate *c)
{
    static const int ranks[] = {
        [DSI_TUNE_MEASURED] = 0, [DSI_TUNE_FAILED] = 1, [DSI_TUNE_OPEN] = 2,
        [DSI_TUNE_SKIPPED] = 3,  [DSI_TUNE_LARGE] = 4,  [DSI_TUNE_REFUSED] = 5};
    return ranks[c->state];
}

static bool prints_before(const dsi_tune *t, uint32_t a, uint32_t b)
{
    const dsi_tune_candidate *x = &t->items[a];
    const dsi_tune_candidate *y = &t->items[b];
    if (rank_of(x) != rank_of(y)) {
        return rank_of(x) < rank_of(y);
    }
    if (x->state == DSI_TUNE_MEASURED) {
        return dsi_tune_score(t, x) > dsi_tune_score(t, y);
    }
    if (x->predicted && y->predicted && x->state != DSI_TUNE_LARGE) {
        return dsi_tune_is_better(t, x, y);
    }
    return a < b;
}

static void print_table(const dsi_tune *t, dsi_buf *text, int width, uint32_t most)
{
    bool done[DSI_TUNE_CEILING] = {false};
    uint32_t n = 0;
    dsi_buf_printf(text, "%-*s %28s %28s\n", width, "", "predicted", "measured");
    dsi_buf_printf(text, "%-*s %8s %8s %10s %8s %8s %10s\n", width, "settings", "GiB", "s/step",
                   "samples/s", "GiB", "s/step", "samples/s");
    for (; n < t->n_items && n < most; ++n) {
        uint32_t next = UINT32_MAX;
        for (uint32_t i = 0; i < t->n_items; ++i) {
            if (!done[i] && (next == UINT32_MAX || prints_before(t, i, next))) {
                next = i;
            }
        }
        done[next] = true;
        print_candidate(t, text, &t->items[next], width);
    }
    if (n < t->n_items) {
        dsi_buf_printf(text, "… and %u more, in %s\n", t->n_items - n,
                       most == TERMINAL_LINES ? "summary.txt" : "results.json");
    }
}

/* ---- why ---- */

static void print_counts(const dsi_tune *t, dsi_buf *text)
{
    uint32_t counts[DSI_TUNE_FAILED + 1] = {0};
    uint32_t predicted = 0;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        ++counts[t->items[i].state];
        predicted += t->items[i].predicted ? 1 : 0;
    }
    dsi_buf_printf(text, "%u settings: %u predicted (%s), %u do not fit", t->n_items, predicted,
                   t->planner != NULL  ? t->planner->name
                   : t->n_params > 0.0 ? "ZeRO's formula"
                                       : "no planner knows this program",
                   counts[DSI_TUNE_LARGE]);
    if (t->params->memory > 0) {
        dsi_buf_printf(text, " into %.2f GiB a rank (%s)", (double)t->params->memory / GIB,
                       t->params->memory_of);
    }
    dsi_buf_printf(text, ", %u refused; %u measured, %u failed\n", counts[DSI_TUNE_REFUSED],
                   counts[DSI_TUNE_MEASURED], counts[DSI_TUNE_FAILED]);
}

/* Where nothing fits: what comes nearest. */
static void print_least(const dsi_tune *t, dsi_buf *text)
{
    const dsi_tune_candidate *least = NULL;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (c->state != DSI_TUNE_LARGE && c->state != DSI_TUNE_REFUSED) {
            return;
        }
        if (c->state == DSI_TUNE_LARGE &&
            (least == NULL || c->prediction.need < least->prediction.need)) {
            least = c;
        }
    }
    if (least != NULL) {
        dsi_buf_printf(text,
                       "nothing fits; %s needs least, %.2f GiB. %sds_plan says what else would "
                       "help\n",
                       least->name, (double)least->prediction.need / GIB,
                       t->space.offload != NULL || t->planner == NULL
                           ? ""
                           : "Offload is tried when the configuration has device_memory or "
                             "offload_optimizer.nvme_path. ");
    }
}

static void print_why(const dsi_tune *t, dsi_buf *text)
{
    const dsi_tune_candidate *best = &t->items[t->best];
    const dsi_tune_candidate *second = NULL;
    char value[64];
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const dsi_tune_candidate *c = &t->items[i];
        if (i != t->best && c->state == DSI_TUNE_MEASURED &&
            (second == NULL || dsi_tune_score(t, c) > dsi_tune_score(t, second))) {
            second = c;
        }
    }
    dsi_tune_metric_text(t, best, value, sizeof value);
    dsi_buf_printf(text, "best: %s, %s, by metric \"%s\"", best->name, value,
                   metric_names[t->options.metric]);
    if (second != NULL && metric_value(t, second) > 0.0) {
        dsi_buf_printf(text, "; %.1f %% better than %s",
                       100.0 * fabs(metric_value(t, best) / metric_value(t, second) - 1.0),
                       second->name);
    }
    dsi_buf_puts(text, "\nits settings:");
    for (uint32_t i = 0; i < best->n_settings; ++i) {
        dsi_buf_printf(text, "%s %s %s", i > 0 ? "," : "", best->settings[i].path,
                       best->settings[i].value);
    }
    dsi_buf_putc(text, '\n');
    if (best->predicted && best->prediction.seconds > 0.0) {
        dsi_buf_printf(text, "its step took %.4f s, predicted were %.4f s (%+.0f %%)\n",
                       best->metrics.latency, best->prediction.seconds,
                       100.0 * (best->metrics.latency / best->prediction.seconds - 1.0));
    }
}

void dsi_tune_summary(const dsi_tune *t, bool whole, dsi_buf *text)
{
    const double seconds = dsi_clock_seconds() - t->started;
    int width = 16;
    for (uint32_t i = 0; i < t->n_items; ++i) {
        const int n = (int)strlen(t->items[i].name);
        width = n > width ? n : width;
    }
    width = width < 60 ? width : 60;
    print_spaces(t, text, width);
    dsi_buf_printf(text, "\nTuning %s in %d:%02d:%09.6f. Total number of experiments: %u.\n\n",
                   t->interrupted ? "was interrupted" : "completed", (int)(seconds / 3600),
                   (int)(seconds / 60) % 60, fmod(seconds, 60.0), t->n_trials);
    print_counts(t, text);
    if (t->best != UINT32_MAX) {
        print_why(t, text);
    } else {
        print_least(t, text);
    }
    if (t->ended != NULL) {
        dsi_buf_printf(text, "ended: %s\n", t->ended);
    }
    dsi_buf_putc(text, '\n');
    print_table(t, text, width, whole ? FILE_LINES : TERMINAL_LINES);
}

/* ---- the best settings as files ---- */

static ds_status put_best(dsi_tune *t)
{
    dsi_tune_candidate best = t->items[t->best];
    char path[DSI_TUNE_PATH + 64];
    dsi_buf config;
    dsi_words command = {0};
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_tune_set(&best, "autotuning", "");
    dsi_tune_set(&best, "comet.api_key", ""); /* it is written nowhere */
    DS_TRY(dsi_tune_text(t->ctx, &t->raw, best.settings, best.n_settings, &config));
    (void)snprintf(path, sizeof path, "%s/ds_config_optimal.json", t->results);
    ds_status status = dsi_tune_put(t->ctx, path, dsi_buf_text(&config));
    status = status < 0 ? status : dsi_tune_command(t, &best, path, &command);
    for (size_t i = 0; i < t->params->own_flags->n; ++i) {
        dsi_shell_quote(&text, t->params->own_flags->items[i]);
        dsi_buf_putc(&text, ' ');
    }
    dsi_shell_join(&text, &command, 0);
    dsi_buf_putc(&text, '\n');
    (void)snprintf(path, sizeof path, "%s/cmd_optimal.txt", t->results);
    if (status >= 0) {
        status = text.failed ? ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a command")
                             : dsi_tune_put(t->ctx, path, dsi_buf_text(&text));
    }
    dsi_buf_free(&config);
    dsi_buf_free(&text);
    dsi_words_free(&command);
    return status;
}

ds_status dsi_tune_finish(dsi_tune *t)
{
    char path[DSI_TUNE_PATH + 64];
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_tune_summary(t, true, &text);
    (void)snprintf(path, sizeof path, "%s/summary.txt", t->results);
    ds_status status = text.failed ? ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a summary")
                                   : dsi_tune_put(t->ctx, path, dsi_buf_text(&text));
    if (status >= 0) {
        dsi_buf_clear(&text);
        dsi_tune_summary(t, false, &text);
        (void)fputs(dsi_buf_text(&text), stdout);
        (void)fflush(stdout);
        status = dsi_tune_put_results(t);
    }
    dsi_buf_free(&text);
    return status >= 0 && t->best != UINT32_MAX ? put_best(t) : status;
}
