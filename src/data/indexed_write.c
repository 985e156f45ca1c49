/* SPDX-License-Identifier: Apache-2.0 */
/* Writes indexed data, one item a document, or several where the format's limit asks for it. */
#include "data/indexed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 4096 };

struct dsi_indexed_writer {
    ds_ctx *ctx;
    dsi_file_out *bin, *idx;
    char *idx_path;
    uint32_t width;
    int32_t *sizes;
    uint64_t n, room;
    uint64_t *more; /* items that go on with the document before, ascending */
    uint64_t n_more, n_item;
    unsigned char buffer[CHUNK]; /* of the index */
    size_t n_buffer;
    bool sealed;
};

static ds_status stage(dsi_indexed_writer *w, const char *prefix)
{
    const size_t n = strlen(prefix);
    w->idx_path = malloc(n + 5);
    if (w->idx_path == NULL) {
        return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory to write %s", prefix);
    }
    memcpy(w->idx_path, prefix, n);
    memcpy(w->idx_path + n, ".bin", 5);
    DS_TRY(dsi_file_stage(w->ctx, w->idx_path, &w->bin));
    memcpy(w->idx_path + n, ".idx", 5);
    return dsi_file_stage(w->ctx, w->idx_path, &w->idx);
}

ds_status dsi_indexed_create(ds_ctx *ctx, const char *prefix, uint32_t n_vocab,
                             dsi_indexed_writer **writer_out)
{
    dsi_indexed_writer *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to write %s", prefix);
    }
    w->ctx = ctx;
    w->width = n_vocab < 65500 ? 2 : 4;
    w->n_item = INT32_MAX;
    const ds_status status = stage(w, prefix);
    if (status < 0) {
        dsi_indexed_abort(&w);
        return status;
    }
    *writer_out = w;
    return DS_OK;
}

static ds_status write_ids(dsi_indexed_writer *w, const uint32_t *ids, uint64_t n)
{
    uint16_t narrow[CHUNK];
    if (w->width == 4) {
        return dsi_file_write(w->bin, ids, n * sizeof *ids);
    }
    for (uint64_t at = 0; at < n; at += CHUNK) {
        const size_t part = n - at < CHUNK ? (size_t)(n - at) : CHUNK;
        for (size_t i = 0; i < part; ++i) {
            if (ids[at + i] > UINT16_MAX) {
                return ds_fail(w->ctx, DS_ERR_ARG,
                               "token %u does not fit the 16 bits of this vocabulary's index",
                               ids[at + i]);
            }
            narrow[i] = (uint16_t)ids[at + i];
        }
        DS_TRY(dsi_file_write(w->bin, narrow, part * sizeof *narrow));
    }
    return DS_OK;
}

static ds_status add_item(dsi_indexed_writer *w, const uint32_t *ids, uint64_t n)
{
    if (w->n == w->room) {
        const uint64_t room = w->room < 1024 ? 1024 : w->room * 2;
        int32_t *sizes = realloc(w->sizes, room * sizeof *sizes);
        if (sizes == NULL) {
            return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for the index");
        }
        w->sizes = sizes;
        w->room = room;
    }
    w->sizes[w->n++] = (int32_t)n;
    return write_ids(w, ids, n);
}

/* Such items are rare: one for each 2^31 - 1 tokens of a document. */
static ds_status note_more(dsi_indexed_writer *w)
{
    uint64_t *more = realloc(w->more, (w->n_more + 1) * sizeof *more);
    if (more == NULL) {
        return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for the index");
    }
    w->more = more;
    w->more[w->n_more++] = w->n;
    return DS_OK;
}

ds_status dsi_indexed_extend(dsi_indexed_writer *w, const uint32_t *ids, uint64_t n)
{
    const uint64_t room = w->n_item - (uint64_t)w->sizes[w->n - 1];
    uint64_t part = n < room ? n : room;
    w->sizes[w->n - 1] += (int32_t)part;
    DS_TRY(write_ids(w, ids, part));
    for (uint64_t at = part; at < n; at += part) {
        part = n - at < w->n_item ? n - at : w->n_item;
        DS_TRY(note_more(w));
        DS_TRY(add_item(w, ids + at, part));
    }
    return DS_OK;
}

