/* SPDX-License-Identifier: Apache-2.0 */
/* The course of a search. See tune.h. */
#include "base/clock.h"
#include "base/processor.h"
#include "launch/launch.h"
#include "tune/tune_impl.h"

#include "config/config_read.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FOUND = 0, EXIT_NOTHING = 1, EXIT_INTERRUPTED = 130, FILE_CEILING = 4 << 20 };

/* ---- preparation ---- */

static ds_status refuse(const dsi_tune *t)
{
    const dsi_launch_options *o = t->params->launch;
    const bool way = strcmp(o->launcher, "pdsh") == 0 || strcmp(o->launcher, "ssh") == 0;
    if (o->no_ssh || (o->launcher_given && !way)) {
        return ds_fail(t->ctx, DS_ERR_UNSUPPORTED,
                       "--autotuning with %s%s: trials are started, bounded and ended by this "
                       "launcher alone; use --launcher pdsh or ssh",
                       o->no_ssh ? "--no_ssh" : "--launcher ", o->no_ssh ? "" : o->launcher);
    }
    if (o->elastic_training || o->restarts > 0) {
        return ds_fail(t->ctx, DS_ERR_UNSUPPORTED,
                       "--autotuning with %s: a trial that fails is a result and is not started "
                       "again; remove one of them",
                       o->elastic_training ? "--elastic_training" : "--restarts");
    }
    return DS_OK;
}

/* The section autotuning alone, checked by its own rules: the rest may hold lists. */
static ds_status read_section(dsi_tune *t)
{
    const ds_config_params params = {.allow_unknown_keys = false};
    static const char *const kept[] = {"autotuning", "bf16", "fp16", NULL};
    dsi_arena *arena = NULL;
    dsi_buf text = dsi_buf_make(FILE_CEILING);
    DS_TRY(dsi_arena_create(64 << 20, &arena));
    dsi_diags diags = {.name = t->config_path, .arena = arena};
    const dsi_node *root = dsi_config_read(&diags, dsi_buf_text(&t->raw), t->raw.size);
    ds_status status = DS_OK;
    if (root == NULL || diags.n_errors > 0) {
        dsi_diags_write(&diags, &text);
        status = ds_fail(t->ctx, DS_ERR_CONFIG, "%s", dsi_buf_text(&text));
    } else {
        dsi_buf_puts(&text, "{\"train_batch_size\": 1");
        for (const char *const *key = kept; *key != NULL; ++key) {
            const dsi_node *node = dsi_node_find(root, *key);
            const dsi_node *enabled = dsi_node_find(node, "enabled");
            if (node != NULL && (key == kept || !dsi_node_is_text(enabled, "auto"))) {
                dsi_buf_printf(&text, ", \"%s\": ", *key);
                dsi_node_json(&text, node);
            }
        }
        dsi_buf_putc(&text, '}');
        status = ds_config_load_text(t->ctx, t->config_path, dsi_buf_text(&text), text.size,
                                     &params, &t->options_config);
        status = status < 0 ? status : ds_config_resolve(t->options_config, 1, NULL);
    }
    if (status >= 0) {
        const dsi_node *section = dsi_node_find(root, "autotuning");
        const dsi_node *enabled = dsi_node_find(section, "enabled");
        if (enabled != NULL && enabled->kind == DSI_NODE_BOOL && !enabled->as.truth) {
            status = ds_fail(t->ctx, DS_ERR_CONFIG,
                             "%s: autotuning.enabled is false and --autotuning is given: set it to "
                             "true, or remove the flag",
                             t->config_path);
        }
        const dsi_node *mappings = dsi_node_find(section, "arg_mappings");
        for (const dsi_node *n = mappings != NULL ? mappings->first : NULL; n != NULL;
             n = n->next) {
            dsi_words_add(&t->texts, n->key);
            dsi_words_add(&t->texts, n->as.text);
        }
        t->options = dsi_config_values(t->options_config)->autotuning;
        for (size_t i = 0; i < ds_config_n_notices(t->options_config); ++i) {
            ds_log(t->ctx, DS_LOG_WARN, "%s", ds_config_notice(t->options_config, i));
        }
    }
    dsi_buf_free(&text);
    dsi_arena_destroy(&arena);
    return status < 0 ? status : dsi_words_check(t->ctx, &t->texts);
}

