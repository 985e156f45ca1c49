/* SPDX-License-Identifier: Apache-2.0 */
/* What a chunk of sequences leaves to the turns of others (pass/chunks.h): keys, values, sums of
 * their gradients. It leaves memory where it is made, into a cell, and comes back for each turn
 * that reads it.
 *
 * Invariants: 1. a cell holds one such value at a time, from where it is made to its last reader in
 * program order; then another of the same shape has it; 2. within the turn that made it, or
 * fetched it, a value is read in memory, until IN_MEMORY others have come; 3. what is recomputed is
 * made again in the backward phase, so that no cell waits for that.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>

enum { IN_MEMORY = 4 }; /* keys, values and their gradients of a step of attention */

/* Whether a value may wait outside of memory. */
static bool may_wait(const dsi_offloader *o, ds_value v)
{
    const dsi_value_info *info = &o->r.from->values[v];
    const dsi_node_info *maker =
        info->producer != DS_NONE ? &o->r.from->nodes[info->producer] : NULL;
    return maker != NULL && maker->half != 0 && info->cell == DS_NONE &&
           ds_meta_bytes(info->meta) >= o->how->least_activation;
}

/* Whether a node goes on with a sum over positions, the gradient of a weight: every turn adds to
 * it, so that it stays. Gradients of keys are such of a chunk. */
static bool goes_on(const dsi_node_info *maker, const dsi_node_info *reader)
{
    return reader->op == &dsi_op_add ||
           (reader->op == maker->op && reader->op != &dsi_op_attention_part_backward);
}

ds_status dsi_offload_find_waiting(dsi_offloader *o)
{
    const ds_graph *g = o->r.from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        o->turns[v] = (dsi_turn_state){.last = DS_NONE, .cell = DS_NONE, .here = DS_NONE};
    }
    for (ds_node n = 0; n < g->n_nodes && o->how->waiting != DSI_RESIDENCY_DEVICE; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v == DS_NONE || !may_wait(o, v)) {
                continue;
            }
            const dsi_node_info *maker = &g->nodes[g->values[v].producer];
            const bool other = node->half != 0 && node->half != maker->half &&
                               node->phase == maker->phase && !goes_on(maker, node);
            o->turns[v].waits = o->turns[v].waits || other;
            o->turns[v].last = n;
        }
    }
    return DS_OK;
}

static bool same_meta(ds_meta a, ds_meta b)
{
    return a.dtype == b.dtype && ds_shape_equal(a.shape, b.shape);
}

static bool is_waiting(const dsi_offloader *o, ds_cell cell)
{
    bool found = false;
    for (uint32_t i = 0; i < o->n_waiting; ++i) {
        found = found || o->waiting[i].cell == cell;
    }
    return found;
}

/* Declares a cell. What no phase leaves to another waits in those of the training plan in
 * evaluation, too; that is its own which waits from phase to phase. */
static ds_status add_cell(dsi_offloader *o, ds_meta meta, bool spans, ds_cell *cell_out)
{
    char name[OFFLOAD_NAME_BYTES];
    ds_cell found = DS_NONE;
    uint32_t number = o->n_waiting;
    for (bool taken = true; taken; ++number) {
        (void)snprintf(name, sizeof name, spans ? "chunk/kept/%u" : "chunk/%u", number);
        found = ds_cells_find(o->cells, DS_CELL_STATE, name);
        taken = found != DS_NONE && (spans || is_waiting(o, found) ||
                                     !same_meta(ds_cells_get(o->cells, found)->meta, meta));
    }
    const ds_cell_info info = {.name = name, .kind = DS_CELL_STATE, .meta = meta, .of = DS_NONE};
    if (found == DS_NONE) {
        DS_TRY(ds_cells_add(o->cells, &info, &found));
    }
    *cell_out = found;
    return dsi_offload_add_residency(
        o, found,
        (dsi_cell_residency){.where = o->how->waiting, .parent = DS_NONE, .per_slot = spans});
}

/* A cell that nobody needs any more, or a new one. */
static ds_status find_cell(dsi_offloader *o, ds_value v, ds_cell *cell_out)
{
    const ds_graph *g = o->r.from;
    const ds_meta meta = g->values[v].meta;
    const ds_node last = o->turns[v].last;
    const bool spans = g->nodes[last].phase != g->nodes[g->values[v].producer].phase;
    const bool shared = !spans || dsi_phases_forward(&g->phases) == 1; /* chunks of layers take
                                                                          turns in no one order */
    for (uint32_t i = 0; i < o->n_waiting && shared; ++i) {
        dsi_waiting_cell *w = &o->waiting[i];
        if (w->until < o->now && w->spans == spans &&
            same_meta(ds_cells_get(o->cells, w->cell)->meta, meta)) {
            w->until = last;
            *cell_out = w->cell;
            return DS_OK;
        }
    }
    dsi_waiting_cell *items =
        dsi_graph_grow(o->waiting, &o->waiting_capacity, o->n_waiting + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to offload chunks");
    }
    o->waiting = items;
    DS_TRY(add_cell(o, meta, spans, cell_out));
    items[o->n_waiting++] = (dsi_waiting_cell){*cell_out, last, spans};
    return DS_OK;
}

ds_status dsi_offload_leave_turn(dsi_offloader *o, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (v == DS_NONE || !o->turns[v].waits) {
            continue;
        }
        dsi_turn_state *t = &o->turns[v];
        DS_TRY(find_cell(o, v, &t->cell));
        DS_TRY(dsi_offload_swap_out(o, t->cell, o->r.map[v]));
        t->half = node->half;
        t->phase = node->phase;
        t->here = o->r.map[v];
        t->at = ++o->n_here;
    }
    return DS_OK;
}

ds_status dsi_offload_in_turn(dsi_offloader *o, ds_value v, ds_cell cell, ds_value *value_out)
{
    dsi_turn_state *t = &o->turns[v];
    const dsi_node_info *reader = &o->r.from->nodes[o->now];
    const bool gone = reader->half != 0 && o->n_here - t->at >= IN_MEMORY;
    if (t->here == DS_NONE || t->half != reader->half || t->phase != reader->phase || gone) {
        DS_TRY(dsi_offload_content(o, cell, &t->here));
        t->half = reader->half;
        t->phase = reader->phase;
        t->at = ++o->n_here;
    }
    *value_out = t->here;
    return DS_OK;
}
