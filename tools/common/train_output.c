/* SPDX-License-Identifier: Apache-2.0 */
/* What a run may do to its --output: see --overwrite, --resume. Called by train_setup and the loop.
 *
 * 1. A fresh run into a folder that holds a run's checkpoints or model is refused, unless it says
 *    --overwrite; two runs at once are refused by a lock that rank 0 holds to the end.
 * 2. What an earlier run left is recorded before the first save (ckpt/ckpt_begun.h) and removed
 *    after it, by one rank of each host, so that a crash in between loses nothing.
 * 3. A restart by the launcher goes on only from checkpoints of its own run: it asks the record.
 */
#include "ckpt/ckpt_begun.h"
#include "common/output.h"
#include "common/train.h"
#include "io/file.h"

#include <deepspeed/checkpoint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_latest(const char *folder)
{
    struct stat st;
    char *path = dsi_path_join(folder, "latest");
    const bool has = path != NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return has;
}

static ds_status refuse(const train_run *run, const char *what, const char *which)
{
    return ds_fail(run->ctx, DS_ERR_STATE,
                   "--output %s holds %s (%s) that this run would replace: --resume goes on from "
                   "its checkpoints, --overwrite replaces them; or give another folder",
                   run->options->output, what, which);
}

/* A fresh run finds no earlier one in its folder. */
static ds_status check_free(const train_run *run)
{
    const char *output = run->options->output;
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    ds_status status = ds_checkpoint_list(run->ctx, output, &list, &n);
    char *model = output_model_file(run->ctx, output);
    if (status == DS_OK && n > 0) {
        status = refuse(run, "checkpoints of an earlier run", list[n - 1].tag);
    } else if (status == DS_OK && has_latest(output)) {
        status = refuse(run, "checkpoints of an earlier run", "latest");
    } else if (status == DS_OK && model != NULL) {
        status = refuse(run, "a model folder", model);
    }
    ds_checkpoint_list_free(list, n);
    free(model);
    return status;
}

/* A name that a checkpoint will have, and something else behind it: found now, not at a save. */
static ds_status check_names(const train_run *run)
{
    const char *output = run->options->output;
    ds_checkpoint_entry *own = NULL;
    char **names = NULL;
    size_t n = 0;
    DS_TRY(ds_checkpoint_list(run->ctx, output, &own, &n));
    ds_checkpoint_list_free(own, n);
    if (run->options->resume_given && n == 0) {
        return DS_OK; /* nothing to resume: the loading says what is there */
    }
    ds_status status = dsi_folder_list(run->ctx, output, &names, &n);
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        struct stat st;
        char path[4096];
        const bool tag = strncmp(names[i], "global_step", 11) == 0 &&
                         names[i][11 + strspn(names[i] + 11, "0123456789")] == '\0';
        (void)snprintf(path, sizeof path, "%s/%s/ds_manifest.json", output, names[i]);
        if (tag && stat(path, &st) != 0) {
            status = ds_fail(run->ctx, DS_ERR_STATE,
                             "--output %s holds %s, which is no checkpoint of this program and "
                             "would be in the way of one: move it, or give another folder",
                             output, names[i]);
        }
    }
    dsi_names_free(names, n);
    return status;
}

static bool is_leader(const train_run *run)
{
    return ds_comm_rank(run->comm) == 0 || run->options->local_rank == 0;
}

/* Ends the removal that a crash cut short; a restart keeps the record for the next one. */
static ds_status end_removal(const train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(dsi_ckpt_begun_settle(run->ctx, o->output));
    if (!o->restarted) {
        dsi_ckpt_begun_end(o->output);
    }
    return DS_OK;
}

/* The folder is there, nobody else writes in it, and what is in it is no obstacle. */
static ds_status enter(train_run *run)
{
    static const char *const names[] = {"latest",
                                        "config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "tokenizer.json",
                                        "adapter_config.json",
                                        "adapter_model.safetensors"};
    const train_options *o = run->options;
    DS_TRY(o->resume_given ? DS_OK : dsi_folder_make(run->ctx, o->output));
    if (access(o->output, W_OK | X_OK) != 0) {
        return dsi_io_fail(run->ctx, "write in folder", o->output, errno);
    }
    if (ds_comm_rank(run->comm) == 0 && run->lock.path == NULL) {
        DS_TRY(dsi_folder_lock_take(run->ctx, o->output, &run->lock));
    }
    if (!o->resume_given && !o->restarted) {
        DS_TRY(end_removal(run)); /* a dead run's record: no restart of this one goes on from it */
    }
    DS_TRY(o->resume_given || o->overwrite ? DS_OK : check_free(run));
    DS_TRY(check_names(run));
    return dsi_folder_takes(run->ctx, o->output, names, sizeof names / sizeof *names);
}

ds_status train_output_check(train_run *run)
{
    const train_options *o = run->options;
    ds_status status = DS_OK;
    DS_TRY(ds_comm_agree(run->comm, run->ctx, train_paths_check(run)));
    if (ds_comm_rank(run->comm) == 0) {
        status = train_history_check(run);
    }
    if (o->output == NULL || o->trial) {
        return ds_comm_agree(run->comm, run->ctx, status);
    }
    if (status >= 0 && is_leader(run) && access(o->output, F_OK) == 0) {
        status = enter(run);
        if (status == DS_OK && o->resume_given) {
            status = end_removal(run);
        }
    }
    return ds_comm_agree(run->comm, run->ctx, status);
}

ds_status train_output_open(train_run *run)
{
    const train_options *o = run->options;
    ds_status status = DS_OK;
    if (o->output == NULL || o->trial) {
        return DS_OK;
    }
    if (is_leader(run)) {
        status = enter(run);
    }
    DS_TRY(ds_comm_agree(run->comm, run->ctx, status)); /* all have looked before one writes */
    if (is_leader(run) && !o->resume_given) {
        status = dsi_ckpt_begun_write(run->ctx, o->output);
    }
    return ds_comm_agree(run->comm, run->ctx, status);
}

ds_status train_output_saved(const train_run *run)
{
    return is_leader(run) && !run->options->resume_given
               ? dsi_ckpt_begun_settle(run->ctx, run->options->output)
               : DS_OK;
}

void train_output_close(train_run *run, bool ended)
{
    if (ended && is_leader(run) && run->options->output != NULL && !run->options->trial) {
        dsi_ckpt_begun_end(run->options->output);
    }
    dsi_folder_lock_release(&run->lock);
}
