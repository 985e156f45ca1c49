/* SPDX-License-Identifier: Apache-2.0 */
/* The results folder: results_dir/NAME/…, exps_dir/NAME.json, results.json. See tune_impl.h.
 *
 * Every file is written whole (io/file.h), so that a search that is killed leaves none half. A lock
 * keeps two searches apart.
 */
#include "tune/tune_impl.h"

#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { TEXT_CEILING = 8 << 20 };

ds_status dsi_tune_put(ds_ctx *ctx, const char *path, const char *text)
{
    return dsi_file_replace(ctx, path, text, strlen(text));
}

/* ---- folders ---- */

static ds_status make_folder(ds_ctx *ctx, const char *key, const char *path, char *out)
{
    char part[DSI_TUNE_PATH];
    char whole[PATH_MAX];
    const size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) {
        return ds_fail(ctx, DS_ERR_CONFIG, "autotuning.%s: expected a path of 1 to %zu characters",
                       key, sizeof part - 1);
    }
    for (size_t i = 1; i <= n; ++i) {
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, 0777) < 0 && errno != EEXIST) {
                return ds_fail(ctx, DS_ERR_IO, "autotuning.%s: %s cannot be made: %s", key, part,
                               strerror(errno));
            }
        }
    }
    if (realpath(path, whole) == NULL) {
        return ds_fail(ctx, DS_ERR_IO, "autotuning.%s: %s: %s", key, path, strerror(errno));
    }
    if (strlen(whole) >= DSI_TUNE_PATH) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "autotuning.%s: expected a whole path of at most %d characters, found %zu: "
                       "%s",
                       key, DSI_TUNE_PATH - 1, strlen(whole), whole);
    }
    (void)snprintf(out, DSI_TUNE_PATH, "%s", whole);
    return DS_OK;
}

ds_status dsi_tune_open_folders(dsi_tune *t)
{
    const char *results = t->options.results_dir;
    const char *experiments = t->options.exps_dir;
    char path[DSI_TUNE_PATH + 16];
    DS_TRY(make_folder(t->ctx, "results_dir", results != NULL ? results : "autotuning_results",
                       t->results));
    DS_TRY(make_folder(t->ctx, "exps_dir", experiments != NULL ? experiments : "autotuning_exps",
                       t->experiments));
    (void)snprintf(path, sizeof path, "%s/.lock", t->results);
    t->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->lock < 0) {
        return ds_fail(t->ctx, DS_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    }
    if (flock(t->lock, LOCK_EX | LOCK_NB) < 0) {
        return ds_fail(t->ctx, DS_ERR_STATE,
                       "%s: another search is at work in this folder; wait for it, or give "
                       "autotuning.results_dir another one",
                       t->results);
    }
    return DS_OK;
}

/* ---- what was found ---- */

static const char *state_name(const dsi_tune_candidate *c)
{
    static const char *const names[] = {
        [DSI_TUNE_OPEN] = "not run",       [DSI_TUNE_REFUSED] = "refused",
        [DSI_TUNE_LARGE] = "does not fit", [DSI_TUNE_SKIPPED] = "not run",
        [DSI_TUNE_MEASURED] = "measured",  [DSI_TUNE_FAILED] = "failed",
    };
    return names[c->state];
}

static void put_text(dsi_buf *out, const char *key, const char *text)
{
    dsi_buf_printf(out, ", \"%s\": \"", key);
    dsi_buf_json(out, text, strlen(text));
    dsi_buf_putc(out, '"');
}

static void print_settings(dsi_buf *out, const dsi_tune_candidate *c)
{
    dsi_buf_puts(out, ",\n  \"settings\": {");
    for (uint32_t i = 0; i < c->n_settings; ++i) {
        dsi_buf_printf(out, "%s\"", i > 0 ? ", " : "");
        dsi_buf_json(out, c->settings[i].path, strlen(c->settings[i].path));
        dsi_buf_printf(out, "\": %s", c->settings[i].value);
    }
    dsi_buf_putc(out, '}');
}

