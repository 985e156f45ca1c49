/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the hierarchical communicator. Shared by hier*.c alone. Invariants:
 *  1. Collectives of all groups that share a queue (a twin has one of its own, for its thread) are
 * done one after another, in the order of their starts on this rank, by whoever waits. What is
 * between two ranks (SEND, RECV) is started at once.
 *  2. Nothing of a call is touched before it is done by 1: inputs are read, outputs written there.
 */
#ifndef DSI_COMM_HIER_IMPL_H
#define DSI_COMM_HIER_IMPL_H

#include "comm/comm_call.h"
#include "comm/hier.h"

enum { HIER_OPS = 64, HIER_TEXT = 80 };

typedef enum hier_state { HIER_FREE, HIER_QUEUED, HIER_PAIR, HIER_DONE } hier_state;

typedef struct hier_op {
    hier_state state;
    struct hier_op *next; /* in the queue */
    struct hier_comm *comm;
    dsi_comm_ticket ticket;
    dsi_comm_call call;
    dsi_comm *pair_comm; /* HIER_PAIR: where it was started, and what it is called there */
    dsi_comm_ticket pair_ticket;
    double begin;
    dsi_comm_times times;
    ds_status status;
    char text[HIER_TEXT]; /* names the whole call in diagnoses of its pieces */
} hier_op;

typedef struct hier_queue {
    uint32_t n_users;
    hier_op *first, *last;
} hier_queue;

typedef struct hier_comm {
    dsi_comm head;
    dsi_hier_parts on;
    uint32_t block, n_blocks;
    hier_queue *queue;
    hier_op ops[HIER_OPS];
    /* of the call that is done now */
    char *stage;
    size_t stage_bytes, stage_used;
    dsi_comm_part *parts;
    size_t *counts;
    const void **inputs;
    uint32_t max_parts;
    size_t n_counts;
} hier_comm;

/* hier.c: waits for a call on one of the parts, and moves what is under way on the others
 * meanwhile: their peers may wait for that before they come to what this rank waits for. */
ds_status hier_wait_on(hier_comm *hier, dsi_comm *on, dsi_comm_ticket ticket,
                       dsi_comm_times *times_out);

/* hier_run.c: does a whole collective. */
ds_status hier_run(hier_comm *hier, hier_op *op);

/* hier_split.c */
ds_status hier_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);
ds_status hier_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out);

/* hier.c: queue NULL: a new one. */
ds_status hier_make(const dsi_hier_parts *parts, hier_queue *queue, dsi_comm **comm_out);

#endif
