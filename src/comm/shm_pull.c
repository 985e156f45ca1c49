/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives whose operands lie in private memory, where the system lets the ranks read one
 * another's memory (process_vm_readv, for sums process_vm_writev): the bytes are copied once, not
 * twice. Addresses are announced, as for calls in place: everybody has come, everybody is done.
 *
 * An all-reduce is cut over the ranks: each reads the others' contributions to its share, sums into
 * its `out`, and writes that piece, still in its caches, into every other's `out`. So in place
 * nobody reads what another writes, and nobody waits in between.
 *
 * Invariants: the same on all ranks of a job, or nobody pulls: shm_pull_try. Nothing is written to
 * a process that has not been seen alive right before: its number may be another's afterwards.
 */
#include "base/clock.h"
#include "comm/rank_names.h"
#include "comm/shm_impl.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

enum { LIST = 64 /* pieces of one system call */, SHARE_ALIGN = 64 /* elements */ };

#define PATIENCE 1.0 /* seconds */

/* Pieces to read from one rank, or to write to it. */
typedef struct pull_list {
    struct iovec own[LIST], other[LIST];
    uint32_t n;
    bool write;
} pull_list;

static int64_t pid_of(const shm_comm *comm, uint32_t rank)
{
    return shm_block_of(comm->job->world, comm->world_rank[rank])->pid;
}

/* A read that failed is never tried again: a sum in place could not be begun anew. Who reads a
 * process that is being killed finds out before its death shows, so for a second the wait may look
 * for the dead, and name them and where the others are. */
static ds_status fail_read(shm_comm *comm, uint32_t rank, int error)
{
    char reason[320];
    const double now = dsi_clock_seconds();
    if (comm->unread_since == 0.0) {
        comm->unread_since = now;
        comm->unread_rank = rank;
        comm->unread_error = error;
    }
    if (now < comm->unread_since + PATIENCE) {
        return DS_IN_PROGRESS;
    }
    (void)snprintf(reason, sizeof reason, "the memory of %s (process %lld) cannot be reached: %s",
                   dsi_comm_rank_name(&comm->head, comm->unread_rank).text,
                   (long long)pid_of(comm, comm->unread_rank), strerror(comm->unread_error));
    return shm_fail_comm(comm, reason);
}

/* Moves all pieces and empties the list. */
static ds_status flush(shm_comm *comm, uint32_t rank, pull_list *list)
{
    uint32_t first = 0;
    if (comm->unread_since > 0.0) {
        return fail_read(comm, rank, 0);
    }
    while (first < list->n) {
        struct iovec *own = list->own + first;
        struct iovec *other = list->other + first;
        const unsigned long left = list->n - first;
        const pid_t pid = (pid_t)pid_of(comm, rank);
        if (list->write && shm_is_dead(comm->job, comm->world_rank[rank])) {
            return fail_read(comm, rank, ESRCH);
        }
        ssize_t n = list->write ? process_vm_writev(pid, own, left, other, left, 0)
                                : process_vm_readv(pid, own, left, other, left, 0);
        if (n <= 0) {
            return fail_read(comm, rank, n < 0 ? errno : EFAULT);
        }
        for (; first < list->n && (size_t)n >= own->iov_len; ++own, ++other) {
            n -= (ssize_t)own->iov_len;
            ++first;
        }
        if (n > 0) { /* ended inside of a piece */
            own->iov_base = (char *)own->iov_base + n;
            other->iov_base = (char *)other->iov_base + n;
            own->iov_len -= (size_t)n;
            other->iov_len -= (size_t)n;
        }
    }
    list->n = 0;
    return DS_OK;
}

static ds_status add(shm_comm *comm, uint32_t rank, pull_list *list, void *own, uint64_t other,
                     size_t bytes)
{
    if (bytes == 0) {
        return DS_OK;
    }
    list->own[list->n] = (struct iovec){own, bytes};
    list->other[list->n++] = (struct iovec){(void *)(uintptr_t)other, bytes};
    return list->n == LIST ? flush(comm, rank, list) : DS_OK;
}

/* The announced addresses of a rank: of all `in`, then, of an all-reduce, of all `out`. */
static const uint64_t *table_of(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    const void *beside = shm_block_of(comm, rank)->beside[op->number % SHM_SLOTS];
    return (const uint64_t *)beside + shm_table_begin(comm, &op->call);
}

void shm_pull_write(const shm_comm *comm, const dsi_comm_call *call, uint64_t *to)
{
    (void)comm;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        to[i] = (uintptr_t)call->parts[i].in;
        if (call->kind == DS_COMM_ALL_REDUCE) {
            to[call->n_parts + i] = (uintptr_t)call->parts[i].out;
        }
    }
}

/* ---- sums ---- */

/* Walks what this rank sums: of an all-reduce its share of the stream, of a reduce-scatter its
 * slices. */
typedef struct walk {
    const shm_comm *comm;
    const shm_op *op;
    size_t begin, end; /* of the stream; all-reduce */
    size_t base, done;
    uint32_t part;
} walk;

