/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on symmetric memory: peers' operands are read where they lie. Two synchronisations:
 * everybody has come, everybody is done.
 *
 * An all-reduce whose outputs are symmetric too is cut over the ranks: each sums its part of the
 * bucket and writes the result into the `out` of all, so in place nobody reads what another writes.
 */
#include "base/pool.h"
#include "comm/shm_copy.h"
#include "comm/shm_impl.h"
#include <string.h>

enum { SHARE_ALIGN = 64 /* elements: a rank's share begins at a line */ };

/* An address in symmetric memory as other ranks can use it: whose region (0: this communicator's,
 * 1: its parent's …) in the upper bits, the offset in the lower. */
enum { DEPTH_SHIFT = 56 };

uint64_t shm_encode(const shm_comm *comm, const void *address, size_t bytes)
{
    const char *at = address;
    for (uint64_t depth = 0; comm != NULL; comm = comm->parent, ++depth) {
        if (comm->region.base == NULL) {
            continue;
        }
        const char *own = comm->region.base + comm->region.stride * comm->head.rank;
        if (at >= own && (size_t)(at - own) <= comm->region.bytes &&
            bytes <= comm->region.bytes - (size_t)(at - own)) {
            return depth << DEPTH_SHIFT | (uint64_t)(at - own);
        }
    }
    return SHM_NOWHERE;
}

char *shm_decode(const shm_comm *comm, uint32_t rank, uint64_t code)
{
    const shm_comm *owner = comm;
    for (uint64_t depth = code >> DEPTH_SHIFT; depth > 0; --depth) {
        owner = owner->parent;
    }
    const uint32_t index = owner->index_of[comm->world_rank[rank]];
    return owner->region.base + owner->region.stride * index +
           (code & ((UINT64_C(1) << DEPTH_SHIFT) - 1));
}

/* The announced addresses of a rank: of all `in`, then (push) of all `out`. */
static const uint64_t *table_of(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    const void *beside = shm_block_of(comm, rank)->beside[op->number % SHM_SLOTS];
    return (const uint64_t *)beside + shm_table_begin(comm, &op->call);
}

size_t shm_table_begin(const shm_comm *comm, const dsi_comm_call *call)
{
    return call->kind == DS_COMM_ALL_TO_ALL ? (size_t)comm->head.size * (call->n_parts + 1) : 0;
}

/* A piece of work that threads share: elements [begin, end) of a stream, cut into tasks. */
typedef struct place_work {
    shm_comm *comm;
    const shm_op *op;
    const dsi_comm_part *part;
    uint32_t index;
    dsi_span span; /* of the part */
    size_t per_task;
} place_work;

static void reduce_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const place_work *w = arg;
    const shm_comm *comm = w->comm;
    const dsi_comm_call *call = &w->op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                comm->head.size};
    const size_t first = w->per_task * task;
    const size_t n = w->span.count - first < w->per_task ? w->span.count - first : w->per_task;
    const size_t begin = (w->span.begin + first) * width;
    const void *ins[DSI_SHM_MAX_RANKS];
    void *outs[DSI_SHM_MAX_RANKS];
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        ins[r] = shm_decode(comm, r, table_of(comm, w->op, r)[w->index]) + begin;
    }
    if (!w->op->push) {
        const size_t skipped = call->kind == DS_COMM_REDUCE_SCATTER ? w->span.begin * width : 0;
        outs[0] = (char *)w->part->out + (begin - skipped);
        const bool own_place = outs[0] == ins[comm->head.rank];
        (w->span.count * width >= SHM_STREAM_SUMS_FROM && !own_place
             ? dsi_reduce_stream
             : dsi_reduce_to)(&job, ins, outs, 1, n);
        return;
    }
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const uint32_t turn = (comm->head.rank + r) % comm->head.size; /* the own one first */
        const uint64_t code = table_of(comm, w->op, turn)[call->n_parts + w->index];
        outs[r] = shm_decode(comm, turn, code) + begin;
    }
    const bool in_place = outs[0] == ins[comm->head.rank]; /* lines that are read anyway */
    (w->span.count * width >= SHM_STREAM_SUMS_FROM && !in_place
         ? dsi_reduce_stream
         : dsi_reduce_to)(&job, ins, outs, comm->head.size, n);
}

