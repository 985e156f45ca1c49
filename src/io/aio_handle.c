/* SPDX-License-Identifier: Apache-2.0 */
/* The public handle: files by path, opened for each transfer, waited for all together. See
 * include/deepspeed/aio.h. */
#include "base/arena.h"
#include "base/reserved.h"
#include "io/aio.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FLYING = 256 };

typedef struct flight {
    uint32_t file;
    dsi_aio_ticket ticket;
} flight;

struct ds_aio_handle {
    ds_ctx *ctx;
    dsi_aio *aio;
    size_t n_flying;
    flight flying[MAX_FLYING]; /* in the order of the calls */
};

ds_status ds_aio_handle_create(ds_ctx *ctx, const ds_aio_params *params, ds_aio_handle **handle_out)
{
    if (params != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_aio_params", params));
    }
    const dsi_aio_params inner = {.io = params != NULL ? *params : ds_aio_params_default(),
                                  .max_files = MAX_FLYING + 1,
                                  .max_requests = MAX_FLYING + 1};
    ds_aio_handle *handle = calloc(1, sizeof *handle);
    if (handle == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "aio: out of memory for a handle");
    }
    handle->ctx = ctx;
    const ds_status status = dsi_aio_open(ctx, &inner, &handle->aio);
    if (status < 0) {
        free(handle);
        return status;
    }
    *handle_out = handle;
    return DS_OK;
}

void ds_aio_handle_destroy(ds_aio_handle **handle_inout)
{
    if (handle_inout == NULL || *handle_inout == NULL) {
        return;
    }
    dsi_aio_close(&(*handle_inout)->aio);
    free(*handle_inout);
    *handle_inout = NULL;
}

ds_aio_params ds_aio_handle_params(const ds_aio_handle *handle)
{
    return dsi_aio_in_force(handle->aio);
}

/* ---- transfers ---- */

typedef struct transfer {
    bool write;
    uint8_t *buffer;
    size_t bytes;
    uint64_t offset;
    const char *path;
} transfer;

/* The buffer of a write is only read from. */
static transfer describe(bool write, const void *buffer, size_t bytes, const char *path,
                         uint64_t offset)
{
    return (transfer){.write = write,
                      .buffer = (uint8_t *)(uintptr_t)buffer,
                      .bytes = bytes,
                      .offset = offset,
                      .path = path};
}

static ds_status begin(ds_aio_handle *handle, const transfer *t, flight *flight_out)
{
    flight flown = {0};
    DS_TRY(dsi_aio_add_path(handle->aio, t->path, t->write, &flown.file));
    const ds_status status =
        t->write
            ? dsi_aio_write(handle->aio, flown.file, t->offset, t->buffer, t->bytes, &flown.ticket)
            : dsi_aio_read(handle->aio, flown.file, t->offset, t->buffer, t->bytes, &flown.ticket);
    if (status < 0) {
        dsi_aio_remove(handle->aio, flown.file);
        return status;
    }
    *flight_out = flown;
    return DS_OK;
}

static ds_status end(ds_aio_handle *handle, const flight *flown)
{
    const ds_status status = dsi_aio_wait(handle->aio, flown->ticket);
    dsi_aio_remove(handle->aio, flown->file);
    return status;
}

static ds_status whole(ds_aio_handle *handle, const transfer *t)
{
    flight flown;
    DS_TRY(begin(handle, t, &flown));
    return end(handle, &flown);
}

static ds_status start(ds_aio_handle *handle, const transfer *t)
{
    if (handle->n_flying == MAX_FLYING) {
        return ds_fail(handle->ctx, DS_ERR_LIMIT,
                       "%s: %d transfers are in flight, which is the ceiling; call ds_aio_wait",
                       t->path, MAX_FLYING);
    }
    DS_TRY(begin(handle, t, &handle->flying[handle->n_flying]));
    ++handle->n_flying;
    return DS_OK;
}

ds_status ds_aio_pread(ds_aio_handle *handle, void *buffer, size_t bytes, const char *path,
                       uint64_t offset)
{
    const transfer t = describe(false, buffer, bytes, path, offset);
    return whole(handle, &t);
}

