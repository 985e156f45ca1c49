/* SPDX-License-Identifier: Apache-2.0 */
/* See wandb_run.h. The messages and the numbers of their fields are those of W&B's wandb_internal
 * (Record and what it holds); each row of the history comes with the summary that it makes, as the
 * package writes them. */
#include "monitor/wandb_run.h"

#include "io/file.h"
#include "io/json_load.h"
#include "monitor/offline_name.h"
#include "monitor/proto.h"
#include "monitor/record_log.h"

#include <deepspeed/context.h>
#include <deepspeed/version.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RECORD_CEILING = 64 << 20, ID_BYTES = 8, PATH_BYTES = 4096 };

/* Fields of Record, and those of what it holds. */
enum {
    RECORD_NUM = 1,
    RECORD_HISTORY = 2,
    RECORD_SUMMARY = 3,
    RECORD_RUN = 17,
    RECORD_EXIT = 18,
    RECORD_HEADER = 21,
    RECORD_INFO = 200
};
enum { INFO_STREAM = 1, HEADER_VERSION = 1, VERSION_PRODUCER = 1 };
enum { RUN_ID = 1, RUN_ENTITY, RUN_PROJECT, RUN_CONFIG, RUN_GROUP = 6, RUN_NAME = 8 };
enum { RUN_HOST = 13, RUN_START = 17, TIME_SECONDS = 1, TIME_NANOS = 2 };
enum { ITEMS = 1, HISTORY_STEP = 2, STEP_NUM = 1, ITEM_KEY = 1, ITEM_NESTED = 2, ITEM_JSON = 16 };
enum { EXIT_CODE = 1, EXIT_RUNTIME = 2 };

struct dsi_wandb {
    ds_ctx *ctx;
    char id[DSI_OFFLINE_NAME + 1];
    char folder[PATH_BYTES];
    char path[2 * PATH_BYTES];
    FILE *file;
    dsi_record_log log;
    uint64_t n_records;
    struct timespec began;
    dsi_buf items; /* of the row that is waiting */
    uint64_t step; /* its step */
    bool waits;
    bool broken; /* the file ends in half a record: nothing follows it */
};

static ds_status lost(dsi_wandb *run)
{
    run->broken = true;
    return dsi_io_fail(run->ctx, "write", run->path, errno);
}

/* Wraps `body` as the given field of a record, and appends it to the file. */
static ds_status add(dsi_wandb *run, uint32_t field, const dsi_buf *body)
{
    dsi_buf record = dsi_buf_make(RECORD_CEILING);
    dsi_buf info = dsi_buf_make(RECORD_CEILING);
    dsi_proto_text(&info, INFO_STREAM, run->id);
    dsi_proto_whole(&record, RECORD_NUM, ++run->n_records);
    dsi_proto_message(&record, field, body);
    dsi_proto_message(&record, RECORD_INFO, &info);
    ds_status status = DS_OK;
    if (record.failed) {
        status = ds_fail(run->ctx, DS_ERR_NOMEM, "wandb: no memory for a record");
    } else if (!dsi_record_log_add(&run->log, record.data, record.size)) {
        status = lost(run);
    }
    dsi_buf_free(&info);
    dsi_buf_free(&record);
    return status;
}

/* ---- the head -------------------------------------------------------------------------------- */

static ds_status add_header(dsi_wandb *run)
{
    char text[128];
    dsi_buf version = dsi_buf_make(RECORD_CEILING);
    dsi_buf header = dsi_buf_make(RECORD_CEILING);
    (void)snprintf(text, sizeof text, "deepspeed-native %s", ds_version_text());
    dsi_proto_text(&version, VERSION_PRODUCER, text);
    dsi_proto_message(&header, HEADER_VERSION, &version);
    const ds_status status = add(run, RECORD_HEADER, &header);
    dsi_buf_free(&version);
    dsi_buf_free(&header);
    return status;
}

static void put_item(dsi_buf *out, uint32_t key_field, const char *key, const char *json)
{
    dsi_buf item = dsi_buf_make(RECORD_CEILING);
    dsi_proto_text(&item, key_field, key);
    dsi_proto_text(&item, ITEM_JSON, json);
    dsi_proto_message(out, ITEMS, &item);
    dsi_buf_free(&item);
}

