/* The commit of a checkpoint: shards, manifest, rename, `latest`. See ckpt_writer.h.
 *
 * 1. Nothing under the tag's name changes before every shard and manifest is written and synced.
 * 2. `latest` moves after the folder has its name on every host.
 * 3. Each phase ends with an agreement: a rank that failed has closed and removed its files by
 *    then, so that the leader may remove the temporary folder.
 */
#include "ckpt/ckpt_writer.h"

#include "base/clock.h"
#include "io/safetensors_write.h"
#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

/* ---- the shard of this rank ---- */

static ds_status fill_part(void *user, size_t offset, void *data, size_t n)
{
    const dsi_ckpt_pending *p = user;
    return p->fill(p->user, p->fill_base + offset, data, n);
}

static ds_status write_shard_file(ds_checkpoint_writer *w, const char *path,
                                  const ds_tensor_source *sources)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    dsi_file_out *file = NULL;
    DS_TRY(dsi_file_create(w->ctx, path, &file));
    const ds_status status =
        dsi_safetensors_stream(w->ctx, file, path, sources, w->n_pending, &params, w->digests);
    if (status < 0) {
        dsi_file_abort(&file);
        return status;
    }
    w->shard_bytes = dsi_file_size(file);
    w->shard_digest = dsi_file_digest(file);
    return dsi_file_commit(&file);
}

static ds_status write_shard(ds_checkpoint_writer *w)
{
    char name[DSI_CKPT_SHARD_NAME];
    dsi_ckpt_shard_name(w->group.rank, w->group.size, name);
    ds_tensor_source *sources = calloc(w->n_pending + 1, sizeof *sources);
    w->digests = calloc(w->n_pending + 1, sizeof *w->digests);
    char *path = dsi_path_join(w->folder, name);
    ds_status status =
        sources != NULL && w->digests != NULL && path != NULL ? DS_OK : no_memory(w->ctx);
    for (size_t i = 0; i < w->n_pending && status == DS_OK; ++i) {
        dsi_ckpt_pending *p = &w->pending[i];
        sources[i] = (ds_tensor_source){
            .name = p->entry,
            .meta = {p->tensor.meta.dtype, dsi_ckpt_entry_shape(&p->extent, p->tensor.meta.shape)},
            .data = p->data,
            .fill = p->fill != NULL ? fill_part : NULL,
            .user = p};
    }
    if (status == DS_OK) {
        status = write_shard_file(w, path, sources);
    }
    free(path);
    free(sources);
    return status;
}

/* ---- the manifest ---- */

/* Rank 0's text on every leader. */
static ds_status spread_text(ds_checkpoint_writer *w, dsi_buf *text)
{
    dsi_ckpt_group *g = &w->group;
    uint64_t bytes = text->size;
    DS_TRY(dsi_ckpt_broadcast(g, &bytes, sizeof bytes, 0));
    char *copy = malloc(bytes + 1);
    ds_status status = dsi_ckpt_agree(g, copy != NULL ? DS_OK : no_memory(w->ctx));
    if (status == DS_OK && g->rank == 0) {
        memcpy(copy, text->data, bytes);
    }
    if (status == DS_OK) {
        status = dsi_ckpt_broadcast(g, copy, bytes, 0);
    }
    if (status == DS_OK && g->rank != 0) {
        dsi_buf_append(text, copy, bytes);
        status = text->failed ? no_memory(w->ctx) : DS_OK;
    }
    free(copy);
    return dsi_ckpt_agree(g, status);
}

static ds_status write_text(ds_checkpoint_writer *w, const dsi_buf *text)
{
    dsi_file_out *file = NULL;
    char *path = dsi_path_join(w->folder, DSI_CKPT_MANIFEST);
    ds_status status = path != NULL ? DS_OK : no_memory(w->ctx);
    if (status == DS_OK) {
        status = dsi_file_create(w->ctx, path, &file);
    }
    if (status == DS_OK) {
        status = dsi_file_write(file, text->data, text->size);
    }
    if (status == DS_OK) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    free(path);
    return status;
}