static void print_candidate(const dsi_tune *t, dsi_buf *out, const dsi_tune_candidate *c)
{
    static const char *const failures[] = {"", "time", "memory", "other"};
    const dsi_prediction *p = &c->prediction;
    const dsi_tune_metrics *m = &c->metrics;
    dsi_buf_printf(out, "{\"name\": \"%s\"", c->name);
    put_text(out, "state", state_name(c));
    if (c->why[0] != '\0') {
        put_text(out, "reason", c->why);
    }
    if (c->state == DSI_TUNE_FAILED) {
        put_text(out, "failure", failures[c->failure]);
    }
    dsi_buf_printf(out, ",\n  \"num_gpus\": %u, \"num_nodes\": %u", t->n_ranks, t->n_nodes);
    dsi_buf_printf(out, ", \"trial_seconds\": %g, \"rank_memory\": %" PRIu64,
                   t->params->trial_seconds, t->params->trial_memory);
    print_settings(out, c);
    if (c->predicted) {
        dsi_buf_printf(out,
                       ",\n  \"predicted\": {\"memory_bytes\": %zu, \"latency\": %.6g, "
                       "\"model_flops\": %.6g, \"hardware_flops\": %.6g, \"bytes_sent\": %.6g}",
                       p->need, 1e3 * p->seconds, p->model_flops, p->hardware_flops, p->sent);
    }
    if (c->state == DSI_TUNE_MEASURED) {
        dsi_buf_printf(out,
                       ",\n  \"measured\": {\"latency\": %.6g, \"throughput\": %.6g, "
                       "\"FLOPS_per_gpu\": %.6g, \"forward\": %.6g, \"backward\": %.6g, "
                       "\"step\": %.6g, \"memory_bytes\": %.0f}",
                       1e3 * m->latency, m->throughput, m->flops, 1e3 * m->forward,
                       1e3 * m->backward, 1e3 * m->step, m->memory);
    }
    if (c->wall > 0.0) {
        dsi_buf_printf(out, ",\n  \"wall_seconds\": %.3f", c->wall);
    }
    dsi_buf_putc(out, '}');
}

static ds_status put_buf(const dsi_tune *t, const char *path, dsi_buf *text)
{
    const ds_status status = text->failed
                                 ? ds_fail(t->ctx, DS_ERR_NOMEM, "no memory to write %s", path)
                                 : dsi_tune_put(t->ctx, path, dsi_buf_text(text));
    dsi_buf_free(text);
    return status;
}

ds_status dsi_tune_put_experiment(const dsi_tune *t, const dsi_tune_candidate *c)
{
    char path[DSI_TUNE_PATH + DSI_TUNE_NAME + 32];
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    print_candidate(t, &text, c);
    dsi_buf_putc(&text, '\n');
    (void)snprintf(path, sizeof path, "%s/%s.json", t->experiments, c->name);
    if (!text.failed) {
        const ds_status status = dsi_tune_put(t->ctx, path, dsi_buf_text(&text));
        if (status < 0) {
            dsi_buf_free(&text);
            return status;
        }
    }
    (void)snprintf(path, sizeof path, "%s/%s/exp.json", t->results, c->name);
    return put_buf(t, path, &text);
}

ds_status dsi_tune_put_results(const dsi_tune *t)
{
    char path[DSI_TUNE_PATH + 32];
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_buf_puts(&text, "[\n");
    for (uint32_t i = 0; i < t->n_items; ++i) {
        print_candidate(t, &text, &t->items[i]);
        dsi_buf_puts(&text, i + 1 < t->n_items ? ",\n" : "\n");
    }
    dsi_buf_puts(&text, "]\n");
    (void)snprintf(path, sizeof path, "%s/results.json", t->results);
    return put_buf(t, path, &text);
}