static void run(place_work *work)
{
    const size_t n = work->span.count;
    const uint32_t n_threads = dsi_pool_n_threads(work->comm->head.pool);
    if (n == 0) {
        return;
    }
    work->per_task = n;
    if (n_threads > 1 && n >= 65536) {
        const size_t share = (n + n_threads - 1) / n_threads;
        work->per_task = (share + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN;
        const uint32_t n_tasks = (uint32_t)((n + work->per_task - 1) / work->per_task);
        dsi_pool_run(work->comm->head.pool, reduce_task, work, n_tasks);
        return;
    }
    reduce_task(work, 0, 0);
}

/* This rank's share of the bucket: an even cut of all elements. */
static void all_reduce(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t total = shm_stream_length(call, comm->head.size, shm_part_length);
    size_t share = (total + comm->head.size - 1) / comm->head.size;
    share = (share + SHARE_ALIGN - 1) / SHARE_ALIGN * SHARE_ALIGN;
    size_t begin = op->push ? share * comm->head.rank : 0;
    const size_t end = op->push && begin + share < total ? begin + share : total;
    uint32_t part = 0;
    size_t base = 0;
    while (begin < end) {
        const shm_segment s = shm_next_segment(call, comm->head.size, shm_part_length, &part, &base,
                                               begin, end - begin);
        place_work work = {.comm = comm,
                           .op = op,
                           .part = &call->parts[s.part],
                           .index = s.part,
                           .span = {s.offset, s.count}};
        run(&work);
        begin += s.count;
    }
}

static void reduce_scatter(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const dsi_span span = dsi_span_of(part->count, comm->head.rank, comm->head.size);
        place_work work = {.comm = comm, .op = op, .part = part, .index = i, .span = span};
        run(&work);
        const size_t padding = dsi_comm_slice(part->count, comm->head.size) - span.count;
        memset((char *)part->out + span.count * width, 0, padding * width);
    }
}

static void all_gather(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        for (uint32_t turn = 0; turn < comm->head.size; ++turn) {
            const uint32_t r = (comm->head.rank + turn) % comm->head.size;
            const dsi_span span = dsi_span_of(part->count, r, comm->head.size);
            if (span.count == 0) {
                continue;
            }
            const char *from = shm_decode(comm, r, table_of(comm, op, r)[i]);
            shm_copy(comm->head.pool, (char *)part->out + span.begin * width, from,
                     span.count * width);
        }
    }
}

static void all_to_all(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = comm->head.size;
    const size_t width = ds_dtype_bytes(call->dtype);
    const uint32_t slot = (uint32_t)(op->number % SHM_SLOTS);
    for (uint32_t r = 0; r < size; ++r) {
        const uint64_t *table = (const uint64_t *)(const void *)shm_block_of(comm, r)->beside[slot];
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            const dsi_comm_part *part = &call->parts[i];
            const uint64_t *counts = table + size * (i + 1);
            size_t from = 0;
            size_t to = 0;
            for (uint32_t b = 0; b < comm->head.rank; ++b) {
                from += counts[b];
            }
            for (uint32_t b = 0; b < r; ++b) {
                to += part->counts_out[b];
            }
            if (part->counts_out[r] > 0) {
                shm_copy(comm->head.pool, (char *)part->out + to * width,
                         shm_decode(comm, r, table_of(comm, op, r)[i]) + from * width,
                         part->counts_out[r] * width);
            }
        }
    }
}

static void broadcast(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        if (part->count > 0) {
            shm_copy(comm->head.pool, part->out,
                     shm_decode(comm, call->peer, table_of(comm, op, call->peer)[i]),
                     part->count * ds_dtype_bytes(call->dtype));
        }
    }
}

void shm_place_work(shm_comm *comm, shm_op *op)
{
    switch (op->call.kind) {
    case DS_COMM_ALL_REDUCE:
        all_reduce(comm, op);
        break;
    case DS_COMM_REDUCE_SCATTER:
        reduce_scatter(comm, op);
        break;
    case DS_COMM_ALL_GATHER:
        all_gather(comm, op);
        break;
    case DS_COMM_ALL_TO_ALL:
        all_to_all(comm, op);
        break;
    default:
        broadcast(comm, op);
        break;
    }
}
