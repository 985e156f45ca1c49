/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of offload. Shared by offload*.c alone:
 *
 *     offload.c           the new graph, node by node
 *     offload_content.c   what a cell holds, in memory and written back
 *     offload_leave.c     gradients and activations, which leave memory where they are made
 *     offload_turns.c     what waits for the turns of chunks
 *     offload_update.c    updates, chunk by chunk, and their states
 */
#ifndef DSI_PASS_OFFLOAD_STATE_H
#define DSI_PASS_OFFLOAD_STATE_H

#include "ir/rewrite.h"
#include "pass/offload.h"

enum { OFFLOAD_NAME_BYTES = 1100 };
enum { OFFLOAD_MOST_AHEAD = 128 }; /* states that the forward phase fetches */

/* What an update will ask for, in memory already. */
typedef struct dsi_brought {
    ds_cell cell;
    ds_value value;
} dsi_brought;

/* Of a value: where it is in memory, and for whom. */
typedef struct dsi_turn_state {
    bool waits;    /* a turn of another chunk than that which makes it reads it in the same phase */
    ds_node last;  /* its last reader */
    ds_cell cell;  /* that it waits in; DS_NONE: none yet */
    ds_value here; /* in memory for the turn `half` of `phase`; DS_NONE: never yet */
    uint32_t half;
    ds_phase phase;
    uint64_t at; /* n_here when it came */
} dsi_turn_state;

/* A cell that values wait in, one behind the other. */
typedef struct dsi_waiting_cell {
    ds_cell cell;
    ds_node until; /* the last reader of what it holds */
    bool spans;    /* which is of another phase than who made it */
} dsi_waiting_cell;

typedef struct dsi_offloader {
    const dsi_offload *how;
    dsi_rewrite r;
    ds_cells *cells; /* may be those of from: kept activations are added behind them */
    dsi_residencies *residencies;
    ds_cell n_cells;    /* of from, at the start */
    uint32_t *uses;     /* per value of from */
    ds_value *resident; /* per cell: its content in memory, DS_NONE when not */
    int64_t *used_at;   /* per cell: `used` at its last use */
    int64_t used;       /* parameter elements used so far */
    ds_cell *left_in;   /* per value: the cell that a kept activation waits in, or DS_NONE */
    ds_node *store_of;  /* per value: the node that stores it as a swapped gradient, or DS_NONE */
    bool *gone;         /* per node: done earlier */
    dsi_brought ahead[OFFLOAD_MOST_AHEAD];
    uint32_t n_ahead;
    ds_node now;           /* the node of from that is made */
    dsi_turn_state *turns; /* per value */
    dsi_waiting_cell *waiting;
    uint32_t n_waiting, waiting_capacity;
    uint64_t n_here; /* values that waited, or will, that have come into memory so far */
} dsi_offloader;

/* offload_content.c */

/* Whether the cell lives elsewhere than on the device; false of DS_NONE. */
bool dsi_offload_swapped(const dsi_offloader *o, ds_cell cell);
/* The cell that a value of from is the content of, or DS_NONE. */
ds_cell dsi_offload_cell_of(const dsi_offloader *o, ds_value v);
/* Receives the residency of a cell of the new graph. */
ds_status dsi_offload_add_residency(dsi_offloader *o, ds_cell cell, dsi_cell_residency residency);
/* A node of the new graph; its first output. */
ds_status dsi_offload_apply(dsi_offloader *o, const ds_op *op, const void *attrs,
                            const ds_value *in, uint32_t n_in, ds_value *value_out);
/* The content of a cell, fetched into memory when its residency is another and it has not been
 * fetched ahead. */
ds_status dsi_offload_content(dsi_offloader *o, ds_cell cell, ds_value *value_out);
ds_status dsi_offload_swap_out(dsi_offloader *o, ds_cell cell, ds_value x);
/* What stands in the new graph for a value of from as an operand. */
ds_status dsi_offload_operand(dsi_offloader *o, ds_value v, ds_value *value_out);
/* Whether an update of this phase has made it: it is in memory, its writeback in flight, since an
 * update whose result is read is not cut. */
bool dsi_offload_in_hand(const dsi_offloader *o, ds_value v);
/* Whether a cell, once in memory, stays for all its uses of a phase: keys and values, which are
 * read right behind being written. */
bool dsi_offload_stays(const dsi_offloader *o, ds_cell cell);
/* Nothing stays in memory from one phase to the next. */
void dsi_offload_forget(dsi_offloader *o);

/* offload_leave.c */

/* Before the first node: which values will leave. */
ds_status dsi_offload_find_leaving(dsi_offloader *o);
/* Behind a node that is in the new graph: what it made leaves. */
ds_status dsi_offload_leave(dsi_offloader *o, const dsi_node_info *node);
/* Whether the node stores or accumulates a swapped gradient; and that node in the new graph. */
bool dsi_offload_writes_gradient(const dsi_offloader *o, const dsi_node_info *node);
ds_status dsi_offload_lower_gradient(dsi_offloader *o, const dsi_node_info *node);

/* offload_turns.c */

/* Before the first node: which values wait for turns. */
ds_status dsi_offload_find_waiting(dsi_offloader *o);
/* Behind a node that is in the new graph: what other turns read leaves. */
ds_status dsi_offload_leave_turn(dsi_offloader *o, const dsi_node_info *node);
/* A value that waits in a cell, in memory for the node that is made: fetched once a turn. */
ds_status dsi_offload_in_turn(dsi_offloader *o, ds_value v, ds_cell cell, ds_value *value_out);

/* offload_update.c */

/* Nodes that may run part by part, their scalars being inputs 2 and 3. */
bool dsi_offload_is_update(const dsi_node_info *node);
bool dsi_offload_touches_swapped(const dsi_offloader *o, const dsi_node_info *node);
/* Such a node in the new graph. */
ds_status dsi_offload_lower_update(dsi_offloader *o, const dsi_node_info *node);
/* At the end of the forward phase: states of the first early updates. */
ds_status dsi_offload_bring_states(dsi_offloader *o);

#endif
