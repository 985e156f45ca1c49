/* SPDX-License-Identifier: Apache-2.0 */
/* The thread-pool backend: each thread has one piece and moves it with pread or pwrite. Also what
 * all workers share: their memory for copies, start and stop. See aio_impl.h. */
#include "io/aio_impl.h"

#include "base/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_THREADS = 32 };

/* Bounds of one slot's memory for copies, and of all slots' together. Pages that no copy uses are
 * never taken. */
#define MIN_COPY_BYTES ((size_t)64 << 10)
#define MAX_COPY_BYTES ((size_t)1 << 20)
#define ALL_COPY_BYTES ((size_t)256 << 20)

/* ---- shared by both backends ---- */

static ds_status out_of_memory(dsi_aio *aio, uint32_t n)
{
    return ds_fail(aio->ctx, DS_ERR_NOMEM, "aio: cannot start %" PRIu32 " threads: %s", n,
                   strerror(errno));
}

static size_t choose_copy_bytes(const dsi_aio *aio, size_t n_slots)
{
    size_t bytes = ALL_COPY_BYTES / n_slots / DSI_AIO_ALIGN * DSI_AIO_ALIGN;
    bytes = bytes < MIN_COPY_BYTES ? MIN_COPY_BYTES : bytes;
    bytes = bytes > MAX_COPY_BYTES ? MAX_COPY_BYTES : bytes;
    return bytes > aio->io.block_size ? (size_t)aio->io.block_size : bytes;
}

ds_status dsi_aio_make_workers(dsi_aio *aio, uint32_t n_workers, uint32_t n_slots)
{
    aio->copy_bytes = choose_copy_bytes(aio, (size_t)n_workers * n_slots);
    aio->workers = calloc(n_workers, sizeof *aio->workers);
    if (aio->workers == NULL) {
        return out_of_memory(aio, n_workers);
    }
    aio->n_workers = n_workers;
    for (uint32_t i = 0; i < n_workers; ++i) {
        aio->workers[i] = (aio_worker){.aio = aio, .wake_fd = -1, .n_slots = n_slots};
    }
    for (uint32_t i = 0; i < n_workers; ++i) {
        void *copies = mmap(NULL, n_slots * aio->copy_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (copies == MAP_FAILED) {
            return out_of_memory(aio, n_workers);
        }
        aio->workers[i].copies = copies;
    }
    return DS_OK;
}

ds_status dsi_aio_run_workers(dsi_aio *aio, void *(*run)(void *))
{
    int reason = 0;
    for (uint32_t i = 0; i < aio->n_workers && reason == 0; ++i) {
        reason = dsi_thread_create(&aio->workers[i].thread, run, &aio->workers[i]);
        aio->n_started += reason == 0;
    }
    errno = reason;
    return reason == 0 ? DS_OK : out_of_memory(aio, aio->n_workers);
}

void dsi_aio_stop(dsi_aio *aio)
{
    (void)pthread_mutex_lock(&aio->lock);
    aio->quit = true;
    (void)pthread_cond_broadcast(&aio->work);
    (void)pthread_mutex_unlock(&aio->lock);
    for (uint32_t i = 0; i < aio->n_started; ++i) {
        const uint64_t one = 1;
        if (aio->workers[i].wake_fd >= 0) {
            (void)!write(aio->workers[i].wake_fd, &one, sizeof one);
        }
        (void)pthread_join(aio->workers[i].thread, NULL);
    }
    for (uint32_t i = 0; i < aio->n_workers; ++i) {
        aio_worker *worker = &aio->workers[i];
        dsi_aio_free_ring(worker);
        if (worker->copies != NULL) {
            (void)munmap(worker->copies, worker->n_slots * aio->copy_bytes);
        }
    }
    free(aio->workers);
    aio->workers = NULL;
    aio->n_workers = 0;
    aio->n_started = 0;
    aio->quit = false;
}

/* ---- this backend ---- */

static int64_t transfer(const dsi_aio *aio, const aio_piece *piece)
{
    uint8_t *memory = piece->memory + piece->done;
    const size_t n = piece->bytes - piece->done;
    const off_t offset = (off_t)(piece->offset + piece->done);
    if (piece->moved != NULL) {
        return aio->mover.move(aio->mover.user, piece->moved, piece->direction == AIO_WRITE, memory,
                               n, (uint64_t)offset);
    }
    const ssize_t done = piece->direction == AIO_READ ? pread(piece->fd, memory, n, offset)
                                                      : pwrite(piece->fd, memory, n, offset);
    return done < 0 ? -(int64_t)errno : (int64_t)done;
}

/* False: the end. */
static bool take_or_wait(aio_worker *self, aio_piece *piece_out)
{
    dsi_aio *aio = self->aio;
    bool taken = false;
    (void)pthread_mutex_lock(&aio->lock);
    while (!(taken = dsi_aio_take(aio, piece_out, self->copies)) && !aio->quit) {
        (void)pthread_cond_wait(&aio->work, &aio->lock);
    }
    (void)pthread_mutex_unlock(&aio->lock);
    return taken;
}

static void *thread_main(void *opaque)
{
    aio_worker *self = opaque;
    aio_piece piece;
    while (take_or_wait(self, &piece)) {
        int reason = 0;
        dsi_aio_piece_begin(&piece);
        while (dsi_aio_piece_go_on(self->aio, &piece, transfer(self->aio, &piece), &reason)) {
        }
        dsi_aio_piece_end(self->aio, &piece, reason);
    }
    return NULL;
}

ds_status dsi_aio_start_threads(dsi_aio *aio)
{
    uint64_t n = (uint64_t)aio->io.queue_depth * aio->io.intra_op_parallelism;
    n = n < MAX_THREADS ? n : MAX_THREADS;
    if (n < aio->io.intra_op_parallelism) {
        n = aio->io.intra_op_parallelism;
    }
    aio->io.backend = DS_AIO_THREADS;
    DS_TRY(dsi_aio_make_workers(aio, (uint32_t)n, 1));
    return dsi_aio_run_workers(aio, thread_main);
}
