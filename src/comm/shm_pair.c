/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between two ranks: a channel for each direction, messages in order.
 *
 * A small message travels with its announcement, one in symmetric memory is read where it lies, a
 * large one in private memory is pulled if the system allows it, any other goes through the two
 * chunks of the channel.
 */
#include "base/clock.h"
#include "comm/shm_copy.h"
#include "comm/shm_impl.h"
#include <string.h>

static shm_channel *channel_of(const shm_comm *comm, uint32_t from, uint32_t to)
{
    return &shm_block_of(comm, from)->channels[to];
}

ds_status shm_pair_start(shm_comm *comm, const dsi_comm_call *call, uint64_t *number_out)
{
    uint64_t number = comm->n_pairs + 1;
    while (comm->pairs[number % SHM_OPS].number != 0 && number < comm->n_pairs + SHM_OPS) {
        ++number; /* an older message is in this place still */
    }
    shm_pair_op *op = &comm->pairs[number % SHM_OPS];
    if (op->number != 0) {
        return ds_fail(comm->head.ctx, DS_ERR_LIMIT, "%d messages are started and not waited for",
                       SHM_OPS);
    }
    struct shm_traffic *traffic = &comm->traffic[call->peer];
    *op = (shm_pair_op){.call = *call,
                        .digest = dsi_call_digest(call),
                        .total = shm_stream_length(call, comm->head.size, shm_part_length),
                        .begin = dsi_clock_seconds()};
    op->number = call->kind == DS_COMM_SEND ? ++traffic->n_sent : ++traffic->n_received;
    dsi_call_describe(call, comm->head.sequence, &shm_own(comm)->last_pair);
    comm->n_pairs = number;
    *number_out = number;
    return DS_OK;
}

static void finish(shm_pair_op *op)
{
    op->complete = true;
    op->end = dsi_clock_seconds();
}

/* The bytes of all parts, or (false: none of it) their addresses in symmetric memory. */
static bool write_addresses(const shm_comm *comm, const dsi_comm_call *call, uint64_t *to)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    if (!call->symmetric || call->n_parts > SHM_INLINE / sizeof *to) {
        return false;
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        to[i] = part->count > 0 ? shm_encode(comm, part->in, part->count * width) : 0;
        if (to[i] == SHM_NOWHERE) {
            return false;
        }
    }
    return true;
}

static void post(shm_comm *comm, shm_pair_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    shm_channel *channel = channel_of(comm, comm->head.rank, call->peer);
    shm_message *message = &channel->messages[op->number % SHM_MESSAGES];
    message->digest = op->digest;
    message->when = op->begin;
    dsi_call_describe(call, comm->head.sequence, &message->info);
    if (op->total * width <= SHM_INLINE) {
        op->mode = SHM_MODE_INLINE;
        unsigned char *to = op->total * width <= SHM_MESSAGE_TINY ? message->tiny : message->data;
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            if (call->parts[i].count > 0) {
                memcpy(to, call->parts[i].in, call->parts[i].count * width);
                to += call->parts[i].count * width;
            }
        }
        op->complete = true;
        op->end = op->begin; /* at once; the clock takes as long as all of this */
    } else {
        uint64_t *table = (uint64_t *)(void *)message->data;
        op->mode = write_addresses(comm, call, table) ? SHM_MODE_PLACE : SHM_MODE_STAGED;
        if (op->mode == SHM_MODE_STAGED && comm->scratch != NULL &&
            op->total * width >= SHM_PULL_FROM && call->n_parts <= SHM_INLINE / sizeof *table) {
            op->mode = SHM_MODE_PULL;
            shm_pull_write(comm, call, table);
        }
    }
    message->mode = (uint32_t)op->mode;
    op->posted = true;
    atomic_store(&message->posted, op->number);
    shm_ring(comm, call->peer);
}

static void copy_chunk(const shm_comm *comm, shm_pair_op *op, size_t n, unsigned char *chunk,
                       bool out)
{
    const size_t width = ds_dtype_bytes(op->call.dtype);
    for (size_t done = 0; done < n;) {
        const shm_segment s =
            shm_next_segment(&op->call, comm->head.size, shm_part_length, &op->cursor_part,
                             &op->cursor_base, op->moved + done, n - done);
        const dsi_comm_part *part = &op->call.parts[s.part];
        if (out) {
            memcpy((char *)part->out + s.offset * width, chunk + done * width, s.count * width);
        } else {
            memcpy(chunk + done * width, (const char *)part->in + s.offset * width,
                   s.count * width);
        }
        done += s.count;
    }
}

static size_t chunk_elements(const shm_pair_op *op)
{
    const size_t room = SHM_PAIR_CHUNK / ds_dtype_bytes(op->call.dtype);
    return op->total - op->moved < room ? op->total - op->moved : room;
}

/* Whether the receiver has taken so many messages. Its counter is looked at when it must be: the
 * look takes the line away from it. */
