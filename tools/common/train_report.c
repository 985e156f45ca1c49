/* SPDX-License-Identifier: Apache-2.0 */
/* What a run prints: lines that stay, on standard output, one every steps_per_print steps, for each
 * evaluation and save, and at the end; a live line below them where standard error is a terminal;
 * the lines of JSON; monitors. */
#include "base/clock.h"
#include "base/plain.h"
#include "common/machine.h"
#include "common/step_speed.h"
#include "common/train.h"
#include "config/config_values.h"

#include <deepspeed/monitor.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct train_report {
    train_run *run;
    ds_monitor *monitor;
    bool speaks;       /* rank 0 */
    FILE *lines;       /* where what stays is written */
    bool live;         /* standard error is a terminal: one line there is overwritten */
    bool line_open;    /* the live line stands without newline */
    double last_drawn; /* seconds, monotonic */
    step_speed speed;  /* of the newest steps */
    double first_step; /* seconds at the end of the first step */
    uint64_t first;    /* step number of the first step of this run */
    double peak_flops; /* measured on this machine; 0: not, or no bound on what steps reach */
    bool peak_known;   /* it was measured, whatever came of it */
};

/* Whether another output of the run goes there: lines of text would spoil it. */
static bool outputs_to_stdout(const train_options *o)
{
    const char *const paths[] = {o->metrics, o->trace, o->report};
    struct stat out;
    struct stat st;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
        if (paths[i] != NULL && fstat(STDOUT_FILENO, &out) == 0 && stat(paths[i], &st) == 0 &&
            st.st_dev == out.st_dev && st.st_ino == out.st_ino) {
            return true;
        }
    }
    return false;
}

static ds_status open_monitor(train_report *report)
{
    const train_run *run = report->run;
    const ds_config_values *v = dsi_config_values(run->config);
    char *config = NULL;
    DS_TRY(ds_config_print(run->config, false, &config));
    const ds_monitor_params params = {.tensorboard = &v->tensorboard,
                                      .csv = &v->csv_monitor,
                                      .wandb = &v->wandb,
                                      .comet = &v->comet,
                                      .config = config};
    const ds_status status = ds_monitor_create(run->ctx, &params, &report->monitor);
    free(config);
    return status;
}

ds_status train_report_open(train_run *run, train_report **report_out)
{
    train_report *report = calloc(1, sizeof *report);
    if (report == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the report");
    }
    report->run = run;
    report->speaks = ds_comm_rank(run->comm) == 0;
    *report_out = report;
    if (!report->speaks) {
        return DS_OK;
    }
    report->live = isatty(STDERR_FILENO) != 0;
    report->lines = outputs_to_stdout(run->options) ? stderr : stdout;
    report->first = ds_engine_global_steps(run->engine);
    ds_status status = train_metrics_open(run);
    if (status >= 0) {
        status = train_history_open(run);
    }
    if (status >= 0) {
        status = open_monitor(report);
    }
    if (status < 0) {
        train_report_close(report_out);
    }
    return status;
}

/* A monitor that cannot be written costs no training. */
static void note_monitor(train_report *report, ds_status status)
{
    if (status < 0) {
        ds_log(report->run->ctx, DS_LOG_ERROR, "%s; it gets no more values, the run goes on",
               ds_ctx_error(report->run->ctx));
        train_lost_note(report->run, ds_ctx_error(report->run->ctx));
    }
}

static void write_monitor(train_report *report, const char *tag, double value)
{
    /* x of every tag */
    const uint64_t x = ds_engine_global_samples(report->run->engine);
    if (report->monitor != NULL) {
        note_monitor(report, ds_monitor_write(report->monitor, tag, value, x));
    }
}

/* Readers see a step when it is done. */
static void flush_monitor(train_report *report)
{
    if (report->monitor != NULL) {
        note_monitor(report, ds_monitor_flush(report->monitor));
    }
}

/* Takes the live line away: what stays is written in its place. */
static void end_line(train_report *report)
{
    if (report->line_open) {
        (void)fputs("\r\033[K", stderr);
        report->line_open = false;
    }
}

static void put_line(train_report *report, const char *text)
{
    end_line(report);
    (void)fprintf(report->lines, "%s\n", text);
    (void)fflush(report->lines);
}

void train_report_say(train_report *report, const char *format, ...)
{
    va_list args;
    if (!report->speaks) {
        return;
    }
    char text[2048];
    char plain[2048];
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dsi_plain_message(text, plain, sizeof plain);
    put_line(report, plain);
}

