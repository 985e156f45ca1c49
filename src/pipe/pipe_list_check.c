/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of all ranks of a pipeline, run against one another. See pipe_list.h, whose invariants
 * these are. */
#include "pipe/pipe_list.h"
#include "pipe/pipe_slots.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct runner {
    ds_ctx *ctx;
    const dsi_schedule *s;
    dsi_stage_parts parts;
    const dsi_pipe_edge *edges;
    uint32_t n_edges;
    const dsi_pipe_list *lists;
    const dsi_schedule_times *times;
    uint32_t slots[DSI_STAGES_MOST];  /* per rank */
    uint32_t at[DSI_STAGES_MOST];     /* per rank: its next instruction */
    uint32_t flying[DSI_STAGES_MOST]; /* per rank: micro-batches of a chunk between its phases */
    double now[DSI_STAGES_MOST];
    uint32_t *head, *tail; /* per channel, source and target: of what is on its way, oldest first */
    uint32_t *next;        /* per edge and micro-batch: the one behind it */
    double *sent, *got;    /* likewise: when; -1: not yet */
    bool *waited;          /* likewise: SENT has been run */
    bool *done;            /* per rank, phase and micro-batch */
    dsi_pipe_result *result;
} runner;

static size_t message_of(const runner *r, uint32_t edge, uint32_t micro)
{
    return (size_t)edge * r->s->n_micro + micro;
}

static size_t pair_of(const runner *r, const dsi_pipe_edge *edge)
{
    const size_t n = r->s->n_ranks;
    return (edge->channel * n + edge->source) * n + edge->target;
}

static bool *done_of(const runner *r, uint32_t rank, uint32_t phase, uint32_t micro)
{
    const size_t n = dsi_parts_phases(&r->parts);
    return &r->done[(rank * n + phase) * r->s->n_micro + micro];
}

static void describe(const dsi_pipe_op *op, char *text, size_t room)
{
    static const char *const kinds[] = {"receive", "run of phase", "send",
                                        "wait for the end of send"};
    (void)snprintf(text, room, "%s %u of micro-batch %u", kinds[op->kind], op->what, op->micro);
}

static ds_status broken(const runner *r, uint32_t rank, uint32_t invariant, const char *why)
{
    char text[96];
    describe(&r->lists[rank].items[r->at[rank]], text, sizeof text);
    return ds_fail(r->ctx, DS_ERR_GRAPH, "schedule, rank %u, instruction %u, %s: invariant %u: %s",
                   rank, r->at[rank], text, invariant, why);
}

/* Whether a rank has run a phase of the micro-batch that had one of n places before. */
static bool is_free(const runner *r, uint32_t rank, uint32_t phase, uint32_t micro, uint32_t n)
{
    return micro < n || *done_of(r, rank, phase, micro - n);
}

/* The phase of a chunk that another one follows. */
static ds_phase before_of(const runner *r, ds_phase phase)
{
    const uint32_t chunk = dsi_part_chunk(&r->parts, phase);
    return phase == dsi_part_backward(&r->parts, chunk) ? chunk : phase - 1;
}

static double seconds_of(const runner *r, ds_phase phase)
{
    const dsi_schedule_times *t = r->times;
    const bool forward = phase < r->parts.n_chunks;
    const double seconds = forward                           ? t->forward
                           : !r->parts.split                 ? t->backward + t->weights
                           : dsi_part_ends(&r->parts, phase) ? t->weights
                                                             : t->backward;
    return seconds / r->parts.n_chunks;
}

/* Inputs there, outputs writable. */
static ds_status check_messages(const runner *r, uint32_t rank, const dsi_pipe_op *op)
{
    for (uint32_t e = 0; e < r->n_edges; ++e) {
        const dsi_pipe_edge *edge = &r->edges[e];
        const bool reads =
            edge->target == rank && op->what >= edge->first && op->what <= edge->last;
        const bool writes = edge->source == rank && edge->phase == op->what && !edge->apart &&
                            op->micro >= edge->buffers;
        if (reads && r->got[message_of(r, e, op->micro)] < 0.0) {
            return broken(r, rank, 2, "what it reads is not received");
        }
        if (writes && !r->waited[message_of(r, e, op->micro - edge->buffers)]) {
            return broken(r, rank, 4, "it writes what may still be on its way");
        }
    }
    return DS_OK;
}

