/* SPDX-License-Identifier: Apache-2.0 */
/* One job of the launcher's in a folder, with its output in files there and limits: a trial, a run
 * of the program to learn of its model, ds_bench. See tune_impl.h.
 */
#include "tune/tune_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool dsi_tune_is_interrupted(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t pending;
    (void)sigpending(&pending);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        if (sigismember(&pending, ends[i]) == 1) {
            return true;
        }
    }
    return false;
}

static void write_line(void *user, ds_log_level level, const char *line)
{
    (void)level;
    (void)dprintf(*(int *)user, "deepspeed: %s\n", line);
}

enum { FILE_BYTES = DSI_TUNE_PATH + 332 };

static int open_log(const char *folder, const char *name)
{
    char path[FILE_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
}

static ds_status run_launcher(const dsi_tune *t, const dsi_tune_task *job, int logs[2],
                              dsi_outcome *outcome)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *own = NULL;
    dsi_launch_options o = *t->params->launch;
    params.n_threads = 1;
    params.log = write_line;
    params.log_user = &logs[1];
    DS_TRY(ds_ctx_create(&params, &own));
    o.command = *job->command;
    o.autotuning = o.log_dir = NULL;
    o.save_pid = o.dry_run = o.quiet = o.elastic_training = false;
    o.restarts = 0;
    o.grace = fmin(o.grace, 3.0);
    o.time_limit = job->seconds;
    o.rank_bytes = job->memory;
    o.done_file = job->done_file;
    o.terminal = logs;
    o.prefix = "auto";
    o.show = "all";
    if (job->one_host) {
        o.hostfile_given = false;
        o.hostfile = "";
        o.include = o.exclude = NULL;
        o.num_nodes = -1;
        o.num_gpus = t->n_local;
        o.force_multi = o.bind_cores = false;
        o.core_list = NULL;
    }
    (void)setenv("DS_AUTOTUNING_TRIAL", "1", 1);
    ds_status status = dsi_head_run_outcome(own, &o, outcome);
    (void)unsetenv("DS_AUTOTUNING_TRIAL");
    if (status < 0) {
        status = ds_fail(t->ctx, status, "%s", ds_ctx_error(own));
    }
    ds_ctx_destroy(&own);
    return status;
}

ds_status dsi_tune_run_job(const dsi_tune *t, const dsi_tune_task *job, dsi_outcome *outcome)
{
    int logs[2] = {open_log(job->folder, "stdout.log"), open_log(job->folder, "stderr.log")};
    ds_status status = DS_OK;
    if (logs[0] < 0 || logs[1] < 0) {
        status = ds_fail(t->ctx, DS_ERR_IO, "%s: logs cannot be written: %s", job->folder,
                         strerror(errno));
    } else {
        status = run_launcher(t, job, logs, outcome);
    }
    for (int i = 0; i < 2; ++i) {
        if (logs[i] >= 0) {
            (void)close(logs[i]);
        }
    }
    return status;
}
