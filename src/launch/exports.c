/* SPDX-License-Identifier: Apache-2.0 */
/* See exports.h. */
#include "launch/exports.h"

#include "launch/base64.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_CEILING = 1 << 20 };

/* Names that begin so are exported. DeepSpeed's list, and this project's own. */
static const char *const prefixes[] = {"NCCL",   "PYTHON",      "MV2",        "UCX",
                                       "MLFLOW", "DS_",         "OMP_",       "KMP_",
                                       "WANDB_", "TENSORBOARD", "DEEPSPEED_", NULL};
static const char *const names[] = {"DLTS_JOB_ID",
                                    "DLTS_NUM_WORKER",
                                    "NEBULA_PERSISTENT_STORAGE_PATH",
                                    "NEBULA_PERSISTENT_TIME_INTERVAL",
                                    "AML_RUN_ID",
                                    "AZUREML_RUN_TOKEN",
                                    "AZUREML_WORKSPACE_SCOPE",
                                    "AZUREML_EXPERIMENT_SCOPE",
                                    "AZUREML_RUN_HISTORY_SERVICE_ENDPOINT",
                                    "AZUREML_RUN_ID",
                                    "NEBULA_MEMORY_BUFFER_SIZE",
                                    "AZUREML_PARAMETER_ITPJOB_NAME",
                                    "FC_TASKROLE_NAME",
                                    "FC_TASK_INDEX",
                                    "MASTER_HOST",
                                    "LOCAL_HOST",
                                    "AZUREML_BLOB_ACCOUNT_NAME",
                                    "AZUREML_BLOB_ACCOUNT_KEY",
                                    NULL};
/* Of the launcher itself, made anew for each job or node. */
static const char *const own[] = {"DS_JOB_SECRET",
                                  "DS_LAUNCH_CONTROL",
                                  "DS_LAUNCH_NOTICE",
                                  "DS_LAUNCHER",
                                  "DS_RESTART_COUNT",
                                  "DS_SLOT",
                                  NULL};

static bool is_in(const char *const *list, const char *name, size_t n)
{
    while (*list != NULL && (strncmp(*list, name, n) != 0 || (*list)[n] != '\0')) {
        ++list;
    }
    return *list != NULL;
}

static bool is_exported(const char *name, size_t n, bool on_aisc)
{
    const char *const *prefix = prefixes;
    if (is_in(own, name, n)) {
        return false;
    }
    if (on_aisc &&
        (strncmp(name, "NCCL_IB_HCA=", 12) == 0 || strncmp(name, "UCX_NET_DEVICES=", 16) == 0)) {
        return false; /* they differ from node to node there */
    }
    while (*prefix != NULL && strncmp(name, *prefix, strlen(*prefix)) != 0) {
        ++prefix;
    }
    return *prefix != NULL || is_in(names, name, n);
}

static bool is_name(const char *name, size_t n)
{
    bool right = n > 0 && !isdigit((unsigned char)name[0]);
    for (size_t i = 0; i < n; ++i) {
        right = right && (isalnum((unsigned char)name[i]) || name[i] == '_');
    }
    return right;
}

/* One line without its newline. */
static bool read_line(const char *line, size_t n, dsi_words *exports)
{
    while (n > 0 && isspace((unsigned char)line[n - 1])) {
        --n;
    }
    while (n > 0 && isspace((unsigned char)*line)) {
        ++line;
        --n;
    }
    if (n == 0 || *line == '#') {
        return true;
    }
    if (n > 7 && strncmp(line, "export ", 7) == 0) {
        line += 7;
        n -= 7;
    }
    const char *equals = memchr(line, '=', n);
    if (equals == NULL || !is_name(line, (size_t)(equals - line)) ||
        memchr(line, '\0', n) != NULL) {
        return false;
    }
    const char *value = equals + 1;
    size_t n_value = n - (size_t)(value - line);
    if (n_value >= 2 && (*value == '"' || *value == '\'') && value[n_value - 1] == *value) {
        ++value;
        n_value -= 2;
    }
    char *name = strndup(line, (size_t)(equals - line));
    if (name == NULL) {
        exports->failed = true;
        return true;
    }
    dsi_env_setf(exports, name, "%.*s", (int)n_value, value);
    free(name);
    return true;
}

