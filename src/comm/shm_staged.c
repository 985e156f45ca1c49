/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives whose operands lie in private memory: chunks through staging buffers.
 *
 * Each chunk is put (copied into the own staging buffer), for an all-reduce summed (each rank its
 * share, into its second buffer), and got (copied out, or summed into `out`). A rank puts a chunk
 * ahead of the one that it gets, so that ranks overlap. What a rank needs of its own data it takes
 * from `in`.
 *
 *   ALL_REDUCE, BROADCAST       the stream is the parts one after another
 *   REDUCE_SCATTER, ALL_GATHER  the stream is the slices of the parts one after another; a chunk is
 *                               a piece of it for each rank
 *   ALL_TO_ALL                  a stream for each pair of ranks
 */
#include "comm/shm_copy.h"
#include "comm/shm_impl.h"
#include <string.h>

enum { ROUND = 32 /* elements: shares of a chunk begin at a line */ };

typedef struct share {
    size_t begin, count;
} share;

static size_t width_of(const shm_op *op)
{
    return ds_dtype_bytes(op->call.dtype);
}

/* Stream positions of chunk k of the call. */
static share chunk_of(const shm_op *op, uint64_t k)
{
    const size_t begin = (size_t)k * op->chunk_elements;
    const size_t left = begin < op->total ? op->total - begin : 0;
    return (share){begin, left < op->chunk_elements ? left : op->chunk_elements};
}

/* A rank's share of the n elements of a chunk of an all-reduce. */
static share share_of(size_t n, uint32_t rank, uint32_t size)
{
    size_t most = (n + size - 1) / size;
    most = (most + ROUND - 1) / ROUND * ROUND;
    const size_t begin = most * rank < n ? most * rank : n;
    return (share){begin, n - begin < most ? n - begin : most};
}

static unsigned char *stage_in(const shm_comm *comm, uint32_t rank, uint64_t chunk)
{
    return shm_block_of(comm, rank)->stage_in[chunk % 2];
}

static unsigned char *stage_out(const shm_comm *comm, uint32_t rank, uint64_t chunk)
{
    return shm_block_of(comm, rank)->stage_out[chunk % 2];
}

static const uint64_t *totals_of(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    const void *beside = shm_block_of(comm, rank)->beside[op->number % SHM_SLOTS];
    return beside;
}

void shm_staged_begin(shm_comm *comm, shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = comm->head.size;
    const size_t room = SHM_CHUNK / width_of(op);
    const bool whole = call->kind == DS_COMM_ALL_REDUCE || call->kind == DS_COMM_BROADCAST;
    const bool gather = call->kind == DS_COMM_ALL_GATHER;
    op->chunk_elements = whole || gather ? room : room / size / ROUND * ROUND;
    if (call->kind == DS_COMM_ALL_TO_ALL) {
        op->total = 0;
        for (uint32_t a = 0; a < size; ++a) {
            for (uint32_t b = 0; b < size; ++b) {
                const size_t n = totals_of(comm, op, a)[b];
                op->total = n > op->total ? n : op->total;
            }
        }
    } else {
        op->total = shm_stream_length(call, size, whole ? shm_part_length : shm_slice_length);
    }
    if (call->kind == DS_COMM_ALL_REDUCE && op->total < 2 * room) {
        /* two chunks at least, so that copying and summing overlap */
        const size_t half = (op->total + 1) / 2;
        op->chunk_elements = (half + ROUND - 1) / ROUND * ROUND;
    }
    op->n_chunks = (op->total + op->chunk_elements - 1) / op->chunk_elements;
    op->first_chunk = comm->n_chunks;
    comm->n_chunks += op->n_chunks;
    op->put = op->summed = op->got = 0;
    memset(op->cursor_part, 0, sizeof op->cursor_part);
    memset(op->cursor_base, 0, sizeof op->cursor_base);
}

