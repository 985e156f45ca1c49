/* SPDX-License-Identifier: Apache-2.0 */
/* The transport over a wire: start, wait, destroy. See net_impl.h; what ends in _locked is called
 * with the world's lock held. */
#include "base/clock.h"
#include "comm/net_impl.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void lock(net_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
}

static void unlock(net_world *world)
{
    (void)pthread_mutex_unlock(&world->lock);
}

/* Nothing is moved once the world failed: peers close their connections then, and some versions of
 * UCX end the process when they find one closed. */
static ds_status advance_all_locked(net_world *world)
{
    DS_TRY(net_check(world));
    world->wire->ops->progress(world->wire);
    for (net_group *group = world->first; group != NULL; group = group->next) {
        for (uint64_t left = group->active; left != 0; left &= left - 1) {
            const uint32_t i = (uint32_t)__builtin_ctzll(left);
            if (net_op_advance(group, &group->ops[i]) < 0) { /* what is no peer's fault, too */
                return net_fail(world, "%s: no memory for a call",
                                net_rank_name(world, world->wire->rank).text);
            }
            if (group->ops[i].phase == NET_DONE) {
                group->active &= ~(UINT64_C(1) << i);
            }
        }
    }
    return DS_OK;
}

static net_op *free_op(net_group *group, uint32_t *index_out)
{
    for (uint32_t i = 0; i < NET_OPS; ++i) {
        if (!group->ops[i].used) {
            *index_out = i;
            return &group->ops[i];
        }
    }
    return NULL;
}

static ds_status start_locked(net_group *group, const dsi_comm_call *call,
                              dsi_comm_ticket *ticket_out)
{
    dsi_comm *comm = &group->head;
    uint32_t index = 0;
    DS_TRY(net_check(group->world));
    net_op *op = free_op(group, &index);
    if (op == NULL) {
        return ds_fail(comm->ctx, DS_ERR_LIMIT, "%d calls are started and not waited for", NET_OPS);
    }
    if (!dsi_coll_is_pair(call->kind)) {
        op->tag_number = group->n_collectives++;
    }
    if (group->world->rdv != NULL && !comm->twin) { /* where the first thread stands */
        dsi_rdv_beat(group->world->rdv, 0, comm->sequence, call->what);
    }
    op->used = true;
    op->ticket = comm->sequence * NET_OPS + index;
    group->active |= UINT64_C(1) << index;
    const ds_status status = net_op_begin(group, op, call);
    if (status < 0) {
        group->active &= ~(UINT64_C(1) << index);
        net_op_cancel(group, op);
        op->used = false;
        return status;
    }
    *ticket_out = op->ticket;
    return DS_OK;
}

static ds_status net_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    net_group *group = (net_group *)comm;
    lock(group->world);
    const ds_status status = net_told(group, start_locked(group, call, ticket_out));
    unlock(group->world);
    return status;
}

/* Between two rounds: spin a little, then let others run, then sleep: ranks may share cores. */
static void relax(uint32_t round)
{
    if (round < 64) {
        return;
    }
    if (round < 4096) {
        (void)sched_yield();
        return;
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Lets go of the lock between two rounds. */
static ds_status wait_locked(net_group *group, const net_op *op)
{
    net_world *world = group->world;
    const double limit = group->head.timeout;
    const double begin = dsi_clock_seconds();
    for (uint32_t round = 0; op->phase != NET_DONE; ++round) {
        DS_TRY(advance_all_locked(world));
        if (op->phase == NET_DONE) {
            break;
        }
        if (round % 64 == 63) {
            const double waited = dsi_clock_seconds() - begin;
            if (limit > 0.0 && waited > limit) {
                return net_fail_late(group, op, waited);
            }
        }
        unlock(world);
        relax(round);
        lock(world);
    }
    return DS_OK;
}

static ds_status net_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    net_group *group = (net_group *)comm;
    const uint32_t index = (uint32_t)(ticket % NET_OPS);
    net_op *op = &group->ops[index];
    if (!op->used || op->ticket != ticket) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "ticket %llu is not of a call under way",
                       (unsigned long long)ticket);
    }
    lock(group->world);
    const ds_status status = net_told(group, wait_locked(group, op));
    if (status < 0) {
        net_op_cancel(group, op);
        group->active &= ~(UINT64_C(1) << index);
    }
    op->used = false;
    unlock(group->world);
    if (status == DS_OK && times_out != NULL) {
        *times_out =
            (dsi_comm_times){.seconds = op->end - op->begin, .waited = op->arrived - op->begin};
    }
    return status;
}