ds_status dsi_indexed_add(dsi_indexed_writer *w, const uint32_t *ids, uint64_t n)
{
    const uint64_t part = n < w->n_item ? n : w->n_item;
    DS_TRY(add_item(w, ids, part));
    return part < n ? dsi_indexed_extend(w, ids + part, n - part) : DS_OK;
}

void dsi_indexed_limit(dsi_indexed_writer *w, uint64_t n_item)
{
    w->n_item = n_item;
}

static ds_status flush(dsi_indexed_writer *w)
{
    const size_t n = w->n_buffer;
    w->n_buffer = 0;
    return dsi_file_write(w->idx, w->buffer, n);
}

/* Adds a few bytes to the index; a system call for each would take most of the time. */
static ds_status put(dsi_indexed_writer *w, const void *data, size_t n)
{
    if (w->n_buffer + n > sizeof w->buffer) {
        DS_TRY(flush(w));
    }
    memcpy(w->buffer + w->n_buffer, data, n);
    w->n_buffer += n;
    return DS_OK;
}

static ds_status write_index(dsi_indexed_writer *w)
{
    const uint64_t version = 1;
    const uint8_t code = w->width == 2 ? 6 : 4;
    const uint64_t boundaries = w->n - w->n_more + 1;
    uint64_t n_more = 0;
    int64_t pointer = 0;
    DS_TRY(put(w, "MMIDIDX\0\0", 9));
    DS_TRY(put(w, &version, sizeof version));
    DS_TRY(put(w, &code, sizeof code));
    DS_TRY(put(w, &w->n, sizeof w->n));
    DS_TRY(put(w, &boundaries, sizeof boundaries));
    DS_TRY(flush(w));
    DS_TRY(dsi_file_write(w->idx, w->sizes, w->n * sizeof *w->sizes));
    for (uint64_t i = 0; i < w->n; ++i) {
        DS_TRY(put(w, &pointer, sizeof pointer));
        pointer += (int64_t)w->sizes[i] * w->width;
    }
    for (uint64_t i = 0; i <= w->n; ++i) {
        if (n_more < w->n_more && w->more[n_more] == i) {
            ++n_more;
        } else {
            DS_TRY(put(w, &i, sizeof i));
        }
    }
    return flush(w);
}

static ds_status remove_old_index(const dsi_indexed_writer *w)
{
    const char *place = dsi_file_place(w->idx);
    if (place == NULL || unlink(place) != 0) {
        return place == NULL || errno == ENOENT ? DS_OK
                                                : dsi_io_fail(w->ctx, "remove", place, errno);
    }
    char *folder = dsi_path_folder(place);
    const ds_status status = folder != NULL
                                 ? dsi_folder_sync(w->ctx, folder)
                                 : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory to write the index");
    free(folder);
    return status;
}

ds_status dsi_indexed_seal(dsi_indexed_writer *w)
{
    DS_TRY(write_index(w));
    DS_TRY(dsi_file_flush(w->bin));
    DS_TRY(dsi_file_flush(w->idx));
    w->sealed = true;
    return DS_OK;
}

void dsi_indexed_staged(const dsi_indexed_writer *w, const char *names[2])
{
    names[0] = dsi_file_staged(w->bin);
    names[1] = dsi_file_staged(w->idx);
}

ds_status dsi_indexed_commit(dsi_indexed_writer **writer)
{
    dsi_indexed_writer *w = *writer;
    ds_status status = w->sealed ? DS_OK : dsi_indexed_seal(w);
    if (status >= 0) {
        status = remove_old_index(w);
    }
    if (status >= 0) {
        status = dsi_file_commit(&w->bin);
    }
    if (status >= 0) {
        status = dsi_file_commit(&w->idx);
    }
    dsi_indexed_abort(writer);
    return status;
}

void dsi_indexed_abort(dsi_indexed_writer **writer)
{
    if (writer != NULL && *writer != NULL) {
        dsi_file_abort(&(*writer)->bin);
        dsi_file_abort(&(*writer)->idx);
        free((*writer)->idx_path);
        free((*writer)->sizes);
        free((*writer)->more);
        free(*writer);
        *writer = NULL;
    }
}
