/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces: how a request is cut, and what the result of a system call means. See aio_impl.h. */
#include "io/aio_impl.h"

#include "base/clock.h"
#include <errno.h>
#include <string.h>
#include <time.h>

static size_t smaller(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

/* Chooses the way of a piece whose place is known, and shortens it to what goes that way. */
static void choose_way(const dsi_aio *aio, const aio_file *file, aio_piece *piece, uint8_t *copy)
{
    const aio_part *part = &file->parts[piece->part];
    const uint64_t head = piece->offset % DSI_AIO_ALIGN;
    piece->plain = part->plain;
    piece->fd = part->plain;
    piece->memory = piece->user;
    if (piece->request->moves) {
        piece->moved = part->moved;
        piece->is_direct = true;
        return;
    }
    if (!file->direct) {
        return;
    }
    if (head != 0 || piece->bytes < DSI_AIO_ALIGN) { /* an edge: no whole block of the disk */
        piece->bytes = smaller(piece->bytes, DSI_AIO_ALIGN - head);
        return;
    }
    piece->is_direct = true;
    piece->fd = part->direct;
    if ((uintptr_t)piece->user % DSI_AIO_ALIGN != 0) {
        piece->is_copied = true;
        piece->memory = copy;
        piece->bytes = smaller(piece->bytes, aio->copy_bytes);
    }
    piece->bytes -= piece->bytes % DSI_AIO_ALIGN;
}

static void pop(aio_queue *queue)
{
    queue->head = queue->head->next;
    if (queue->head == NULL) {
        queue->tail = NULL;
    }
}

bool dsi_aio_take(dsi_aio *aio, aio_piece *piece_out, uint8_t *copy)
{
    const int direction = aio->queues[aio->turn].head != NULL ? aio->turn : !aio->turn;
    aio_request *r = aio->queues[direction].head;
    if (r == NULL) {
        return false;
    }
    const aio_file *file = &aio->files[r->file];
    aio_piece piece = {.request = r, .user = r->buffer + r->cut, .direction = direction};
    uint64_t run = 0;
    piece.logical = r->offset + r->cut;
    dsi_aio_file_locate(file, piece.logical, &piece.part, &piece.offset, &run);
    piece.bytes = smaller(smaller(r->bytes - r->cut, aio->io.block_size), run);
    choose_way(aio, file, &piece, copy);
    r->cut += piece.bytes;
    aio->waiting_bytes -= piece.bytes;
    ++r->n_flying;
    if (r->cut == r->bytes) {
        pop(&aio->queues[direction]);
    }
    aio->turn = !direction;
    *piece_out = piece;
    return true;
}

void dsi_aio_piece_begin(aio_piece *piece)
{
    piece->began = dsi_clock_seconds();
    if (piece->is_copied && piece->direction == AIO_WRITE) {
        memcpy(piece->memory, piece->user, piece->bytes);
    }
}

/* The rest goes through the page cache. */
static void leave_direct(aio_piece *piece)
{
    piece->is_direct = false;
    piece->fd = piece->plain;
}

static bool moved(aio_piece *piece, uint64_t n, int *reason_out)
{
    piece->done += smaller(n, piece->bytes - piece->done);
    piece->stuck_since = 0;
    if (piece->done == piece->bytes) {
        *reason_out = 0;
        return false;
    }
    if (piece->is_direct && piece->moved == NULL && piece->done % DSI_AIO_ALIGN != 0) {
        leave_direct(piece);
    }
    return true;
}

/* After EAGAIN, the system being short of something: a pause, for a second in all. */
static bool waits_longer(aio_piece *piece)
{
    const struct timespec pause = {.tv_nsec = 100000};
    const double now = dsi_clock_seconds();
    if (piece->stuck_since == 0) {
        piece->stuck_since = now;
    }
    (void)nanosleep(&pause, NULL);
    return now - piece->stuck_since < 1.0;
}

bool dsi_aio_piece_go_on(dsi_aio *aio, aio_piece *piece, int64_t result, int *reason_out)
{
    if (result > 0) {
        return moved(piece, (uint64_t)result, reason_out);
    }
    if (result == 0) {
        *reason_out = piece->direction == AIO_WRITE ? ENOSPC : AIO_END_OF_FILE;
        return false;
    }
    if (result == -EINTR) {
        return true;
    }
    if (result == -EAGAIN && waits_longer(piece)) {
        return true;
    }
    if (result == -EINVAL && piece->is_direct && piece->moved == NULL) {
        dsi_aio_file_refused(aio, piece);
        leave_direct(piece);
        return true;
    }
    *reason_out = (int)-result;
    return false;
}

/* The lowest offset decides which error is reported. No more pieces are cut of a failed request: it
 * can only be the head of its queue, for pieces of it have been cut already. */
static void note_error(dsi_aio *aio, aio_request *r, const aio_piece *piece, int reason)
{
    const uint64_t offset = piece->logical + piece->done;
    if (r->reason == 0 && r->cut < r->bytes) {
        pop(&aio->queues[r->direction]);
        aio->waiting_bytes -= r->bytes - r->cut;
    }
    if (r->reason == 0 || offset < r->reason_offset) {
        r->reason = reason;
        r->reason_offset = offset;
        r->reason_part = piece->part;
    }
}

static void count(dsi_aio_stats *stats, const aio_piece *piece, double seconds)
{
    uint64_t *bytes = piece->direction == AIO_READ ? &stats->read_bytes : &stats->write_bytes;
    *bytes += piece->done;
    ++stats->n_pieces;
    stats->n_copied += !piece->is_direct || piece->is_copied;
    stats->piece_seconds += seconds;
    stats->slowest_piece = seconds > stats->slowest_piece ? seconds : stats->slowest_piece;
}

void dsi_aio_piece_end(dsi_aio *aio, aio_piece *piece, int reason)
{
    aio_request *r = piece->request;
    double now = dsi_clock_seconds();
    const double seconds = now - piece->began;
    if (reason == 0 && piece->is_copied && piece->direction == AIO_READ) {
        memcpy(piece->user, piece->memory, piece->bytes);
        now = dsi_clock_seconds();
    }
    (void)pthread_mutex_lock(&aio->lock);
    count(&aio->stats, piece, seconds);
    if (reason != 0) {
        note_error(aio, r, piece, reason);
    }
    --r->n_flying;
    if (r->n_flying == 0 && (r->cut == r->bytes || r->reason != 0)) {
        r->state = AIO_DONE;
        r->ended = now;
        --aio->n_active;
        (void)pthread_cond_broadcast(&aio->done);
    }
    (void)pthread_mutex_unlock(&aio->lock);
}