ds_status dsi_exports_parse(ds_ctx *ctx, const char *name, const char *text, size_t n,
                            dsi_words *exports)
{
    const char *end = text + n;
    uint32_t number = 1;
    for (const char *at = text; at < end; ++number) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline != NULL ? newline : end;
        if (!read_line(at, (size_t)(stop - at), exports)) {
            const size_t shown = (size_t)(stop - at) < 40 ? (size_t)(stop - at) : 40;
            return ds_fail(ctx, DS_ERR_FORMAT, "%s:%" PRIu32 ": expected NAME=VALUE, found '%.*s'",
                           name, number, (int)shown, at);
        }
        at = stop + (newline != NULL ? 1 : 0);
    }
    return dsi_words_check(ctx, exports);
}

static ds_status read_file(ds_ctx *ctx, const char *folder, const char *file, dsi_words *exports)
{
    char path[4096];
    const bool whole = file[0] == '/';
    const int n =
        snprintf(path, sizeof path, "%s%s%s", whole ? "" : folder, whole ? "" : "/", file);
    if (n < 0 || (size_t)n >= sizeof path) {
        return ds_fail(ctx, DS_ERR_ARG, "DS_ENV_FILE: the path is too long");
    }
    if (access(path, F_OK) < 0) {
        return DS_OK;
    }
    dsi_buf text = dsi_buf_make(FILE_CEILING);
    ds_status status = dsi_buf_read_file(ctx, path, &text);
    if (status >= 0) {
        status = dsi_exports_parse(ctx, path, dsi_buf_text(&text), text.size, exports);
    }
    dsi_buf_free(&text);
    return status;
}

ds_status dsi_exports_collect(ds_ctx *ctx, const dsi_words *env, const char *home,
                              const char *folder, dsi_words *exports)
{
    const bool on_aisc = dsi_env_get(env, "AISC_JOB_NAME") != NULL;
    const char *file = dsi_env_get(env, "DS_ENV_FILE");
    for (size_t i = 0; i < env->n; ++i) {
        const char *equals = strchr(env->items[i], '=');
        if (equals != NULL && is_name(env->items[i], (size_t)(equals - env->items[i])) &&
            is_exported(env->items[i], (size_t)(equals - env->items[i]), on_aisc)) {
            dsi_words_add(exports, env->items[i]);
        }
    }
    file = file != NULL && file[0] != '\0' ? file : ".deepspeed_env";
    if (home != NULL) {
        DS_TRY(read_file(ctx, home, file, exports));
    }
    if (folder != NULL) {
        DS_TRY(read_file(ctx, folder, file, exports));
    }
    return dsi_words_check(ctx, exports);
}

void dsi_control_line(const dsi_words *env, dsi_buf *line)
{
    dsi_buf block = dsi_buf_make(FILE_CEILING);
    for (size_t i = 0; i < env->n; ++i) {
        dsi_buf_append(&block, env->items[i], strlen(env->items[i]) + 1);
    }
    dsi_base64_encode(line, dsi_buf_text(&block), block.size);
    line->failed = line->failed || block.failed;
    dsi_buf_free(&block);
}

ds_status dsi_control_read(ds_ctx *ctx, const char *line, size_t n, dsi_words *env)
{
    dsi_buf block = dsi_buf_make(FILE_CEILING);
    bool right = dsi_base64_decode(&block, line, n) && !block.failed &&
                 (block.size == 0 || block.data[block.size - 1] == '\0');
    for (size_t at = 0; right && at < block.size; at += strlen(block.data + at) + 1) {
        char *item = block.data + at;
        char *equals = strchr(item, '=');
        right = equals != NULL && is_name(item, (size_t)(equals - item));
        if (right) {
            *equals = '\0';
            dsi_env_set(env, item, equals + 1);
            *equals = '=';
        }
    }
    dsi_buf_free(&block);
    return right ? dsi_words_check(ctx, env)
                 : ds_fail(ctx, DS_ERR_FORMAT,
                           "expected the line of the launcher that started this node on standard "
                           "input, found something else");
}
