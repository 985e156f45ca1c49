/* SPDX-License-Identifier: Apache-2.0 */
/* One trial: the user's command with a changed configuration, through the launcher, ended by the
 * metrics that its engine writes or by a limit. See tune_impl.h.
 *
 * Its folder: ds_config.json, cmd.txt, stdout.log, stderr.log (of the launcher too), metrics.json,
 * exp.json. What is there of an earlier search with the same configuration and command counts as
 * this trial's result, except failures that may have gone away.
 */
#include "tune/tune_impl.h"

#include "base/clock.h"
#include "io/json_load.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_CEILING = 4 << 20,
    TAIL_BYTES = 16384,
    PATH_BYTES = DSI_TUNE_PATH + 300, /* a folder */
    FILE_BYTES = PATH_BYTES + 32
};

/* ---- what a trial left ---- */

static json_t *read_json(const char *folder, const char *name)
{
    char path[FILE_BYTES];
    dsi_buf text = dsi_buf_make(FILE_CEILING);
    json_error_t error;
    json_t *root = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    if (dsi_buf_read_file(NULL, path, &text) >= 0) {
        root = dsi_json_parse(dsi_buf_text(&text), text.size, JSON_REJECT_DUPLICATES, &error);
    }
    dsi_buf_free(&text);
    return root;
}

static double number(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    const double x = json_is_number(value) ? json_number_value(value) : 0.0;
    return isfinite(x) ? x : 0.0;
}

/* false: there is none, or it is not one of ours. */
static bool read_metrics(const char *folder, dsi_tune_metrics *out)
{
    json_t *root = read_json(folder, "metrics.json");
    *out = (dsi_tune_metrics){.latency = 1e-3 * number(root, "latency"),
                              .forward = 1e-3 * number(root, "forward"),
                              .backward = 1e-3 * number(root, "backward"),
                              .step = 1e-3 * number(root, "step"),
                              .throughput = number(root, "throughput"),
                              .flops = number(root, "FLOPS_per_gpu"),
                              .memory = number(root, "memory_bytes")};
    json_decref(root);
    return out->latency > 0.0 && out->throughput > 0.0;
}

/* The newest bytes of a log, ended by a zero byte. */
static void read_tail(const char *folder, const char *name, char *text)
{
    char path[FILE_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    const off_t from = end > TAIL_BYTES - 1 ? end - (TAIL_BYTES - 1) : 0;
    const ssize_t n = fd >= 0 ? pread(fd, text, TAIL_BYTES - 1, from) : 0;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* The line in which a program says that it got no memory, "" when none does. */
static void memory_line(char *text, char *out, size_t size)
{
    static const char *const words[] = {
        "out of memory",     "no memory",     "cannot allocate memory", "bad_alloc",
        "not enough memory", "--rank_memory", "device_memory: "};
    out[0] = '\0';
    for (char *line = text; line != NULL && *line != '\0';) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
        }
        for (size_t i = 0; i < sizeof words / sizeof words[0] && out[0] == '\0'; ++i) {
            if (strcasestr(line, words[i]) != NULL) {
                (void)snprintf(out, size, "%.200s", line);
            }
        }
        if (end != NULL) {
            *end = '\n';
        }
        line = end != NULL ? end + 1 : NULL;
    }
}

/* The last line that the program itself wrote to its errors. */
static void last_line(char *text, char *out, size_t size)
{
    static const char own[] = "deepspeed: ";
    out[0] = '\0';
    for (char *line = text; *line != '\0';) {
        const size_t n = strcspn(line, "\n");
        if (n > 0 && strncmp(line, own, sizeof own - 1) != 0) {
            (void)snprintf(out, size, "%.*s", (int)(n < 200 ? n : 200), line);
        }
        line += n + (line[n] == '\n' ? 1 : 0);
    }
}