static ds_status test_locked(net_group *group, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    const net_op *op = &group->ops[ticket % NET_OPS];
    *done_out = false;
    DS_TRY(advance_all_locked(group->world));
    if (ticket == 0) {
        return DS_OK;
    }
    *done_out = !op->used || op->ticket != ticket || op->phase == NET_DONE;
    return late && !*done_out ? net_fail_late(group, op, group->head.timeout) : DS_OK;
}

static ds_status net_test(dsi_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    net_group *group = (net_group *)comm;
    lock(group->world);
    const ds_status status = net_told(group, test_locked(group, ticket, late, done_out));
    unlock(group->world);
    return status;
}

static ds_status net_reserve(dsi_comm *comm, size_t bytes)
{
    enum { AHEAD = 2 };
    net_group *group = (net_group *)comm;
    /* A bucket of several tensors is packed for sending, and what comes is kept beside it. */
    const size_t most = bytes < SIZE_MAX / 4 ? 2 * bytes + (size_t)comm->size * 256 : SIZE_MAX / 2;
    for (uint32_t i = 0; i < AHEAD; ++i) {
        if (!group->ops[i].used) {
            DS_TRY(net_op_stage(group, &group->ops[i], most));
        }
    }
    return DS_OK;
}

static void net_abort(dsi_comm *comm, const char *reason)
{
    net_world *world = ((net_group *)comm)->world;
    if (world->rdv != NULL) {
        dsi_rdv_abort(world->rdv, reason);
    }
    lock(world);
    if (!world->failed) {
        world->failed = true;
        (void)snprintf(world->reason, sizeof world->reason, "%s gave up: %s",
                       net_rank_name(world, world->wire->rank).text, reason);
    }
    unlock(world);
}

/* What the world says names its ranks by a group of all of them, whose order is the wire's. */
static void net_named(dsi_comm *comm)
{
    const net_group *group = (const net_group *)comm;
    net_world *world = group->world;
    bool all = comm->size == world->wire->size;
    for (uint32_t r = 0; r < comm->size; ++r) {
        all = all && group->members[r] == r;
    }
    lock(world);
    if (all && comm->names != NULL) {
        world->named = comm;
    } else if (world->named == comm) {
        world->named = NULL;
    }
    unlock(world);
}

static void net_destroy(dsi_comm *comm)
{
    net_group *group = (net_group *)comm;
    net_world *world = group->world;
    lock(world);
    world->named = world->named == comm ? NULL : world->named;
    net_group **at = &world->first;
    while (*at != NULL && *at != group) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = group->next;
    }
    for (uint32_t i = 0; i < NET_OPS; ++i) {
        net_op_cancel(group, &group->ops[i]);
        net_op_free(&group->ops[i]);
    }
    unlock(world);
    free(group->members);
    free(group);
    net_world_release(world);
}

/* One table, two names: what a communicator is called follows from its wire. */
#define NET_TRANSPORT(label)                                                                       \
    {                                                                                              \
        .version = DSI_TRANSPORT_VERSION, .name = (label), .start = net_start, .wait = net_wait,   \
        .split = net_split, .twin = net_twin, .test = net_test, .named = net_named,                \
        .reserve = net_reserve, .abort = net_abort, .destroy = net_destroy                         \
    }
static const dsi_transport net_transports[2] = {NET_TRANSPORT("mpi"), NET_TRANSPORT("ucx")};

ds_status net_group_make(net_world *world, uint32_t *members, uint32_t size, uint32_t rank,
                         uint32_t id, double timeout, net_group **group_out)
{
    net_group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        return ds_fail(world->ctx, DS_ERR_NOMEM, "no memory for a communicator");
    }
    const bool ucx = strcmp(world->wire->ops->name, "ucx") == 0;
    group->head = (dsi_comm){.transport = &net_transports[ucx ? 1 : 0],
                             .ctx = world->ctx,
                             .rank = rank,
                             .size = size,
                             .timeout = timeout};
    group->world = world;
    group->members = members;
    group->id = id;
    lock(world);
    group->next = world->first;
    world->first = group;
    ++world->n_users;
    unlock(world);
    *group_out = group;
    return DS_OK;
}
