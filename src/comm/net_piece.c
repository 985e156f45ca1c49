/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a call go to which rank, and come from it, in each phase; and the local work.
 *
 * Reductions: every rank gets the contributions to its slice, adds them in the canonical order
 * (reduce.h), and in the second phase of an all-reduce sends the result to all. A long broadcast
 * deals out slices first, which all pass on then. Called by net_op.c.
 */
#include "comm/net_impl.h"

#include "comm/reduce.h"
#include <string.h>

static size_t before(const size_t *counts, uint32_t rank)
{
    size_t sum = 0;
    for (uint32_t r = 0; r < rank; ++r) {
        sum += counts[r];
    }
    return sum;
}

static net_piece piece(const void *at, size_t begin, size_t count, size_t width)
{
    /* Of a send the data is only read. */
    const uintptr_t place = (uintptr_t)at + begin * width;
    return (net_piece){count > 0 ? (char *)place : NULL, count * width};
}

bool net_is_sliced(const net_group *group, const dsi_comm_call *call)
{
    if (call->kind != DS_COMM_ALL_REDUCE && call->kind != DS_COMM_BROADCAST) {
        return false;
    }
    size_t bytes = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        bytes += call->parts[i].count * ds_dtype_bytes(call->dtype);
    }
    if (group->head.size == 2) {
        return call->kind == DS_COMM_ALL_REDUCE && bytes > NET_DIRECT_BYTES;
    }
    return bytes > NET_INLINE;
}

net_piece net_send_piece(const net_group *group, const net_op *op, uint32_t peer, uint32_t index)
{
    const dsi_comm_call *call = &op->call;
    const dsi_comm_part *part = &call->parts[index];
    const uint32_t size = group->head.size;
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_span own = dsi_span_of(part->count, group->head.rank, size);
    const dsi_span theirs = dsi_span_of(part->count, peer, size);
    const bool root = call->peer == group->head.rank;
    const net_piece none = {NULL, 0};
    switch (call->kind) {
    case DS_COMM_ALL_REDUCE:
        if (op->phase == NET_SECOND) {
            return piece(part->out, own.begin, own.count, width);
        }
        return op->sliced ? piece(part->in, theirs.begin, theirs.count, width)
                          : piece(part->in, 0, part->count, width);
    case DS_COMM_REDUCE_SCATTER:
        return piece(part->in, theirs.begin, theirs.count, width);
    case DS_COMM_ALL_GATHER:
        return piece(part->in, 0, own.count, width);
    case DS_COMM_BROADCAST:
        if (op->phase == NET_SECOND) {
            return peer == call->peer
                       ? none
                       : piece(root ? part->in : part->out, own.begin, own.count, width);
        }
        if (!root) {
            return none;
        }
        return op->sliced ? piece(part->in, theirs.begin, theirs.count, width)
                          : piece(part->in, 0, part->count, width);
    case DS_COMM_ALL_TO_ALL:
        return piece(part->in, before(part->counts_in, peer), part->counts_in[peer], width);
    case DS_COMM_SEND:
        return piece(part->in, 0, part->count, width);
    default:
        return none;
    }
}

net_piece net_recv_piece(const net_group *group, const net_op *op, uint32_t peer, uint32_t index)
{
    const dsi_comm_call *call = &op->call;
    const dsi_comm_part *part = &call->parts[index];
    const uint32_t size = group->head.size;
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_span own = dsi_span_of(part->count, group->head.rank, size);
    const dsi_span theirs = dsi_span_of(part->count, peer, size);
    const net_piece none = {NULL, 0};
    switch (call->kind) {
    case DS_COMM_ALL_REDUCE:
        if (op->phase == NET_SECOND) {
            return piece(part->out, theirs.begin, theirs.count, width);
        }
        return (net_piece){NULL, (op->sliced ? own.count : part->count) * width};
    case DS_COMM_REDUCE_SCATTER:
        return (net_piece){NULL, own.count * width};
    case DS_COMM_ALL_GATHER:
        return piece(part->out, theirs.begin, theirs.count, width);
    case DS_COMM_BROADCAST:
        if (call->peer == group->head.rank) {
            return none;
        }
        if (op->phase == NET_SECOND) {
            return piece(part->out, theirs.begin, theirs.count, width);
        }
        if (peer != call->peer) {
            return none;
        }
        return op->sliced ? piece(part->out, own.begin, own.count, width)
                          : piece(part->out, 0, part->count, width);
    case DS_COMM_ALL_TO_ALL:
        return piece(part->out, before(part->counts_out, peer), part->counts_out[peer], width);
    case DS_COMM_RECV:
        return piece(part->out, 0, part->count, width);
    default:
        return none;
    }
}

