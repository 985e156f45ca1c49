/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of offload. Shared by offload*.c alone:
 *
 *     offload.c           the new graph, node by node
 *     offload_content.c   what a cell holds, in memory and written back
 *     offload_leave.c     gradients and activations, which leave memory where they are made
 *     offload_turns.c     what waits for the turns of chunks
 *     offload_update.c    updates, chunk by chunk, and their states
 *     offload_host.c      updates that the processor runs, where their states live
 *     offload_speculate.c the same before the norm is known
 */
#ifndef DSI_PASS_OFFLOAD_STATE_H
#define DSI_PASS_OFFLOAD_STATE_H

#include "ir/rewrite.h"
#include "pass/offload.h"

enum { OFFLOAD_NAME_BYTES = 1100 };
enum { OFFLOAD_MOST_AHEAD = 128 };  /* states that the forward phase fetches */
enum { OFFLOAD_MOST_NUMBERS = 64 }; /* that updates on the host read */

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

/* A number of the step's that a phase has brought to host memory. */
typedef struct dsi_host_number {
    ds_value value; /* of the new graph */
    ds_phase phase;
    ds_cell cell;
} dsi_host_number;

/* What an update on the host has made and the device does not have yet. */
typedef struct dsi_host_result {
    const dsi_node_info *node;
    ds_value value; /* of from; DS_NONE: of a part, which nobody reads in the phase */
    ds_value made;  /* in the new graph */
    ds_cell param;  /* where it goes, in the new graph; DS_NONE: nowhere, it is a value */
} dsi_host_result;

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
    dsi_host_number numbers[OFFLOAD_MOST_NUMBERS];
    uint32_t n_numbers;
    dsi_host_result *results;
    uint32_t n_results, results_capacity;
    dsi_host_result *waiting_results; /* of speculative updates */
    uint32_t n_waiting_results, waiting_results_capacity;
    bool *speculated; /* per node: an update that has run ahead of its phase */
    bool decided;     /* the phases that decide about them are there */
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
/* Elements of an update of `count` that are updated together. */
int64_t dsi_offload_chunk_of(const dsi_offloader *o, const dsi_node_info *node, int64_t count);
/* The cell of elements [begin, begin + count) of a cell; the cell itself when that is all. */
ds_status dsi_offload_part_of(dsi_offloader *o, ds_cell cell, int64_t begin, int64_t count,
                              ds_cell *part_out);
/* Those elements of a value of the new graph. */
ds_status dsi_offload_take_chunk(dsi_offloader *o, ds_value x, int64_t begin, int64_t count,
                                 ds_value *chunk_out);

/* offload_host.c */

/* Whether the processor runs an update, and that update in the new graph. */
bool dsi_offload_on_host(const dsi_offloader *o, const dsi_node_info *node);
ds_status dsi_offload_lower_on_host(dsi_offloader *o, const dsi_node_info *node);
/* The same ahead of its phase, in the one that is set, by another factor (of the new graph); what
 * it makes of the parameter is added to waiting_results. */
ds_status dsi_offload_update_ahead(dsi_offloader *o, const dsi_node_info *node, ds_value factor);
/* A cell in host memory, by its name; cell `to` becomes a copy of `from`, both there. */
ds_status dsi_offload_host_cell(dsi_offloader *o, const char *name, ds_meta meta,
                                ds_cell *cell_out);
ds_status dsi_offload_store_on_host(dsi_offloader *o, ds_cell to, ds_cell from);
/* A result goes to the device, in the phase that is set. */
ds_status dsi_offload_bring_result(dsi_offloader *o, const dsi_host_result *result);
/* What such updates have made of parameters goes to the device: all of it, at the end of their
 * phase; and what stands for the value v of from, before it is read. */
ds_status dsi_offload_take_results(dsi_offloader *o);
ds_status dsi_offload_take_result(dsi_offloader *o, ds_value v);

/* offload_speculate.c */

/* Whether an update has run ahead of its phase, so that nothing stands in that. */
bool dsi_offload_was_speculated(const dsi_offloader *o, const dsi_node_info *node);
/* Behind the store of a gradient, a value of from: the updates that read it, speculatively. */
ds_status dsi_offload_speculate(dsi_offloader *o, ds_value gradient);
/* Behind the phases before them: those that decide about it. */
ds_status dsi_offload_decide(dsi_offloader *o);

#endif
