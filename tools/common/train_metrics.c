/* SPDX-License-Identifier: Apache-2.0 */
/* What a run did, as lines of JSON: to --metrics and to the history. See train.h. */
#include "base/clock.h"
#include "base/process_memory.h"
#include "common/train.h"
#include "io/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NUMBER_BYTES = 32, PREFERENCE_BYTES = 512, LINE_BYTES = 768 + PREFERENCE_BYTES };

ds_status train_metrics_open(train_run *run)
{
    const char *path = run->options->metrics;
    if (path == NULL) {
        return DS_OK;
    }
    const ds_status status =
        dsi_file_stream(run->ctx, path, run->options->resume_given, &run->metrics);
    return status < 0 ? ds_fail(run->ctx, status, "--metrics: %s", ds_ctx_error(run->ctx)) : DS_OK;
}

/* Bytes of this process without mapped files, as plans count them: the most that was found. Asking
 * is slow for a process with much shared memory, so it is done for a hundredth of the time. */
static size_t memory_seen(train_run *run)
{
    const double start = dsi_clock_seconds();
    if (start >= run->memory_due) {
        dsi_process_memory now;
        dsi_process_memory_read(&now);
        const size_t bytes = now.anonymous + now.shared;
        const double wait = 100.0 * (dsi_clock_seconds() - start);
        run->memory_most = bytes > run->memory_most ? bytes : run->memory_most;
        run->memory_due = start + (wait > 1.0 ? wait : 1.0);
    }
    return run->memory_most;
}

void train_lost_note(train_run *run, const char *what)
{
    if (run->lost == NULL) {
        run->lost = strdup(what);
    }
}

static void lost(train_run *run)
{
    char text[512];
    (void)snprintf(text, sizeof text, "cannot write --metrics %.300s: %s", run->options->metrics,
                   strerror(errno));
    ds_log(run->ctx, DS_LOG_ERROR, "%s; it gets no more lines, the run goes on", text);
    train_lost_note(run, text);
}

static void put(train_run *run, const char *line, bool soon)
{
    train_history_line(run, line, soon);
    if (run->metrics != NULL &&
        (fprintf(run->metrics, "%s\n", line) < 0 || fflush(run->metrics) != 0)) {
        FILE *metrics = run->metrics;
        lost(run);
        run->metrics = NULL;
        (void)fclose(metrics);
    }
}

/* JSON has no word for what is not finite. */
static const char *json_number(double value, char *text)
{
    (void)snprintf(text, NUMBER_BYTES, isfinite(value) ? "%.9g" : "null", value);
    return text;
}

/* ,"rewards/chosen":0.25,… of preferences. */
static const char *json_preference(const train_run *run, const ds_preference_sums *sums,
                                   const char *prefix, char text[PREFERENCE_BYTES])
{
    train_metric all[TRAIN_METRICS];
    const size_t n = train_preference_metrics(run, sums, all);
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n && at < PREFERENCE_BYTES; ++i) {
        char number[NUMBER_BYTES];
        at += (size_t)snprintf(text + at, PREFERENCE_BYTES - at, ",\"%s%s\":%s", prefix,
                               all[i].name, json_number(all[i].value, number));
    }
    return text;
}

void train_metrics_step(train_run *run, const train_step *step, double mfu, uint64_t peak_bytes)
{
    char disk[48] = "";
    char loss[NUMBER_BYTES];
    char norm[NUMBER_BYTES];
    char part[NUMBER_BYTES];
    char preference[PREFERENCE_BYTES];
    char line[LINE_BYTES];
    if (ds_engine_disk_bytes(run->engine) > 0) {
        (void)snprintf(disk, sizeof disk, ",\"disk_wait_s\":%.3f", step->disk_wait);
    }
    (void)snprintf(
        line, sizeof line,
        "{\"step\":%llu,\"loss\":%s,\"lr\":%.9g,\"grad_norm\":%s,"
        "\"loss_scale\":%.9g,\"tokens_per_s\":%.1f,\"mfu\":%s,"
        "\"peak_bytes\":%llu,\"memory_bytes\":%zu%s,\"tokens\":%llu,\"seconds\":%.6f%s%s}",
        (unsigned long long)step->step, json_number(step->loss, loss), step->lr,
        json_number(step->grad_norm, norm), step->loss_scale, (double)step->tokens / step->seconds,
        json_number(mfu, part), (unsigned long long)peak_bytes, memory_seen(run), disk,
        (unsigned long long)step->tokens, step->seconds, step->applied ? "" : ",\"skipped\":true",
        json_preference(run, &step->preference, "", preference));
    put(run, line, false);
}

enum { BEST_BYTES = 160 };

/* ,"best_step":20,"best_eval_loss":2.5; null: no loss so far was a number. */
static const char *json_best(const train_run *run, char text[BEST_BYTES])
{
    char number[NUMBER_BYTES];
    const best_step *b = &run->best;
    (void)snprintf(text, BEST_BYTES, ",\"best_step\":%llu,\"best_eval_loss\":%s",
                   (unsigned long long)b->step, json_number(b->step > 0 ? b->value : NAN, number));
    return text;
}

void train_metrics_eval(train_run *run, const train_evaluation *e)
{
    char number[NUMBER_BYTES];
    char best[BEST_BYTES];
    char more[BEST_BYTES + 64] = "";
    char preference[PREFERENCE_BYTES];
    char line[LINE_BYTES];
    if (train_best_is_asked(run->options)) {
        (void)snprintf(more, sizeof more, "%s,\"without_improvement\":%lld", json_best(run, best),
                       (long long)run->best.without);
    }
    (void)snprintf(line, sizeof line, "{\"step\":%llu,\"eval_loss\":%s,\"eval_%s\":%.0f%s%s}",
                   (unsigned long long)e->step, json_number(e->loss, number),
                   train_has_preference(run) ? "samples" : "tokens", e->count, more,
                   json_preference(run, &e->preference, "eval_", preference));
    put(run, line, true);
}

void train_metrics_best(train_run *run, uint64_t step)
{
    char best[BEST_BYTES];
    char line[LINE_BYTES];
    const bool loads = run->options->load_best && run->best.step > 0;
    (void)snprintf(line, sizeof line, "{\"step\":%llu%s,\"stopped_early\":%s,\"model_step\":%llu}",
                   (unsigned long long)step, json_best(run, best),
                   run->stops_early ? "true" : "false",
                   (unsigned long long)(loads ? run->best.step : step));
    put(run, line, true);
}

void train_metrics_save(train_run *run, uint64_t step, double stall, double write)
{
    char line[LINE_BYTES];
    (void)snprintf(line, sizeof line, "{\"step\":%llu,\"save_stall_s\":%.6f,\"save_write_s\":%.6f}",
                   (unsigned long long)step, stall, write);
    put(run, line, true);
}

void train_metrics_close(train_run *run)
{
    FILE *metrics = run->metrics;
    run->metrics = NULL;
    if (metrics != NULL && fclose(metrics) != 0) {
        lost(run);
    }
}

bool train_metrics_are_kept(const train_run *run)
{
    return run->metrics != NULL || run->options->output != NULL || run->options->report != NULL;
}
