/* SPDX-License-Identifier: Apache-2.0 */
/* The hierarchical communicator: start, wait, end. See hier_impl.h. */
#include "base/clock.h"
#include "comm/hier_impl.h"
#include "comm/rank_names.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPEAK_SECONDS 1.0 /* from the end of a rank's patience until all have heard of it */

uint32_t dsi_hier_block(const int64_t *nodes, uint32_t size)
{
    uint32_t bits = size; /* of all places where a node may end */
    for (uint32_t r = 1; r < size; ++r) {
        bits |= nodes[r] != nodes[r - 1] ? r : 0;
    }
    return bits & (~bits + 1);
}

/* Between two rounds of waiting: ranks may share cores. */
static void relax(uint32_t round)
{
    if (round % 4096 >= 64 && round < 4096) {
        (void)sched_yield();
    } else if (round >= 4096) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

ds_status hier_wait_on(hier_comm *hier, dsi_comm *on, dsi_comm_ticket ticket,
                       dsi_comm_times *times_out)
{
    const double begin = dsi_clock_seconds();
    /* Whoever is late is known best to the ranks of its own block: they speak first. */
    const double most = hier->head.timeout;
    const double limit = on == hier->on.local ? most : most * 1.25 + 0.5;
    dsi_comm *other = on == hier->on.local ? hier->on.flat : hier->on.local;
    const bool leaves = on != hier->on.local && most > 0.0;
    on->timeout = most;
    for (uint32_t round = 0;; ++round) {
        bool done;
        bool moved;
        const bool late = most > 0.0 && round % 64 == 63 && dsi_clock_seconds() - begin > limit;
        DS_TRY(dsi_comm_test(on, ticket, late, &done));
        if (done) {
            break;
        }
        if (leaves && round == 64) {
            dsi_comm_away(hier->on.local, begin + limit + SPEAK_SECONDS);
        }
        if (round % 16 == 15) {
            DS_TRY(dsi_comm_test(other, 0, false, &moved));
        }
        relax(round);
    }
    if (leaves) {
        dsi_comm_away(hier->on.local, 0.0);
    }
    return dsi_comm_wait(on, ticket, times_out);
}

static void run_first(hier_queue *queue)
{
    hier_op *op = queue->first;
    queue->first = op->next;
    queue->last = queue->first != NULL ? queue->last : NULL;
    hier_comm *hier = op->comm;
    op->times = (dsi_comm_times){.seconds = 0.0};
    op->status = hier_run(hier, op);
    op->times.seconds = dsi_clock_seconds() - op->begin;
    op->state = HIER_DONE;
}

static hier_op *free_op(hier_comm *hier, uint32_t *index_out)
{
    for (uint32_t i = 0; i < HIER_OPS; ++i) {
        if (hier->ops[i].state == HIER_FREE) {
            *index_out = i;
            return &hier->ops[i];
        }
    }
    return NULL;
}

static ds_status start_pair(hier_comm *hier, hier_op *op)
{
    const uint32_t width = hier->on.local->size;
    dsi_comm_call call = op->call;
    const bool near = call.peer / width == hier->block;
    op->pair_comm = near ? hier->on.local : hier->on.flat;
    call.peer = near ? call.peer % width : call.peer;
    return dsi_comm_start(op->pair_comm, &call, &op->pair_ticket);
}

static ds_status hier_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    hier_comm *hier = (hier_comm *)comm;
    uint32_t index = 0;
    hier_op *op = free_op(hier, &index);
    if (op == NULL) {
        return ds_fail(comm->ctx, DS_ERR_LIMIT, "%d calls are started and not waited for",
                       HIER_OPS);
    }
    *op = (hier_op){.comm = hier,
                    .call = *call,
                    .ticket = comm->sequence * HIER_OPS + index,
                    .begin = dsi_clock_seconds()};
    if (dsi_coll_is_pair(call->kind)) {
        DS_TRY(start_pair(hier, op));
        op->state = HIER_PAIR;
    } else {
        dsi_call_info info;
        char text[200];
        dsi_call_describe(call, comm->sequence, &info);
        (void)snprintf(op->text, sizeof op->text, "%.79s",
                       dsi_call_info_text(&info, text, sizeof text));
        hier_queue *queue = hier->queue;
        if (queue->last != NULL) {
            queue->last->next = op;
        } else {
            queue->first = op;
        }
        queue->last = op;
        op->state = HIER_QUEUED;
    }
    *ticket_out = op->ticket;
    return DS_OK;
}

/* A failure of one part ends the others too: no rank is left waiting in shared memory for one that
 * the network has lost. */
static ds_status fail_all(hier_comm *hier, ds_status status)
{
    if (status == DS_ERR_PEER) {
        char text[400];
        const uint32_t first = hier->block * hier->on.local->size;
        (void)snprintf(text, sizeof text, "%s", ds_ctx_error(hier->head.ctx));
        dsi_comm_abort(hier->on.local, text);
        dsi_comm_abort(hier->on.flat, text);
        return hier->head.names != NULL
                   ? ds_fail(hier->head.ctx, status, "%s", text)
                   : ds_fail(hier->head.ctx, status,
                             "%s (seen by rank %u; shared memory counts its ranks from rank %u on)",
                             text, hier->head.rank, first);
    }
    return status;
}

