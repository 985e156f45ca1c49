/* SPDX-License-Identifier: Apache-2.0 */
/* The io_uring backend: intra_op_parallelism threads with a ring each, queue_depth pieces in a
 * ring. See aio_impl.h.
 *
 * A worker waits in its ring only, so a read of its eventfd stands there all the time: dsi_aio_read
 * and dsi_aio_write end it when the worker sleeps and there is work. What is taken, prepared and
 * reaped belongs to the worker's thread alone.
 */
#include "io/aio_impl.h"

#ifndef DSI_HAVE_URING

ds_status dsi_aio_start_uring(dsi_aio *aio)
{
    return ds_fail(aio->ctx, DS_ERR_UNSUPPORTED,
                   "io_uring is not part of this build (liburing was not found)");
}

void dsi_aio_free_ring(aio_worker *worker)
{
    (void)worker;
}

#else

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct aio_ring {
    struct io_uring uring;
    bool is_open;
    bool begins_disabled;
    bool has_wake_read; /* the read of the eventfd is in the ring */
    uint64_t wake_value;
    aio_piece *pieces; /* one a slot */
    uint32_t *unused;  /* the slots that are free: the first n_unused */
    uint32_t n_unused;
} aio_ring;

static struct io_uring_sqe *next_entry(aio_ring *ring)
{
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring->uring);
    while (entry == NULL) { /* the ring has room for every slot: only when a submit came short */
        (void)io_uring_submit(&ring->uring);
        entry = io_uring_get_sqe(&ring->uring);
    }
    return entry;
}

static void prepare(aio_worker *self, aio_piece *piece)
{
    aio_ring *ring = self->ring;
    struct io_uring_sqe *entry = next_entry(ring);
    uint8_t *memory = piece->memory + piece->done;
    const unsigned n = (unsigned)(piece->bytes - piece->done); /* at most block_size: 1 GiB */
    const uint64_t offset = piece->offset + piece->done;
    if (piece->direction == AIO_READ) {
        io_uring_prep_read(entry, piece->fd, memory, n, offset);
    } else {
        io_uring_prep_write(entry, piece->fd, memory, n, offset);
    }
    io_uring_sqe_set_data(entry, piece);
    if (self->aio->io.single_submit) {
        (void)io_uring_submit(&ring->uring);
    }
}

static void prepare_wake(aio_worker *self)
{
    aio_ring *ring = self->ring;
    if (!ring->has_wake_read) {
        struct io_uring_sqe *entry = next_entry(ring);
        io_uring_prep_read(entry, self->wake_fd, &ring->wake_value, sizeof ring->wake_value, 0);
        io_uring_sqe_set_data(entry, NULL);
        ring->has_wake_read = true;
    }
}

/* How many pieces this worker may take now: its share of what waits, so that one does not take all
 * while others sleep. Lock held. */
static uint32_t allowance(const aio_worker *self)
{
    const dsi_aio *aio = self->aio;
    const aio_ring *ring = self->ring;
    if (!aio->io.overlap_events && ring->n_unused < self->n_slots) {
        return 0; /* the batch before must end first */
    }
    const uint64_t share = aio->waiting_bytes / aio->io.block_size / aio->n_workers + 1;
    return aio->n_workers > 1 && share < ring->n_unused ? (uint32_t)share : ring->n_unused;
}

/* Takes pieces and prepares them. False: the end. */
static bool take_pieces(aio_worker *self)
{
    dsi_aio *aio = self->aio;
    aio_ring *ring = self->ring;
    (void)pthread_mutex_lock(&aio->lock);
    const uint32_t most = allowance(self);
    const uint32_t before = ring->n_unused;
    while (before - ring->n_unused < most) {
        const uint32_t slot = ring->unused[ring->n_unused - 1];
        if (!dsi_aio_take(aio, &ring->pieces[slot], self->copies + slot * aio->copy_bytes)) {
            break;
        }
        --ring->n_unused;
    }
    self->asleep = aio->waiting_bytes == 0 && ring->n_unused > 0;
    const bool ends = aio->quit && ring->n_unused == self->n_slots;
    (void)pthread_mutex_unlock(&aio->lock);
    for (uint32_t i = before; i > ring->n_unused; --i) {
        aio_piece *piece = &ring->pieces[ring->unused[i - 1]];
        dsi_aio_piece_begin(piece);
        prepare(self, piece);
    }
    return !ends;
}

