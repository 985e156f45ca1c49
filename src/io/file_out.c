/* SPDX-License-Identifier: Apache-2.0 */
/* Output files: staged under a temporary name, synced, renamed; pipes and devices are written as
 * they are. See file.h. */
#include "io/file.h"

#include "io/file_direct.h"
#include "io/file_place.h"
#include "io/file_temp.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct dsi_file_out {
    ds_ctx *ctx;
    int fd;
    bool staged;     /* temp is to be renamed to place.path */
    bool must_clear; /* temp exists and is ours */
    char *path;      /* as the caller calls it */
    char *temp;      /* what is written; NULL: a pipe or a device */
    char *folder;    /* around place.path */
    dsi_place place;
    uint64_t size;
    uint64_t started;   /* bytes that the disk was told to begin with */
    dsi_direct *direct; /* of a large file; NULL: through the page cache */
    XXH3_state_t *hash;
};

/* Largest piece given to one write(2): some kernels cut at 2 GiB. */
#define WRITE_BYTES ((size_t)64 << 20)
/* So much is written to the page cache before the disk is told to begin with it: the disk then
 * works while more data is hashed and copied, and the sync at the end finds little to do. */
#define START_BYTES ((uint64_t)8 << 20)

ds_status dsi_io_fail(ds_ctx *ctx, const char *verb, const char *path, int reason)
{
    const char *remedy = "";
    switch (reason) {
    case ENOSPC:
    case EDQUOT:
        remedy = "; free some space or choose another folder";
        break;
    case EACCES:
    case EPERM:
    case EROFS:
        remedy = "; check the permissions or choose another folder";
        break;
    case EFBIG:
        remedy = "; the file system or `ulimit -f` does not allow a file of this size";
        break;
    default:
        break;
    }
    const ds_status status = reason == ENOENT   ? DS_ERR_NOT_FOUND
                             : reason == ENOMEM ? DS_ERR_NOMEM
                                                : DS_ERR_IO;
    return ds_fail(ctx, status, "cannot %s %s: %s%s", verb, path, strerror(reason), remedy);
}

static void free_file(dsi_file_out **file)
{
    dsi_file_out *f = *file;
    dsi_direct_end(&f->direct);
    if (f->fd >= 0) {
        (void)close(f->fd);
    }
    if (f->must_clear) {
        (void)unlink(f->temp);
    }
    (void)XXH3_freeState(f->hash);
    free(f->path);
    free(f->temp);
    free(f->folder);
    dsi_place_free(&f->place);
    free(f);
    *file = NULL;
}

static ds_status new_file(ds_ctx *ctx, const char *path, dsi_file_out **file_out)
{
    dsi_file_out *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
    }
    f->ctx = ctx;
    f->fd = -1;
    f->path = strdup(path);
    f->hash = XXH3_createState();
    if (f->path == NULL || f->hash == NULL) {
        free_file(&f);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
    }
    (void)XXH3_64bits_reset(f->hash);
    *file_out = f;
    return DS_OK;
}

static ds_status stage_beside(dsi_file_out *f)
{
    const char *name = dsi_path_name(f->place.path);
    f->folder = dsi_path_folder(f->place.path);
    if (f->folder == NULL) {
        return ds_fail(f->ctx, DS_ERR_NOMEM, "out of memory writing %s", f->path);
    }
    dsi_folder_clean(f->folder, name);
    DS_TRY(dsi_temp_file(f->ctx, f->folder, name, &f->temp, &f->fd));
    f->staged = true;
    f->must_clear = true;
    dsi_place_dress(&f->place, f->fd);
    return DS_OK;
}

ds_status dsi_file_stage(ds_ctx *ctx, const char *path, dsi_file_out **file_out)
{
    dsi_file_out *f = NULL;
    DS_TRY(new_file(ctx, path, &f));
    ds_status status = dsi_place_look(ctx, path, &f->place);
    if (status >= 0) {
        status = f->place.kind == DSI_PLACE_FILE ? stage_beside(f)
                                                 : dsi_place_open(ctx, &f->place, path, 0, &f->fd);
    }
    if (status < 0) {
        free_file(&f);
        return status;
    }
    *file_out = f;
    return DS_OK;
}

ds_status dsi_file_check(ds_ctx *ctx, const char *path)
{
    dsi_place place;
    dsi_file_out *f = NULL;
    DS_TRY(dsi_place_look(ctx, path, &place));
    const bool is_file = place.kind == DSI_PLACE_FILE;
    dsi_place_free(&place);
    DS_TRY(is_file ? dsi_file_stage(ctx, path, &f) : DS_OK);
    dsi_file_abort(&f);
    return DS_OK;
}

ds_status dsi_file_stream(ds_ctx *ctx, const char *path, bool append, FILE **stream_out)
{
    dsi_place place;
    int fd = -1;
    DS_TRY(dsi_place_look(ctx, path, &place));
    const int new = place.kind == DSI_PLACE_FILE ? O_CREAT | (append ? 0 : O_TRUNC) : 0;
    const ds_status status = dsi_place_open(ctx, &place, path, new | (append ? O_APPEND : 0), &fd);
    dsi_place_free(&place);
    DS_TRY(status);
    *stream_out = fdopen(fd, append ? "a" : "w");
    if (*stream_out == NULL) {
        (void)close(fd);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
    }
    if (append) {
        (void)fseek(*stream_out, 0, SEEK_END); /* for ftell; a pipe has no end */
    }
    return DS_OK;
}