static void tell_failure(const dsi_tune *t, const char *folder, const dsi_outcome *outcome,
                         dsi_tune_candidate *c)
{
    char tail[TAIL_BYTES];
    char line[256];
    c->state = DSI_TUNE_FAILED;
    c->failure = DSI_FAILURE_OTHER;
    read_tail(folder, "stderr.log", tail);
    memory_line(tail, line, sizeof line);
    if (outcome->limit == DSI_LIMIT_TIME) {
        c->failure = DSI_FAILURE_TIME;
        (void)snprintf(c->why, sizeof c->why,
                       "not done with step %lld after %g s (--trial_seconds): slow, or it hangs",
                       (long long)t->options.end_profile_step, t->params->trial_seconds);
    } else if (outcome->limit == DSI_LIMIT_MEMORY || outcome->no_memory ||
               (outcome->exit_code != 0 && line[0] != '\0')) {
        c->failure = DSI_FAILURE_MEMORY;
        (void)snprintf(c->why, sizeof c->why, "out of memory: %s",
                       line[0] != '\0' ? line : "the kernel ended it");
    } else if (outcome->exit_code != 0) {
        last_line(tail, line, sizeof line);
        (void)snprintf(c->why, sizeof c->why, "exit code %d: %s", outcome->exit_code,
                       line[0] != '\0' ? line : "it wrote nothing; see stderr.log");
    } else {
        (void)snprintf(c->why, sizeof c->why,
                       "it ended before step %lld was measured: give it more steps, or lower "
                       "autotuning.end_profile_step",
                       (long long)t->options.end_profile_step);
    }
}

/* ---- earlier results ---- */

static bool same_file(const char *folder, const char *name, const char *text)
{
    char path[FILE_BYTES];
    dsi_buf found = dsi_buf_make(FILE_CEILING);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const bool same =
        dsi_buf_read_file(NULL, path, &found) >= 0 && strcmp(dsi_buf_text(&found), text) == 0;
    dsi_buf_free(&found);
    return same;
}

/* A failure counts again under the same bounds or tighter ones. */
static bool failed_before(const dsi_tune *t, const char *folder, dsi_tune_candidate *c)
{
    json_t *root = read_json(folder, "exp.json");
    const char *failure = json_string_value(json_object_get(root, "failure"));
    const char *why = json_string_value(json_object_get(root, "reason"));
    const bool memory = failure != NULL && strcmp(failure, "memory") == 0;
    const bool late = failure != NULL && strcmp(failure, "time") == 0;
    const double room = number(root, "rank_memory");
    const bool counts =
        (memory && room >= (double)t->params->trial_memory && t->params->trial_memory > 0) ||
        (late && number(root, "trial_seconds") >= t->params->trial_seconds);
    if (counts) {
        c->state = DSI_TUNE_FAILED;
        c->failure = memory ? DSI_FAILURE_MEMORY : DSI_FAILURE_TIME;
        (void)snprintf(c->why, sizeof c->why, "%s", why != NULL ? why : failure);
    }
    json_decref(root);
    return counts;
}

static bool take_earlier(const dsi_tune *t, const char *folder, const char *config,
                         const char *command, dsi_tune_candidate *c)
{
    if (t->options.overwrite || !same_file(folder, "ds_config.json", config) ||
        !same_file(folder, "cmd.txt", command)) {
        return false;
    }
    if (read_metrics(folder, &c->metrics)) {
        c->state = DSI_TUNE_MEASURED;
        c->reused = true;
    } else {
        c->reused = failed_before(t, folder, c);
    }
    return c->reused;
}

/* ---- one candidate ---- */

typedef struct trial_files {
    char folder[PATH_BYTES], config_path[PATH_BYTES], metrics[PATH_BYTES], info[PATH_BYTES];
    dsi_buf config, command_text;
    dsi_words command;
} trial_files;

/* Monitors and profilers would write into the user's folders. */
static const char *const silenced[] = {"tensorboard", "csv_monitor",    "wandb",
                                       "comet",       "flops_profiler", NULL};