static bool has_taken(shm_channel *channel, struct shm_traffic *traffic, uint64_t count)
{
    if (traffic->known_taken < count) {
        traffic->known_taken = atomic_load(&channel->taken.value);
    }
    return traffic->known_taken >= count;
}

static bool send_progress(shm_comm *comm, shm_pair_op *op)
{
    bool moved = false;
    shm_channel *channel = channel_of(comm, comm->head.rank, op->call.peer);
    struct shm_traffic *traffic = &comm->traffic[op->call.peer];
    if (!op->posted && traffic->n_handed == op->number - 1 &&
        (op->number <= SHM_MESSAGES || has_taken(channel, traffic, op->number - SHM_MESSAGES))) {
        post(comm, op);
        traffic->n_handed += op->mode == SHM_MODE_STAGED ? 0 : 1;
        moved = true;
    }
    while (op->posted && !op->complete && op->mode == SHM_MODE_STAGED &&
           traffic->chunks_out < atomic_load(&channel->consumed.value) + 2) {
        const size_t n = chunk_elements(op);
        copy_chunk(comm, op, n, channel->chunks[traffic->chunks_out % 2], false);
        op->moved += n;
        atomic_store(&channel->produced.value, ++traffic->chunks_out);
        shm_ring(comm, op->call.peer);
        moved = true;
        if (op->moved == op->total) {
            ++traffic->n_handed;
            finish(op);
        }
    }
    if (op->posted && op->mode != SHM_MODE_STAGED && !op->complete &&
        has_taken(channel, traffic, op->number)) {
        finish(op);
        moved = true;
    }
    op->arrived = op->begin;
    return moved;
}

static void take_whole(shm_comm *comm, shm_pair_op *op, const shm_message *message)
{
    const size_t width = ds_dtype_bytes(op->call.dtype);
    const unsigned char *from = op->mode == SHM_MODE_INLINE && op->total * width <= SHM_MESSAGE_TINY
                                    ? message->tiny
                                    : message->data;
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        const dsi_comm_part *part = &op->call.parts[i];
        if (part->count == 0) {
            continue;
        }
        if (op->mode == SHM_MODE_PLACE) {
            const uint64_t code = ((const uint64_t *)(const void *)message->data)[i];
            shm_copy(comm->head.pool, part->out, shm_decode(comm, op->call.peer, code),
                     part->count * width);
        } else {
            memcpy(part->out, from, part->count * width);
            from += part->count * width;
        }
    }
    op->moved = op->total;
}

static ds_status receive_progress(shm_comm *comm, shm_pair_op *op, bool *moved)
{
    shm_channel *channel = channel_of(comm, op->call.peer, comm->head.rank);
    struct shm_traffic *traffic = &comm->traffic[op->call.peer];
    const shm_message *message = &channel->messages[op->number % SHM_MESSAGES];
    if (atomic_load(&channel->taken.value) != op->number - 1 ||
        atomic_load(&message->posted) != op->number) {
        return DS_OK;
    }
    if (message->digest != op->digest) {
        dsi_call_info mine;
        dsi_call_describe(&op->call, op->number, &mine);
        return shm_disagree(comm, &mine, op->call.peer, &message->info);
    }
    op->mode = (shm_mode)message->mode;
    op->arrived = message->when > op->begin ? message->when : op->begin;
    if (op->mode == SHM_MODE_PULL) {
        bool done = false;
        DS_TRY(shm_pull_message(comm, &op->call, (const uint64_t *)(const void *)message->data,
                                &done));
        op->moved = done ? op->total : 0;
        *moved = *moved || done;
        if (!done) {
            return DS_OK;
        }
    } else if (op->mode != SHM_MODE_STAGED) {
        take_whole(comm, op, message);
        *moved = true;
    }
    while (op->moved < op->total && atomic_load(&channel->produced.value) > traffic->chunks_in) {
        const size_t n = chunk_elements(op);
        copy_chunk(comm, op, n, channel->chunks[traffic->chunks_in % 2], true);
        op->moved += n;
        atomic_store(&channel->consumed.value, ++traffic->chunks_in);
        shm_ring(comm, op->call.peer);
        *moved = true;
    }
    if (op->moved == op->total) {
        atomic_store(&channel->taken.value, op->number);
        shm_ring(comm, op->call.peer);
        finish(op);
    }
    return DS_OK;
}

ds_status shm_pair_progress(shm_comm *comm, bool *moved)
{
    bool first = true;
    for (uint64_t n = comm->oldest_pair + 1; n <= comm->n_pairs; ++n) {
        shm_pair_op *op = &comm->pairs[n % SHM_OPS];
        const bool over = op->number == 0 || op->complete;
        if (over && first) {
            comm->oldest_pair = n;
            continue;
        }
        first = false;
        if (over) {
            continue;
        }
        if (op->call.kind == DS_COMM_SEND) {
            *moved = send_progress(comm, op) || *moved;
        } else {
            DS_TRY(receive_progress(comm, op, moved));
        }
    }
    return DS_OK;
}