/* Walks the stream positions of s with cursor `c`. */
#define FOR_SEGMENTS(segment, length, c, s)                                                        \
    for (shm_segment segment = {0, 0, 0};                                                          \
         (s).count > 0 &&                                                                          \
         (segment = shm_next_segment(&op->call, comm->head.size, length, &op->cursor_part[c],      \
                                     &op->cursor_base[c], (s).begin, (s).count),                   \
         true);                                                                                    \
         (s).begin += segment.count, (s).count -= segment.count)

static void put_whole(shm_comm *comm, shm_op *op, share s, unsigned char *to)
{
    const size_t width = width_of(op);
    const bool skip = op->call.kind == DS_COMM_ALL_REDUCE;
    const size_t first = s.begin;
    const share own = share_of(s.count, comm->head.rank, comm->head.size);
    if (op->call.kind == DS_COMM_BROADCAST && op->call.peer != comm->head.rank) {
        return;
    }
    FOR_SEGMENTS(piece, shm_part_length, 0, s)
    {
        const char *from = (const char *)op->call.parts[piece.part].in + piece.offset * width;
        const size_t at = s.begin - first; /* the own share stays out: nobody reads it here */
        const size_t end = at + piece.count;
        const size_t hole = skip ? (own.begin < at ? at : own.begin) : end;
        const size_t hole_end = own.begin + own.count;
        if (!skip || hole >= end || hole_end <= at) {
            memcpy(to + at * width, from, piece.count * width);
            continue;
        }
        memcpy(to + at * width, from, (hole - at) * width);
        if (hole_end < end) {
            memcpy(to + hole_end * width, from + (hole_end - at) * width, (end - hole_end) * width);
        }
    }
}

static void put_slices(shm_comm *comm, shm_op *op, share s, unsigned char *to)
{
    const size_t width = width_of(op);
    const uint32_t size = comm->head.size;
    const bool gather = op->call.kind == DS_COMM_ALL_GATHER;
    const size_t first = s.begin;
    FOR_SEGMENTS(piece, shm_slice_length, 0, s)
    {
        const dsi_comm_part *part = &op->call.parts[piece.part];
        for (uint32_t r = 0; r < size; ++r) {
            if ((r == comm->head.rank) != gather) {
                continue;
            }
            const dsi_span span = dsi_span_of(part->count, r, size);
            const size_t valid = piece.offset < span.count ? span.count - piece.offset : 0;
            const size_t n = valid < piece.count ? valid : piece.count;
            const size_t from = (gather ? 0 : span.begin) + piece.offset;
            const size_t at = (gather ? 0 : r * op->chunk_elements) + (s.begin - first);
            if (n > 0) {
                memcpy(to + at * width, (const char *)part->in + from * width, n * width);
            }
        }
    }
}

/* Elements [s.begin, s.begin + s.count) of what this rank has for rank `to`, or, when `out`, of
 * what it gets from that rank. */
static void exchange_piece(const shm_comm *comm, const shm_op *op, share s, uint32_t other,
                           bool out, unsigned char *stage)
{
    const size_t width = width_of(op);
    size_t base = 0;
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        const dsi_comm_part *part = &op->call.parts[i];
        const size_t *counts = out ? part->counts_out : part->counts_in;
        const size_t n = counts[other];
        const size_t begin = s.begin > base ? s.begin : base;
        const size_t end = s.begin + s.count < base + n ? s.begin + s.count : base + n;
        if (begin < end) {
            size_t before = 0;
            for (uint32_t r = 0; r < other; ++r) {
                before += counts[r];
            }
            unsigned char *staged = stage + (begin - s.begin) * width;
            const size_t at = (before + begin - base) * width;
            if (out) {
                memcpy((char *)part->out + at, staged, (end - begin) * width);
            } else {
                memcpy(staged, (const char *)part->in + at, (end - begin) * width);
            }
        }
        base += n;
    }
    (void)comm;
}

