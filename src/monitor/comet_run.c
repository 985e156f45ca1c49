/* SPDX-License-Identifier: Apache-2.0 */
/* See comet_run.h. The archive is experiment.json and messages.json, a message a line, as comet_ml
 * reads them: log_other, parameter_msg, metric_msg. */
#include "monitor/comet_run.h"

#include "base/buf.h"
#include "io/file.h"
#include "io/json_load.h"
#include "monitor/offline_name.h"
#include "monitor/zip_file.h"

#include <deepspeed/context.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, KEY_BYTES = 32, KEY_MOST = 50, SUFFIX_BYTES = 6, MAX_TAGS = 256 };

typedef struct tag_samples {
    char *tag;
    uint64_t samples; /* of its newest value that was kept */
} tag_samples;

struct dsi_comet {
    ds_ctx *ctx;
    const ds_config_comet *config; /* borrowed: its texts outlive the run */
    char key[DSI_OFFLINE_NAME + 1];
    char folder[PATH_BYTES], archive[2 * PATH_BYTES];
    char meta_path[2 * PATH_BYTES], messages_path[2 * PATH_BYTES];
    FILE *messages;
    uint64_t n_messages;
    off_t whole;      /* bytes of messages that are written */
    bool broken;      /* a write failed: no more messages, what was written stays */
    json_int_t began; /* milliseconds since 1970 */
    tag_samples tags[MAX_TAGS];
    uint32_t n_tags;
};

static json_int_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (json_int_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Takes payload. */
static ds_status send(dsi_comet *run, const char *type, json_t *payload)
{
    (void)json_object_set_new(payload, "message_id", json_integer((json_int_t)++run->n_messages));
    json_t *message = json_pack("{s:o, s:s}", "payload", payload, "type", type);
    char *text = message != NULL ? json_dumps(message, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(message);
    if (text == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "comet: no memory for a message");
    }
    run->broken = fprintf(run->messages, "%s\n", text) < 0 || fflush(run->messages) != 0;
    free(text);
    if (run->broken) {
        return dsi_io_fail(run->ctx, "write", run->messages_path, errno);
    }
    run->whole = ftell(run->messages);
    return DS_OK;
}

static ds_status send_other(dsi_comet *run, const char *key, json_t *value)
{
    return send(run, "log_other", json_pack("{s:s, s:o}", "key", key, "value", value));
}

/* JSON has no word for what is not finite: texts, as in offline_name.h. */
static json_t *number(double value)
{
    char text[DSI_OFFLINE_NUMBER];
    const char *json = dsi_offline_number(value, text);
    return json_loads(json, JSON_DECODE_ANY, NULL);
}

static ds_status send_parameter(dsi_comet *run, const char *name, const json_t *value)
{
    const char *kind = json_is_array(value) ? "params" : "param";
    json_t *param = json_pack("{s:s, s:O, s:n, s:s}", "paramName", name, "paramValue", value,
                              "step", "source", "manual");
    return send(run, "parameter_msg",
                json_pack("{s:I, s:o}", "local_timestamp", now_ms(), kind, param));
}

/* "zero_optimization|stage": a parameter for each value, as the package flattens objects. A list of
 * other things than numbers and texts is one text. */
static ds_status send_parameters(dsi_comet *run, const char *prefix, const json_t *object)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)object, key, value)
    {
        char name[1024];
        ds_status status = DS_OK;
        (void)snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] != '\0' ? "|" : "", key);
        if (json_is_object(value)) {
            status = send_parameters(run, name, value);
        } else if (json_is_array(value)) {
            char *text = json_dumps(value, JSON_COMPACT);
            json_t *one = json_string(text);
            status = send_parameter(run, name, one);
            json_decref(one);
            free(text);
        } else {
            status = send_parameter(run, name, value);
        }
        DS_TRY(status);
    }
    return DS_OK;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static ds_status choose_key(dsi_comet *run)
{
    const char *given = run->config->experiment_key;
    if (given == NULL) {
        return dsi_offline_random(run->ctx, "0123456789abcdef", KEY_BYTES, run->key);
    }
    const size_t n = strlen(given);
    if (n < KEY_BYTES || n > KEY_MOST || given[strspn(given, DSI_OFFLINE_WORD)] != '\0') {
        return ds_fail(
            run->ctx, DS_ERR_CONFIG,
            "comet.experiment_key: expected 32 to 50 letters and digits, found \"%.80s\"", given);
    }
    memcpy(run->key, given, n + 1);
    return DS_OK;
}