static void put_config(dsi_buf *out, const char *config_json)
{
    json_error_t error;
    json_t *root = config_json != NULL ? json_loads(config_json, 0, &error) : NULL;
    const char *key = NULL;
    json_t *value = NULL;
    put_item(out, ITEM_KEY, "_wandb", "{}");
    json_object_foreach(root, key, value)
    {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        put_item(out, ITEM_KEY, key, text);
        out->failed = out->failed || text == NULL;
        free(text);
    }
    json_decref(root);
}

static ds_status add_run(dsi_wandb *run, const ds_config_wandb *config, const char *config_json)
{
    char host[256] = "localhost";
    const char *name = getenv("WANDB_NAME");
    dsi_buf body = dsi_buf_make(RECORD_CEILING);
    dsi_buf items = dsi_buf_make(RECORD_CEILING);
    dsi_buf start = dsi_buf_make(RECORD_CEILING);
    (void)gethostname(host, sizeof host - 1);
    put_config(&items, config_json);
    dsi_proto_whole(&start, TIME_SECONDS, (uint64_t)run->began.tv_sec);
    dsi_proto_whole(&start, TIME_NANOS, (uint64_t)run->began.tv_nsec);
    dsi_proto_text(&body, RUN_ID, run->id);
    dsi_proto_text(&body, RUN_ENTITY, config->team);
    dsi_proto_text(&body, RUN_PROJECT, config->project);
    dsi_proto_message(&body, RUN_CONFIG, &items);
    dsi_proto_text(&body, RUN_GROUP, config->group);
    dsi_proto_text(&body, RUN_NAME, name != NULL && name[0] != '\0' ? name : NULL);
    dsi_proto_text(&body, RUN_HOST, host);
    dsi_proto_message(&body, RUN_START, &start);
    const ds_status status = add(run, RECORD_RUN, &body);
    dsi_buf_free(&start);
    dsi_buf_free(&items);
    dsi_buf_free(&body);
    return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static ds_status choose_id(dsi_wandb *run)
{
    const char *given = getenv("WANDB_RUN_ID");
    if (given == NULL || given[0] == '\0') {
        return dsi_offline_random(run->ctx, "0123456789abcdefghijklmnopqrstuvwxyz", ID_BYTES,
                                  run->id);
    }
    if (strlen(given) > DSI_OFFLINE_NAME || given[strspn(given, DSI_OFFLINE_WORD "-_")] != '\0') {
        return ds_fail(run->ctx, DS_ERR_CONFIG,
                       "the environment's WANDB_RUN_ID is \"%.100s\", expected at most %d letters, "
                       "digits, - or _",
                       given, DSI_OFFLINE_NAME);
    }
    (void)snprintf(run->id, sizeof run->id, "%s", given);
    return DS_OK;
}

static ds_status make_folder(dsi_wandb *run)
{
    const char *base = getenv("WANDB_DIR");
    char day[32];
    char inner[PATH_BYTES + 16];
    struct tm tm;
    (void)localtime_r(&run->began.tv_sec, &tm);
    (void)strftime(day, sizeof day, "%Y%m%d_%H%M%S", &tm);
    base = base != NULL && base[0] != '\0' ? base : ".";
    const int n =
        snprintf(run->folder, sizeof run->folder, "%s/wandb/offline-run-%s-%s", base, day, run->id);
    if (n < 0 || n >= PATH_BYTES) {
        return ds_fail(run->ctx, DS_ERR_LIMIT, "wandb: WANDB_DIR is too long");
    }
    (void)snprintf(inner, sizeof inner, "%s/files", run->folder); /* where the package looks */
    DS_TRY(dsi_folder_make(run->ctx, inner));
    (void)snprintf(run->path, sizeof run->path, "%s/run-%s.wandb", run->folder, run->id);
    run->file = fopen(run->path, "wxe");
    return run->file != NULL && dsi_record_log_begin(&run->log, run->file) ? DS_OK : lost(run);
}

static ds_status check_mode(ds_ctx *ctx, bool *disabled_out)
{
    const char *mode = getenv("WANDB_MODE");
    const bool given = mode != NULL && mode[0] != '\0';
    *disabled_out = given && strcmp(mode, "disabled") == 0;
    if (!given || *disabled_out || strcmp(mode, "offline") == 0 || strcmp(mode, "online") == 0 ||
        strcmp(mode, "dryrun") == 0) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "the environment's WANDB_MODE is \"%.60s\", expected offline or disabled", mode);
}