/* The section autotuning of a trial: its engine measures, and writes into the trial's folder. */
static ds_status trial_config(const dsi_tune *t, const dsi_tune_candidate *c, bool profile,
                              trial_files *f)
{
    dsi_tune_candidate changed = *c;
    dsi_buf base;
    for (const char *const *key = silenced; *key != NULL; ++key) {
        dsi_tune_set(&changed, *key, "");
    }
    dsi_tune_set(&changed, "autotuning", "");
    DS_TRY(dsi_tune_text(t->ctx, &t->raw, changed.settings, changed.n_settings, &base));
    char *end = strrchr(base.data, '}'); /* paths are longer than a setting's value */
    f->config = dsi_buf_make(FILE_CEILING);
    dsi_buf_append(&f->config, base.data, (size_t)(end - base.data));
    while (f->config.size > 0 && strchr("\n ", f->config.data[f->config.size - 1]) != NULL) {
        f->config.size -= 1;
    }
    dsi_buf_puts(&f->config, ",\n  \"autotuning\": {\n    \"enabled\": true,");
    dsi_buf_printf(
        &f->config, "\n    \"start_profile_step\": %lld,\n    \"end_profile_step\": %lld,",
        (long long)t->options.start_profile_step, (long long)t->options.end_profile_step);
    if (profile) {
        dsi_buf_puts(&f->config, "\n    \"model_info\": {\"profile\": true},");
    }
    dsi_buf_puts(&f->config, "\n    \"metric_path\": \"");
    dsi_buf_json(&f->config, f->metrics, strlen(f->metrics));
    dsi_buf_puts(&f->config, "\",\n    \"model_info_path\": \"");
    dsi_buf_json(&f->config, f->info, strlen(f->info));
    dsi_buf_puts(&f->config, "\"\n  }\n}\n");
    dsi_buf_free(&base);
    return f->config.failed ? ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a configuration")
                            : DS_OK;
}

static ds_status trial_command(const dsi_tune *t, const dsi_tune_candidate *c, trial_files *f)
{
    DS_TRY(dsi_tune_command(t, c, f->config_path, &f->command));
    f->command_text = dsi_buf_make(FILE_CEILING);
    for (size_t i = 0; i < t->params->own_flags->n; ++i) {
        dsi_shell_quote(&f->command_text, t->params->own_flags->items[i]);
        dsi_buf_putc(&f->command_text, ' ');
    }
    dsi_shell_join(&f->command_text, &f->command, 0);
    dsi_buf_putc(&f->command_text, '\n');
    return f->command_text.failed ? ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a command")
                                  : DS_OK;
}

static ds_status prepare(const dsi_tune *t, const dsi_tune_candidate *c, bool profile,
                         trial_files *f)
{
    (void)snprintf(f->folder, sizeof f->folder, "%s/%s", t->results, c->name);
    const int most = DSI_TUNE_PATH + DSI_TUNE_NAME + 1; /* what the folder has at most */
    (void)snprintf(f->config_path, sizeof f->config_path, "%.*s/ds_config.json", most, f->folder);
    (void)snprintf(f->metrics, sizeof f->metrics, "%.*s/metrics.json", most, f->folder);
    (void)snprintf(f->info, sizeof f->info, "%.*s/model_info.json", most, f->folder);
    if (mkdir(f->folder, 0777) < 0 && errno != EEXIST) {
        return ds_fail(t->ctx, DS_ERR_IO, "%s cannot be made: %s", f->folder, strerror(errno));
    }
    DS_TRY(trial_config(t, c, profile, f));
    return trial_command(t, c, f);
}

static void free_files(trial_files *f)
{
    dsi_buf_free(&f->config);
    dsi_buf_free(&f->command_text);
    dsi_words_free(&f->command);
}

/* Writes what is run, and takes away what an earlier run left. */
static ds_status put_files(const dsi_tune *t, const trial_files *f)
{
    char path[FILE_BYTES];
    (void)unlink(f->metrics);
    (void)unlink(f->info);
    (void)snprintf(path, sizeof path, "%s/exp.json", f->folder);
    (void)unlink(path);
    DS_TRY(dsi_tune_put(t->ctx, f->config_path, dsi_buf_text(&f->config)));
    (void)snprintf(path, sizeof path, "%s/cmd.txt", f->folder);
    return dsi_tune_put(t->ctx, path, dsi_buf_text(&f->command_text));
}