/* Blanks around a key count as nothing, as in one of DeepSpeed's own examples. */
static void trim(char *text)
{
    const size_t lead = strspn(text, " ");
    size_t n = strlen(text + lead);
    memmove(text, text + lead, n + 1);
    while (n > 0 && text[n - 1] == ' ') {
        text[--n] = '\0';
    }
}

/* Keys and their flags: the user's, then those of the program's planner. */
static ds_status map_flags(dsi_tune *t)
{
    const char *const *known = t->planner != NULL ? t->planner->flags : NULL;
    size_t n_known = 0;
    while (known != NULL && known[n_known] != NULL) {
        ++n_known;
    }
    t->mapped = calloc(t->texts.n + n_known + 1, sizeof *t->mapped);
    if (t->mapped == NULL) {
        return ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for the flags of a command");
    }
    size_t n = 0;
    for (; n < t->texts.n; ++n) {
        trim(t->texts.items[n]);
        t->mapped[n] = t->texts.items[n];
    }
    for (size_t i = 0; i < n_known; ++i) {
        t->mapped[n++] = known[i];
    }
    return DS_OK;
}

static ds_status count_ranks(dsi_tune *t)
{
    dsi_hosts hosts = {0};
    bool local = false;
    DS_TRY(dsi_head_hosts(t->ctx, t->params->launch, &hosts, &local));
    t->n_ranks = dsi_hosts_n_ranks(&hosts);
    t->n_nodes = (uint32_t)hosts.n;
    t->n_local = hosts.items[0].n_slots;
    dsi_hosts_free(&hosts);
    const uint32_t cores = dsi_processor_n_cores();
    t->n_threads = cores > t->n_local ? cores / t->n_local : 1;
    return DS_OK;
}

static ds_status prepare(dsi_tune *t)
{
    const dsi_tune_planner *planner = t->params->planner;
    DS_TRY(refuse(t));
    DS_TRY(dsi_tune_find_config(t));
    t->raw = dsi_buf_make(FILE_CEILING);
    DS_TRY(dsi_buf_read_file(t->ctx, t->config_path, &t->raw));
    DS_TRY(count_ranks(t));
    DS_TRY(read_section(t));
    t->planner = planner != NULL && planner->knows(t->command) ? planner : NULL;
    DS_TRY(map_flags(t));
    DS_TRY(dsi_tune_read_space(t));
    return dsi_tune_open_folders(t);
}

/* ---- prediction ---- */

static ds_status open_planner(dsi_tune *t)
{
    char measured[DSI_TUNE_PATH + 16] = "";
    const char *device = t->params->device;
    const bool none = device != NULL && strcmp(device, "none") == 0;
    if (t->planner == NULL) {
        t->n_params = (double)t->options.num_params;
        return t->n_params > 0.0 && !t->options.profile_model ? DS_OK : dsi_tune_profile_model(t);
    }
    if (device == NULL) {
        DS_TRY(dsi_tune_measure_device(t, measured, sizeof measured));
    }
    const dsi_tune_job job = {.command = t->command,
                              .n_ranks = t->n_ranks,
                              .n_nodes = t->n_nodes,
                              .n_threads = t->n_threads,
                              .memory = t->params->device_memory,
                              .device = none                  ? NULL
                                        : device != NULL      ? device
                                        : measured[0] != '\0' ? measured
                                                              : NULL};
    return t->planner->open(t->ctx, &job, &t->planner_self);
}