ds_status dsi_file_create(ds_ctx *ctx, const char *path, dsi_file_out **file_out)
{
    dsi_file_out *f = NULL;
    DS_TRY(new_file(ctx, path, &f));
    f->temp = strdup(path);
    if (f->temp == NULL) {
        free_file(&f);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
    }
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        const int reason = errno;
        free_file(&f);
        return dsi_io_fail(ctx, "create", path, reason);
    }
    f->must_clear = true;
    *file_out = f;
    return DS_OK;
}

ds_status dsi_file_reserve(dsi_file_out *f, uint64_t bytes)
{
    if (bytes == 0 || f->temp == NULL) {
        return DS_OK;
    }
    int rc;
    do {
        rc = fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
        const int reason = errno;
        char verb[64];
        (void)snprintf(verb, sizeof verb, "make room for the %llu bytes of",
                       (unsigned long long)bytes);
        return dsi_io_fail(f->ctx, verb, f->path, reason);
    } /* a file system without the call: the writes will report it */
    if (bytes >= DSI_DIRECT_MIN && f->size == 0 && f->direct == NULL) {
        f->direct = dsi_direct_start(f->fd);
    }
    return DS_OK;
}

/* Through the page cache. */
static ds_status write_cached(dsi_file_out *f, const void *data, size_t n)
{
    const uint8_t *p = data;
    size_t left = n;
    while (left > 0) {
        const ssize_t done = write(f->fd, p, left < WRITE_BYTES ? left : WRITE_BYTES);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return dsi_io_fail(f->ctx, "write", f->path, done < 0 ? errno : ENOSPC);
        }
        p += done;
        left -= (size_t)done;
    }
    f->size += n;
    if (f->temp != NULL &&
        f->size - f->started >= START_BYTES) { /* a hint: what fails shows in the sync */
        (void)sync_file_range(f->fd, (off_t)f->started, (off_t)(f->size - f->started),
                              SYNC_FILE_RANGE_WRITE);
        f->started = f->size;
    }
    return DS_OK;
}

ds_status dsi_file_write(dsi_file_out *f, const void *data, size_t n)
{
    (void)XXH3_64bits_update(f->hash, data, n);
    if (f->direct == NULL) {
        return write_cached(f, data, n);
    }
    const int reason = dsi_direct_write(f->direct, data, n);
    f->size += n;
    return reason != 0 ? dsi_io_fail(f->ctx, "write", f->path, reason) : DS_OK;
}

uint64_t dsi_file_size(const dsi_file_out *f)
{
    return f->size;
}

uint64_t dsi_file_digest(const dsi_file_out *f)
{
    return XXH3_64bits_digest(f->hash);
}

static ds_status sync_file(dsi_file_out *f)
{
    int rc;
    do {
        rc = fsync(f->fd);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EINVAL && errno != ENOTSUP) {
        return dsi_io_fail(f->ctx, "sync", f->path, errno);
    }
    return DS_OK;
}

ds_status dsi_file_flush(dsi_file_out *f)
{
    const int reason = f->direct != NULL ? dsi_direct_drain(f->direct) : 0;
    return reason != 0 ? dsi_io_fail(f->ctx, "write", f->path, reason) : sync_file(f);
}

const char *dsi_file_staged(const dsi_file_out *f)
{
    return f->temp;
}

const char *dsi_file_place(const dsi_file_out *f)
{
    return f->staged ? f->place.path : NULL;
}

ds_status dsi_file_finish(dsi_file_out *f)
{
    DS_TRY(dsi_file_flush(f));
    if (f->staged && rename(f->temp, f->place.path) != 0) {
        return dsi_io_fail(f->ctx, "put in place", f->path, errno);
    }
    f->must_clear = false;
    return f->staged ? dsi_folder_sync(f->ctx, f->folder) : DS_OK;
}

/* The descriptor is closed last: it holds the lock that keeps others from removing temp. */
ds_status dsi_file_commit(dsi_file_out **file)
{
    const ds_status status = dsi_file_finish(*file);
    free_file(file);
    return status;
}

void dsi_file_abort(dsi_file_out **file)
{
    if (file != NULL && *file != NULL) {
        free_file(file);
    }
}

ds_status dsi_file_replace(ds_ctx *ctx, const char *path, const void *data, size_t n)
{
    dsi_file_out *f = NULL;
    DS_TRY(dsi_file_stage(ctx, path, &f));
    const ds_status status = dsi_file_write(f, data, n);
    if (status < 0) {
        dsi_file_abort(&f);
        return status;
    }
    return dsi_file_commit(&f);
}

ds_status dsi_file_copy(ds_ctx *ctx, const char *from, const char *to)
{
    dsi_map map;
    DS_TRY(dsi_map_open(ctx, from, 0, &map));
    const ds_status status = dsi_file_replace(ctx, to, map.data, map.size);
    dsi_map_close(&map);
    return status;
}