size_t net_send_bytes(const net_group *group, const net_op *op, uint32_t peer)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        bytes += net_send_piece(group, op, peer, i).bytes;
    }
    return bytes;
}

size_t net_recv_bytes(const net_group *group, const net_op *op, uint32_t peer)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        bytes += net_recv_piece(group, op, peer, i).bytes;
    }
    return bytes;
}

/* The reduction of part `index`; `offset` bytes into what each peer sent. */
static void reduce_part(const net_group *group, net_op *op, uint32_t index, size_t offset)
{
    const dsi_comm_call *call = &op->call;
    const dsi_comm_part *part = &call->parts[index];
    const uint32_t size = group->head.size;
    const uint32_t rank = group->head.rank;
    const size_t width = ds_dtype_bytes(call->dtype);
    const bool scatter = call->kind == DS_COMM_REDUCE_SCATTER;
    const dsi_span own =
        scatter || op->sliced ? dsi_span_of(part->count, rank, size) : (dsi_span){0, part->count};
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor, size};
    for (uint32_t r = 0; r < size; ++r) {
        op->inputs[r] = r == rank ? (const void *)((const char *)part->in + own.begin * width)
                                  : (const void *)(op->base[r] + offset);
    }
    char *out = (char *)part->out + (scatter ? 0 : own.begin * width);
    if (own.count > 0) {
        dsi_reduce(&job, op->inputs, out, own.count);
    }
    if (scatter) {
        const size_t padding = dsi_comm_slice(part->count, size) - own.count;
        if (padding > 0) {
            memset(out + own.count * width, 0, padding * width);
        }
    }
}

/* What this rank gives to itself. */
static void copy_own(const net_group *group, const net_op *op, const dsi_comm_part *part)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const uint32_t rank = group->head.rank;
    const char *from = part->in;
    char *to = part->out;
    size_t n = 0;
    if (call->kind == DS_COMM_ALL_GATHER) {
        const dsi_span own = dsi_span_of(part->count, rank, group->head.size);
        to += own.begin * width;
        n = own.count;
    } else if (call->kind == DS_COMM_BROADCAST && call->peer == rank) {
        n = part->count;
    } else if (call->kind == DS_COMM_ALL_TO_ALL) {
        from += before(part->counts_in, rank) * width;
        to += before(part->counts_out, rank) * width;
        n = part->counts_out[rank];
    }
    if (n > 0 && from != to) {
        memmove(to, from, n * width);
    }
}

/* Puts what came in a row to its places. */
static void unpack(const net_group *group, const net_op *op, uint32_t peer)
{
    const char *from = op->base[peer];
    for (uint32_t i = 0; i < op->call.n_parts && from != NULL; ++i) {
        const net_piece to = net_recv_piece(group, op, peer, i);
        if (to.bytes > 0) {
            memcpy(to.at, from, to.bytes);
            from += to.bytes;
        }
    }
}

void net_finish_phase(const net_group *group, net_op *op)
{
    if (dsi_coll_reduces(op->call.kind) && op->phase == NET_FIRST) {
        size_t offset = 0;
        const uint32_t other = group->head.rank == 0 ? 1 : 0;
        for (uint32_t i = 0; i < op->call.n_parts; ++i) {
            const size_t bytes = net_recv_piece(group, op, other, i).bytes;
            reduce_part(group, op, i, offset);
            offset += bytes;
        }
        return;
    }
    for (uint32_t r = 0; r < group->head.size; ++r) {
        if (r != group->head.rank && op->base[r] != NULL) {
            unpack(group, op, r);
        }
    }
    for (uint32_t i = 0; i < op->call.n_parts && op->phase == NET_FIRST; ++i) {
        copy_own(group, op, &op->call.parts[i]);
    }
}
