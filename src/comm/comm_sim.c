/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated communicator: starting, moving, waiting. See sim.h and, for the invariants,
 * sim_impl.h. */
#include "comm/sim_impl.h"

#include "base/clock.h"
#include "comm/rank_names.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* IN: the ring slot's last user has been read by all. */
static bool slot_is_free(const sim_world *world, const sim_op *op)
{
    return op->state == SIM_FREE || (op->ticket == 0 && op->n_readers == world->size);
}

/* A copy of the counts, which the caller may drop at its wait while others still read. */
static ds_status copy_counts(sim_comm *sim, sim_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = sim->head.size;
    free(op->counts);
    op->counts = NULL;
    if (call->kind != DS_COMM_ALL_TO_ALL) {
        return DS_OK;
    }
    op->counts = calloc((size_t)call->n_parts * size + 1, sizeof(size_t));
    if (op->counts == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no memory for a simulated call");
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        memcpy(op->counts + (size_t)i * size, call->parts[i].counts_in, size * sizeof(size_t));
    }
    return DS_OK;
}

static ds_status claim(sim_comm *sim, const dsi_comm_call *call, sim_op **op_out)
{
    sim_world *world = sim->world;
    sim_rank *self = &world->ranks[sim->head.rank];
    sim_op *op = NULL;
    if (dsi_coll_is_pair(call->kind)) {
        for (uint32_t i = 0; i < SIM_RING && op == NULL; ++i) {
            op = self->pair[i].ticket == 0 ? &self->pair[i] : NULL;
        }
    } else {
        op = &self->coll[(self->n_coll + 1) % SIM_RING];
        op = op->ticket == 0 ? op : NULL;
    }
    if (op == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_LIMIT, "%d calls are started and not waited for",
                       SIM_RING);
    }
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (!dsi_coll_is_pair(call->kind) && !slot_is_free(world, op)) {
        DS_TRY(sim_wait_for_change(sim, NULL, deadline));
    }
    *op_out = op;
    return DS_OK;
}

static ds_status start_locked(sim_comm *sim, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    sim_world *world = sim->world;
    sim_rank *self = &world->ranks[sim->head.rank];
    if (world->options.drop_at > 0 && sim->head.sequence >= world->options.drop_at &&
        sim->head.rank == world->options.drop_rank) {
        self->lost = true;
        (void)pthread_cond_broadcast(&world->moved);
        return ds_fail(sim->head.ctx, DS_ERR_INTERRUPTED, "the simulation loses %s at call %llu",
                       dsi_comm_rank_name(&sim->head, sim->head.rank).text,
                       (unsigned long long)sim->head.sequence);
    }
    if (world->failed) {
        return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
    }
    sim_op *op = NULL;
    DS_TRY(claim(sim, call, &op));
    void *copy = op->copy;
    const size_t copy_bytes = op->copy_bytes;
    size_t *counts = op->counts;
    *op = (sim_op){.state = SIM_STARTED,
                   .ticket = sim->head.sequence,
                   .call = *call,
                   .copy = copy,
                   .copy_bytes = copy_bytes,
                   .counts = counts,
                   .begin = dsi_clock_seconds()};
    dsi_call_describe(call, sim->head.sequence, &op->info);
    DS_TRY(copy_counts(sim, op));
    *ticket_out = op->ticket;
    if (dsi_coll_is_pair(call->kind)) {
        op->number = call->kind == DS_COMM_SEND ? ++self->n_sent[call->peer]
                                                : ++self->n_received[call->peer];
    } else {
        op->number = ++self->n_coll;
        if (!world->options.reorder || sim_random(sim, 2) == 0) {
            DS_TRY(sim_make_ready(sim, op));
        }
    }
    (void)pthread_cond_broadcast(&world->moved);
    return DS_OK;
}

static ds_status sim_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    sim_comm *sim = (sim_comm *)comm;
    sim_delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = start_locked(sim, call, ticket_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    return status;
}

/* Moves what is started, in a random order when asked: first all inputs are copied (another rank
 * may wait for a later call than this one does), then results are made. */
