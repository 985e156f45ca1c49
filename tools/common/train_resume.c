/* SPDX-License-Identifier: Apache-2.0 */
/* What ds_train saves of itself beside the engine's states, and how a run goes on from it. Called
 * by train_setup.c and train_loop.c.
 *
 * The state "data" is the loader's cursor with an object "run" in it: the number of ranks, and the
 * flags as text. Contents decide whether a run may go on (engine_resume.c, the cursor); the flags
 * say what changed: those of the table's NOTICED rows in a notice, the others where a content
 * differs. Checkpoints of earlier versions have none.
 */
#include "common/checkpoint_folder.h"
#include "common/train.h"

#include "base/buf.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REASON_BYTES = 4096 };

ds_status train_state_print(const train_run *run, char **text_out)
{
    const train_options *o = run->options;
    char *cursor = NULL;
    json_error_t error;
    DS_TRY(ds_loader_save(run->train_loader, &cursor));
    json_t *state = json_loads(cursor, 0, &error);
    free(cursor);
    json_t *own = json_pack("{s:I, s:s, s:s, s:o*}", "ranks", (json_int_t)ds_comm_size(run->comm),
                            "noticed", o->noticed, "kept", o->kept, "best", train_best_state(run));
    char *text =
        json_object_set_new(state, "run", own) == 0 ? json_dumps(state, JSON_COMPACT) : NULL;
    json_decref(state);
    if (text == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the data cursor");
    }
    *text_out = text;
    return DS_OK;
}

/* ---- what is otherwise ----------------------------------------------------------------------- */

/* The value of a line "--name: value" in `text`, NULL: no such line. *n_out: its bytes. */
static const char *value_of(const char *text, const char *name, size_t n_name, size_t *n_out)
{
    for (const char *at = text; *at != '\0'; at += strcspn(at, "\n") + 1) {
        if (strncmp(at, name, n_name) == 0) {
            *n_out = strcspn(at, "\n") - n_name;
            return at + n_name;
        }
    }
    return NULL;
}

/* For each flag that both have with other values: a notice, or its name behind `differ`. */
static void compare_flags(const train_run *run, const char *saved, const char *own, dsi_buf *differ)
{
    for (const char *at = saved; *at != '\0'; at += strcspn(at, "\n") + 1) {
        size_t n = 0;
        const char *end = strstr(at, ": ");
        const size_t n_name = end != NULL ? (size_t)(end - at) + 2 : 0;
        const char *value = n_name > 0 ? value_of(own, at, n_name, &n) : NULL;
        const size_t n_was = strcspn(at, "\n") - n_name;
        if (value == NULL || (n == n_was && memcmp(value, at + n_name, n) == 0)) {
            continue;
        }
        if (differ != NULL) {
            dsi_buf_printf(differ, "%s %.*s",
                           differ->size > 0 ? "," : "; other than then:", (int)n_name - 2, at);
        } else {
            ds_log(run->ctx, DS_LOG_WARN,
                   "the run was saved with %.*s %.*s; from here on it is %.*s", (int)n_name - 2, at,
                   (int)n_was, at + n_name, (int)n, value);
        }
    }
}

/* Rank 0 says it for all. */
static void notice_changes(const train_run *run, const json_t *saved)
{
    const char *noticed = json_string_value(json_object_get(saved, "noticed"));
    const json_int_t ranks = json_integer_value(json_object_get(saved, "ranks"));
    if (ds_comm_rank(run->comm) != 0) {
        return;
    }
    if (ranks > 0 && ranks != (json_int_t)ds_comm_size(run->comm)) {
        ds_log(run->ctx, DS_LOG_WARN, "the run was saved by %lld rank%s; from here on there are %u",
               (long long)ranks, ranks == 1 ? "" : "s", ds_comm_size(run->comm));
    }
    if (noticed != NULL) {
        compare_flags(run, noticed, run->options->noticed, NULL);
    }
}

/* ---- going on -------------------------------------------------------------------------------- */

/* A job that the launcher started again has read this data before, if it has saved since. */
static bool begins_data_anew(const train_options *o)
{
    const char *count = getenv("DS_RESTART_COUNT");
    return o->restart_data && (count == NULL || count[strspn(count, "0")] == '\0');
}

static ds_status resume_data(const train_run *run, const char *cursor, const json_t *saved)
{
    const train_options *o = run->options;
    const char *kept = json_string_value(json_object_get(saved, "kept"));
    char reason[REASON_BYTES];
    if (begins_data_anew(o)) {
        ds_log(run->ctx, DS_LOG_JOB, "the data begins anew");
        return DS_OK;
    }
    const ds_status status = ds_loader_restore(run->train_loader, cursor);
    if (status != DS_ERR_ARG) {
        return status;
    }
    dsi_buf differ = dsi_buf_make(REASON_BYTES);
    if (kept != NULL) {
        compare_flags(run, kept, o->kept, &differ);
    }
    (void)snprintf(reason, sizeof reason, "%s%s", ds_ctx_error(run->ctx), dsi_buf_text(&differ));
    dsi_buf_free(&differ);
    if (o->restart_data) {
        ds_log(run->ctx, DS_LOG_JOB, "the data begins anew: %s", reason);
        return DS_OK;
    }
    return ds_fail(run->ctx, status,
                   "%s; --restart_data keeps model and optimizer and begins this data anew",
                   reason);
}

ds_status train_resume(train_run *run)
{
    const train_options *o = run->options;
    char *text = NULL;
    json_error_t error;
    const char *tag = o->resume != NULL && o->resume[0] != '\0' ? o->resume : NULL;
    char *folder = NULL;
    char *own_tag = NULL;
    if (!o->resume_given) {
        DS_TRY(checkpoint_folder(run->ctx, o->resume_from, &folder, &own_tag));
        tag = own_tag;
    }
    const ds_status loaded =
        ds_engine_load_checkpoint(run->engine, folder != NULL ? folder : o->output, tag, &text);
    free(folder);
    free(own_tag);
    DS_TRY(loaded);
    if (text == NULL) {
        ds_log(run->ctx, DS_LOG_WARN, "the data begins anew: the checkpoint has no place in it");
    }
    json_t *state = text != NULL ? json_loads(text, 0, &error) : NULL;
    const json_t *saved = json_object_get(state, "run");
    notice_changes(run, saved);
    ds_status status = text != NULL ? resume_data(run, text, saved) : DS_OK;
    status = status < 0 ? status : train_best_resume(run, json_object_get(saved, "best"));
    json_decref(state);
    free(text);
    DS_TRY(status);
    ds_log(run->ctx, DS_LOG_JOB, "resumed after step %llu",
           (unsigned long long)ds_engine_global_steps(run->engine));
    return DS_OK;
}
