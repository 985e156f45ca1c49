/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints written behind training: the engine's saver, and what is known of its saves.
 *
 * The memory of the copies is made with the engine and counted in what it reports; see
 * ckpt/ckpt_saver.c for the thread. Called by engine_create.c, the public functions by users. */
#include "ckpt/checkpoint_on.h"
#include "io/file.h"
#include "train/engine.h"

#include <stdlib.h>
#include <string.h>

ds_status dsi_engine_open_saver(ds_engine *engine)
{
    ds_checkpoint_writer *writer = NULL;
    if (!engine->spec.save_behind) {
        return DS_OK;
    }
    ds_status status = dsi_checkpoint_saver_create_on(engine->ctx, engine->comm, &engine->saver);
    if (status == DS_ERR_UNSUPPORTED) {
        return ds_fail(
            engine->ctx, status,
            "datastates_ckpt (checkpoint.writer.decoupled): %s; or set it to false: then "
            "saves are written at once",
            ds_ctx_error(engine->ctx));
    }
    DS_TRY(status);
    DS_TRY(dsi_checkpoint_saver_measure(engine->saver, &writer));
    void *keep = NULL;
    status = dsi_engine_add_tensors(engine, writer, &keep);
    if (status < 0) {
        ds_checkpoint_writer_abort(&writer);
    } else {
        status =
            dsi_checkpoint_saver_reserve_for(engine->saver, &writer, engine->spec.save_host_bytes);
    }
    free(keep);
    return status;
}

static ds_status hold(ds_engine *engine, const char *dir)
{
    dsi_folder_lock lock;
    if (engine->save_dir != NULL && strcmp(engine->save_dir, dir) == 0) {
        return DS_OK;
    }
    char *copy = strdup(dir);
    ds_status status = copy != NULL ? dsi_folder_make(engine->ctx, dir)
                                    : ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a save");
    status = status == DS_OK ? dsi_folder_lock_take(engine->ctx, dir, &lock) : status;
    if (status < 0) {
        free(copy);
        return status;
    }
    dsi_folder_lock_release(&engine->save_lock);
    free(engine->save_dir);
    engine->save_lock = lock;
    engine->save_dir = copy;
    return DS_OK;
}

ds_status dsi_engine_hold_folder(ds_engine *engine, const char *dir)
{
    const ds_status status = ds_comm_rank(engine->comm) == 0 ? hold(engine, dir) : DS_OK;
    return ds_comm_agree(engine->comm, engine->ctx, status);
}

ds_engine_save_info ds_engine_checkpoint_info(const ds_engine *engine)
{
    if (engine->saver == NULL) {
        return engine->saved;
    }
    const ds_checkpoint_saver_info *info = ds_checkpoint_saver_get_info(engine->saver);
    return (ds_engine_save_info){.behind = true,
                                 .copy_bytes = info->copy_bytes,
                                 .n_saves = info->n_saves,
                                 .stall_seconds = info->stall_seconds,
                                 .write_seconds = info->write_seconds};
}

ds_status ds_engine_checkpoint_poll(ds_engine *engine)
{
    return engine->saver != NULL ? ds_checkpoint_saver_poll(engine->saver) : DS_OK;
}

ds_status ds_engine_checkpoint_wait(ds_engine *engine)
{
    const ds_status status =
        engine->saver != NULL ? ds_checkpoint_saver_wait(engine->saver) : DS_OK;
    return ds_comm_agree(engine->comm, engine->ctx, status);
}

ds_status ds_engine_keep_tag(ds_engine *engine, const char *tag)
{
    const size_t n = tag != NULL ? strlen(tag) : 0;
    if (n >= sizeof engine->keep_tag) {
        return ds_fail(engine->ctx, DS_ERR_ARG, "the tag of a checkpoint to keep has %zu bytes", n);
    }
    memcpy(engine->keep_tag, tag != NULL ? tag : "", n + 1);
    return DS_OK;
}

void ds_engine_keep_checkpoints(ds_engine *engine, uint32_t n)
{
    engine->keep_last = n;
}
