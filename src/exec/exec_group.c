/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator whose calls devices carry out. See exec_group.h. */
#include "exec/exec_group.h"

#include "base/clock.h"
#include "comm/rank_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_CALLS = 1024 }; /* under way at a time: their begin is known */

typedef struct group_comm {
    dsi_comm head;
    dsi_comm *control;
    const ds_accel_groups *table;
    ds_accel_group *group;
    ds_accel_part *parts;
    uint32_t n_parts;
    struct {
        uint64_t ticket, sequence;
        double begin;
        const char *what;
    } calls[MOST_CALLS];
    uint64_t last; /* ticket that was started last */
    bool failed;
} group_comm;

static ds_status make_room(group_comm *g, uint32_t n_parts)
{
    if (n_parts <= g->n_parts) {
        return DS_OK;
    }
    ds_accel_part *parts = realloc(g->parts, n_parts * sizeof *parts);
    if (parts == NULL) {
        return ds_fail(g->head.ctx, DS_ERR_NOMEM, "no memory for a collective of %u tensors",
                       n_parts);
    }
    g->parts = parts;
    g->n_parts = n_parts;
    return DS_OK;
}

/* No device goes on with this group, and the other ranks learn it. The error is in ctx already. */
static ds_status give_up(group_comm *g, ds_status status)
{
    if (!g->failed) {
        g->failed = true;
        g->table->abort(g->group);
        dsi_comm_abort(g->control, ds_ctx_error(g->head.ctx));
    }
    return status;
}

static ds_status start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    group_comm *g = (group_comm *)comm;
    if (g->failed) {
        return ds_fail(comm->ctx, DS_ERR_STATE, "this group of devices has failed before");
    }
    DS_TRY(make_room(g, call->n_parts));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *p = &call->parts[i];
        g->parts[i] = (ds_accel_part){.in = p->in,
                                      .out = p->out,
                                      .count = p->count,
                                      .counts_in = p->counts_in,
                                      .counts_out = p->counts_out};
    }
    const ds_accel_collective collective = {.kind = call->kind,
                                            .dtype = call->dtype,
                                            .factor = call->factor,
                                            .max = call->reduction == DSI_REDUCE_MAX,
                                            .peer = call->peer,
                                            .parts = g->parts,
                                            .n_parts = call->n_parts};
    uint64_t ticket = 0;
    const ds_status status = g->table->start(g->group, &collective, &ticket);
    if (status < 0) {
        return give_up(g, status);
    }
    g->calls[ticket % MOST_CALLS].ticket = ticket;
    g->calls[ticket % MOST_CALLS].sequence = comm->sequence;
    g->calls[ticket % MOST_CALLS].begin = dsi_clock_seconds();
    g->calls[ticket % MOST_CALLS].what = call->what;
    g->last = ticket;
    *ticket_out = ticket;
    return DS_OK;
}

/* Devices do not say which of them is late: the hosts do, at a barrier that all who are alive and
 * late come to. */
static ds_status fail_late(group_comm *g, dsi_comm_ticket ticket)
{
    enum { SOON = 10 };
    const uint64_t sequence = g->calls[ticket % MOST_CALLS].sequence;
    const char *what = g->calls[ticket % MOST_CALLS].what;
    const double timeout = g->control->timeout;
    char missing[512];
    g->control->timeout = timeout < SOON ? timeout : SOON;
    const ds_status met = dsi_comm_barrier(g->control, "who is late");
    g->control->timeout = timeout;
    (void)snprintf(missing, sizeof missing, "%s",
                   met < 0 ? ds_ctx_error(g->control->ctx)
                           : "every rank waits for it: the devices hang");
    return give_up(g, ds_fail(g->head.ctx, DS_ERR_PEER,
                              "collective %llu of the devices (%s) is not done after %.0f s: %s",
                              (unsigned long long)sequence, what != NULL ? what : "no name",
                              timeout, missing));
}

/* What the device says, and whether another rank has given up. */
static ds_status look(group_comm *g, dsi_comm_ticket ticket, bool *done_out)
{
    bool alive = true;
    const ds_status status = g->table->test(g->group, ticket, done_out);
    if (status < 0) {
        return give_up(g, status);
    }
    if (*done_out) {
        return DS_OK;
    }
    const ds_status others = dsi_comm_test(g->control, 0, false, &alive);
    return others < 0 ? give_up(g, others) : DS_OK;
}