static void put(shm_comm *comm, shm_op *op)
{
    const uint64_t chunk = op->first_chunk + op->put;
    const share s = chunk_of(op, op->put);
    unsigned char *to = stage_in(comm, comm->head.rank, chunk);
    switch (op->call.kind) {
    case DS_COMM_ALL_REDUCE:
    case DS_COMM_BROADCAST:
        put_whole(comm, op, s, to);
        break;
    case DS_COMM_ALL_TO_ALL:
        for (uint32_t r = 0; r < comm->head.size; ++r) {
            exchange_piece(comm, op, s, r, false, to + r * op->chunk_elements * width_of(op));
        }
        break;
    default:
        put_slices(comm, op, s, to);
        break;
    }
    ++op->put;
    atomic_store(&shm_own(comm)->put.value, chunk + 1);
    shm_ring_all(comm);
}

/* The own share of a chunk of an all-reduce: to `out` and to the second buffer. */
static void sum(shm_comm *comm, shm_op *op)
{
    const uint64_t chunk = op->first_chunk + op->summed;
    const size_t width = width_of(op);
    const dsi_comm_call *call = &op->call;
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                comm->head.size};
    const share all = chunk_of(op, op->summed);
    share own = share_of(all.count, comm->head.rank, comm->head.size);
    const size_t first = own.begin;
    share s = {all.begin + own.begin, own.count};
    unsigned char *to = stage_out(comm, comm->head.rank, chunk);
    const void *ins[DSI_SHM_MAX_RANKS];
    FOR_SEGMENTS(piece, shm_part_length, 1, s)
    {
        const dsi_comm_part *part = &call->parts[piece.part];
        const size_t at = s.begin - all.begin;
        for (uint32_t r = 0; r < comm->head.size; ++r) {
            ins[r] = r == comm->head.rank ? (const unsigned char *)part->in + piece.offset * width
                                          : stage_in(comm, r, chunk) + at * width;
        }
        void *outs[2] = {to + (at - first) * width, (char *)part->out + piece.offset * width};
        dsi_reduce_to(&job, ins, outs, 2, piece.count);
    }
    ++op->summed;
    atomic_store(&shm_own(comm)->summed.value, chunk + 1);
    shm_ring_all(comm);
}

static void get_whole(shm_comm *comm, shm_op *op, uint64_t chunk, share s)
{
    const size_t width = width_of(op);
    const share all = s;
    const bool reduced = op->call.kind == DS_COMM_ALL_REDUCE;
    if (!reduced && op->call.peer == comm->head.rank) {
        FOR_SEGMENTS(piece, shm_part_length, 2, s)
        {
            const dsi_comm_part *part = &op->call.parts[piece.part];
            if (part->in != part->out) {
                memcpy((char *)part->out + piece.offset * width,
                       (const char *)part->in + piece.offset * width, piece.count * width);
            }
        }
        return;
    }
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        if (reduced ? r == comm->head.rank : r != op->call.peer) {
            continue;
        }
        share part_of = reduced ? share_of(all.count, r, comm->head.size) : (share){0, all.count};
        const size_t first = part_of.begin;
        part_of.begin += all.begin;
        const unsigned char *from = reduced ? stage_out(comm, r, chunk) : stage_in(comm, r, chunk);
        FOR_SEGMENTS(piece, shm_part_length, 2, part_of)
        {
            memcpy((char *)op->call.parts[piece.part].out + piece.offset * width,
                   from + (part_of.begin - all.begin - first) * width, piece.count * width);
        }
    }
}

