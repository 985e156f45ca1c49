/* SPDX-License-Identifier: Apache-2.0 */
/* The lowering of one graph to a plan, for the files of its stages alone, in their order:
 *
 *     plan_build.c     order, slots of the order, steps; the whole
 *     plan_values.c    where each value is made and how long it lives
 *     plan_steps.c     steps with operands, kernels and costs
 *     plan_place.c     offsets in the arenas, the ledger, outputs
 *     plan_slots.c     what lies in the slots of micro-batches in flight
 *     plan_streams.c   streams, and the events between them
 */
#ifndef DSI_PLAN_LOWER_H
#define DSI_PLAN_LOWER_H

#include "pass/memory.h"
#include "pass/overlap.h"
#include "plan/plan.h"

/* Working state of one lowering; arrays by value id unless stated. */
typedef struct dsi_lowering {
    const ds_graph *graph;
    const dsi_plan_env *env;
    dsi_plan *plan;
    uint32_t *uses;
    ds_node *order;
    uint32_t n_order;
    dsi_slot *slots; /* the order once more, with starts and waits of collectives */
    uint32_t n_slots;
    uint32_t *step_of; /* per slot: the step; a bucket is one step */
    uint32_t n_steps;
    bool *shared;           /* per root: a collective sends it */
    bool *swapped;          /* per root: a swap moves it */
    ds_value *root;         /* the value whose storage it shares; itself when its own */
    uint32_t *first, *last; /* steps of definition and last use, over all that share the root; a
                               last before the first: into the next step */
    bool *kept;             /* named output: must outlive its phase */
    ds_cell *placed;        /* the cell that a value is made in, or DS_NONE */
    ds_value *same;         /* a store's output that was elided: the value stored; else itself */
    dsi_memory_item *items; /* per value, then per step (scratch), then reserved */
} dsi_lowering;

/* The node of a slot. */
const dsi_node_info *dsi_lower_node_of(const dsi_lowering *b, uint32_t slot);

/* Of values: uses; stores that become the place where a value is made; first and last steps; what
 * outlives its phase; what shares storage; what collectives and swaps move. */
void dsi_lower_count_uses(dsi_lowering *b);
void dsi_lower_elide_stores(dsi_lowering *b);
void dsi_lower_find_lifetimes(dsi_lowering *b);
void dsi_lower_keep_outputs(dsi_lowering *b);
void dsi_lower_share_in_place(dsi_lowering *b);
void dsi_lower_mark_shared(dsi_lowering *b);
void dsi_lower_mark_swapped(dsi_lowering *b);

/* Steps with operands and kernels, not yet offsets. Errors: no kernel for a node. */
ds_status dsi_lower_make_steps(dsi_lowering *b);
/* The operand that stands for a value; its offset comes with the memory. */
dsi_ref dsi_lower_make_ref(const dsi_lowering *b, ds_value v);

/* Offsets of values and scratch, in the arena and in what ranks share; named outputs; the ledger.
 */
/* plan_slots.c: whether item i is kept from one phase of a micro-batch to another where several of
 * these may be in flight, in the slots of that chunk; that everything so kept can be; whether step
 * s is of another phase than the one of a micro-batch that makes v. */
bool dsi_lower_leaves_phase(const dsi_lowering *b, ds_value v, uint32_t s);
bool dsi_lower_is_of_slot(const dsi_lowering *b, uint32_t item, uint32_t chunk);
/* The last step in whose time an item that lies apart may be read. */
uint32_t dsi_lower_slot_end(const dsi_lowering *b, uint32_t item);
ds_status dsi_lower_check_slots(const dsi_lowering *b);
ds_status dsi_lower_place_memory(dsi_lowering *b);
ds_status dsi_lower_place_shared(dsi_lowering *b);
ds_status dsi_lower_name_outputs(dsi_lowering *b);
ds_status dsi_lower_fill_ledger(dsi_lowering *b);

/* The stream of each step, and the events that order steps of different streams: behind all
 * offsets, since bytes that are used again order steps too. */
ds_status dsi_lower_place_events(dsi_lowering *b);

#endif