/* A rank's share of an all-reduce's stream. */
static dsi_span share_of(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    const size_t total = shm_stream_length(&op->call, comm->head.size, shm_part_length);
    size_t share = (total + comm->head.size - 1) / comm->head.size;
    share = (share + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN;
    const size_t begin = share * rank < total ? share * rank : total;
    return (dsi_span){begin, total - begin < share ? total - begin : share};
}

static walk walk_begin(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    walk w = {.comm = comm, .op = op};
    if (op->call.kind == DS_COMM_ALL_REDUCE) {
        const dsi_span share = share_of(comm, op, rank);
        w.begin = share.begin;
        w.end = share.begin + share.count;
    }
    return w;
}

/* The next piece of at most `most` elements; its offset is that in the whole part. */
static bool walk_next(walk *w, size_t most, shm_segment *piece_out)
{
    const dsi_comm_call *call = &w->op->call;
    const uint32_t size = w->comm->head.size;
    if (call->kind == DS_COMM_ALL_REDUCE) {
        if (w->begin == w->end) {
            return false;
        }
        const size_t left = w->end - w->begin;
        *piece_out = shm_next_segment(call, size, shm_part_length, &w->part, &w->base, w->begin,
                                      left < most ? left : most);
        w->begin += piece_out->count;
        return true;
    }
    for (; w->part < call->n_parts; ++w->part, w->done = 0) {
        const dsi_span own = dsi_span_of(call->parts[w->part].count, w->comm->head.rank, size);
        if (w->done < own.count) {
            const size_t left = own.count - w->done;
            *piece_out = (shm_segment){w->part, own.begin + w->done, left < most ? left : most};
            w->done += piece_out->count;
            return true;
        }
    }
    return false;
}

/* Sums a few pieces. Their elements lie one after another in the scratch memory of each rank. */
static ds_status sum_pieces(shm_comm *comm, const shm_op *op, const shm_segment *pieces, uint32_t n,
                            size_t room)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                comm->head.size};
    const char *scratch[DSI_SHM_MAX_RANKS];
    const void *ins[DSI_SHM_MAX_RANKS];
    char *free_scratch = comm->scratch; /* the next rank's */
    for (uint32_t turn = 1; turn < comm->head.size; ++turn) {
        const uint32_t r = (comm->head.rank + turn) % comm->head.size;
        const uint64_t *table = table_of(comm, op, r);
        pull_list list = {.n = 0};
        char *to = free_scratch;
        scratch[r] = free_scratch;
        ds_status status = DS_OK;
        for (uint32_t i = 0; i < n && status == DS_OK; ++i) {
            const size_t bytes = pieces[i].count * width;
            status =
                add(comm, r, &list, to, table[pieces[i].part] + pieces[i].offset * width, bytes);
            to += bytes;
        }
        status = status == DS_OK ? flush(comm, r, &list) : status;
        if (status != DS_OK) {
            return status;
        }
        free_scratch += room * width;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const dsi_comm_part *part = &call->parts[pieces[i].part];
        for (uint32_t r = 0; r < comm->head.size; ++r) {
            ins[r] = r == comm->head.rank ? (const char *)part->in + pieces[i].offset * width
                                          : scratch[r] + at * width;
        }
        const size_t skipped =
            call->kind == DS_COMM_REDUCE_SCATTER
                ? dsi_span_of(part->count, comm->head.rank, comm->head.size).begin
                : 0;
        dsi_reduce(&job, ins, (char *)part->out + (pieces[i].offset - skipped) * width,
                   pieces[i].count);
        at += pieces[i].count;
    }
    return DS_OK;
}

/* Gives summed pieces of this rank's share to all others. */
static ds_status push_pieces(shm_comm *comm, const shm_op *op, const shm_segment *pieces,
                             uint32_t n)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t turn = 1; turn < comm->head.size; ++turn) {
        const uint32_t r = (comm->head.rank + turn) % comm->head.size;
        const uint64_t *outs = table_of(comm, op, r) + call->n_parts;
        pull_list list = {.write = true};
        ds_status status = DS_OK;
        for (uint32_t i = 0; i < n && status == DS_OK; ++i) {
            const size_t offset = pieces[i].offset * width;
            status = add(comm, r, &list, (char *)call->parts[pieces[i].part].out + offset,
                         outs[pieces[i].part] + offset, pieces[i].count * width);
        }
        status = status == DS_OK ? flush(comm, r, &list) : status;
        if (status != DS_OK) {
            return status;
        }
    }
    return DS_OK;
}

static ds_status sum(shm_comm *comm, const shm_op *op)
{
    const size_t width = ds_dtype_bytes(op->call.dtype);
    const size_t room = SHM_SCRATCH / (comm->head.size - 1) / 64 * 64 / width;
    walk w = walk_begin(comm, op, comm->head.rank);
    for (bool more = true; more;) {
        shm_segment pieces[LIST];
        uint32_t n = 0;
        size_t used = 0;
        while (n < LIST && used < room && (more = walk_next(&w, room - used, &pieces[n]))) {
            used += pieces[n++].count;
        }
        if (n > 0) {
            ds_status status = sum_pieces(comm, op, pieces, n, room);
            if (status == DS_OK && op->call.kind == DS_COMM_ALL_REDUCE) {
                status = push_pieces(comm, op, pieces, n);
            }
            if (status != DS_OK) {
                return status;
            }
        }
    }
    return DS_OK;
}

