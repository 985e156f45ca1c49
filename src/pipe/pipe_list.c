/* SPDX-License-Identifier: Apache-2.0 */
/* The list of instructions of a rank. See pipe_list.h; pipe_list_check.c runs lists. */
#include "pipe/pipe_list.h"

#include <stdlib.h>

/* Where another rank stands among what it sends: its turns, and the edges of each. */
typedef struct sender {
    dsi_turn *turns;
    uint32_t turn, edge;
} sender;

typedef struct lister {
    ds_ctx *ctx;
    const dsi_schedule *s;
    const dsi_pipe_edge *edges;
    uint32_t n_edges, rank;
    sender *senders; /* per channel and rank */
    bool *got;       /* per edge and micro-batch */
    dsi_pipe_list list;
} lister;

static ds_status add(lister *l, dsi_pipe_op_kind kind, uint32_t what, uint32_t micro)
{
    dsi_pipe_op *items =
        dsi_graph_grow(l->list.items, &l->list.capacity, l->list.n + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for the instructions of a pipeline");
    }
    l->list.items = items;
    items[l->list.n++] = (dsi_pipe_op){kind, what, micro};
    return DS_OK;
}

/* Receives what comes next from a rank on a channel. */
static ds_status receive_next(lister *l, uint32_t source, uint32_t channel)
{
    sender *from = &l->senders[channel * l->s->n_ranks + source];
    const uint32_t n = dsi_schedule_count(l->s);
    for (; from->turn < n; from->turn += 1, from->edge = 0) {
        const dsi_turn turn = from->turns[from->turn];
        for (; from->edge < l->n_edges; from->edge += 1) {
            const dsi_pipe_edge *edge = &l->edges[from->edge];
            if (edge->source == source && edge->channel == channel && edge->target == l->rank &&
                edge->phase == turn.phase) {
                const uint32_t e = from->edge++;
                l->got[(size_t)e * l->s->n_micro + turn.micro] = true;
                return add(l, DSI_PIPE_RECEIVE, e, turn.micro);
            }
        }
    }
    return ds_fail(l->ctx, DS_ERR_GRAPH,
                   "schedule: rank %u of the pipeline reads what rank %u never sends", l->rank,
                   source);
}

static ds_status receive(lister *l, dsi_turn turn)
{
    for (uint32_t e = 0; e < l->n_edges; ++e) {
        const dsi_pipe_edge *edge = &l->edges[e];
        const bool reads = edge->target == l->rank && edge->first == turn.phase;
        while (reads && !l->got[(size_t)e * l->s->n_micro + turn.micro]) {
            DS_TRY(receive_next(l, edge->source, edge->channel));
        }
    }
    return DS_OK;
}

/* Of what a turn sends: its buffers are free, before the turn or (apart) behind it. */
static ds_status wait_for_buffers(lister *l, dsi_turn turn, bool apart)
{
    for (uint32_t e = 0; e < l->n_edges; ++e) {
        const dsi_pipe_edge *edge = &l->edges[e];
        if (edge->source == l->rank && edge->phase == turn.phase && edge->apart == apart &&
            turn.micro >= edge->buffers) {
            DS_TRY(add(l, DSI_PIPE_SENT, e, turn.micro - edge->buffers));
        }
    }
    return DS_OK;
}

static ds_status send(lister *l, dsi_turn turn)
{
    for (uint32_t e = 0; e < l->n_edges; ++e) {
        if (l->edges[e].source == l->rank && l->edges[e].phase == turn.phase) {
            DS_TRY(add(l, DSI_PIPE_SEND, e, turn.micro));
        }
    }
    return DS_OK;
}

/* All that is still on its way. */
static ds_status wait_for_rest(lister *l)
{
    const uint32_t n = l->s->n_micro;
    for (uint32_t e = 0; e < l->n_edges; ++e) {
        const uint32_t buffers = l->edges[e].buffers;
        for (uint32_t i = n > buffers ? n - buffers : 0; l->edges[e].source == l->rank && i < n;
             ++i) {
            DS_TRY(add(l, DSI_PIPE_SENT, e, i));
        }
    }
    return DS_OK;
}

static ds_status make(lister *l)
{
    const uint32_t n = dsi_schedule_count(l->s);
    for (uint32_t k = 0; k < DSI_PIPE_CHANNELS * l->s->n_ranks; ++k) {
        l->senders[k].turns = calloc((size_t)n + 1, sizeof(dsi_turn));
        if (l->senders[k].turns == NULL) {
            return ds_fail(l->ctx, DS_ERR_NOMEM, "no memory for the instructions of a pipeline");
        }
        dsi_schedule_turns(l->s, k % l->s->n_ranks, l->senders[k].turns);
    }
    for (uint32_t i = 0; i < n; ++i) {
        const dsi_turn turn = l->senders[l->rank].turns[i];
        DS_TRY(receive(l, turn));
        DS_TRY(wait_for_buffers(l, turn, false));
        DS_TRY(add(l, DSI_PIPE_RUN, turn.phase, turn.micro));
        DS_TRY(wait_for_buffers(l, turn, true));
        DS_TRY(send(l, turn));
    }
    return wait_for_rest(l);
}

ds_status dsi_pipe_list_make(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                             uint32_t n_edges, uint32_t rank, dsi_pipe_list *list_out)
{
    lister l = {.ctx = ctx, .s = s, .edges = edges, .n_edges = n_edges, .rank = rank};
    l.senders = calloc((size_t)DSI_PIPE_CHANNELS * s->n_ranks, sizeof *l.senders);
    l.got = calloc((size_t)n_edges * s->n_micro + 1, sizeof *l.got);
    ds_status status = l.senders == NULL || l.got == NULL
                           ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to list a pipeline's turns")
                           : make(&l);
    for (uint32_t k = 0; k < DSI_PIPE_CHANNELS * s->n_ranks && l.senders != NULL; ++k) {
        free(l.senders[k].turns);
    }
    free(l.senders);
    free(l.got);
    if (status < 0) {
        free(l.list.items);
        return status;
    }
    *list_out = l.list;
    return DS_OK;
}