/* "1:02:03", "2:03". */
static void clock_text(double seconds, char *text, size_t n)
{
    const long s = (long)(seconds + 0.5);
    if (s >= 3600) {
        (void)snprintf(text, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    } else {
        (void)snprintf(text, n, "%ld:%02ld", s / 60, s % 60);
    }
}

/* The peak may be measured while others use the cores: the best of all tries counts. */
static void measure_peak(train_report *report)
{
    const ds_dtype dtype = dsi_config_values(report->run->config)->compute_dtype;
    const double flops = machine_peak_flops(report->run->ctx, dtype);
    report->peak_flops = flops > report->peak_flops ? flops : report->peak_flops;
}

/* What part of this machine's peak the newest steps reach; NAN when that is not known. A peak that
 * steps surpass is none. */
static double mfu_of(train_report *report)
{
    const ds_engine *engine = report->run->engine;
    const double flops = ds_engine_flops(engine) * (double)ds_engine_accumulation(engine);
    const double rate = flops / step_speed_seconds(&report->speed);
    if (!report->peak_known) {
        measure_peak(report);
        if (rate > report->peak_flops) {
            measure_peak(report);
        }
        report->peak_known = true;
        if (report->peak_flops > 0.0) {
            train_report_say(report,
                             "peak: %.4g TFLOP/s a rank in %s, a product of 768 x 768 "
                             "matrices measured here on %u threads",
                             report->peak_flops * 1e-12,
                             ds_dtype_name(dsi_config_values(report->run->config)->compute_dtype),
                             ds_ctx_n_threads(report->run->ctx));
        }
    }
    if (rate > report->peak_flops) {
        report->peak_flops = 0.0;
    }
    return report->peak_flops > 0.0 ? rate / report->peak_flops : NAN;
}

/* "31% of peak  ", small figures with their digits; "" when it is not known. */
static const char *peak_text(double mfu, char *text, size_t n)
{
    const double percent = mfu * 100.0;
    text[0] = '\0';
    if (!isnan(mfu)) {
        const int digits = percent >= 9.95 ? 0 : percent >= 0.995 ? 1 : 2;
        (void)snprintf(text, n, "%.*f%% of peak  ", digits, percent);
    }
    return text;
}

enum { STEP_BYTES = 320 };

static void describe_step(const train_report *report, const train_step *step, double mfu,
                          uint64_t peak_bytes, char text[STEP_BYTES])
{
    const uint64_t done = step->step - report->first;
    const double since = dsi_clock_seconds() - report->first_step;
    const double each = done > 1 ? since / (double)(done - 1) : step->seconds;
    char left[32];
    char peak[32];
    char disk[32] = "";
    char preference[64];
    train_preference_text(report->run, &step->preference, preference, sizeof preference);
    clock_text(each * (double)(report->run->total_steps - step->step), left, sizeof left);
    if (ds_engine_disk_bytes(report->run->engine) > 0) {
        (void)snprintf(disk, sizeof disk, "%.0f%% disk wait  ",
                       step->disk_wait / step->seconds * 100.0);
    }
    (void)snprintf(text, STEP_BYTES,
                   "step %llu/%llu  loss %.4f%s  lr %.3g  norm %.3f  %.0f tok/s  %s%s%.0f MiB  "
                   "left %s%s",
                   (unsigned long long)step->step, (unsigned long long)report->run->total_steps,
                   step->loss, preference, step->lr, step->grad_norm,
                   step_speed_rate(&report->speed), peak_text(mfu, peak, sizeof peak), disk,
                   (double)peak_bytes / 1048576.0, left, step->applied ? "" : "  (skipped)");
}

static void draw(train_report *report, const char *text)
{
    (void)fprintf(stderr, "\r\033[K%s", text);
    (void)fflush(stderr);
    report->line_open = true;
    report->last_drawn = dsi_clock_seconds();
}

/* DeepSpeed's timers of a step, in milliseconds. */
static void write_times(train_report *report)
{
    const ds_engine_times t = ds_engine_step_times(report->run->engine);
    const struct {
        const char *tag;
        double value;
    } rows[] = {
        {"Train/Samples/elapsed_time_ms_forward", t.forward},
        {"Train/Samples/elapsed_time_ms_backward", t.backward},
        {"Train/Samples/elapsed_time_ms_backward_inner", t.backward_inner},
        {"Train/Samples/elapsed_time_ms_backward_allreduce", t.backward_allreduce},
        {"Train/Samples/elapsed_time_ms_step", t.step},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        write_monitor(report, rows[i].tag, rows[i].value);
    }
}

/* By TRL's names, of evaluations with "eval_" before them. */
static void write_preference(train_report *report, const ds_preference_sums *sums,
                             const char *prefix)
{
    train_metric all[TRAIN_METRICS];
    const size_t n = train_preference_metrics(report->run, sums, all);
    for (size_t i = 0; i < n; ++i) {
        char tag[96];
        (void)snprintf(tag, sizeof tag, "Train/Samples/%s%s", prefix, all[i].name);
        write_monitor(report, tag, all[i].value);
    }
}

static void write_monitors(train_report *report, const train_step *step)
{
    const ds_config_values *v = dsi_config_values(report->run->config);
    write_monitor(report, "Train/Samples/train_loss", step->loss);
    write_monitor(report, "Train/Samples/lr", step->lr);
    write_preference(report, &step->preference, "");
    if (v->fp16.enabled) {
        write_monitor(report, "Train/Samples/loss_scale", step->loss_scale);
    }
    if (v->wall_clock_breakdown) {
        write_times(report);
    }
    flush_monitor(report);
}

void train_report_step(train_report *report, const train_step *step)
{
    const int64_t every = dsi_config_values(report->run->config)->steps_per_print;
    if (!report->speaks) {
        return;
    }
    const double now = dsi_clock_seconds();
    const bool first = step->step == report->first + 1;
    const bool last = step->step >= report->run->total_steps;
    step_speed_add(&report->speed, (double)step->tokens, step->seconds);
    const bool stays = every > 0 && (step->step % (uint64_t)every == 0 || last);
    const bool shown = report->live && (now - report->last_drawn > 0.1 || last || first);
    const uint64_t peak_bytes = machine_peak_bytes();
    double mfu = NAN;
    if (first) {
        report->first_step = now;
    } else if (stays || shown || train_metrics_are_kept(report->run)) {
        mfu = mfu_of(report);
    }
    if (stays || shown) {
        char text[STEP_BYTES];
        describe_step(report, step, mfu, peak_bytes, text);
        if (stays) {
            put_line(report, text);
        } else {
            draw(report, text);
        }
    }
    train_metrics_step(report->run, step, mfu, peak_bytes);
    write_monitors(report, step);
}

void train_report_eval(train_report *report, const train_evaluation *e)
{
    const bool preference = train_has_preference(report->run);
    const char *const what = preference ? "samples" : "tokens";
    if (!report->speaks) {
        return;
    }
    if (!isfinite(e->loss)) {
        ds_log(report->run->ctx, DS_LOG_WARN,
               "step %llu: the validation loss is not finite (%g), over %.0f %s",
               (unsigned long long)e->step, e->loss, e->count, what);
    }
    char best[160];
    char more[96];
    train_best_text(report->run, best, sizeof best);
    train_preference_text(report->run, &e->preference, more, sizeof more);
    if (!preference) {
        (void)snprintf(more, sizeof more, " nats a token, perplexity %.3f,", exp(e->loss));
    }
    train_report_say(report, "step %llu  validation loss %.4f%s%s over %.0f %s%s",
                     (unsigned long long)e->step, e->loss, more, preference ? " " : "", e->count,
                     what, best);
    train_metrics_eval(report->run, e);
    write_monitor(report, "Train/Samples/eval_loss", e->loss);
    write_preference(report, &e->preference, "eval_");
    flush_monitor(report);
}

void train_report_save(train_report *report, uint64_t step)
{
    const train_run *run = report->run;
    const ds_engine_save_info saved = ds_engine_checkpoint_info(run->engine);
    if (!report->speaks) {
        return;
    }
    if (saved.behind) {
        train_report_say(report,
                         "saved %s/global_step%llu behind training in %.2f s; steps stood still "
                         "for %.3f s",
                         run->options->output, (unsigned long long)step, saved.write_seconds,
                         saved.stall_seconds);
    } else {
        train_report_say(report, "saved %s/global_step%llu in %.2f s", run->options->output,
                         (unsigned long long)step, saved.stall_seconds);
    }
    train_metrics_save(report->run, step, saved.stall_seconds, saved.write_seconds);
    write_monitor(report, "Train/Samples/checkpoint_stall_ms", 1e3 * saved.stall_seconds);
    write_monitor(report, "Train/Samples/checkpoint_write_ms", 1e3 * saved.write_seconds);
    flush_monitor(report);
}

void train_report_ended(train_report *report, ds_status status, bool interrupted)
{
    enum { FAILED = 1, INTERRUPTED = 130 }; /* as the program's own */
    const int code = status < 0 ? FAILED : interrupted ? INTERRUPTED : 0;
    if (report->monitor != NULL) {
        const char *why = status < 0 ? ds_ctx_error(report->run->ctx) : NULL;
        (void)ds_monitor_end(report->monitor, code, why);
    }
}

void train_report_close(train_report **report_inout)
{
    train_report *report = *report_inout;
    end_line(report);
    if (report->speaks && report->run->history != NULL) {
        train_summary_print(report->run, report->lines);
    }
    train_metrics_close(report->run);
    note_monitor(report, ds_monitor_close(&report->monitor));
    free(report);
    *report_inout = NULL;
}
