/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs and results of a simulated call: every rank computes its own from the copies of all. See
 * sim_impl.h. */
#include "comm/sim_impl.h"

#include "base/clock.h"
#include "comm/rank_names.h"
#include "comm/reduce.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ds_status sim_make_ready(sim_comm *sim, sim_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    size_t bytes = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        bytes += dsi_part_in_count(call, &call->parts[i], sim->head.rank, sim->head.size) * width;
    }
    if (bytes > op->copy_bytes) {
        free(op->copy);
        op->copy = malloc(bytes);
        op->copy_bytes = op->copy != NULL ? bytes : 0;
        if (op->copy == NULL) {
            return ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no %zu bytes for a simulated call", bytes);
        }
    }
    char *to = op->copy;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const size_t n = dsi_part_in_count(call, part, sim->head.rank, sim->head.size) * width;
        if (n > 0) {
            memcpy(to, part->in, n);
            to += n;
        }
    }
    op->state = SIM_READY;
    (void)pthread_cond_broadcast(&sim->world->moved);
    return DS_OK;
}

static sim_op *coll_of(const sim_world *world, uint32_t rank, uint64_t number)
{
    return &world->ranks[rank].coll[number % SIM_RING];
}

/* The data of rank `from` for rank `to` inside of a part of an all-to-all. */
static size_t before(const size_t *counts, uint32_t rank)
{
    size_t sum = 0;
    for (uint32_t r = 0; r < rank; ++r) {
        sum += counts[r];
    }
    return sum;
}

static void compute_reduction(const sim_comm *sim, const dsi_comm_call *call,
                              const dsi_comm_part *part, const char *const *ins)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                sim->head.size};
    const void *at[DSI_SIM_MAX_RANKS];
    const bool scatter = call->kind == DS_COMM_REDUCE_SCATTER;
    const dsi_span own = scatter ? dsi_span_of(part->count, sim->head.rank, sim->head.size)
                                 : (dsi_span){0, part->count};
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        at[r] = ins[r] + own.begin * width;
    }
    if (own.count > 0) {
        dsi_reduce(&job, at, part->out, own.count);
    }
    if (scatter) {
        const size_t padding = dsi_comm_slice(part->count, sim->head.size) - own.count;
        if (padding > 0) {
            memset((char *)part->out + own.count * width, 0, padding * width);
        }
    }
}

static void compute_part(const sim_comm *sim, const dsi_comm_call *call, const dsi_comm_part *part,
                         const size_t *const *theirs, const char *const *ins)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    char *out = part->out;
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        size_t from = 0;
        size_t n = 0;
        if (call->kind == DS_COMM_ALL_GATHER) {
            const dsi_span span = dsi_span_of(part->count, r, sim->head.size);
            n = span.count;
            out = (char *)part->out + span.begin * width;
        } else if (call->kind == DS_COMM_BROADCAST) {
            n = r == call->peer ? part->count : 0;
        } else if (call->kind == DS_COMM_ALL_TO_ALL) {
            n = part->counts_out[r];
            from = before(theirs[r], sim->head.rank);
            out = (char *)part->out + before(part->counts_out, r) * width;
        }
        if (n > 0) {
            memcpy(out, ins[r] + from * width, n * width);
        }
    }
    if (dsi_coll_reduces(call->kind)) {
        compute_reduction(sim, call, part, ins);
    }
}

static ds_status disagree(sim_comm *sim, const sim_op *mine, uint32_t other, const sim_op *theirs)
{
    char a[160];
    char b[160];
    char reason[SIM_REASON_BYTES];
    (void)snprintf(reason, sizeof reason, "ranks disagree: %s calls %.160s, %s calls %.160s",
                   dsi_comm_rank_name(&sim->head, sim->head.rank).text,
                   dsi_call_info_text(&mine->info, a, sizeof a),
                   dsi_comm_rank_name(&sim->head, other).text,
                   dsi_call_info_text(&theirs->info, b, sizeof b));
    return sim_fail(sim, reason);
}

/* Whether all have copied their inputs of the collective; ERR_PEER when they disagree. */
static ds_status check_arrived(sim_comm *sim, const sim_op *op, bool *all_out)
{
    const sim_world *world = sim->world;
    *all_out = true;
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_op *other = coll_of(world, r, op->number);
        if (world->ranks[r].n_coll < op->number) {
            *all_out = false;
            continue;
        }
        if (other->info.digest != op->info.digest) {
            return disagree(sim, op, r, other);
        }
        *all_out = *all_out && other->state >= SIM_READY;
        for (uint32_t i = 0; op->call.kind == DS_COMM_ALL_TO_ALL && i < op->call.n_parts; ++i) {
            if (other->counts[(size_t)i * world->size + sim->head.rank] !=
                op->call.parts[i].counts_out[r]) {
                return disagree(sim, op, r, other);
            }
        }
    }
    return DS_OK;
}

ds_status sim_try_compute(sim_comm *sim, sim_op *op)
{
    bool all;
    DS_TRY(check_arrived(sim, op, &all));
    if (!all) {
        return DS_OK;
    }
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const char *ins[DSI_SIM_MAX_RANKS];
    const size_t *counts[DSI_SIM_MAX_RANKS] = {NULL};
    op->arrived = op->begin;
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        const sim_op *other = coll_of(sim->world, r, op->number);
        ins[r] = other->copy;
        op->arrived = other->begin > op->arrived ? other->begin : op->arrived;
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        for (uint32_t r = 0; r < sim->head.size && call->kind == DS_COMM_ALL_TO_ALL; ++r) {
            counts[r] = coll_of(sim->world, r, op->number)->counts + (size_t)i * sim->head.size;
        }
        compute_part(sim, call, &call->parts[i], counts, ins);
        for (uint32_t r = 0; r < sim->head.size; ++r) {
            ins[r] +=
                (counts[r] != NULL ? before(counts[r], sim->head.size)
                                   : dsi_part_in_count(call, &call->parts[i], r, sim->head.size)) *
                width;
        }
    }
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        ++coll_of(sim->world, r, op->number)->n_readers;
    }
    op->state = SIM_DONE;
    op->end = dsi_clock_seconds();
    (void)pthread_cond_broadcast(&sim->world->moved);
    return DS_OK;
}

ds_status sim_try_pair(sim_comm *sim, sim_op *op)
{
    sim_rank *peer = &sim->world->ranks[op->call.peer];
    for (uint32_t i = 0; i < SIM_RING && op->state != SIM_DONE; ++i) {
        sim_op *other = &peer->pair[i];
        if (other->state != SIM_STARTED || other->call.kind == op->call.kind ||
            other->call.peer != sim->head.rank || other->number != op->number) {
            continue;
        }
        if (other->info.digest != op->info.digest) {
            return disagree(sim, op, op->call.peer, other);
        }
        const sim_op *send = op->call.kind == DS_COMM_SEND ? op : other;
        const sim_op *recv = send == op ? other : op;
        for (uint32_t p = 0; p < send->call.n_parts; ++p) {
            const size_t bytes = send->call.parts[p].count * ds_dtype_bytes(send->call.dtype);
            if (bytes > 0) {
                memcpy(recv->call.parts[p].out, send->call.parts[p].in, bytes);
            }
        }
        op->arrived = other->arrived = op->begin > other->begin ? op->begin : other->begin;
        op->state = other->state = SIM_DONE;
        op->end = other->end = dsi_clock_seconds();
        (void)pthread_cond_broadcast(&sim->world->moved);
    }
    return DS_OK;
}
