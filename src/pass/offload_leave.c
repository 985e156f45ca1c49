/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves memory where it is made: gradients, for the update; and what the forward pass keeps
 * for the backward pass, into cells of its own.
 */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdio.h>

/* ---- gradients ------------------------------------------------------------------------------- */

bool dsi_offload_writes_gradient(const dsi_offloader *o, const dsi_node_info *node)
{
    const ds_cell cell =
        node->n_out > 0 ? dsi_offload_cell_of(o, dsi_node_out(o->r.from, node)[0]) : DS_NONE;
    return (node->op->role == DS_ROLE_STORE || node->op->role == DS_ROLE_ACCUMULATE) &&
           dsi_offload_swapped(o, cell) && ds_cells_get(o->cells, cell)->kind == DS_CELL_GRAD;
}

/* What a chunk's phase leaves for the norm waits in a cell: in the arena the phases of other
 * micro-batches that come in between have their values. The last micro-batch's stays. */
static ds_status keep_for_step(dsi_offloader *o, ds_node n, ds_value *x)
{
    const dsi_phases *phases = &o->r.to->phases;
    const uint32_t n_micro = dsi_phases_micro(phases);
    char name[OFFLOAD_NAME_BYTES];
    ds_value in[2] = {DS_NONE, *x};
    ds_cell cell = DS_NONE;
    if (n_micro <= 2 || o->r.to->phase + 1 >= n_micro) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "magnitude/%u", n);
    const ds_cell_info info = {
        .name = name, .kind = DS_CELL_STATE, .meta = ds_graph_meta(o->r.to, *x), .of = DS_NONE};
    cell = ds_cells_find(o->cells, info.kind, name);
    if (cell == DS_NONE) {
        DS_TRY(ds_cells_add(o->cells, &info, &cell));
    }
    DS_TRY(dsi_offload_add_residency(
        o, cell, (dsi_cell_residency){.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE}));
    DS_TRY(ds_graph_read(o->r.to, cell, &in[0]));
    return dsi_offload_apply(o, &dsi_op_store, NULL, in, 2, x);
}

/* Finds the largest magnitude of what is about to leave memory, where the norm will ask for it. */
static ds_status take_abs_max(dsi_offloader *o, ds_value logical, ds_value x)
{
    for (ds_node n = 0; n < o->r.from->n_nodes; ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        if (node->op->role == DS_ROLE_MAGNITUDE && dsi_node_in(o->r.from, node)[0] == logical) {
            DS_TRY(dsi_offload_apply(o, node->op, node->attrs, &x, 1,
                                     &o->r.map[dsi_node_out(o->r.from, node)[0]]));
            DS_TRY(keep_for_step(o, n, &o->r.map[dsi_node_out(o->r.from, node)[0]]));
            o->gone[n] = true;
        }
    }
    return DS_OK;
}

ds_status dsi_offload_lower_gradient(dsi_offloader *o, const dsi_node_info *node)
{
    const ds_value y = dsi_node_out(o->r.from, node)[0];
    const ds_cell cell = dsi_offload_cell_of(o, y);
    const ds_dtype dtype = ds_cells_get(o->cells, cell)->meta.dtype;
    ds_value x = DS_NONE;
    DS_TRY(dsi_offload_operand(o, dsi_node_in(o->r.from, node)[1], &x));
    if (node->op->role == DS_ROLE_ACCUMULATE) {
        ds_value in[2] = {DS_NONE, x};
        DS_TRY(dsi_offload_content(o, cell, &in[0]));
        DS_TRY(dsi_offload_apply(o, node->op, node->attrs, in, 2, &x));
    } else if (ds_graph_meta(o->r.to, x).dtype != dtype) {
        const dsi_cast_attrs cast = {.dtype = dtype};
        DS_TRY(dsi_offload_apply(o, &dsi_op_cast, &cast, &x, 1, &x));
    }
    DS_TRY(take_abs_max(o, y, x));
    DS_TRY(dsi_offload_swap_out(o, cell, x));
    return dsi_offload_speculate(o, y);
}