static ds_status hier_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    hier_comm *hier = (hier_comm *)comm;
    hier_op *op = &hier->ops[ticket % HIER_OPS];
    if (op->state == HIER_FREE || op->ticket != ticket) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "ticket %llu is not of a call under way",
                       (unsigned long long)ticket);
    }
    if (op->state == HIER_PAIR) {
        op->status = hier_wait_on(hier, op->pair_comm, op->pair_ticket, &op->times);
        op->state = HIER_DONE;
    }
    while (op->state == HIER_QUEUED) {
        run_first(hier->queue);
    }
    op->state = HIER_FREE;
    if (op->status < 0) {
        return fail_all(hier, op->status);
    }
    if (times_out != NULL) {
        *times_out = op->times;
    }
    return DS_OK;
}

/* That of the block: groups inside of a block are shared memory alone, and take it as their own. */
static ds_status hier_symmetric(dsi_comm *comm, size_t bytes, void **memory_out)
{
    hier_comm *hier = (hier_comm *)comm;
    DS_TRY(dsi_comm_symmetric(hier->on.local, bytes, memory_out));
    comm->memory = *memory_out;
    comm->memory_bytes = bytes;
    return DS_OK;
}

static ds_status hier_reserve(dsi_comm *comm, size_t bytes)
{
    hier_comm *hier = (hier_comm *)comm;
    DS_TRY(dsi_comm_reserve(hier->on.flat, bytes));
    DS_TRY(dsi_comm_reserve(hier->on.cross, bytes));
    return dsi_comm_reserve(hier->on.local, bytes);
}

static void hier_named(dsi_comm *comm)
{
    const hier_comm *hier = (const hier_comm *)comm;
    const uint32_t step = comm->names_step;
    const uint32_t width = hier->on.local->size;
    const uint32_t block = comm->names_first + hier->block * width * step;
    const uint32_t place = comm->names_first + hier->on.local->rank * step;
    dsi_comm_set_names(hier->on.flat, comm->names, comm->names_first, step);
    dsi_comm_set_names(hier->on.local, comm->names, block, step);
    dsi_comm_set_names(hier->on.cross, comm->names, place, width * step);
}

static void hier_abort(dsi_comm *comm, const char *reason)
{
    hier_comm *hier = (hier_comm *)comm;
    dsi_comm_abort(hier->on.flat, reason);
    dsi_comm_abort(hier->on.local, reason);
}

static void hier_destroy(dsi_comm *comm)
{
    hier_comm *hier = (hier_comm *)comm;
    hier_op **at = &hier->queue->first;
    hier->queue->last = NULL;
    while (*at != NULL) { /* calls that nobody waited for */
        if ((*at)->comm == hier) {
            *at = (*at)->next;
        } else {
            hier->queue->last = *at;
            at = &(*at)->next;
        }
    }
    if (--hier->queue->n_users == 0) {
        free(hier->queue);
    }
    dsi_comm_destroy(&hier->on.cross);
    dsi_comm_destroy(&hier->on.local);
    dsi_comm_destroy(&hier->on.flat);
    free(hier->stage);
    free(hier->parts);
    free(hier->counts);
    free(hier->inputs);
    free(hier);
}

static const dsi_transport hier_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "hier",
    .start = hier_start,
    .wait = hier_wait,
    .split = hier_split,
    .twin = hier_twin,
    .symmetric = hier_symmetric,
    .named = hier_named,
    .reserve = hier_reserve,
    .abort = hier_abort,
    .destroy = hier_destroy,
};

ds_status hier_make(const dsi_hier_parts *parts, hier_queue *queue, dsi_comm **comm_out)
{
    ds_ctx *ctx = parts->flat->ctx;
    hier_comm *hier = calloc(1, sizeof *hier);
    hier_queue *own = queue == NULL ? calloc(1, sizeof *own) : queue;
    if (hier == NULL || own == NULL) {
        free(hier);
        free(queue == NULL ? own : NULL);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a communicator");
    }
    ++own->n_users;
    hier->head = (dsi_comm){.transport = &hier_transport,
                            .ctx = ctx,
                            .rank = parts->flat->rank,
                            .size = parts->flat->size,
                            .timeout = parts->flat->timeout};
    hier->on = *parts;
    hier->block = hier->head.rank / parts->local->size;
    hier->n_blocks = hier->head.size / parts->local->size;
    hier->queue = own;
    *comm_out = &hier->head;
    return DS_OK;
}

ds_status dsi_comm_hier(const dsi_hier_parts *parts, dsi_comm **comm_out)
{
    return hier_make(parts, NULL, comm_out);
}
