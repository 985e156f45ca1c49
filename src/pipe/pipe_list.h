/* SPDX-License-Identifier: Apache-2.0 */
/* What each rank of a pipeline does in a step: the turns of a schedule with the messages between
 * them, and a checker that runs the lists of all ranks against one another.
 *
 * Messages from one rank to another arrive in the order in which they are sent, on each channel. So
 * the sender's list places the receives: before a turn its rank receives what the turn reads, and
 * whatever was sent there before that. What is received early lies in the slot of its micro-batch.
 *
 * Invariants (dsi_pipe_lists_check):
 *  1. a rank runs every phase of every micro-batch once, those of a chunk in their order, and never
 *     more micro-batches of a chunk at once than it has slots;
 *  2. a phase finds all that it reads: received, and not overwritten since;
 *  3. what is received is the oldest that is on its way from that rank, on that channel;
 *  4. a buffer is written again only when what was sent from it has been received;
 *  5. no rank waits for ever, and nothing is left on its way.
 */
#ifndef DSI_PIPE_PIPE_LIST_H
#define DSI_PIPE_PIPE_LIST_H

#include "pipe/pipe_schedule.h"

/* What one rank sends to another behind a phase of each micro-batch. */
typedef struct dsi_pipe_edge {
    uint32_t source, target; /* ranks */
    ds_phase phase;          /* of the source: behind which it is sent */
    ds_phase first, last;    /* of the target: phases that read it */
    uint32_t buffers;        /* of the source, at least 1 */
    bool apart;              /* a buffer is filled behind the phase, not by it */
    bool kept;               /* the target has room for it in each slot, not once */
    uint32_t channel;        /* below DSI_PIPE_CHANNELS: those of two ranks know no order */
} dsi_pipe_edge;

enum { DSI_PIPE_CHANNELS = 2 };

typedef enum dsi_pipe_op_kind {
    DSI_PIPE_RECEIVE,
    DSI_PIPE_RUN,
    DSI_PIPE_SEND,
    DSI_PIPE_SENT /* waits until it is received */
} dsi_pipe_op_kind;

typedef struct dsi_pipe_op {
    dsi_pipe_op_kind kind;
    uint32_t what; /* a phase of RUN, else an edge */
    uint32_t micro;
} dsi_pipe_op;

typedef struct dsi_pipe_list {
    dsi_pipe_op *items; /* owned: free() */
    uint32_t n, capacity;
} dsi_pipe_list;

/* The list of a rank. Errors: ERR_GRAPH: a phase reads what no phase of another rank sends. */
ds_status dsi_pipe_list_make(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                             uint32_t n_edges, uint32_t rank, dsi_pipe_list *list_out);

typedef struct dsi_pipe_result {
    double seconds;                      /* until the last rank has ended; messages take no time */
    uint32_t in_flight[DSI_STAGES_MOST]; /* per rank: micro-batches of a chunk begun and not ended,
                                            at most, all its chunks together */
} dsi_pipe_result;

/* Runs lists, one a rank, as ranks do. Errors: ERR_GRAPH names rank, instruction and invariant. */
ds_status dsi_pipe_lists_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                               uint32_t n_edges, const dsi_pipe_list *lists,
                               const dsi_schedule_times *times, dsi_pipe_result *result_out);
/* The same of the schedule's own lists. */
ds_status dsi_pipe_check(ds_ctx *ctx, const dsi_schedule *s, const dsi_pipe_edge *edges,
                         uint32_t n_edges, const dsi_schedule_times *times,
                         dsi_pipe_result *result_out);

#endif