ds_status ds_aio_pwrite(ds_aio_handle *handle, const void *buffer, size_t bytes, const char *path,
                        uint64_t offset)
{
    const transfer t = describe(true, buffer, bytes, path, offset);
    return whole(handle, &t);
}

ds_status ds_aio_async_pread(ds_aio_handle *handle, void *buffer, size_t bytes, const char *path,
                             uint64_t offset)
{
    const transfer t = describe(false, buffer, bytes, path, offset);
    return start(handle, &t);
}

ds_status ds_aio_async_pwrite(ds_aio_handle *handle, const void *buffer, size_t bytes,
                              const char *path, uint64_t offset)
{
    const transfer t = describe(true, buffer, bytes, path, offset);
    return start(handle, &t);
}

/* Errors of later transfers would replace the message of the first: they are only looked at. */
ds_status ds_aio_wait(ds_aio_handle *handle, size_t *n_out)
{
    ds_status first = DS_OK;
    size_t n = 0;
    char *message = NULL;
    for (size_t i = 0; i < handle->n_flying; ++i) {
        const ds_status status = end(handle, &handle->flying[i]);
        n += status >= 0;
        if (status < 0 && first >= 0) {
            first = status;
            message = strdup(ds_ctx_error(handle->ctx));
        }
    }
    const size_t n_all = handle->n_flying;
    handle->n_flying = 0;
    if (n_out != NULL) {
        *n_out = n;
    }
    if (first < 0) {
        first = ds_fail(handle->ctx, first, "%s (%zu of %zu transfers failed)",
                        message != NULL ? message : "", n_all - n, n_all);
    }
    free(message);
    return first;
}

/* ---- whole files ---- */

ds_status ds_aio_read(ds_aio_handle *handle, void *buffer, size_t bytes, const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size != bytes) {
        return ds_fail(handle->ctx, DS_ERR_SHAPE,
                       "cannot read %s into a buffer of %zu bytes: the file has %" PRIu64, path,
                       bytes, (uint64_t)st.st_size);
    }
    return ds_aio_pread(handle, buffer, bytes, path, 0);
}

ds_status ds_aio_write(ds_aio_handle *handle, const void *buffer, size_t bytes, const char *path)
{
    DS_TRY(ds_aio_pwrite(handle, buffer, bytes, path, 0));
    if (truncate(path, (off_t)bytes) != 0) {
        return ds_fail(handle->ctx, DS_ERR_IO, "cannot cut %s to %zu bytes: %s", path, bytes,
                       strerror(errno));
    }
    return DS_OK;
}

/* ---- memory ---- */

static size_t mapped_bytes(size_t bytes)
{
    return bytes == 0 ? DSI_AIO_ALIGN : (bytes + DSI_AIO_ALIGN - 1) / DSI_AIO_ALIGN * DSI_AIO_ALIGN;
}

ds_status ds_aio_buffer_create(ds_ctx *ctx, size_t bytes, bool locked, void **buffer_out)
{
    size_t padded = 0;
    void *buffer = MAP_FAILED;
    if (dsi_add_size(bytes, DSI_AIO_ALIGN, &padded)) {
        padded = mapped_bytes(bytes);
        buffer = mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (buffer == MAP_FAILED) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory for a buffer of %zu bytes", bytes);
    }
    (void)madvise(buffer, padded, MADV_HUGEPAGE); /* fewer pages to pin for each transfer */
    if (locked && mlock(buffer, padded) != 0) {
        const int reason = errno;
        (void)munmap(buffer, padded);
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "cannot lock a buffer of %zu bytes in memory: %s; raise `ulimit -l`, or do "
                       "without the lock",
                       bytes, strerror(reason));
    }
    *buffer_out = buffer;
    return DS_OK;
}

void ds_aio_buffer_destroy(void **buffer, size_t bytes)
{
    if (buffer != NULL && *buffer != NULL) {
        (void)munmap(*buffer, mapped_bytes(bytes));
        *buffer = NULL;
    }
}
