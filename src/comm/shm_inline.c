/* SPDX-License-Identifier: Apache-2.0 */
/* Small collectives: the operands travel beside the announcements, and every rank computes what it
 * needs from those of all. One synchronisation. */
#include "comm/shm_impl.h"
#include <string.h>

static const unsigned char *data_of(const shm_comm *comm, const shm_op *op, uint32_t rank)
{
    const shm_block *block = shm_block_of(comm, rank);
    const uint32_t slot = (uint32_t)(op->number % SHM_SLOTS);
    return op->total <= SHM_TINY && op->call.kind != DS_COMM_ALL_TO_ALL ? block->slots[slot].tiny
                                                                        : block->beside[slot];
}

static void write_exchange(const shm_comm *comm, const dsi_comm_call *call, unsigned char *to)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            const dsi_comm_part *part = &call->parts[i];
            size_t begin = 0;
            for (uint32_t b = 0; b < r; ++b) {
                begin += part->counts_in[b];
            }
            if (part->counts_in[r] > 0) {
                memcpy(to, (const char *)part->in + begin * width, part->counts_in[r] * width);
                to += part->counts_in[r] * width;
            }
        }
    }
}

void shm_inline_write(const shm_comm *comm, const shm_op *op, unsigned char *to)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    if (call->kind == DS_COMM_ALL_TO_ALL) {
        write_exchange(comm, call, to);
        return;
    }
    if (call->kind == DS_COMM_BROADCAST && call->peer != comm->head.rank) {
        return;
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const size_t n = dsi_part_in_count(call, part, comm->head.rank, comm->head.size);
        if (n > 0) {
            memcpy(to, part->in, n * width);
        }
        to +=
            width * (call->kind == DS_COMM_ALL_GATHER ? dsi_comm_slice(part->count, comm->head.size)
                                                      : part->count);
    }
}

static void reduce_parts(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                comm->head.size};
    const void *ins[DSI_SHM_MAX_RANKS];
    size_t base = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const bool scatter = call->kind == DS_COMM_REDUCE_SCATTER;
        const dsi_span span = scatter ? dsi_span_of(part->count, comm->head.rank, comm->head.size)
                                      : (dsi_span){0, part->count};
        for (uint32_t r = 0; r < comm->head.size; ++r) {
            ins[r] = data_of(comm, op, r) + (base + span.begin) * width;
        }
        if (span.count > 0) {
            dsi_reduce(&job, ins, part->out, span.count);
        }
        if (scatter) {
            const size_t padding = dsi_comm_slice(part->count, comm->head.size) - span.count;
            memset((char *)part->out + span.count * width, 0, padding * width);
        }
        base += part->count;
    }
}

static void copy_parts(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const bool gather = call->kind == DS_COMM_ALL_GATHER;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const unsigned char *from = data_of(comm, op, r);
        if (!gather && r != call->peer) {
            continue;
        }
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            const dsi_comm_part *part = &call->parts[i];
            const dsi_span span =
                gather ? dsi_span_of(part->count, r, comm->head.size) : (dsi_span){0, part->count};
            if (span.count > 0) {
                memcpy((char *)part->out + span.begin * width, from, span.count * width);
            }
            from += width * (gather ? dsi_comm_slice(part->count, comm->head.size) : part->count);
        }
    }
}

/* The data of each rank begins after its totals and tables; what is for a rank, after what is for
 * the ranks before it. */
static void exchange_parts(shm_comm *comm, const shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const unsigned char *beside = data_of(comm, op, r);
        const unsigned char *from = beside + op->data_begin;
        for (uint32_t b = 0; b < comm->head.rank; ++b) {
            from += ((const uint64_t *)(const void *)beside)[b] * width;
        }
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            const dsi_comm_part *part = &call->parts[i];
            size_t begin = 0;
            for (uint32_t b = 0; b < r; ++b) {
                begin += part->counts_out[b];
            }
            if (part->counts_out[r] > 0) {
                memcpy((char *)part->out + begin * width, from, part->counts_out[r] * width);
                from += part->counts_out[r] * width;
            }
        }
    }
}

void shm_inline_work(shm_comm *comm, shm_op *op)
{
    if (op->call.kind == DS_COMM_ALL_TO_ALL) {
        exchange_parts(comm, op);
    } else if (dsi_coll_reduces(op->call.kind)) {
        reduce_parts(comm, op);
    } else {
        copy_parts(comm, op);
    }
}