static ds_status test(dsi_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    group_comm *g = (group_comm *)comm;
    *done_out = ticket == 0;
    DS_TRY(ticket != 0 ? look(g, ticket, done_out) : DS_OK);
    return late && !*done_out ? fail_late(g, ticket) : DS_OK;
}

static ds_status wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    enum { SPINS = 1000, PAUSE_NS = 20000 };
    static const struct timespec pause = {0, PAUSE_NS};
    group_comm *g = (group_comm *)comm;
    const double begin = dsi_clock_seconds();
    bool done = false;
    for (uint32_t turn = 0;; ++turn) {
        DS_TRY(look(g, ticket, &done));
        if (done) {
            break;
        }
        const double patience = g->control->timeout; /* which may change */
        if (patience > 0.0 && dsi_clock_seconds() - begin > patience) {
            return fail_late(g, ticket);
        }
        if (turn > SPINS) {
            (void)nanosleep(&pause, NULL);
        }
    }
    if (times_out != NULL) {
        *times_out =
            (dsi_comm_times){.seconds = dsi_clock_seconds() - g->calls[ticket % MOST_CALLS].begin};
    }
    return DS_OK;
}

static ds_status split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    (void)color;
    (void)key;
    (void)comm_out;
    return ds_fail(comm->ctx, DS_ERR_UNSUPPORTED,
                   "a group of devices is not split: split the ranks' communicator");
}

static void abort_group(dsi_comm *comm, const char *reason)
{
    group_comm *g = (group_comm *)comm;
    g->failed = true;
    g->table->abort(g->group);
    dsi_comm_abort(g->control, reason);
}

static void destroy(dsi_comm *comm)
{
    group_comm *g = (group_comm *)comm;
    g->table->close(&g->group);
    free(g->parts);
    free(g);
}

static const dsi_transport group_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "device",
    .start = start,
    .wait = wait,
    .split = split,
    .test = test,
    .abort = abort_group,
    .destroy = destroy,
};

ds_status dsi_exec_group_open(ds_ctx *ctx, const ds_accel *accel, ds_accel_device *device,
                              dsi_comm *control, dsi_comm **comm_out)
{
    unsigned char id[DS_ACCEL_GROUP_ID] = {0};
    ds_status status = control->rank == 0 ? accel->groups->id(ctx, id) : DS_OK;
    if (status < 0) {
        dsi_comm_abort(control, ds_ctx_error(ctx));
        return status;
    }
    const dsi_comm_part part = {.in = id, .out = id, .count = sizeof id};
    DS_TRY(dsi_comm_run(control, &(dsi_comm_call){.kind = DS_COMM_BROADCAST,
                                                  .dtype = DS_DTYPE_U8,
                                                  .factor = 1.0f,
                                                  .parts = &part,
                                                  .n_parts = 1,
                                                  .what = "the id of a group of devices"}));
    group_comm *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a group of devices");
    }
    status = accel->groups->open(device, ctx, id, control->rank, control->size, control->timeout,
                                 &g->group);
    if (status < 0) {
        dsi_comm_abort(control, ds_ctx_error(ctx));
        free(g);
        return status;
    }
    g->head = (dsi_comm){.transport = &group_transport,
                         .ctx = ctx,
                         .rank = control->rank,
                         .size = control->size,
                         .timeout = control->timeout};
    memcpy(g->head.axes, control->axes, sizeof g->head.axes);
    dsi_comm_set_names(&g->head, control->names, control->names_first, control->names_step);
    g->control = control;
    g->table = accel->groups;
    *comm_out = &g->head;
    return DS_OK;
}

ds_status dsi_exec_group_reserve(dsi_comm *comm, size_t bytes, uint32_t n_parts)
{
    group_comm *g = (group_comm *)comm;
    DS_TRY(make_room(g, n_parts));
    return g->table->reserve(g->group, bytes);
}

void dsi_exec_group_end(dsi_comm *comm)
{
    enum { SOON = 10 };
    static const struct timespec pause = {0, 20000};
    group_comm *g = (group_comm *)comm;
    const double timeout = g->control->timeout;
    const double patience = timeout > 0.0 && timeout < SOON ? timeout : SOON;
    const double begin = dsi_clock_seconds();
    bool done = g->last == 0;
    while (!done && !g->failed) {
        const ds_status status = g->table->test(g->group, g->last, &done);
        if (status < 0 || (!done && dsi_clock_seconds() - begin > patience)) {
            abort_group(comm, "a rank has ended while a collective of the devices was under way");
        } else if (!done) {
            (void)nanosleep(&pause, NULL);
        }
    }
}