static ds_status run_phase(runner *r, uint32_t rank, const dsi_pipe_op *op)
{
    const bool forward = op->what < r->parts.n_chunks;
    const bool ends = dsi_part_ends(&r->parts, op->what);
    if (op->what >= dsi_parts_phases(&r->parts) || op->micro >= r->s->n_micro ||
        *done_of(r, rank, op->what, op->micro)) {
        return broken(r, rank, 1, "no such phase, or run before");
    }
    if (!forward && !*done_of(r, rank, before_of(r, op->what), op->micro)) {
        return broken(r, rank, 1, "the phase before it was not run");
    }
    const uint32_t chunk = dsi_part_chunk(&r->parts, op->what);
    if (forward && !is_free(r, rank, dsi_part_end(&r->parts, chunk), op->micro, r->slots[rank])) {
        return broken(r, rank, 1, "its slot is taken");
    }
    DS_TRY(check_messages(r, rank, op));
    *done_of(r, rank, op->what, op->micro) = true;
    r->flying[rank] += forward ? 1 : 0;
    if (r->flying[rank] > r->result->in_flight[rank]) {
        r->result->in_flight[rank] = r->flying[rank];
    }
    r->flying[rank] -= ends ? 1 : 0;
    r->now[rank] += seconds_of(r, op->what);
    return DS_OK;
}

static ds_status run_send(runner *r, uint32_t rank, const dsi_pipe_op *op)
{
    const dsi_pipe_edge *edge = &r->edges[op->what];
    const size_t m = message_of(r, op->what, op->micro);
    const size_t pair = pair_of(r, edge);
    if (!*done_of(r, rank, edge->phase, op->micro) || r->sent[m] >= 0.0) {
        return broken(r, rank, 5, "it is not there yet, or was sent before");
    }
    if (op->micro >= edge->buffers &&
        !r->waited[message_of(r, op->what, op->micro - edge->buffers)]) {
        return broken(r, rank, 4, "its buffer may still be on its way");
    }
    r->sent[m] = r->now[rank];
    if (r->head[pair] == DS_NONE) {
        r->head[pair] = (uint32_t)m;
    } else {
        r->next[r->tail[pair]] = (uint32_t)m;
    }
    r->tail[pair] = (uint32_t)m;
    return DS_OK;
}

/* *moved_out: it is on its way. */
static ds_status run_receive(runner *r, uint32_t rank, const dsi_pipe_op *op, bool *moved_out)
{
    const dsi_pipe_edge *edge = &r->edges[op->what];
    const size_t m = message_of(r, op->what, op->micro);
    const size_t pair = pair_of(r, edge);
    *moved_out = r->head[pair] != DS_NONE;
    if (*moved_out && r->head[pair] != m) {
        return broken(r, rank, 3, "something else was sent before");
    }
    if (*moved_out && !is_free(r, rank, edge->last, op->micro, edge->kept ? r->slots[rank] : 1)) {
        return broken(r, rank, 2, "it overwrites what is still to be read");
    }
    if (*moved_out) {
        r->head[pair] = r->next[m];
        r->now[rank] = r->sent[m] > r->now[rank] ? r->sent[m] : r->now[rank];
        r->got[m] = r->now[rank];
    }
    return DS_OK;
}

static ds_status run_sent(runner *r, uint32_t rank, const dsi_pipe_op *op, bool *moved_out)
{
    const size_t m = message_of(r, op->what, op->micro);
    if (r->sent[m] < 0.0) {
        return broken(r, rank, 5, "it was not sent");
    }
    *moved_out = r->got[m] >= 0.0;
    if (*moved_out) {
        r->waited[m] = true;
        r->now[rank] = r->got[m] > r->now[rank] ? r->got[m] : r->now[rank];
    }
    return DS_OK;
}

/* *moved_out: whether the rank is behind its next instruction. */
static ds_status run_op(runner *r, uint32_t rank, bool *moved_out)
{
    const dsi_pipe_op *op = &r->lists[rank].items[r->at[rank]];
    const bool message = op->kind != DSI_PIPE_RUN;
    *moved_out = true;
    if (message && (op->what >= r->n_edges || op->micro >= r->s->n_micro)) {
        return broken(r, rank, 5, "no such message");
    }
    const dsi_pipe_edge *edge = message ? &r->edges[op->what] : NULL;
    if (message && (op->kind == DSI_PIPE_RECEIVE ? edge->target : edge->source) != rank) {
        return broken(r, rank, 5, "a message of other ranks");
    }
    switch (op->kind) {
    case DSI_PIPE_RECEIVE:
        return run_receive(r, rank, op, moved_out);
    case DSI_PIPE_RUN:
        return run_phase(r, rank, op);
    case DSI_PIPE_SEND:
        return run_send(r, rank, op);
    case DSI_PIPE_SENT:
        break;
    }
    return run_sent(r, rank, op, moved_out);
}

