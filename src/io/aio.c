/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous transfers: open, submit, close. See aio.h; waits are in aio_wait.c. */
#include "io/aio_impl.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REQUESTS = 65536 };

ds_aio_params ds_aio_params_default(void)
{
    return (ds_aio_params){
        .block_size = 1048576, .queue_depth = 8, .intra_op_parallelism = 1, .overlap_events = true};
}

/* ---- opening and closing ---- */

static ds_status check_io(ds_ctx *ctx, const ds_aio_params *io)
{
    if (io->block_size < DSI_AIO_ALIGN || io->block_size % DSI_AIO_ALIGN != 0 ||
        io->block_size > (UINT64_C(1) << 30)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "aio.block_size: expected a multiple of 4096 up to 1073741824, found "
                       "%" PRIu64 "; 1048576 is a good value",
                       io->block_size);
    }
    if (io->queue_depth < 1 || io->queue_depth > 4096) {
        return ds_fail(ctx, DS_ERR_ARG, "aio.queue_depth: expected 1 to 4096, found %" PRIu32,
                       io->queue_depth);
    }
    if (io->intra_op_parallelism < 1 || io->intra_op_parallelism > 64) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "aio.intra_op_parallelism: expected 1 to 64, found %" PRIu32,
                       io->intra_op_parallelism);
    }
    if (io->backend != DS_AIO_AUTO && io->backend != DS_AIO_URING &&
        io->backend != DS_AIO_THREADS) {
        return ds_fail(ctx, DS_ERR_ARG, "aio: there is no backend %d", (int)io->backend);
    }
    return DS_OK;
}

static ds_status check_params(ds_ctx *ctx, const dsi_aio_params *params)
{
    DS_TRY(check_io(ctx, &params->io));
    if (params->mover != NULL && params->io.backend == DS_AIO_URING) {
        return ds_fail(ctx, DS_ERR_ARG, "aio: io_uring does not move a device's memory");
    }
    if (params->max_files < 1 || params->max_requests < 1 || params->max_requests > MAX_REQUESTS) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "aio: expected at least one file and 1 to 65536 requests, found %" PRIu32
                       " and %" PRIu32,
                       params->max_files, params->max_requests);
    }
    if (params->stripe_bytes % DSI_AIO_ALIGN != 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "aio: expected stripes of a multiple of 4096 bytes, found %" PRIu64,
                       params->stripe_bytes);
    }
    return DS_OK;
}

static ds_status copy_folders(dsi_aio *aio, const dsi_aio_params *params)
{
    aio->folders = calloc(params->n_folders + 1, sizeof *aio->folders);
    for (uint32_t i = 0; aio->folders != NULL && i < params->n_folders; ++i) {
        aio->folders[i] = strdup(params->folders[i]);
        if (aio->folders[i] == NULL) {
            return DS_ERR_NOMEM;
        }
        aio->n_folders = i + 1;
    }
    return aio->folders != NULL ? DS_OK : DS_ERR_NOMEM;
}

static ds_status fill(dsi_aio *aio, const dsi_aio_params *params)
{
    aio->io = params->io;
    aio->mover = params->mover != NULL ? *params->mover : (dsi_aio_mover){0};
    aio->stripe_bytes = params->stripe_bytes > 0 ? params->stripe_bytes : params->io.block_size;
    aio->patience = params->patience;
    aio->max_files = params->max_files;
    aio->max_requests = params->max_requests;
    aio->files = calloc(params->max_files, sizeof *aio->files);
    aio->requests = calloc(params->max_requests, sizeof *aio->requests);
    if (aio->files == NULL || aio->requests == NULL || copy_folders(aio, params) < 0) {
        return ds_fail(aio->ctx, DS_ERR_NOMEM, "aio: out of memory for %" PRIu32 " requests",
                       params->max_requests);
    }
    for (uint32_t i = params->max_requests; i > 0; --i) {
        aio->requests[i - 1].generation = 1;
        aio->requests[i - 1].next = aio->free_list;
        aio->free_list = &aio->requests[i - 1];
    }
    return DS_OK;
}

