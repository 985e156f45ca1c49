/* SPDX-License-Identifier: Apache-2.0 */
/* Monitors: TensorBoard and CSV here, W&B and Comet in files of their own. See
 * include/deepspeed/monitor.h. */
#include "monitor/comet_run.h"
#include "monitor/tfevents.h"
#include "monitor/wandb_run.h"

#include "base/reserved.h"
#include "io/file.h"

#include <deepspeed/monitor.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TAGS = 256, PATH_BYTES = 4096 };

/* An output whose write fails is closed: a file that goes on behind half a record is none. What was
 * whole stays. */
typedef struct sink {
    FILE *stream; /* NULL: off, or lost */
    char *path;
    off_t whole; /* bytes that readers can see */
} sink;

typedef struct csv_file {
    char *tag;
    sink out;
} csv_file;

struct ds_monitor {
    ds_ctx *ctx;
    sink events; /* TensorBoard's file */
    bool csv;
    char folder[PATH_BYTES]; /* of CSV */
    csv_file files[MAX_TAGS];
    uint32_t n_files;
    dsi_wandb *wandb; /* NULL when off; so comet */
    dsi_comet *comet;
    int exit_code;
    char *error; /* why the run failed; NULL */
};

static double wall_time(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Makes every folder of a path. */
static ds_status make_folders(ds_ctx *ctx, char *path)
{
    for (char *at = path + 1;; ++at) {
        if (*at == '/' || *at == '\0') {
            const char old = *at;
            *at = '\0';
            const bool failed = mkdir(path, 0777) != 0 && errno != EEXIST;
            const int reason = errno;
            *at = old;
            if (failed) {
                return ds_fail(ctx, DS_ERR_IO, "monitor: cannot make the folder %s: %s", path,
                               strerror(reason));
            }
            if (old == '\0') {
                return DS_OK;
            }
        }
    }
}

/* output_path/job_name, made. */
static ds_status folder_of(ds_ctx *ctx, const ds_config_monitor *config, char *path)
{
    const bool inside = config->output_path != NULL && config->output_path[0] != '\0';
    const int n = snprintf(path, PATH_BYTES, "%s%s%s", inside ? config->output_path : "",
                           inside ? "/" : "", config->job_name);
    if (n < 0 || n >= PATH_BYTES - 256) {
        return ds_fail(ctx, DS_ERR_LIMIT, "monitor: output_path is too long");
    }
    return make_folders(ctx, path);
}

static ds_status open_sink(ds_ctx *ctx, const char *path, bool append, sink *out)
{
    *out = (sink){.path = strdup(path)};
    if (out->path == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    const ds_status status = dsi_file_stream(ctx, path, append, &out->stream);
    if (status < 0) {
        return ds_fail(ctx, status, "monitor: %s", ds_ctx_error(ctx));
    }
    out->whole = ftell(out->stream); /* -1: a pipe */
    return DS_OK;
}

static void close_sink(sink *out)
{
    if (out->stream != NULL) {
        (void)fclose(out->stream);
    }
    free(out->path);
    *out = (sink){0};
}

/* After a write that failed, with errno. */
static ds_status lose_sink(ds_ctx *ctx, sink *out, const char *key)
{
    const char *reason = strerror(errno);
    const ds_status status =
        ds_fail(ctx, DS_ERR_IO, "cannot write %s: %s; free some space, or set %s.enabled to false",
                out->path, reason, key);
    (void)fclose(out->stream);
    out->stream = NULL;
    if (out->whole >= 0) {
        (void)!truncate(out->path, out->whole);
    }
    return status;
}

static ds_status flush_sink(ds_ctx *ctx, sink *out, const char *key)
{
    if (out->stream == NULL) {
        return DS_OK;
    }
    if (fflush(out->stream) != 0) {
        return lose_sink(ctx, out, key);
    }
    out->whole = out->whole >= 0 ? ftell(out->stream) : out->whole;
    return DS_OK;
}

static ds_status open_events(ds_monitor *monitor, const ds_config_monitor *config)
{
    char path[PATH_BYTES];
    char host[128] = "localhost";
    DS_TRY(folder_of(monitor->ctx, config, path));
    (void)gethostname(host, sizeof host - 1);
    const size_t at = strlen(path);
    (void)snprintf(path + at, sizeof path - at, "/events.out.tfevents.%010lld.%.100s.%ld.0",
                   (long long)time(NULL), host, (long)getpid());
    DS_TRY(open_sink(monitor->ctx, path, false, &monitor->events));
    DS_TRY(dsi_tfevents_begin(monitor->ctx, monitor->events.stream, wall_time()));
    return flush_sink(monitor->ctx, &monitor->events, "tensorboard");
}

static ds_status check_reserved(ds_ctx *ctx, const ds_monitor_params *p)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_monitor_params", p));
    if (p->tensorboard != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_config_monitor", p->tensorboard));
    }
    if (p->csv != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_config_monitor", p->csv));
    }
    if (p->wandb != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_config_wandb", p->wandb));
    }
    return p->comet != NULL ? DSI_RESERVED_CHECK(ctx, "ds_config_comet", p->comet) : DS_OK;
}

static ds_status open_all(ds_monitor *monitor, const ds_monitor_params *p)
{
    ds_ctx *ctx = monitor->ctx;
    if (p->tensorboard != NULL && p->tensorboard->enabled) {
        DS_TRY(open_events(monitor, p->tensorboard));
    }
    if (p->csv != NULL && p->csv->enabled) {
        monitor->csv = true;
        DS_TRY(folder_of(ctx, p->csv, monitor->folder));
    }
    if (p->wandb != NULL && p->wandb->enabled) {
        DS_TRY(dsi_wandb_open(ctx, p->wandb, p->config, &monitor->wandb));
    }
    return p->comet != NULL && p->comet->enabled
               ? dsi_comet_open(ctx, p->comet, p->config, &monitor->comet)
               : DS_OK;
}

ds_status ds_monitor_create(ds_ctx *ctx, const ds_monitor_params *params, ds_monitor **monitor_out)
{
    DS_TRY(check_reserved(ctx, params));
    ds_monitor *monitor = calloc(1, sizeof *monitor);
    if (monitor == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    monitor->ctx = ctx;
    const ds_status status = open_all(monitor, params);
    if (status < 0) {
        monitor->exit_code = 1;
        (void)ds_monitor_close(&monitor);
        return status;
    }
    *monitor_out = monitor;
    return DS_OK;
}

ds_status ds_monitor_open(ds_ctx *ctx, const ds_config_monitor *tensorboard,
                          const ds_config_monitor *csv, ds_monitor **monitor_out)
{
    const ds_monitor_params params = {.tensorboard = tensorboard, .csv = csv};
    return ds_monitor_create(ctx, &params, monitor_out);
}

ds_status ds_monitor_end(ds_monitor *monitor, int exit_code, const char *error)
{
    char *copy = error != NULL ? strdup(error) : NULL;
    if (copy == NULL && error != NULL) {
        return ds_fail(monitor->ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    free(monitor->error);
    monitor->error = copy;
    monitor->exit_code = exit_code;
    return DS_OK;
}

/* The file of a tag, opened at its first use; the header is written into an empty file only. */
static ds_status csv_of(ds_monitor *monitor, const char *tag, sink **out)
{
    for (uint32_t i = 0; i < monitor->n_files; ++i) {
        if (strcmp(monitor->files[i].tag, tag) == 0) {
            *out = &monitor->files[i].out;
            return DS_OK;
        }
    }
    if (monitor->n_files == MAX_TAGS) {
        return ds_fail(monitor->ctx, DS_ERR_LIMIT, "monitor: more than %d tags", MAX_TAGS);
    }
    char path[2 * PATH_BYTES];
    const int at = snprintf(path, sizeof path, "%s/", monitor->folder);
    (void)snprintf(path + at, sizeof path - (size_t)at, "%.200s.csv", tag);
    for (char *c = path + at; *c != '\0'; ++c) {
        *c = *c == '/' || *c == ' ' ? '_' : *c;
    }
    csv_file *file = &monitor->files[monitor->n_files];
    file->tag = strdup(tag);
    if (file->tag == NULL) {
        return ds_fail(monitor->ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    monitor->n_files += 1;
    DS_TRY(open_sink(monitor->ctx, path, true, &file->out));
    const char *slash = strrchr(tag, '/');
    if (file->out.whole <= 0) { /* -1: a pipe */
        (void)fprintf(file->out.stream, "step,%s\n", slash != NULL ? slash + 1 : tag);
    }
    *out = &file->out;
    return DS_OK;
}

static ds_status write_events(ds_monitor *monitor, const char *tag, double value, uint64_t step)
{
    sink *out = &monitor->events;
    if (out->stream == NULL) {
        return DS_OK;
    }
    const ds_status status =
        dsi_tfevents_scalar(monitor->ctx, out->stream, wall_time(), step, tag, value);
    return status == DS_ERR_IO ? lose_sink(monitor->ctx, out, "tensorboard") : status;
}

static ds_status write_csv(ds_monitor *monitor, const char *tag, double value, uint64_t step)
{
    sink *out = NULL;
    if (!monitor->csv) {
        return DS_OK;
    }
    DS_TRY(csv_of(monitor, tag, &out));
    if (out->stream != NULL &&
        fprintf(out->stream, "%llu,%.9g\n", (unsigned long long)step, value) < 0) {
        return lose_sink(monitor->ctx, out, "csv_monitor");
    }
    return DS_OK;
}

/* The first failure of several, whose text the context keeps. */
typedef struct first_failure {
    ds_status status;
    char text[1024];
} first_failure;

static void keep_first(const ds_monitor *monitor, first_failure *first, ds_status status)
{
    if (status < 0 && first->status >= 0) {
        first->status = status;
        (void)snprintf(first->text, sizeof first->text, "%s", ds_ctx_error(monitor->ctx));
    }
}

static ds_status fail_first(const ds_monitor *monitor, const first_failure *first)
{
    return first->status < 0 ? ds_fail(monitor->ctx, first->status, "%s", first->text) : DS_OK;
}

ds_status ds_monitor_write(ds_monitor *monitor, const char *tag, double value, uint64_t step)
{
    first_failure first = {DS_OK, ""};
    keep_first(monitor, &first, write_events(monitor, tag, value, step));
    keep_first(monitor, &first, write_csv(monitor, tag, value, step));
    if (monitor->wandb != NULL) {
        keep_first(monitor, &first, dsi_wandb_write(monitor->wandb, tag, value, step));
    }
    if (monitor->comet != NULL) {
        keep_first(monitor, &first, dsi_comet_write(monitor->comet, tag, value, step));
    }
    return fail_first(monitor, &first);
}

static void flush_all(ds_monitor *monitor, first_failure *first)
{
    keep_first(monitor, first, flush_sink(monitor->ctx, &monitor->events, "tensorboard"));
    for (uint32_t i = 0; i < monitor->n_files; ++i) {
        keep_first(monitor, first, flush_sink(monitor->ctx, &monitor->files[i].out, "csv_monitor"));
    }
}

ds_status ds_monitor_flush(ds_monitor *monitor)
{
    first_failure first = {DS_OK, ""};
    flush_all(monitor, &first);
    return fail_first(monitor, &first);
}

ds_status ds_monitor_close(ds_monitor **monitor_inout)
{
    ds_monitor *monitor = monitor_inout != NULL ? *monitor_inout : NULL;
    first_failure first = {DS_OK, ""};
    if (monitor == NULL) {
        return DS_OK;
    }
    flush_all(monitor, &first);
    keep_first(monitor, &first, dsi_wandb_close(&monitor->wandb, monitor->exit_code));
    keep_first(monitor, &first, dsi_comet_close(&monitor->comet, monitor->error));
    const ds_status status = fail_first(monitor, &first);
    free(monitor->error);
    close_sink(&monitor->events);
    for (uint32_t i = 0; i < monitor->n_files; ++i) {
        close_sink(&monitor->files[i].out);
        free(monitor->files[i].tag);
    }
    free(monitor);
    *monitor_inout = NULL;
    return status;
}