static ds_status check_end(const runner *r)
{
    for (uint32_t rank = 0; rank < r->s->n_ranks; ++rank) {
        if (r->at[rank] < r->lists[rank].n) {
            return broken(r, rank, 5, "it would wait for ever");
        }
    }
    const size_t n_done = (size_t)r->s->n_ranks * dsi_schedule_count(r->s);
    for (size_t i = 0; i < n_done; ++i) {
        if (!r->done[i]) {
            return ds_fail(
                r->ctx, DS_ERR_GRAPH,
                "schedule: invariant 1: rank %zu does not run a phase of micro-batch %zu",
                i / dsi_schedule_count(r->s), i % r->s->n_micro);
        }
    }
    for (size_t m = 0; m < (size_t)r->n_edges * r->s->n_micro; ++m) {
        if (!r->waited[m]) {
            return ds_fail(
                r->ctx, DS_ERR_GRAPH,
                "schedule: invariant 5: message %zu of micro-batch %zu is left on its way",
                m / r->s->n_micro, m % r->s->n_micro);
        }
    }
    return DS_OK;
}

static ds_status run_all(runner *r)
{
    bool any = true;
    for (uint32_t rank = 0; rank < r->s->n_ranks; ++rank) {
        dsi_pipe_slots slots;
        DS_TRY(dsi_pipe_slots_make(r->ctx, r->s, rank, &slots));
        r->slots[rank] = slots.n;
        dsi_pipe_slots_free(&slots);
    }
    while (any) {
        any = false;
        for (uint32_t rank = 0; rank < r->s->n_ranks; ++rank) {
            bool moved = true;
            while (moved && r->at[rank] < r->lists[rank].n) {
                DS_TRY(run_op(r, rank, &moved));
                r->at[rank] += moved ? 1 : 0;
                any = any || moved;
            }
        }
    }
    DS_TRY(check_end(r));
    for (uint32_t rank = 0; rank < r->s->n_ranks; ++rank) {
        r->result->seconds = r->now[rank] > r->result->seconds ? r->now[rank] : r->result->seconds;
    }
    return DS_OK;
}

ds_status dsi_pipe_lists_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                               uint32_t n_edges, const dsi_pipe_list *lists,
                               const dsi_schedule_times *times, dsi_pipe_result *result_out)
{
    const size_t n = (size_t)n_edges * s->n_micro;
    const size_t n_pairs = (size_t)DSI_PIPE_CHANNELS * s->n_ranks * s->n_ranks;
    dsi_pipe_result result = {0};
    runner r = {.ctx = ctx,
                .s = s,
                .parts = dsi_schedule_parts(s),
                .edges = edges,
                .n_edges = n_edges,
                .lists = lists,
                .times = times,
                .result = &result};
    uint32_t *links = malloc((2 * n_pairs + n + 1) * sizeof *links);
    r.sent = malloc((2 * n + 1) * sizeof *r.sent);
    r.waited = calloc(n + 1, sizeof *r.waited);
    r.done = calloc((size_t)s->n_ranks * dsi_schedule_count(s) + 1, sizeof *r.done);
    ds_status status = DS_OK;
    if (links == NULL || r.sent == NULL || r.waited == NULL || r.done == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory to check a schedule");
    } else {
        for (size_t i = 0; i < 2 * n_pairs + n; ++i) {
            links[i] = DS_NONE;
        }
        for (size_t i = 0; i < 2 * n; ++i) {
            r.sent[i] = -1.0;
        }
        r.head = links;
        r.tail = links + n_pairs;
        r.next = links + 2 * n_pairs;
        r.got = r.sent + n;
        status = run_all(&r);
    }
    free(links);
    free(r.sent);
    free(r.waited);
    free(r.done);
    if (status >= 0) {
        *result_out = result;
    }
    return status;
}

ds_status dsi_pipe_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                         uint32_t n_edges, const dsi_schedule_times *times,
                         dsi_pipe_result *result_out)
{
    dsi_pipe_list lists[DSI_STAGES_MOST] = {{0}};
    ds_status status = DS_OK;
    for (uint32_t rank = 0; rank < s->n_ranks && status >= 0; ++rank) {
        status = dsi_pipe_list_make(ctx, s, edges, n_edges, rank, &lists[rank]);
    }
    if (status >= 0) {
        status = dsi_pipe_lists_check(ctx, s, edges, n_edges, lists, times, result_out);
    }
    for (uint32_t rank = 0; rank < s->n_ranks; ++rank) {
        free(lists[rank].items);
    }
    return status;
}
