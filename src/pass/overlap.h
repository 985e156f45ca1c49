/* SPDX-License-Identifier: Apache-2.0 */
/* When collectives and swaps start and when they are waited for. */
#ifndef DSI_PASS_OVERLAP_H
#define DSI_PASS_OVERLAP_H

#include "ir/graph.h"
#include "ir/step_kind.h"

/* A place in the order of a plan: a node, or the start or the wait of an asynchronous one. Members
 * of a bucket stand side by side in each of the two roles. */
typedef struct dsi_slot {
    ds_node node;
    dsi_step_kind kind;
    ds_phase phase; /* that it runs in; of a wait it may be another one than the node's */
    uint32_t group; /* of START and WAIT: what starts together ends together; 0 of RUN */
} dsi_slot;

typedef struct dsi_overlap_limits {
    bool comm;        /* collectives overlap; false: they start and end in one place */
    int64_t prefetch; /* elements of gathers of parameters that may be started ahead of their use */
    /* bytes of swaps in flight, 0: none during computation. Into memory in the forward and backward
     * phases, and in the later ones; back */
    size_t read_ahead, update_ahead, write_behind;
    bool defer;       /* writebacks of states may end in the next step */
    bool write_first; /* an update's writebacks end before the next update begins */
} dsi_overlap_limits;

/* Spreads an order of n nodes (buckets side by side) to slots (room for 2n). A collective or swap
 * starts where it stood, and is waited for before the first node that reads its outputs, before the
 * end of its phase, when too much is under way, or, of a swap, before the next one writes its cell.
 * What the host runs (on_host) starts where it stood, and waits itself for the swaps that it reads,
 * as swaps of what it makes wait for it. Gathers of parameters and swaps into memory
 * start ahead of their place as far as the limits go. Two kinds of swaps end in another phase than
 * they start in: states that the forward phase fetches for updates of the backward phase, and, with
 * defer, the last writebacks of states in a step: their wait stands in the forward phase, and
 * is for those of the step before. same[v]: the value whose storage v is (elided stores). Pure.
 * Errors: ERR_NOMEM. */
ds_status dsi_overlap(const ds_graph *graph, const ds_node *order, uint32_t n, const ds_value *same,
                      const dsi_overlap_limits *limits, dsi_slot *slots, uint32_t *n_out);

#endif