static ds_status predict(dsi_tune *t)
{
    uint32_t planned = 0;
    uint32_t n_predicted = 0;
    uint32_t fits = 0;
    uint32_t chosen = 0;
    t->items = calloc(DSI_TUNE_CEILING, sizeof *t->items);
    if (t->items == NULL) {
        return ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for the candidates of a search");
    }
    DS_TRY(open_planner(t));
    const double start = dsi_clock_seconds();
    if (t->interrupted) {
        return DS_OK;
    }
    dsi_tune_bound_batches(t);
    DS_TRY(dsi_tune_predict(t));
    for (uint32_t i = 0; i < t->n_items; ++i) {
        fits += t->items[i].state == DSI_TUNE_OPEN ? 1 : 0;
        planned += t->items[i].state != DSI_TUNE_REFUSED ? 1 : 0;
        n_predicted += t->items[i].predicted ? 1 : 0;
    }
    dsi_tune_choose(t);
    for (uint32_t i = 0; i < t->n_items; ++i) {
        chosen += t->items[i].state == DSI_TUNE_OPEN ? 1 : 0;
    }
    if (n_predicted > 0) {
        ds_log(t->ctx, DS_LOG_JOB,
               "%u settings for %u ranks predicted in %.1f s: %u fit into %.2f GiB a rank (%s), %u "
               "are worth a trial",
               t->n_items, t->n_ranks, dsi_clock_seconds() - start, fits,
               (double)t->params->memory / 1073741824.0, t->params->memory_of, chosen);
    } else {
        ds_log(t->ctx, DS_LOG_JOB, "%u settings for %u ranks, %u are worth a trial", t->n_items,
               t->n_ranks, chosen);
    }
    dsi_tune_tell_time(t);
    if (planned == 0 && t->n_items > 0) {
        return ds_fail(t->ctx, DS_ERR_CONFIG, "no setting can be planned; %s: %s", t->items[0].name,
                       t->items[0].why);
    }
    return DS_OK;
}

/* ---- trials ---- */

static void tell_start(const dsi_tune *t, const dsi_tune_candidate *c)
{
    char expected[96] = "";
    const dsi_prediction *p = &c->prediction;
    if (c->predicted && p->seconds > 0.0) {
        (void)snprintf(expected, sizeof expected, ": predicted %.3f s a step, %.2f GiB", p->seconds,
                       (double)p->need / 1073741824.0);
    } else if (c->predicted) {
        (void)snprintf(expected, sizeof expected, ": predicted %.2f GiB",
                       (double)p->need / 1073741824.0);
    }
    ds_log(t->ctx, DS_LOG_JOB, "trial %u %s%s", t->n_trials, c->name, expected);
}

static void tell_end(const dsi_tune *t, const dsi_tune_candidate *c)
{
    char value[64];
    if (c->state == DSI_TUNE_MEASURED) {
        dsi_tune_metric_text(t, c, value, sizeof value);
        ds_log(t->ctx, DS_LOG_JOB, "trial %u %s: %s, %.3f s a step, %.2f GiB%s%s", t->n_trials,
               c->name, value, c->metrics.latency, c->metrics.memory / 1073741824.0,
               t->best < t->n_items && c == &t->items[t->best] ? " (best so far)" : "",
               c->reused ? " (from before)" : "");
    } else if (c->state == DSI_TUNE_FAILED) {
        ds_log(t->ctx, DS_LOG_WARN, "trial %u %s failed: %s%s", t->n_trials, c->name, c->why,
               c->reused ? " (from before)" : "");
    }
}

static void note(dsi_tune *t, uint32_t at)
{
    const dsi_tune_candidate *c = &t->items[at];
    t->n_reused += c->reused ? 1 : 0;
    if (c->state == DSI_TUNE_FAILED && c->failure == DSI_FAILURE_OTHER) {
        t->n_other_failures += 1;
    }
    if (c->state == DSI_TUNE_MEASURED &&
        (t->best == UINT32_MAX || dsi_tune_score(t, c) > dsi_tune_score(t, &t->items[t->best]))) {
        t->best = at;
        t->best_trial = t->n_trials;
    }
    tell_end(t, c);
}

