/* SPDX-License-Identifier: Apache-2.0 */
/* Writes an entry of the data cache, in memory of a few MiB. See data_cache.h. */
#include "data/data_cache.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUFFER_BYTES = 1 << 20, TOKENS = 0, DOCUMENTS = 1, COUNTS = 2 };

/* A file with a buffer: documents are small, and a call for each would take most of the time. */
typedef struct output {
    dsi_file_out *file;
    unsigned char *buffer;
    size_t used;
} output;

struct dsi_cache_writer {
    ds_ctx *ctx;
    char *cache;
    dsi_stage stage;
    output out[DSI_CACHE_FILES];
    XXH3_state_t *ids; /* of the tokens as i32, as they would lie in memory */
    uint32_t width;
    uint64_t n;
    bool has_counts;
};

ds_status dsi_cache_write_failed(ds_ctx *ctx, ds_status status)
{
    char reason[1024];
    if (status != DS_ERR_IO && status != DS_ERR_NOT_FOUND) {
        return status;
    }
    (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(ctx));
    return ds_fail(ctx, DS_ERR_IO,
                   "%s (this is the data cache: --data_cache DIR puts it elsewhere, --data_cache "
                   "none keeps all tokens in memory)",
                   reason);
}

static ds_status open_output(dsi_cache_writer *w, int i)
{
    char *path = dsi_path_join(w->stage.path, dsi_cache_file_names[i]);
    w->out[i].buffer = malloc(BUFFER_BYTES);
    const ds_status status = path != NULL && w->out[i].buffer != NULL
                                 ? dsi_file_create(w->ctx, path, &w->out[i].file)
                                 : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for the data cache");
    free(path);
    return status;
}

ds_status dsi_cache_write_begin(ds_ctx *ctx, const char *cache, const char *name, uint32_t n_ids,
                                dsi_cache_writer **writer_out)
{
    dsi_cache_writer *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the data cache");
    }
    w->ctx = ctx;
    w->stage.lock = -1;
    w->width = n_ids > 0 && n_ids <= UINT16_MAX + 1 ? 2 : 4;
    w->cache = strdup(cache);
    w->ids = XXH3_createState();
    ds_status status = w->cache != NULL && w->ids != NULL
                           ? dsi_folder_stage(ctx, cache, name, &w->stage)
                           : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the data cache");
    for (int i = 0; i < COUNTS && status >= 0; ++i) {
        status = open_output(w, i);
    }
    if (status < 0) {
        dsi_cache_write_abort(&w);
        return dsi_cache_write_failed(ctx, status);
    }
    (void)XXH3_64bits_reset(w->ids);
    *writer_out = w;
    return DS_OK;
}

static ds_status flush(output *out)
{
    const size_t n = out->used;
    out->used = 0;
    return dsi_file_write(out->file, out->buffer, n);
}

static ds_status put(output *out, const void *data, size_t n)
{
    if (out->used + n > BUFFER_BYTES) {
        DS_TRY(flush(out));
    }
    if (n > BUFFER_BYTES / 4) {
        DS_TRY(flush(out));
        return dsi_file_write(out->file, data, n);
    }
    memcpy(out->buffer + out->used, data, n);
    out->used += n;
    return DS_OK;
}

static ds_status put_ids(dsi_cache_writer *w, const uint32_t *ids, uint64_t n)
{
    enum { PART = 4096 };
    uint16_t narrow[PART];
    (void)XXH3_64bits_update(w->ids, ids, n * sizeof *ids);
    if (w->width == 4) {
        return put(&w->out[TOKENS], ids, n * sizeof *ids);
    }
    for (uint64_t at = 0; at < n; at += PART) {
        const size_t part = n - at < PART ? (size_t)(n - at) : PART;
        uint32_t all = 0; /* their bits: a loop without an exit takes vectors */
        for (size_t i = 0; i < part; ++i) {
            all |= ids[at + i];
            narrow[i] = (uint16_t)ids[at + i];
        }
        if (all > UINT16_MAX) {
            return ds_fail(w->ctx, DS_ERR_FORMAT, "a token is no id of the tokenizer");
        }
        DS_TRY(put(&w->out[TOKENS], narrow, part * sizeof *narrow));
    }
    return DS_OK;
}