static void reap_one(aio_worker *self, aio_piece *piece, int result)
{
    aio_ring *ring = self->ring;
    int reason = 0;
    if (piece == NULL) {
        ring->has_wake_read = false;
        return;
    }
    if (dsi_aio_piece_go_on(self->aio, piece, result, &reason)) {
        prepare(self, piece);
        return;
    }
    dsi_aio_piece_end(self->aio, piece, reason);
    ring->unused[ring->n_unused++] = (uint32_t)(piece - ring->pieces);
}

static void submit_and_reap(aio_worker *self)
{
    aio_ring *ring = self->ring;
    struct io_uring_cqe *event = NULL;
    const int submitted = io_uring_submit_and_wait(&ring->uring, 1);
    if (submitted < 0 && submitted != -EINTR) { /* short of kernel memory: events free some */
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
    }
    while (io_uring_peek_cqe(&ring->uring, &event) == 0) {
        aio_piece *piece = io_uring_cqe_get_data(event);
        const int result = event->res;
        io_uring_cqe_seen(&ring->uring, event);
        reap_one(self, piece, result);
    }
}

static void *ring_main(void *opaque)
{
    aio_worker *self = opaque;
    aio_ring *ring = self->ring;
    if (ring->begins_disabled) { /* makes this thread the one that the ring belongs to */
        (void)syscall(SYS_io_uring_register, ring->uring.ring_fd, IORING_REGISTER_ENABLE_RINGS,
                      NULL, 0); /* liburing 2.3 declares a function for it and lacks it */
    }
    while (take_pieces(self)) {
        prepare_wake(self);
        submit_and_reap(self);
    }
    return NULL;
}

/* ---- start and end ---- */

void dsi_aio_free_ring(aio_worker *worker)
{
    aio_ring *ring = worker->ring;
    if (worker->wake_fd >= 0) {
        (void)close(worker->wake_fd);
    }
    if (ring != NULL) {
        if (ring->is_open) {
            io_uring_queue_exit(&ring->uring);
        }
        free(ring->pieces);
        free(ring->unused);
        free(ring);
    }
    worker->ring = NULL;
    worker->wake_fd = -1;
}

static ds_status refused(dsi_aio *aio, int reason)
{
    const char *why = "";
    if (reason == EPERM || reason == EACCES) {
        why = "; sysctl kernel.io_uring_disabled or the container's seccomp profile forbids it";
    } else if (reason == ENOMEM) {
        why = "; `ulimit -l` may be too small for its rings";
    }
    return ds_fail(aio->ctx, DS_ERR_UNSUPPORTED, "io_uring cannot be used here: %s%s",
                   strerror(reason), why);
}

/* Whether the kernel knows the two transfers that are used (5.6 and newer). */
static bool knows_transfers(struct io_uring *uring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(uring);
    const bool knows = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                       io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return knows;
}

static ds_status open_ring(dsi_aio *aio, aio_worker *worker)
{
    aio_ring *ring = calloc(1, sizeof *ring);
    worker->ring = ring;
    worker->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (ring != NULL) {
        ring->pieces = calloc(worker->n_slots, sizeof *ring->pieces);
        ring->unused = calloc(worker->n_slots, sizeof *ring->unused);
    }
    if (ring == NULL || ring->pieces == NULL || ring->unused == NULL || worker->wake_fd < 0) {
        return ds_fail(aio->ctx, DS_ERR_NOMEM, "aio: out of memory for a ring");
    }
    for (uint32_t i = 0; i < worker->n_slots; ++i) {
        ring->unused[i] = worker->n_slots - 1 - i;
    }
    ring->n_unused = worker->n_slots;
    int rc = -EINVAL;
#ifdef IORING_SETUP_DEFER_TASKRUN
    /* Linux 6.1: completions are handled when the worker asks, without interrupting it. */
    rc = io_uring_queue_init(worker->n_slots + 1, &ring->uring,
                             IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                 IORING_SETUP_R_DISABLED);
    ring->begins_disabled = rc == 0;
#endif
    if (rc == -EINVAL) {
        rc = io_uring_queue_init(worker->n_slots + 1, &ring->uring, 0);
    }
    if (rc < 0) {
        return refused(aio, -rc);
    }
    ring->is_open = true;
    return knows_transfers(&ring->uring) ? DS_OK : refused(aio, ENOSYS);
}

ds_status dsi_aio_start_uring(dsi_aio *aio)
{
    DS_TRY(dsi_aio_make_workers(aio, aio->io.intra_op_parallelism, aio->io.queue_depth));
    for (uint32_t i = 0; i < aio->n_workers; ++i) {
        DS_TRY(open_ring(aio, &aio->workers[i]));
    }
    DS_TRY(dsi_aio_run_workers(aio, ring_main));
    aio->io.backend = DS_AIO_URING;
    return DS_OK;
}

#endif
