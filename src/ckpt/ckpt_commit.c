/* SPDX-License-Identifier: Apache-2.0 */
/* The commit of a checkpoint: shards, manifest, rename, `latest`. See ckpt_writer.h.
 *
 * 1. Nothing under the tag's name changes before every shard and manifest is written and synced.
 * 2. `latest` moves after the folder has its name on every host.
 * 3. Each phase ends with an agreement, so that every rank frees its writer after all have ended
 *    their part of the phase: no file is made in a temporary folder that its leader removes.
 * 4. Everything that writing needs is made by prepare: a saver writes while the caller's steps run,
 *    and those allocate nothing (LAW 6).
 */
#include "ckpt/ckpt_writer.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

/* ---- what writing needs ---- */

static ds_status fill_part(void *user, size_t offset, void *data, size_t n)
{
    const dsi_ckpt_pending *p = user;
    return p->fill(p->user, p->fill_base + offset, data, n);
}

static ds_status create_in(const ds_checkpoint_writer *w, const char *folder, const char *name,
                           bool staged, dsi_file_out **file_out)
{
    char *path = dsi_path_join(folder, name);
    if (path == NULL) {
        return no_memory(w->ctx);
    }
    const ds_status status =
        staged ? dsi_file_stage(w->ctx, path, file_out) : dsi_file_create(w->ctx, path, file_out);
    free(path);
    return status;
}

static ds_status prepare_shard(ds_checkpoint_writer *w)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    char name[DSI_CKPT_SHARD_NAME];
    dsi_ckpt_shard_name(w->group.rank, w->group.size, name);
    w->sources = calloc(w->n_pending + 1, sizeof *w->sources);
    if (w->sources == NULL) {
        return no_memory(w->ctx);
    }
    for (size_t i = 0; i < w->n_pending; ++i) {
        dsi_ckpt_pending *p = &w->pending[i];
        w->sources[i] = (ds_tensor_source){
            .name = p->entry,
            .meta = {p->tensor.meta.dtype, dsi_ckpt_entry_shape(&p->extent, p->tensor.meta.shape)},
            .data = p->data,
            .fill = p->fill != NULL ? fill_part : NULL,
            .user = p};
    }
    DS_TRY(dsi_safetensors_plan_create(w->ctx, name, w->sources, w->n_pending, &params, &w->plan));
    w->shard_bytes = dsi_safetensors_plan_bytes(w->plan);
    DS_TRY(create_in(w, w->folder, name, false, &w->shard));
    return dsi_file_reserve(w->shard, w->shard_bytes);
}

/* What has the tag's name and is no checkpoint is somebody's, and not ours to replace. (A link is:
 * what it points to stays.) */
static ds_status check_place(const ds_checkpoint_writer *w)
{
    struct stat s;
    char *place = dsi_path_join(w->dir, w->m.info.tag);
    char *manifest = place != NULL ? dsi_path_join(place, DSI_CKPT_MANIFEST) : NULL;
    ds_status status = DS_OK;
    if (manifest == NULL) {
        status = ds_fail(w->ctx, DS_ERR_NOMEM, "no memory to save a checkpoint");
    } else if (lstat(place, &s) == 0 && !S_ISLNK(s.st_mode) && stat(manifest, &s) != 0) {
        status =
            ds_fail(w->ctx, DS_ERR_STATE,
                    "%s is no checkpoint of this program and is not replaced: move it away", place);
    }
    free(manifest);
    free(place);
    return status;
}

/* What a leader writes beside its shard. */
static ds_status prepare_leader(ds_checkpoint_writer *w)
{
    DS_TRY(check_place(w));
    DS_TRY(create_in(w, w->folder, DSI_CKPT_MANIFEST, false, &w->manifest));
    if (!w->keep_latest) {
        static const char *const latest[] = {DSI_CKPT_LATEST};
        DS_TRY(dsi_folder_takes(w->ctx, w->dir, latest, 1));
        DS_TRY(create_in(w, w->dir, DSI_CKPT_LATEST, true, &w->latest));
        DS_TRY(dsi_file_write(w->latest, w->m.info.tag, strlen(w->m.info.tag)));
    }
    return dsi_publish_prepare(w->ctx, w->dir, w->m.info.tag, &w->publish);
}

/* Room for the manifest: rank 0 prints it with checksums of 0, which have the same length. Where
 * hosts share no folder, every rank gets room for a copy. */