static void get_slices(shm_comm *comm, shm_op *op, uint64_t chunk, share s)
{
    const size_t width = width_of(op);
    const uint32_t size = comm->head.size;
    const dsi_comm_call *call = &op->call;
    const bool gather = call->kind == DS_COMM_ALL_GATHER;
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor, size};
    const void *ins[DSI_SHM_MAX_RANKS];
    const size_t first = s.begin;
    FOR_SEGMENTS(piece, shm_slice_length, 2, s)
    {
        const dsi_comm_part *part = &call->parts[piece.part];
        const size_t at = s.begin - first;
        for (uint32_t r = 0; r < size; ++r) {
            const dsi_span span = dsi_span_of(part->count, r, size);
            const size_t valid = piece.offset < span.count ? span.count - piece.offset : 0;
            const size_t n = valid < piece.count ? valid : piece.count;
            char *out = (char *)part->out + (span.begin + piece.offset) * width;
            const char *own = (const char *)part->in + piece.offset * width;
            if (gather && n > 0 && (r != comm->head.rank || own != out)) {
                memmove(out,
                        r == comm->head.rank
                            ? (const void *)own
                            : (const void *)(stage_in(comm, r, chunk) + at * width),
                        n * width);
            }
        }
        if (gather) {
            continue;
        }
        const dsi_span span = dsi_span_of(part->count, comm->head.rank, size);
        const size_t valid = piece.offset < span.count ? span.count - piece.offset : 0;
        const size_t n = valid < piece.count ? valid : piece.count;
        for (uint32_t r = 0; r < size; ++r) {
            ins[r] = r == comm->head.rank
                         ? (const unsigned char *)part->in + (span.begin + piece.offset) * width
                         : stage_in(comm, r, chunk) +
                               (comm->head.rank * op->chunk_elements + at) * width;
        }
        if (n > 0) {
            dsi_reduce(&job, ins, (char *)part->out + piece.offset * width, n);
        }
        memset((char *)part->out + (piece.offset + n) * width, 0, (piece.count - n) * width);
    }
}

static void get(shm_comm *comm, shm_op *op)
{
    const uint64_t chunk = op->first_chunk + op->got;
    const share s = chunk_of(op, op->got);
    shm_block *own = shm_own(comm);
    switch (op->call.kind) {
    case DS_COMM_ALL_REDUCE:
    case DS_COMM_BROADCAST:
        get_whole(comm, op, chunk, s);
        break;
    case DS_COMM_ALL_TO_ALL:
        for (uint32_t r = 0; r < comm->head.size; ++r) {
            unsigned char *from = stage_in(comm, r, chunk);
            exchange_piece(comm, op, s, r, true,
                           from + comm->head.rank * op->chunk_elements * width_of(op));
        }
        break;
    default:
        get_slices(comm, op, chunk, s);
        break;
    }
    ++op->got;
    if (op->call.kind != DS_COMM_ALL_REDUCE) { /* there it may be a chunk ahead */
        atomic_store_explicit(&own->summed.value, chunk + 1, memory_order_release);
    }
    atomic_store(&own->got.value, chunk + 1);
    shm_ring_all(comm);
}

/* Whether the counter at this offset of every other rank's block is at least `count`. */
static bool all_have(const shm_comm *comm, size_t counter, uint64_t count)
{
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const shm_counter *c =
            (const shm_counter *)(const void *)((const char *)shm_block_of(comm, r) + counter);
        if (r != comm->head.rank && atomic_load(&c->value) < count) {
            return false;
        }
    }
    return true;
}

bool shm_staged_work(shm_comm *comm, shm_op *op, bool *finished_out)
{
    bool moved = false;
    const bool reduced = op->call.kind == DS_COMM_ALL_REDUCE;
    for (bool again = true; again;) {
        again = false;
        const uint64_t next = op->first_chunk + op->put;
        if (op->put < op->n_chunks && op->put < op->got + 2 &&
            (next < 2 || all_have(comm, offsetof(shm_block, got), next - 1))) {
            put(comm, op);
            again = true;
        }
        if (reduced && op->summed < op->put &&
            all_have(comm, offsetof(shm_block, put), op->first_chunk + op->summed + 1)) {
            sum(comm, op);
            again = true;
        }
        const size_t needed = reduced ? offsetof(shm_block, summed) : offsetof(shm_block, put);
        if (op->got < (reduced ? op->summed : op->put) &&
            all_have(comm, needed, op->first_chunk + op->got + 1)) {
            get(comm, op);
            again = true;
        }
        moved = moved || again;
    }
    *finished_out = op->got == op->n_chunks;
    return moved;
}