/* Whether the service is to make an experiment of this key, or to go on with one that it has. */
static const char *strategy(const ds_config_comet *config)
{
    static const char *const names[] = {[DS_COMET_GET] = "get",
                                        [DS_COMET_CREATE] = "create",
                                        [DS_COMET_GET_OR_CREATE] = "get_or_create"};
    return config->mode == DS_COMET_GET_OR_CREATE && config->experiment_key == NULL
               ? "create"
               : names[config->mode];
}

static ds_status choose_paths(dsi_comet *run)
{
    const char *base = getenv("COMET_OFFLINE_DIRECTORY");
    char suffix[SUFFIX_BYTES + 2] = "";
    base = base != NULL && base[0] != '\0' ? base : ".cometml-runs";
    if (strcmp(strategy(run->config), "create") != 0) { /* several may go on with one experiment */
        DS_TRY(dsi_offline_random(run->ctx, DSI_OFFLINE_WORD, SUFFIX_BYTES, suffix + 1));
        suffix[0] = '-';
    }
    const int n = snprintf(run->folder, sizeof run->folder, "%s/%s%s", base, run->key, suffix);
    if (n < 0 || n >= PATH_BYTES) {
        return ds_fail(run->ctx, DS_ERR_LIMIT, "COMET_OFFLINE_DIRECTORY is too long");
    }
    (void)snprintf(run->archive, sizeof run->archive, "%s.zip", run->folder);
    (void)snprintf(run->meta_path, sizeof run->meta_path, "%s/experiment.json", run->folder);
    (void)snprintf(run->messages_path, sizeof run->messages_path, "%s/messages.json", run->folder);
    if (access(run->archive, F_OK) == 0 || access(run->folder, F_OK) == 0) {
        return ds_fail(run->ctx, DS_ERR_STATE,
                       "%s is there, and would be lost: move it, or give another "
                       "comet.experiment_key",
                       access(run->archive, F_OK) == 0 ? run->archive : run->folder);
    }
    return dsi_folder_make(run->ctx, run->folder);
}

/* Written at the begin, too, so that the folder of a run that is killed can be packed by hand. */
static ds_status write_meta(dsi_comet *run, const char *error)
{
    const ds_config_comet *c = run->config;
    json_t *plain = error != NULL ? json_string(error) : NULL;
    const char *why = plain != NULL || error == NULL ? error : "(no plain text)"; /* no UTF-8 */
    json_decref(plain);
    json_t *meta = json_pack(
        "{s:s, s:s?, s:s?, s:I, s:I, s:[], s:s, s:b, s:s?, s:b, s:b}", "offline_id", run->key,
        "project_name", c->project, "workspace", c->workspace, "start_time", run->began,
        "stop_time", now_ms(), "tags", "resume_strategy", strategy(c), "customer_error_reported",
        error != NULL, "customer_error_message", why, "user_provided_experiment_key",
        c->experiment_key != NULL, "comet_start_sourced", 0);
    char *text = meta != NULL ? json_dumps(meta, 0) : NULL;
    json_decref(meta);
    if (text == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "comet: no memory for experiment.json");
    }
    const ds_status status = dsi_file_replace(run->ctx, run->meta_path, text, strlen(text));
    free(text);
    return status;
}