/* A gradient leaves as soon as it is made. */
static ds_status store_gradients(dsi_offloader *o, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        const ds_node store = v == DS_NONE ? DS_NONE : o->store_of[v];
        if (store != DS_NONE && o->r.from->nodes[store].phase == node->phase) {
            o->gone[store] = true;
            DS_TRY(dsi_offload_lower_gradient(o, &o->r.from->nodes[store]));
        }
    }
    return DS_OK;
}

static void find_stores(dsi_offloader *o)
{
    for (ds_value v = 0; v < o->r.from->n_values; ++v) {
        o->store_of[v] = DS_NONE;
    }
    for (ds_node n = 0; n < o->r.from->n_nodes; ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        if (dsi_offload_writes_gradient(o, node)) {
            o->store_of[dsi_node_in(o->r.from, node)[1]] = n;
        }
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Whether another forward phase reads it too: the next chunk of layers, on the same rank. Then it
 * stays in memory until that has run. */
static bool goes_on(const dsi_offloader *o, ds_value v, ds_phase made)
{
    const ds_graph *g = o->r.from;
    bool any = false;
    for (ds_node n = 0; n < g->n_nodes && dsi_phases_forward(&g->phases) > 1; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        const bool other = node->phase != made && dsi_phase_is_forward(&g->phases, node->phase);
        for (uint32_t i = 0; other && i < node->n_in; ++i) {
            any = any || dsi_node_in(g, node)[i] == v;
        }
    }
    return any;
}

static bool is_offloaded_activation(const dsi_offloader *o, ds_value v)
{
    const dsi_value_info *info = &o->r.from->values[v];
    const dsi_node_info *maker =
        info->producer != DS_NONE ? &o->r.from->nodes[info->producer] : NULL;
    return maker != NULL && dsi_phase_is_forward(&o->r.from->phases, maker->phase) &&
           info->cell == DS_NONE && (maker->op->flags & DS_OP_VIEW) == 0 &&
           ds_meta_bytes(info->meta) >= o->how->least_activation && !goes_on(o, v, maker->phase);
}

/* The cell that an activation waits in. */
static ds_status make_waiting_place(dsi_offloader *o, ds_value v)
{
    char name[OFFLOAD_NAME_BYTES];
    (void)snprintf(name, sizeof name, "activation/%u", v);
    const ds_cell_info info = {
        .name = name, .kind = DS_CELL_STATE, .meta = o->r.from->values[v].meta, .of = DS_NONE};
    o->left_in[v] = ds_cells_find(o->cells, info.kind, name);
    if (o->left_in[v] == DS_NONE) {
        DS_TRY(ds_cells_add(o->cells, &info, &o->left_in[v]));
    }
    return dsi_offload_add_residency(
        o, o->left_in[v],
        (dsi_cell_residency){.where = o->how->activations, .parent = DS_NONE, .per_slot = true});
}

/* What the forward pass leaves to the backward pass. */
static ds_status find_activations(dsi_offloader *o)
{
    for (ds_value v = 0; v < o->r.from->n_values; ++v) {
        o->left_in[v] = DS_NONE;
    }
    for (ds_node n = 0; n < o->r.from->n_nodes && o->how->activations != DSI_RESIDENCY_DEVICE;
         ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        const bool backward = o->r.from->phases.items[node->phase].like == DS_PHASE_BACKWARD;
        for (uint32_t i = 0; backward && i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(o->r.from, node)[i];
            if (v != DS_NONE && o->left_in[v] == DS_NONE && !o->turns[v].waits &&
                is_offloaded_activation(o, v)) {
                DS_TRY(make_waiting_place(o, v));
            }
        }
    }
    return DS_OK;
}

static ds_status leave_activations(dsi_offloader *o, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (v != DS_NONE && o->left_in[v] != DS_NONE) {
            DS_TRY(dsi_offload_swap_out(o, o->left_in[v], o->r.map[v]));
        }
    }
    return DS_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

ds_status dsi_offload_find_leaving(dsi_offloader *o)
{
    find_stores(o);
    DS_TRY(dsi_offload_find_waiting(o));
    return find_activations(o);
}

ds_status dsi_offload_leave(dsi_offloader *o, const dsi_node_info *node)
{
    DS_TRY(leave_activations(o, node));
    DS_TRY(dsi_offload_leave_turn(o, node));
    return store_gradients(o, node);
}