static ds_status write_manifest(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    dsi_buf text = dsi_buf_make(DSI_CKPT_MANIFEST_BYTES);
    ds_status status = DS_OK;
    if (g->rank == 0) {
        status = dsi_ckpt_manifest_text(w->ctx, &w->m, &text);
    }
    if (w->hosts != NULL) {
        status = dsi_ckpt_agree(g, status);
        if (status == DS_OK) {
            status = spread_text(w, &text);
        }
    }
    if (status == DS_OK && w->leads) {
        status = write_text(w, &text);
    }
    dsi_buf_free(&text);
    return dsi_ckpt_agree(g, status);
}

/* ---- the name ---- */

static ds_status move_latest(ds_checkpoint_writer *w)
{
    char *path = dsi_path_join(w->dir, DSI_CKPT_LATEST);
    if (path == NULL) {
        return no_memory(w->ctx);
    }
    const ds_status status = dsi_file_replace(w->ctx, path, w->m.info.tag, strlen(w->m.info.tag));
    free(path);
    return status;
}

static ds_status publish(ds_checkpoint_writer *w, bool allow_exchange)
{
    const ds_status status =
        dsi_folder_publish(w->ctx, &w->stage, w->dir, w->m.info.tag, allow_exchange);
    w->leads = false; /* the stage is gone, whatever the outcome */
    return status;
}

/* The new checkpoint is whole and `latest` names it: what fails from now on is no failed save. */
static void remove_old(ds_checkpoint_writer *w)
{
    if (w->keep_last > 0 && ds_checkpoint_keep(w->ctx, w->dir, w->keep_last) < 0) {
        ds_log(w->ctx, DS_LOG_WARN,
               "checkpoint %s is saved, but an older one cannot be removed: %s", w->m.info.tag,
               ds_ctx_error(w->ctx));
    }
}

static ds_status put_in_place(ds_checkpoint_writer *w, bool allow_exchange)
{
    dsi_ckpt_group *g = &w->group;
    const bool leads = w->leads;
    ds_status status = DS_OK;
    if (w->hosts != NULL) { /* rank 0's host last: its `latest` counts */
        if (leads && g->rank != 0) {
            status = publish(w, allow_exchange);
        }
        DS_TRY(dsi_ckpt_agree(g, status));
    }
    if (g->rank == 0) {
        status = publish(w, allow_exchange);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    if (leads && !w->keep_latest) {
        status = move_latest(w);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    if (leads) {
        remove_old(w);
    }
    return DS_OK;
}

ds_status dsi_ckpt_commit_begin(ds_checkpoint_writer *w)
{
    DS_TRY(dsi_ckpt_agree(&w->group, DS_OK)); /* a rank that gave up says so here */
    return dsi_ckpt_share_out(w);
}

static ds_status commit_rest(ds_checkpoint_writer *w, bool allow_exchange)
{
    DS_TRY(dsi_ckpt_table_merge(w));
    DS_TRY(dsi_ckpt_agree(&w->group, write_shard(w)));
    DS_TRY(dsi_ckpt_table_digests(w));
    DS_TRY(write_manifest(w));
    return put_in_place(w, allow_exchange);
}

ds_status dsi_ckpt_commit_rest(ds_checkpoint_writer **writer, bool allow_exchange)
{
    const ds_status status = commit_rest(*writer, allow_exchange);
    dsi_ckpt_writer_free(writer);
    return status;
}

ds_status dsi_ckpt_commit(ds_checkpoint_writer **writer, bool allow_exchange)
{
    const ds_status status = dsi_ckpt_commit_begin(*writer);
    if (status < 0) {
        dsi_ckpt_writer_free(writer);
        return status;
    }
    return dsi_ckpt_commit_rest(writer, allow_exchange);
}

ds_status ds_checkpoint_writer_commit(ds_checkpoint_writer **writer)
{
    return dsi_ckpt_commit(writer, true);
}