static ds_status prepare_text(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    ds_status status = DS_OK;
    w->text = dsi_buf_make(DSI_CKPT_MANIFEST_BYTES);
    if (g->rank == 0) {
        status = dsi_ckpt_manifest_text(w->ctx, &w->m, &w->text);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    if (w->hosts == NULL) {
        return DS_OK;
    }
    uint64_t bytes = w->text.size;
    DS_TRY(dsi_ckpt_broadcast(g, &bytes, sizeof bytes, 0));
    if (g->rank != 0) {
        w->text.data = calloc(1, bytes + 1);
        w->text.size = bytes;
        w->text.capacity = bytes + 1;
        status = w->text.data != NULL ? DS_OK : no_memory(w->ctx);
    }
    return dsi_ckpt_agree(g, status);
}

ds_status dsi_ckpt_prepare(ds_checkpoint_writer *w)
{
    DS_TRY(dsi_ckpt_table_merge(w));
    ds_status status = prepare_shard(w);
    if (status == DS_OK && w->leads) {
        status = prepare_leader(w);
    }
    DS_TRY(dsi_ckpt_agree(&w->group, status));
    DS_TRY(dsi_ckpt_table_room(w));
    return prepare_text(w);
}

/* ---- writing ---- */

static ds_status write_shard(ds_checkpoint_writer *w)
{
    DS_TRY(dsi_safetensors_plan_write(w->plan, w->shard, w->report + 2));
    w->report[1] = dsi_file_digest(w->shard);
    return dsi_file_finish(w->shard);
}

static ds_status write_manifest(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    ds_status status = DS_OK;
    if (g->rank == 0) {
        dsi_buf_clear(&w->text);
        status = dsi_ckpt_manifest_text(w->ctx, &w->m, &w->text);
    }
    if (w->hosts != NULL) {
        DS_TRY(dsi_ckpt_agree(g, status));
        status = dsi_ckpt_broadcast(g, w->text.data, w->text.size, 0);
    }
    if (status == DS_OK && w->leads) {
        status = dsi_file_write(w->manifest, w->text.data, w->text.size);
    }
    if (status == DS_OK && w->leads) {
        status = dsi_file_finish(w->manifest);
    }
    return dsi_ckpt_agree(g, status);
}

/* ---- the name ---- */

static ds_status publish(ds_checkpoint_writer *w, bool allow_exchange)
{
    return dsi_publish_run(w->ctx, &w->publish, &w->stage, allow_exchange);
}

/* The new checkpoint is whole and `latest` names it: what fails from now on is no failed save. */
void dsi_ckpt_remove_old(ds_checkpoint_writer *w)
{
    if (w->leads && w->keep_last > 0 &&
        dsi_ckpt_keep_with(w->ctx, w->dir, w->keep_last, w->keep_tag) < 0) {
        ds_log(w->ctx, DS_LOG_WARN,
               "checkpoint %s is saved, but an older one cannot be removed: %s", w->m.info.tag,
               ds_ctx_error(w->ctx));
    }
}

static ds_status put_in_place(ds_checkpoint_writer *w, bool allow_exchange)
{
    dsi_ckpt_group *g = &w->group;
    ds_status status = DS_OK;
    if (w->hosts != NULL) { /* rank 0's host last: its `latest` counts */
        if (w->leads && g->rank != 0) {
            status = publish(w, allow_exchange);
        }
        DS_TRY(dsi_ckpt_agree(g, status));
    }
    if (g->rank == 0) {
        status = publish(w, allow_exchange);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    if (w->latest != NULL) {
        status = dsi_file_finish(w->latest);
    }
    return dsi_ckpt_agree(g, status);
}

ds_status dsi_ckpt_commit_begin(ds_checkpoint_writer *w)
{
    DS_TRY(dsi_ckpt_agree(&w->group, DS_OK)); /* a rank that gave up says so here */
    return dsi_ckpt_share_out(w);
}

ds_status dsi_ckpt_commit_rest(ds_checkpoint_writer *w, bool allow_exchange)
{
    DS_TRY(dsi_ckpt_agree(&w->group, write_shard(w)));
    DS_TRY(dsi_ckpt_table_digests(w));
    DS_TRY(write_manifest(w));
    return put_in_place(w, allow_exchange);
}

ds_status dsi_ckpt_commit(ds_checkpoint_writer **writer, bool allow_exchange)
{
    ds_status status = dsi_ckpt_commit_begin(*writer);
    if (status == DS_OK) {
        status = dsi_ckpt_prepare(*writer);
    }
    if (status == DS_OK) {
        status = dsi_ckpt_commit_rest(*writer, allow_exchange);
    }
    if (status == DS_OK) {
        dsi_ckpt_remove_old(*writer);
    }
    dsi_ckpt_writer_free(writer);
    return status;
}

ds_status ds_checkpoint_writer_commit(ds_checkpoint_writer **writer)
{
    return dsi_ckpt_commit(writer, true);
}