static ds_status init_locks(dsi_aio *aio)
{
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&aio->lock, NULL);
    (void)pthread_cond_init(&aio->work, NULL);
    (void)pthread_cond_init(&aio->done, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    return DS_OK;
}

static ds_status start(dsi_aio *aio)
{
    if (aio->io.backend == DS_AIO_THREADS || aio->mover.move != NULL) {
        return dsi_aio_start_threads(aio);
    }
    const ds_status status = dsi_aio_start_uring(aio);
    if (status != DS_ERR_UNSUPPORTED || aio->io.backend == DS_AIO_URING) {
        return status;
    }
    dsi_aio_stop(aio);
    ds_log(aio->ctx, DS_LOG_WARN, "aio: %s: pread and pwrite on threads take its place",
           ds_ctx_error(aio->ctx));
    return dsi_aio_start_threads(aio);
}

ds_status dsi_aio_open(ds_ctx *ctx, const dsi_aio_params *params, dsi_aio **aio_out)
{
    DS_TRY(check_params(ctx, params));
    dsi_aio *aio = calloc(1, sizeof *aio);
    if (aio == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "aio: out of memory");
    }
    aio->ctx = ctx;
    (void)init_locks(aio);
    ds_status status = fill(aio, params);
    if (status >= 0) {
        status = start(aio);
    }
    if (status < 0) {
        dsi_aio_close(&aio);
        return status;
    }
    *aio_out = aio;
    return DS_OK;
}

/* Leaves all to the workers, which wait for a disk that does not answer: they take nothing more,
 * and must not speak through a context that is about to go. */
static void abandon(dsi_aio *aio)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio->queues[AIO_READ] = aio->queues[AIO_WRITE] = (aio_queue){0};
    aio->waiting_bytes = 0;
    aio->told_plain = true;
    for (uint32_t i = 0; i < aio->n_started; ++i) {
        (void)pthread_detach(aio->workers[i].thread);
    }
    (void)pthread_mutex_unlock(&aio->lock);
}

void dsi_aio_close(dsi_aio **aio_inout)
{
    dsi_aio *aio = aio_inout != NULL ? *aio_inout : NULL;
    if (aio == NULL) {
        return;
    }
    *aio_inout = NULL;
    if (!dsi_aio_drain(aio)) {
        abandon(aio);
        return;
    }
    dsi_aio_stop(aio);
    for (uint32_t i = 0; aio->files != NULL && i < aio->max_files; ++i) {
        dsi_aio_file_close(aio, &aio->files[i]);
    }
    for (uint32_t i = 0; i < aio->n_folders; ++i) {
        free(aio->folders[i]);
    }
    free(aio->folders);
    free(aio->files);
    free(aio->requests);
    (void)pthread_cond_destroy(&aio->done);
    (void)pthread_cond_destroy(&aio->work);
    (void)pthread_mutex_destroy(&aio->lock);
    free(aio);
}

ds_aio_params dsi_aio_in_force(const dsi_aio *aio)
{
    return aio->io;
}

dsi_aio_stats dsi_aio_get_stats(dsi_aio *aio)
{
    (void)pthread_mutex_lock(&aio->lock);
    const dsi_aio_stats stats = aio->stats;
    (void)pthread_mutex_unlock(&aio->lock);
    return stats;
}

/* ---- submitting ---- */

static void push(aio_queue *queue, aio_request *request)
{
    request->next = NULL;
    if (queue->tail != NULL) {
        queue->tail->next = request;
    } else {
        queue->head = request;
    }
    queue->tail = request;
}

/* Wakes as many workers as there are pieces; with the lock held. */
static void wake(dsi_aio *aio, size_t bytes)
{
    size_t n = bytes / aio->io.block_size + 1;
    if (aio->io.backend == DS_AIO_THREADS) {
        (void)(n > 1 ? pthread_cond_broadcast(&aio->work) : pthread_cond_signal(&aio->work));
        return;
    }
    for (uint32_t i = 0; i < aio->n_workers && n > 0; ++i) {
        aio_worker *worker = &aio->workers[i];
        if (worker->asleep) {
            const uint64_t one = 1;
            worker->asleep = false;
            --n;
            (void)!write(worker->wake_fd, &one, sizeof one);
        }
    }
}

