/* SPDX-License-Identifier: Apache-2.0 */
/* The profile of this machine for predicted times: that of an earlier search, or ds_bench's. See
 * tune_impl.h.
 */
#include "tune/tune_impl.h"

#include "cost/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = DSI_TUNE_PATH + 300 }; /* a folder */

#define DEVICE_SECONDS 180.0 /* ds_bench takes half a minute */

/* Whether a profile is of as many ranks as this host has, and says what the job does. */
static bool serves(const dsi_tune *t, const dsi_device *device)
{
    const bool links = t->n_local == 1 || device->node.bandwidth > 0.0;
    const bool hosts = t->n_nodes == 1 || device->net.bandwidth > 0.0;
    const bool disk = t->space.disk[0] == '\0' || device->disk_read > 0.0;
    return device->ranks_per_node == t->n_local && links && hosts && disk;
}

/* A profile of an earlier search. */
static bool has_device(const dsi_tune *t, const char *path)
{
    dsi_device device;
    return !t->options.overwrite && access(path, R_OK) == 0 &&
           dsi_device_load(t->ctx, path, &device) >= 0 && serves(t, &device);
}

/* Takes the profile away when it is none: a busy machine can give impossible figures. */
static void check_device(const dsi_tune *t, const char *folder, char *path)
{
    dsi_device device;
    const bool there = access(path, R_OK) == 0;
    if (there && dsi_device_load(t->ctx, path, &device) >= 0) {
        return;
    }
    if (!t->interrupted) {
        ds_log(t->ctx, DS_LOG_WARN,
               "this machine was not measured (%s): times are not predicted; ds_bench --profile on "
               "an idle machine, and --device with its file, help",
               there ? ds_ctx_error(t->ctx) : folder);
    }
    (void)unlink(path);
    path[0] = '\0';
}

static ds_status run_bench(dsi_tune *t, const char *folder, const char *path)
{
    char *program = NULL;
    dsi_words command = {0};
    dsi_outcome outcome = {0};
    ds_status status = dsi_program_find(NULL, "ds_bench", &program);
    (void)unlink(path);
    if (status >= 0 && (mkdir(folder, 0777) == 0 || errno == EEXIST)) {
        ds_log(t->ctx, DS_LOG_JOB,
               "measuring this machine with ds_bench, about half a minute, once; --device gives a "
               "profile instead, --device none does without predicted times");
        dsi_words_add(&command, program);
        dsi_words_add(&command, "--profile");
        dsi_words_add(&command, path);
        if (t->space.disk[0] != '\0') {
            dsi_words_add(&command, "--profile_folder");
            dsi_words_add(&command, t->space.disk);
        }
        const dsi_tune_task job = {
            .folder = folder, .command = &command, .seconds = DEVICE_SECONDS, .one_host = true};
        status = dsi_words_check(t->ctx, &command);
        status = status < 0 ? status : dsi_tune_run_job(t, &job, &outcome);
        t->interrupted = t->interrupted || outcome.signalled || outcome.interrupted;
    }
    dsi_words_free(&command);
    free(program);
    return status;
}

ds_status dsi_tune_measure_device(dsi_tune *t, char *path, size_t size)
{
    char folder[PATH_BYTES];
    (void)snprintf(path, size, "%s/device.json", t->results);
    (void)snprintf(folder, sizeof folder, "%s/profile_device", t->results);
    if (has_device(t, path)) {
        return DS_OK;
    }
    if (t->params->launch->dry_run || t->n_nodes > 1) {
        ds_log(t->ctx, DS_LOG_WARN, "%s: times are not predicted; --device says them",
               t->n_nodes > 1 ? "what hosts send to each other is not measured"
                              : "--dry_run does not measure this machine");
        path[0] = '\0';
        return DS_OK;
    }
    const ds_status status = run_bench(t, folder, path);
    check_device(t, folder, path);
    return status == DS_ERR_NOMEM ? status : DS_OK;
}