/* n flags of 1. */
static ds_status put_ones(dsi_cache_writer *w, uint64_t n)
{
    unsigned char ones[4096];
    memset(ones, 1, sizeof ones);
    for (uint64_t at = 0; at < n; at += sizeof ones) {
        const uint64_t left = n - at;
        DS_TRY(put(&w->out[COUNTS], ones, left < sizeof ones ? (size_t)left : sizeof ones));
    }
    return DS_OK;
}

/* Flags begin with the first document that has some. */
static ds_status put_counts(dsi_cache_writer *w, const uint8_t *counted, uint64_t n)
{
    if (counted == NULL) {
        return w->has_counts ? put_ones(w, n) : DS_OK;
    }
    if (!w->has_counts) {
        DS_TRY(open_output(w, COUNTS));
        w->has_counts = true;
        DS_TRY(put_ones(w, w->n));
    }
    return put(&w->out[COUNTS], counted, n);
}

ds_status dsi_cache_write_add(void *user, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                              bool joins)
{
    dsi_cache_writer *w = user;
    ds_status status = joins ? DS_OK : put(&w->out[DOCUMENTS], &w->n, sizeof w->n);
    if (status >= 0) {
        status = put_ids(w, ids, n);
    }
    if (status >= 0) {
        status = put_counts(w, counted, n);
    }
    w->n += n;
    return dsi_cache_write_failed(w->ctx, status);
}

static ds_status hash_file(const dsi_cache_writer *w, int i, uint64_t *hash_out)
{
    dsi_map map;
    char *path = dsi_path_join(w->stage.path, dsi_cache_file_names[i]);
    const ds_status status = path != NULL
                                 ? dsi_map_open(w->ctx, path, 0, &map)
                                 : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for the data cache");
    free(path);
    DS_TRY(status);
    *hash_out = dsi_hash_spread(map.data, map.size);
    dsi_map_close(&map);
    return DS_OK;
}

static ds_status write_meta(const dsi_cache_writer *w, const dsi_cache_meta *meta)
{
    dsi_file_out *file = NULL;
    char *text = dsi_cache_meta_print(meta);
    char *path = dsi_path_join(w->stage.path, DSI_CACHE_META);
    ds_status status = text != NULL && path != NULL
                           ? dsi_file_create(w->ctx, path, &file)
                           : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for the data cache");
    if (status >= 0) {
        status = dsi_file_write(file, text, strlen(text));
    }
    if (status >= 0) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    free(text);
    free(path);
    return status;
}

static ds_status finish(dsi_cache_writer *w, const char *name, const dsi_take *take)
{
    dsi_cache_meta meta = {.info = take->info,
                           .longest = take->longest,
                           .token_bytes = w->width,
                           .has_counts = w->has_counts};
    dsi_store content = {.n = w->n};
    DS_TRY(put(&w->out[DOCUMENTS], &w->n, sizeof w->n));
    for (int i = 0; i < DSI_CACHE_FILES; ++i) {
        if (w->out[i].file != NULL) {
            DS_TRY(flush(&w->out[i]));
            DS_TRY(dsi_file_finish(w->out[i].file));
            DS_TRY(hash_file(w, i, &meta.hashes[i]));
        }
    }
    meta.hashes[DOCUMENTS] = dsi_file_digest(w->out[DOCUMENTS].file);
    dsi_store_set_content(&content, meta.hashes[DOCUMENTS], XXH3_64bits_digest(w->ids),
                          w->has_counts ? dsi_file_digest(w->out[COUNTS].file) : 0);
    meta.content = content.content;
    DS_TRY(write_meta(w, &meta));
    return dsi_folder_publish(w->ctx, &w->stage, w->cache, name, true);
}

ds_status dsi_cache_write_end(dsi_cache_writer **writer, const char *name, const dsi_take *take)
{
    ds_ctx *ctx = (*writer)->ctx;
    const ds_status status = finish(*writer, name, take);
    dsi_cache_write_abort(writer);
    return dsi_cache_write_failed(ctx, status);
}

void dsi_cache_write_abort(dsi_cache_writer **writer)
{
    dsi_cache_writer *w = *writer;
    if (w == NULL) {
        return;
    }
    for (int i = 0; i < DSI_CACHE_FILES; ++i) {
        dsi_file_abort(&w->out[i].file);
        free(w->out[i].buffer);
    }
    dsi_folder_unstage(&w->stage);
    (void)XXH3_freeState(w->ids);
    free(w->cache);
    free(w);
    *writer = NULL;
}