static ds_status begin(dsi_wandb *run, const ds_config_wandb *config, const char *config_json)
{
    (void)clock_gettime(CLOCK_REALTIME, &run->began);
    DS_TRY(choose_id(run));
    DS_TRY(make_folder(run));
    DS_TRY(add_header(run));
    return add_run(run, config, config_json);
}

static void destroy(dsi_wandb **run)
{
    if ((*run)->file != NULL) {
        (void)fclose((*run)->file);
    }
    dsi_buf_free(&(*run)->items);
    free(*run);
    *run = NULL;
}

ds_status dsi_wandb_open(ds_ctx *ctx, const ds_config_wandb *config, const char *config_json,
                         dsi_wandb **out)
{
    bool disabled = false;
    DS_TRY(check_mode(ctx, &disabled));
    if (disabled) {
        ds_log(ctx, DS_LOG_JOB, "wandb: WANDB_MODE is disabled, nothing is kept");
        return DS_OK;
    }
    dsi_wandb *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    run->ctx = ctx;
    run->items = dsi_buf_make(RECORD_CEILING);
    const ds_status status = begin(run, config, config_json);
    if (status < 0) {
        destroy(&run);
        return status;
    }
    ds_log(ctx, DS_LOG_JOB, "wandb: kept offline in %s; \"wandb sync %s\" sends it", run->folder,
           run->folder);
    *out = run;
    return DS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static double seconds_since(const dsi_wandb *run, struct timespec *now)
{
    (void)clock_gettime(CLOCK_REALTIME, now);
    return (double)(now->tv_sec - run->began.tv_sec) +
           1e-9 * (double)(now->tv_nsec - run->began.tv_nsec);
}

static void put_number(dsi_buf *out, const char *tag, double value)
{
    char text[DSI_OFFLINE_NUMBER];
    put_item(out, ITEM_NESTED, tag, dsi_offline_number(value, text));
}

/* The row that is waiting, and the summary, which is the newest value of each. */
static ds_status end_row(dsi_wandb *run)
{
    struct timespec now;
    if (!run->waits) {
        return DS_OK;
    }
    const double runtime = seconds_since(run, &now);
    dsi_buf row = dsi_buf_make(RECORD_CEILING);
    dsi_buf step = dsi_buf_make(RECORD_CEILING);
    put_number(&run->items, "_timestamp", (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_number(&run->items, "_runtime", runtime);
    put_number(&run->items, "_step", (double)run->step);
    ds_status status = run->items.failed
                           ? ds_fail(run->ctx, DS_ERR_NOMEM, "wandb: no memory for a row")
                           : add(run, RECORD_SUMMARY, &run->items);
    if (status >= 0) {
        dsi_proto_whole(&step, STEP_NUM, run->step);
        dsi_buf_append(&row, run->items.data, run->items.size);
        dsi_proto_message(&row, HISTORY_STEP, &step);
        status = add(run, RECORD_HISTORY, &row);
    }
    dsi_buf_free(&step);
    dsi_buf_free(&row);
    dsi_buf_clear(&run->items);
    run->waits = false;
    return status;
}

ds_status dsi_wandb_write(dsi_wandb *run, const char *tag, double value, uint64_t step)
{
    if (run->broken) {
        return DS_OK; /* which was reported */
    }
    if (run->waits && step != run->step) {
        DS_TRY(end_row(run));
    }
    put_number(&run->items, tag, value);
    run->step = step;
    run->waits = true;
    return DS_OK;
}

ds_status dsi_wandb_close(dsi_wandb **run_inout, int exit_code)
{
    dsi_wandb *run = *run_inout;
    struct timespec now;
    if (run == NULL) {
        return DS_OK;
    }
    ds_status status = run->broken ? DS_OK : end_row(run);
    if (status >= 0 && !run->broken) {
        dsi_buf end = dsi_buf_make(RECORD_CEILING);
        dsi_proto_whole(&end, EXIT_CODE, (uint64_t)(int64_t)exit_code);
        dsi_proto_whole(&end, EXIT_RUNTIME, (uint64_t)seconds_since(run, &now));
        status = add(run, RECORD_EXIT, &end);
        dsi_buf_free(&end);
    }
    destroy(run_inout);
    return status;
}