static ds_status check_range(dsi_aio *aio, const aio_request *r)
{
    const aio_file *file = r->file < aio->max_files ? &aio->files[r->file] : NULL;
    if (file == NULL || file->parts == NULL) {
        return ds_fail(aio->ctx, DS_ERR_ARG, "aio: there is no file %" PRIu32, r->file);
    }
    if (r->offset > (uint64_t)INT64_MAX || r->bytes > (uint64_t)INT64_MAX - r->offset ||
        (file->bytes != UINT64_MAX && r->offset + r->bytes > file->bytes)) {
        return ds_fail(aio->ctx, DS_ERR_ARG,
                       "aio: %zu bytes at offset %" PRIu64 " of %s are beyond its end", r->bytes,
                       r->offset, file->parts[0].path);
    }
    return DS_OK;
}

static ds_status submit(dsi_aio *aio, const aio_request *wanted, dsi_aio_ticket *ticket_out)
{
    if (wanted->bytes == 0) {
        *ticket_out = 0;
        return DS_OK;
    }
    DS_TRY(check_range(aio, wanted));
    if (!dsi_aio_answers(aio)) {
        return ds_fail(aio->ctx, DS_ERR_IO, "the disk of %s still does not answer",
                       aio->files[wanted->file].parts[0].path);
    }
    const double now = dsi_clock_seconds();
    (void)pthread_mutex_lock(&aio->lock);
    aio_request *r = aio->free_list;
    if (r == NULL) {
        (void)pthread_mutex_unlock(&aio->lock);
        return ds_fail(aio->ctx, DS_ERR_LIMIT,
                       "aio: %" PRIu32 " requests are not waited for yet, which is the ceiling",
                       aio->max_requests);
    }
    aio->free_list = r->next;
    const uint32_t generation = r->generation;
    *r = *wanted;
    r->generation = generation;
    r->state = AIO_ACTIVE;
    r->submitted = now;
    push(&aio->queues[r->direction], r);
    ++aio->n_active;
    aio->waiting_bytes += r->bytes;
    *ticket_out = (uint64_t)generation << 16 | (uint64_t)(r - aio->requests);
    wake(aio, r->bytes);
    (void)pthread_mutex_unlock(&aio->lock);
    return DS_OK;
}

ds_status dsi_aio_read(dsi_aio *aio, uint32_t file, uint64_t offset, void *buffer, size_t bytes,
                       dsi_aio_ticket *ticket_out)
{
    const aio_request wanted = {
        .file = file, .direction = AIO_READ, .buffer = buffer, .offset = offset, .bytes = bytes};
    return submit(aio, &wanted, ticket_out);
}

ds_status dsi_aio_write(dsi_aio *aio, uint32_t file, uint64_t offset, const void *buffer,
                        size_t bytes, dsi_aio_ticket *ticket_out)
{
    const aio_request wanted = {.file = file,
                                .direction = AIO_WRITE,
                                .buffer = (uint8_t *)(uintptr_t)buffer, /* only read from */
                                .offset = offset,
                                .bytes = bytes};
    return submit(aio, &wanted, ticket_out);
}

ds_status dsi_aio_move(dsi_aio *aio, uint32_t file, uint64_t offset, bool write, void *memory,
                       size_t bytes, dsi_aio_ticket *ticket_out)
{
    const aio_request wanted = {.file = file,
                                .direction = write ? AIO_WRITE : AIO_READ,
                                .moves = true,
                                .buffer = memory,
                                .offset = offset,
                                .bytes = bytes};
    return aio->mover.move != NULL ? submit(aio, &wanted, ticket_out)
                                   : ds_fail(aio->ctx, DS_ERR_STATE,
                                             "aio: there is nobody who moves a device's memory");
}