static ds_status begin(dsi_comet *run, const char *config_json)
{
    json_error_t error;
    run->began = now_ms();
    DS_TRY(choose_key(run));
    DS_TRY(choose_paths(run));
    DS_TRY(write_meta(run, NULL));
    run->messages = fopen(run->messages_path, "wxe");
    if (run->messages == NULL) {
        return dsi_io_fail(run->ctx, "open", run->messages_path, errno);
    }
    DS_TRY(send_other(run, "offline_experiment", json_true()));
    if (run->config->experiment_name != NULL) {
        DS_TRY(send_other(run, "Name", json_string(run->config->experiment_name)));
    }
    json_t *root = config_json != NULL ? json_loads(config_json, 0, &error) : NULL;
    const ds_status status = send_parameters(run, "", root);
    json_decref(root);
    return status;
}

static void destroy(dsi_comet **run)
{
    for (uint32_t i = 0; i < (*run)->n_tags; ++i) {
        free((*run)->tags[i].tag);
    }
    if ((*run)->messages != NULL) {
        (void)fclose((*run)->messages);
    }
    free(*run);
    *run = NULL;
}

ds_status dsi_comet_open(ds_ctx *ctx, const ds_config_comet *config, const char *config_json,
                         dsi_comet **out)
{
    dsi_comet *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    run->ctx = ctx;
    run->config = config;
    const ds_status status = begin(run, config_json);
    if (status < 0) {
        destroy(&run);
        return status;
    }
    ds_log(ctx, DS_LOG_JOB, "comet: kept offline in %s; \"comet upload %s\" sends it", run->archive,
           run->archive);
    *out = run;
    return DS_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static ds_status is_due(dsi_comet *run, const char *tag, uint64_t samples, bool *due_out)
{
    for (uint32_t i = 0; i < run->n_tags; ++i) {
        tag_samples *t = &run->tags[i];
        if (strcmp(t->tag, tag) == 0) {
            const bool behind = samples < t->samples;
            *due_out =
                !behind && samples - t->samples >= (uint64_t)run->config->samples_log_interval;
            t->samples = *due_out ? samples : t->samples;
            return DS_OK;
        }
    }
    if (run->n_tags == MAX_TAGS) {
        return ds_fail(run->ctx, DS_ERR_LIMIT, "comet: more than %d tags", MAX_TAGS);
    }
    char *copy = strdup(tag);
    if (copy == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for a monitor");
    }
    run->tags[run->n_tags++] = (tag_samples){copy, samples};
    *due_out = true;
    return DS_OK;
}

ds_status dsi_comet_write(dsi_comet *run, const char *tag, double value, uint64_t samples)
{
    bool due = false;
    if (run->broken) {
        return DS_OK; /* which was reported */
    }
    DS_TRY(is_due(run, tag, samples, &due));
    if (!due) {
        return DS_OK;
    }
    json_t *metric = json_pack("{s:s, s:o, s:I, s:n}", "metricName", tag, "metricValue",
                               number(value), "step", (json_int_t)samples, "epoch");
    return send(run, "metric_msg",
                json_pack("{s:I, s:o}", "local_timestamp", now_ms(), "metric", metric));
}

static ds_status pack(dsi_comet *run, const char *error)
{
    const bool lost = fclose(run->messages) != 0 && !run->broken;
    const dsi_zip_entry entries[] = {{"experiment.json", run->meta_path},
                                     {"messages.json", run->messages_path}};
    run->messages = NULL;
    if (lost) {
        return dsi_io_fail(run->ctx, "write", run->messages_path, errno);
    }
    if (run->broken) {
        (void)!truncate(run->messages_path, run->whole); /* half a message is none */
    }
    DS_TRY(write_meta(run, error));
    DS_TRY(dsi_zip_pack(run->ctx, run->archive, entries, 2));
    (void)unlink(run->meta_path);
    (void)unlink(run->messages_path);
    (void)rmdir(run->folder);
    return DS_OK;
}

ds_status dsi_comet_close(dsi_comet **run, const char *error)
{
    if (*run == NULL) {
        return DS_OK;
    }
    const ds_status status = pack(*run, error);
    destroy(run);
    return status;
}
