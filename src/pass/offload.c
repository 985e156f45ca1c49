/* SPDX-License-Identifier: Apache-2.0 */
/* Obeys the residencies of cells: the new graph, node by node. See offload.h. */
#include "pass/offload_state.h"

#include "op/ops.h"

#include <stdlib.h>

/* ---- columns (ZenFlow) ----------------------------------------------------------------------- */

/* Nodes that write a cell whole, whatever it is. */
static bool writes_swapped(const dsi_offloader *o, const dsi_node_info *node)
{
    return (node->op->role == DS_ROLE_WRITE || node->op->role == DS_ROLE_STORE) &&
           dsi_offload_swapped(o, dsi_offload_cell_of(o, dsi_node_out(o->r.from, node)[0]));
}

static ds_status lower_write(dsi_offloader *o, const dsi_node_info *node)
{
    const ds_cell cell = dsi_offload_cell_of(o, dsi_node_out(o->r.from, node)[0]);
    const bool whole = node->op->role == DS_ROLE_STORE;
    ds_value in[DS_MAX_IN];
    ds_value x = DS_NONE;
    for (uint32_t i = whole ? 1 : 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(o->r.from, node)[i];
        DS_TRY(i == 0 ? dsi_offload_content(o, cell, &in[i]) : dsi_offload_operand(o, v, &in[i]));
    }
    if (whole) {
        const dsi_cast_attrs cast = {.dtype = ds_cells_get(o->cells, cell)->meta.dtype};
        x = in[1];
        if (ds_graph_meta(o->r.to, x).dtype != cast.dtype) {
            DS_TRY(dsi_offload_apply(o, &dsi_op_cast, &cast, &x, 1, &x));
        }
    } else {
        DS_TRY(dsi_offload_apply(o, node->op, node->attrs, in, node->n_in, &x));
    }
    o->resident[cell] = dsi_offload_stays(o, cell) ? x : DS_NONE;
    return dsi_offload_swap_out(o, cell, x);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static ds_status lower_node(dsi_offloader *o, ds_node n)
{
    const dsi_node_info *node = &o->r.from->nodes[n];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    if (dsi_offload_writes_gradient(o, node)) {
        return dsi_offload_lower_gradient(o, node);
    }
    if (dsi_offload_is_update(node) && dsi_offload_touches_swapped(o, node)) {
        return dsi_offload_lower_update(o, node);
    }
    if (writes_swapped(o, node)) {
        return lower_write(o, node);
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        in[i] = dsi_node_in(o->r.from, node)[i];
        if (in[i] != DS_NONE) {
            DS_TRY(dsi_offload_operand(o, in[i], &in[i]));
        }
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(o->r.from, node)[i];
        if (dsi_offload_swapped(o, dsi_offload_cell_of(o, v))) {
            return ds_fail(
                o->r.from->ctx, DS_ERR_UNSUPPORTED,
                "%s: %s cannot write the offloaded %s %s; offload of parameters needs "
                "zero_optimization.stage 3",
                node->scope, node->op->name,
                ds_cell_kind_name(ds_cells_get(o->cells, dsi_offload_cell_of(o, v))->kind),
                ds_cells_get(o->cells, dsi_offload_cell_of(o, v))->name);
        }
    }
    DS_TRY(ds_graph_apply(o->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&o->r, node, out);
    return dsi_offload_leave(o, node);
}

/* Ids of cells are the same in both tables. */
static ds_status copy_cells(dsi_offloader *o)
{
    for (ds_cell c = ds_cells_count(o->cells); c < ds_cells_count(o->r.from->cells); ++c) {
        ds_cell same = DS_NONE;
        DS_TRY(ds_cells_add(o->cells, ds_cells_get(o->r.from->cells, c), &same));
    }
    return DS_OK;
}

static ds_status rebuild(dsi_offloader *o)
{
    const ds_graph *g = o->r.from;
    dsi_offload_forget(o);
    DS_TRY(dsi_offload_find_leaving(o));
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        if (o->gone[n]) {
            continue;
        }
        if (node->phase != o->r.to->phase) {
            DS_TRY(dsi_offload_take_results(o));
            DS_TRY(node->phase > o->how->speculate.redo ? dsi_offload_decide(o) : DS_OK);
            dsi_offload_forget(o);
            if (g->phases.items[node->phase].like == DS_PHASE_BACKWARD) {
                DS_TRY(dsi_offload_bring_states(o));
            }
        }
        o->now = n;
        DS_TRY(dsi_rewrite_stand_at(&o->r, node));
        DS_TRY(lower_node(o, n));
    }
    DS_TRY(dsi_offload_take_results(o));
    return dsi_offload_decide(o);
}

static void count_uses(dsi_offloader *o)
{
    for (ds_node n = 0; n < o->r.from->n_nodes; ++n) {
        const dsi_node_info *node = &o->r.from->nodes[n];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(o->r.from, node)[i];
            if (v != DS_NONE) {
                o->uses[v] += 1;
            }
        }
    }
    for (uint32_t i = 0; i < o->r.from->n_outputs; ++i) {
        o->uses[o->r.from->outputs[i].value] += 1;
    }
}

ds_status dsi_offload_graph(const ds_graph *graph, const dsi_offload *offload, ds_cells *cells,
                            dsi_residencies *residencies, ds_graph **offload_out)
{
    const size_t n_cells = (size_t)ds_cells_count(graph->cells) + 1;
    dsi_offloader o = {.how = offload,
                       .r = {.from = graph},
                       .cells = cells,
                       .residencies = residencies,
                       .n_cells = ds_cells_count(graph->cells)};
    o.uses = calloc((size_t)graph->n_values + 1, sizeof *o.uses);
    o.resident = calloc(n_cells, sizeof *o.resident);
    o.used_at = calloc(n_cells, sizeof *o.used_at);
    o.store_of = calloc((size_t)graph->n_values + 1, sizeof *o.store_of);
    o.left_in = calloc((size_t)graph->n_values + 1, sizeof *o.left_in);
    o.turns = calloc((size_t)graph->n_values + 1, sizeof *o.turns);
    o.gone = calloc((size_t)graph->n_nodes + 1, sizeof *o.gone);
    o.speculated = calloc((size_t)graph->n_nodes + 1, sizeof *o.speculated);
    ds_status status = DS_OK;
    if (o.uses == NULL || o.resident == NULL || o.used_at == NULL || o.store_of == NULL ||
        o.left_in == NULL || o.turns == NULL || o.gone == NULL || o.speculated == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to offload");
    } else {
        count_uses(&o);
        status = copy_cells(&o);
    }
    if (status >= 0) {
        status = dsi_rewrite_begin(&o.r, graph, cells);
    }
    if (status >= 0) {
        status = rebuild(&o);
    }
    free(o.uses);
    free(o.resident);
    free(o.used_at);
    free(o.store_of);
    free(o.left_in);
    free(o.turns);
    free(o.waiting);
    free(o.results);
    free(o.waiting_results);
    free(o.gone);
    free(o.speculated);
    return dsi_rewrite_end(&o.r, status, offload_out);
}