static ds_status progress(sim_comm *sim, const sim_op *wanted)
{
    sim_rank *self = &sim->world->ranks[sim->head.rank];
    for (uint32_t i = 0; i < SIM_RING; ++i) {
        if (self->coll[i].state == SIM_STARTED) {
            DS_TRY(sim_make_ready(sim, &self->coll[i]));
        }
    }
    const uint32_t first = sim->world->options.reorder ? sim_random(sim, SIM_RING) : 0;
    for (uint32_t i = 0; i < SIM_RING; ++i) {
        sim_op *op = &self->coll[(first + i) % SIM_RING];
        const bool skip = op != wanted && sim->world->options.reorder && sim_random(sim, 2) == 0;
        if (op->state == SIM_READY && !skip) {
            DS_TRY(sim_try_compute(sim, op));
        }
        op = &self->pair[(first + i) % SIM_RING];
        if (op->state == SIM_STARTED && !skip) {
            DS_TRY(sim_try_pair(sim, op));
        }
    }
    return DS_OK;
}

static sim_op *find_ticket(sim_rank *self, dsi_comm_ticket ticket)
{
    for (uint32_t i = 0; i < SIM_RING && ticket != 0; ++i) {
        if (self->coll[i].ticket == ticket) {
            return &self->coll[i];
        }
        if (self->pair[i].ticket == ticket) {
            return &self->pair[i];
        }
    }
    return NULL;
}

static ds_status wait_locked(sim_comm *sim, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    sim_rank *self = &sim->world->ranks[sim->head.rank];
    sim_op *op = find_ticket(self, ticket);
    if (op == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_ARG, "ticket %llu was not started or is waited for",
                       (unsigned long long)ticket);
    }
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (op->state != SIM_DONE) {
        DS_TRY(progress(sim, op));
        if (op->state != SIM_DONE) {
            DS_TRY(sim_wait_for_change(sim, op, deadline));
        }
    }
    if (times_out != NULL) {
        *times_out = (dsi_comm_times){op->end - op->begin, op->arrived - op->begin};
    }
    op->ticket = 0;
    if (dsi_coll_is_pair(op->call.kind)) {
        op->state = SIM_FREE;
    }
    return DS_OK;
}

static ds_status sim_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    sim_comm *sim = (sim_comm *)comm;
    sim_delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = wait_locked(sim, ticket, times_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    sim_delay(sim);
    return status;
}

static void sim_destroy(dsi_comm *comm)
{
    sim_comm *sim = (sim_comm *)comm;
    sim_world *world = sim->world;
    (void)pthread_mutex_lock(&world->lock);
    world->ranks[comm->rank].left = true;
    const bool last = --world->n_users == 0;
    (void)pthread_cond_broadcast(&world->moved);
    (void)pthread_mutex_unlock(&world->lock);
    if (last) {
        sim_world_free(world);
    }
    free(sim);
}

static void sim_abort(dsi_comm *comm, const char *reason)
{
    sim_comm *sim = (sim_comm *)comm;
    char text[SIM_REASON_BYTES];
    (void)snprintf(text, sizeof text, "%s gives up: %.400s",
                   dsi_comm_rank_name(comm, comm->rank).text, reason);
    (void)pthread_mutex_lock(&sim->world->lock);
    if (!sim->world->failed) {
        sim->world->failed = true;
        memcpy(sim->world->reason, text, sizeof text);
    }
    (void)pthread_cond_broadcast(&sim->world->moved);
    (void)pthread_mutex_unlock(&sim->world->lock);
}

const dsi_transport dsi_sim_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "sim",
    .start = sim_start,
    .wait = sim_wait,
    .split = sim_split,
    .abort = sim_abort,
    .destroy = sim_destroy,
};

ds_status dsi_comm_sim_create(ds_ctx *const *ctxs, uint32_t size,
                              const dsi_comm_sim_options *options, dsi_comm **comms_out)
{
    const dsi_comm_sim_options defaults = {0};
    if (size == 0 || size > DSI_SIM_MAX_RANKS) {
        return ds_fail(size > 0 ? ctxs[0] : NULL, DS_ERR_ARG, "%u simulated ranks; 1 to %u", size,
                       DSI_SIM_MAX_RANKS);
    }
    sim_world *world = sim_world_make(size, options != NULL ? options : &defaults);
    if (world == NULL) {
        return ds_fail(ctxs[0], DS_ERR_NOMEM, "no memory for %u simulated ranks", size);
    }
    for (uint32_t r = 0; r < size; ++r) {
        const ds_status status = sim_comm_make(ctxs[r], world, r, 60.0, &comms_out[r]);
        if (status < 0) {
            world->n_users = r;
            for (uint32_t made = 0; made < r; ++made) {
                sim_destroy(comms_out[made]);
            }
            if (r == 0) {
                sim_world_free(world);
            }
            return status;
        }
    }
    return DS_OK;
}