static ds_status run_trials(dsi_tune *t)
{
    while (!t->interrupted) {
        const uint32_t next = dsi_tune_next(t);
        t->interrupted = dsi_tune_is_interrupted();
        if (next == UINT32_MAX || t->interrupted) {
            break;
        }
        t->n_trials += 1;
        tell_start(t, &t->items[next]);
        DS_TRY(dsi_tune_try(t, &t->items[next]));
        if (t->items[next].state == DSI_TUNE_OPEN) { /* interrupted before it had a result */
            t->n_trials -= 1;
            break;
        }
        note(t, next);
    }
    return DS_OK;
}

/* ---- the end ---- */

static ds_status start_best(dsi_tune *t, int *exit_code_out)
{
    dsi_launch_options o = *t->params->launch;
    char path[DSI_TUNE_PATH + 32];
    dsi_words command = {0};
    (void)snprintf(path, sizeof path, "%s/ds_config_optimal.json", t->results);
    ds_status status = dsi_tune_command(t, &t->items[t->best], path, &command);
    if (status >= 0) {
        ds_log(t->ctx, DS_LOG_JOB, "starting the job with %s", path);
        o.command = command;
        o.autotuning = NULL;
        o.rank_bytes = 0; /* that was for the trials */
        status = dsi_head_run(t->ctx, &o, exit_code_out);
    }
    dsi_words_free(&command);
    return status;
}

static ds_status end(dsi_tune *t, const sigset_t *before, int *exit_code_out)
{
    DS_TRY(dsi_tune_finish(t));
    if (t->interrupted) {
        ds_log(t->ctx, DS_LOG_WARN,
               "interrupted after %u trials; their results are in %s, and the same command goes "
               "on from them",
               t->n_trials, t->results);
        *exit_code_out = EXIT_INTERRUPTED;
        return DS_OK;
    }
    if (t->best == UINT32_MAX) {
        ds_log(t->ctx, DS_LOG_ERROR, "no setting ran; %s/summary.txt says why of each", t->results);
        *exit_code_out = EXIT_NOTHING;
        return DS_OK;
    }
    ds_log(t->ctx, DS_LOG_JOB, "written: %s/ds_config_optimal.json, cmd_optimal.txt, summary.txt",
           t->results);
    *exit_code_out = EXIT_FOUND;
    (void)sigprocmask(SIG_SETMASK, before, NULL);
    return t->params->run ? start_best(t, exit_code_out) : DS_OK;
}

static void close_all(dsi_tune *t)
{
    if (t->planner_self != NULL) {
        t->planner->close(t->planner_self);
    }
    if (t->lock >= 0) {
        (void)close(t->lock);
    }
    ds_config_destroy(&t->options_config);
    dsi_buf_free(&t->raw);
    dsi_words_free(&t->texts);
    free(t->config_path);
    free(t->mapped);
    free(t->items);
}

/* A signal that ends waits while nothing runs that could take it, so that results are written. */
static ds_status search(dsi_tune *t, int *exit_code_out)
{
    sigset_t ends;
    sigset_t before;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &ends, &before);
    ds_status status = predict(t);
    if (status >= 0 && t->params->launch->dry_run) {
        dsi_buf text = dsi_buf_make(1 << 20);
        dsi_tune_summary(t, true, &text);
        (void)fputs(dsi_buf_text(&text), stdout);
        dsi_buf_free(&text);
        *exit_code_out = EXIT_FOUND;
    } else if (status >= 0) {
        status = run_trials(t);
        status = status < 0 ? status : end(t, &before, exit_code_out);
    }
    if (t->interrupted) { /* what waits was heard */
        static const struct timespec now = {0};
        while (sigtimedwait(&ends, NULL, &now) > 0) {
        }
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

ds_status dsi_tune_run(ds_ctx *ctx, const dsi_tune_params *params, int *exit_code_out)
{
    dsi_tune *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a search");
    }
    *t = (dsi_tune){.ctx = ctx,
                    .params = params,
                    .command = &params->launch->command,
                    .lock = -1,
                    .best = UINT32_MAX,
                    .started = dsi_clock_seconds()};
    ds_status status = prepare(t);
    status = status < 0 ? status : search(t, exit_code_out);
    close_all(t);
    free(t);
    return status;
}
