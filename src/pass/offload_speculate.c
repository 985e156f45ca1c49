/* SPDX-License-Identifier: Apache-2.0 */
/* Updates on the host before it is known whether their gradients will be clipped or skipped: in the
 * backward phase, behind the gradient that they read. A copy of the states is kept, what becomes of
 * the parameter waits in host memory, and phases of their own decide:
 *
 *     backward   copy ← states; states, waiting parameter ← update by the gradient as it is
 *     accept     parameter ← waiting parameter
 *     undo       states ← copy
 *     redo       the update as it would have been, behind an undo
 *
 * The program runs accept, or undo, or undo and redo. So the bits are those of updates that wait.
 * See offload_state.h, and docs/internals/offload.md.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdio.h>

enum { IN_PARAM = 0, IN_GRAD = 1, IN_HYPER = 2, IN_FACTOR = 3, IN_MASTER = 4 };

static bool is_asked_for(const dsi_offloader *o)
{
    return o->how->host && o->how->speculate.on;
}

/* Whether nobody reads what an update makes, and the processor runs it. */
static bool can_speculate(const dsi_offloader *o, const dsi_node_info *node)
{
    const ds_value v = dsi_node_out(o->r.from, node)[0];
    return dsi_offload_on_host(o, node) && o->uses[v] == 0 && node->phase != DS_PHASE_BACKWARD &&
           dsi_offload_cell_of(o, dsi_node_in(o->r.from, node)[IN_PARAM]) != DS_NONE;
}

bool dsi_offload_was_speculated(const dsi_offloader *o, const dsi_node_info *node)
{
    return o->speculated[node - o->r.from->nodes];
}

/* The copy of a state. */
static ds_status copy_of(dsi_offloader *o, ds_cell cell, ds_cell *copy_out)
{
    char name[OFFLOAD_NAME_BYTES];
    const ds_cell_info *info = ds_cells_get(o->cells, cell);
    (void)snprintf(name, sizeof name, "copy of %s of %s", ds_cell_kind_name(info->kind),
                   info->name);
    return dsi_offload_host_cell(o, name, info->meta, copy_out);
}

/* Of each state of an update: state ← copy, or copy ← state. Whole: in the phase that has stored it
 * a gradient is not read in parts (plan.h, invariant 11). */
static ds_status move_states(dsi_offloader *o, const dsi_node_info *node, bool back)
{
    for (uint32_t i = IN_MASTER; i < node->n_in; ++i) {
        const ds_cell state = dsi_offload_cell_of(o, dsi_node_in(o->r.from, node)[i]);
        ds_cell copy = DS_NONE;
        if (state != DS_NONE) {
            DS_TRY(copy_of(o, state, &copy));
            DS_TRY(dsi_offload_store_on_host(o, back ? state : copy, back ? copy : state));
        }
    }
    return DS_OK;
}

/* Where an update's nodes go: of a phase that its own node is not of. */
static ds_status stand_in(dsi_offloader *o, const dsi_node_info *node, ds_phase phase)
{
    dsi_node_info there = *node;
    there.phase = phase;
    return dsi_rewrite_stand_at(&o->r, &there);
}

static ds_status speculate(dsi_offloader *o, const dsi_node_info *node)
{
    ds_value factor = DS_NONE;
    o->speculated[node - o->r.from->nodes] = true;
    DS_TRY(stand_in(o, node, o->r.to->phase));
    DS_TRY(ds_graph_read(o->r.to, o->how->speculate.factor, &factor));
    DS_TRY(move_states(o, node, false));
    DS_TRY(dsi_offload_update_ahead(o, node, factor));
    return dsi_rewrite_stand_at(&o->r, &o->r.from->nodes[o->now]);
}

ds_status dsi_offload_speculate(dsi_offloader *o, ds_value gradient)
{
    for (ds_node n = 0; n < o->r.from->n_nodes && is_asked_for(o); ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        if (dsi_offload_is_update(node) && dsi_node_in(o->r.from, node)[IN_GRAD] == gradient &&
            can_speculate(o, node) && !dsi_offload_was_speculated(o, node)) {
            DS_TRY(speculate(o, node));
        }
    }
    return DS_OK;
}

/* parameter ← what waits. */
static ds_status accept(dsi_offloader *o)
{
    for (uint32_t i = 0; i < o->n_waiting_results; ++i) {
        const dsi_host_result *result = &o->waiting_results[i];
        DS_TRY(stand_in(o, result->node, o->how->speculate.accept));
        if (dsi_offload_swapped(o, result->param)) {
            DS_TRY(dsi_offload_store_on_host(o, result->param, o->r.to->values[result->made].cell));
            continue;
        }
        ds_value in[2];
        DS_TRY(dsi_offload_apply(o, &dsi_op_swap_in, NULL, &result->made, 1, &in[1]));
        DS_TRY(ds_graph_read(o->r.to, result->param, &in[0]));
        DS_TRY(dsi_offload_apply(o, &dsi_op_store, NULL, in, 2, &in[0]));
    }
    return DS_OK;
}

static ds_status undo(dsi_offloader *o, const dsi_node_info *node)
{
    DS_TRY(stand_in(o, node, o->how->speculate.undo));
    return move_states(o, node, true);
}

ds_status dsi_offload_decide(dsi_offloader *o)
{
    if (o->n_waiting_results == 0 || o->decided) {
        return DS_OK;
    }
    o->decided = true;
    DS_TRY(accept(o));
    for (int redo = 0; redo < 2; ++redo) {
        for (ds_node n = 0; n < o->r.from->n_nodes; ++n) {
            const dsi_node_info *node = &o->r.from->nodes[n];
            if (!dsi_offload_was_speculated(o, node)) {
                continue;
            }
            if (redo == 0) {
                DS_TRY(undo(o, node));
                continue;
            }
            DS_TRY(stand_in(o, node, o->how->speculate.redo));
            DS_TRY(dsi_offload_lower_on_host(o, node));
        }
    }
    for (uint32_t i = 0; i < o->n_results; ++i) { /* whose nodes are of another phase */
        dsi_host_result result = o->results[i];
        DS_TRY(stand_in(o, result.node, o->how->speculate.redo));
        DS_TRY(dsi_offload_bring_result(o, &result));
    }
    o->n_results = 0;
    return DS_OK;
}