static ds_status run_trial(dsi_tune *t, dsi_tune_candidate *c, const trial_files *f)
{
    dsi_outcome outcome = {0};
    const dsi_tune_task job = {.folder = f->folder,
                               .command = &f->command,
                               .done_file = f->metrics,
                               .seconds = t->params->trial_seconds,
                               .memory = t->params->trial_memory};
    DS_TRY(put_files(t, f));
    const double start = dsi_clock_seconds();
    DS_TRY(dsi_tune_run_job(t, &job, &outcome));
    c->wall = dsi_clock_seconds() - start;
    if (read_metrics(f->folder, &c->metrics)) {
        c->state = DSI_TUNE_MEASURED;
        c->metrics.memory = fmax(c->metrics.memory, (double)outcome.peak_bytes);
    } else if (outcome.signalled || outcome.interrupted) {
        c->state = DSI_TUNE_OPEN; /* it will be run again */
    } else {
        tell_failure(t, f->folder, &outcome, c);
    }
    t->interrupted = t->interrupted || outcome.signalled || outcome.interrupted;
    return DS_OK;
}

ds_status dsi_tune_try(dsi_tune *t, dsi_tune_candidate *c)
{
    trial_files f = {0};
    ds_status status = prepare(t, c, false, &f);
    if (status >= 0 &&
        !take_earlier(t, f.folder, dsi_buf_text(&f.config), dsi_buf_text(&f.command_text), c)) {
        status = run_trial(t, c, &f);
        if (status >= 0 && c->state != DSI_TUNE_OPEN) {
            status = dsi_tune_put_experiment(t, c);
        }
    }
    free_files(&f);
    return status;
}

/* ---- runs that learn something else ---- */

static void take_model_info(dsi_tune *t, const char *folder)
{
    json_t *root = read_json(folder, "model_info.json");
    t->n_params = number(root, "num_params");
    t->activation_bytes = number(root, "activation_mem_per_gpu");
    json_decref(root);
}

ds_status dsi_tune_profile_model(dsi_tune *t)
{
    dsi_tune_candidate c = {.name = "profile_model_info",
                            .stage = t->n_data_ranks > 1 ? 3 : 0,
                            .micro_batch = 1,
                            .accumulation = 1};
    trial_files f = {0};
    dsi_outcome outcome = {0};
    dsi_tune_set_int(&c, "zero_optimization.stage", c.stage);
    dsi_tune_set_int(&c, "train_micro_batch_size_per_gpu", 1);
    dsi_tune_set_int(&c, "gradient_accumulation_steps", 1);
    dsi_tune_set_int(&c, "train_batch_size", (int64_t)t->n_data_ranks);
    for (uint32_t i = 0; i < t->space.n_axes; ++i) {
        if (t->space.axes[i].from_stage == 0 && t->space.axes[i].n > 0) {
            dsi_tune_set(&c, t->space.axes[i].path, t->space.axes[i].values[0]);
        }
    }
    ds_status status = prepare(t, &c, true, &f);
    if (status >= 0 && !t->options.overwrite &&
        same_file(f.folder, "ds_config.json", dsi_buf_text(&f.config)) &&
        same_file(f.folder, "cmd.txt", dsi_buf_text(&f.command_text))) {
        take_model_info(t, f.folder);
    }
    if (status >= 0 && t->n_params <= 0.0 && !t->params->launch->dry_run) {
        const dsi_tune_task job = {.folder = f.folder,
                                   .command = &f.command,
                                   .done_file = f.info,
                                   .seconds = t->params->trial_seconds,
                                   .memory = t->params->trial_memory};
        ds_log(t->ctx, DS_LOG_JOB,
               "profile_model_info: running the program once, to learn of its "
               "model");
        status = put_files(t, &f);
        status = status < 0 ? status : dsi_tune_run_job(t, &job, &outcome);
        if (status >= 0) {
            take_model_info(t, f.folder);
            t->interrupted = t->interrupted || outcome.signalled || outcome.interrupted;
        }
    }
    if (status >= 0 && t->n_params <= 0.0 && !t->interrupted) {
        ds_log(t->ctx, DS_LOG_WARN,
               "profile_model_info: %s (%s); memory is not "
               "predicted, trials begin with the smallest micro-batch; "
               "autotuning.model_info.num_params says it",
               t->params->launch->dry_run ? "--dry_run does not run the program to learn its model"
                                          : "the program wrote nothing of its model",
               f.folder);
    }
    free_files(&f);
    return status;
}