static void pad(const shm_comm *comm, const shm_op *op)
{
    const size_t width = ds_dtype_bytes(op->call.dtype);
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        const dsi_comm_part *part = &op->call.parts[i];
        const size_t own = dsi_span_of(part->count, comm->head.rank, comm->head.size).count;
        const size_t slice = dsi_comm_slice(part->count, comm->head.size);
        memset((char *)part->out + own * width, 0, (slice - own) * width);
    }
}

/* ---- copies ---- */

/* What part i gets from rank r: bytes, and where it lies there and here. */
typedef struct transfer {
    size_t from, to, bytes;
} transfer;

static transfer transfer_of(const shm_comm *comm, const shm_op *op, uint32_t r, uint32_t i)
{
    const dsi_comm_part *part = &op->call.parts[i];
    const size_t width = ds_dtype_bytes(op->call.dtype);
    const uint32_t size = comm->head.size;
    transfer t = {0, 0, 0};
    if (op->call.kind == DS_COMM_BROADCAST) {
        t.bytes = r == op->call.peer ? part->count * width : 0;
    } else if (op->call.kind == DS_COMM_ALL_GATHER) {
        const dsi_span span = dsi_span_of(part->count, r, size);
        t.to = span.begin * width;
        t.bytes = span.count * width;
    } else {
        const void *beside = shm_block_of(comm, r)->beside[op->number % SHM_SLOTS];
        const uint64_t *counts = (const uint64_t *)beside + (size_t)size * (i + 1);
        for (uint32_t b = 0; b < comm->head.rank; ++b) {
            t.from += counts[b] * width;
        }
        for (uint32_t b = 0; b < r; ++b) {
            t.to += part->counts_out[b] * width;
        }
        t.bytes = part->counts_out[r] * width;
    }
    return t;
}

static ds_status copy(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    for (uint32_t turn = 0; turn < comm->head.size; ++turn) {
        const uint32_t r = (comm->head.rank + turn) % comm->head.size;
        const uint64_t *table = table_of(comm, op, r);
        pull_list list = {.n = 0};
        ds_status status = DS_OK;
        for (uint32_t i = 0; i < call->n_parts && status == DS_OK; ++i) {
            const transfer t = transfer_of(comm, op, r, i);
            char *to = (char *)call->parts[i].out + t.to;
            const char *own = (const char *)call->parts[i].in + t.from;
            if (r != comm->head.rank) {
                status = add(comm, r, &list, to, table[i] + t.from, t.bytes);
            } else if (t.bytes > 0 && own != to) {
                memmove(to, own, t.bytes);
            }
        }
        status = status == DS_OK ? flush(comm, r, &list) : status;
        if (status != DS_OK) {
            return status;
        }
    }
    return DS_OK;
}

/* ---- the call ---- */

/* DS_IN_PROGRESS: a rank that has died is still to be named by the wait. */
ds_status shm_pull_work(shm_comm *comm, shm_op *op, bool *finished_out)
{
    const bool sums = dsi_coll_reduces(op->call.kind);
    const ds_status status = sums ? sum(comm, op) : copy(comm, op);
    if (op->call.kind == DS_COMM_REDUCE_SCATTER) {
        pad(comm, op);
    }
    *finished_out = status == DS_OK;
    return status < 0 ? status : DS_OK;
}

ds_status shm_pull_message(shm_comm *comm, const dsi_comm_call *call, const uint64_t *table,
                           bool *done_out)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    pull_list list = {.n = 0};
    ds_status status = DS_OK;
    for (uint32_t i = 0; i < call->n_parts && status == DS_OK; ++i) {
        status = add(comm, call->peer, &list, call->parts[i].out, table[i],
                     call->parts[i].count * width);
    }
    status = status == DS_OK ? flush(comm, call->peer, &list) : status;
    *done_out = status == DS_OK;
    return status < 0 ? status : DS_OK;
}

/* ---- whether it works ---- */

bool shm_pull_try(const shm_comm *world, uint32_t rank, uint64_t address, uint64_t expected)
{
    uint64_t found = 0;
    const struct iovec own = {&found, sizeof found};
    const struct iovec other = {(void *)(uintptr_t)address, sizeof found};
    const pid_t pid = (pid_t)pid_of(world, rank);
    return shm_block_of(world, rank)->pid_space == shm_own(world)->pid_space &&
           (rank == world->head.rank || world->job->pidfds[rank] >= 0) &&
           process_vm_readv(pid, &own, 1, &other, 1, 0) == sizeof found && found == expected &&
           process_vm_writev(pid, &own, 1, &other, 1, 0) == sizeof found;
}
