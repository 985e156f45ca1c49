/* SPDX-License-Identifier: Apache-2.0 */
/* The reverse walk. See grad.h. */
#include "grad/grad.h"

#include "ir/graph.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

typedef struct contribution {
    ds_value gradient;
    uint32_t older; /* index + 1 of the contribution found before, i.e. of a later use */
} contribution;

typedef struct walk {
    ds_graph *graph;
    uint32_t n_values; /* before the walk: only these receive gradients */
    bool *wants;       /* per value: depends on a trainable parameter */
    uint32_t *newest;  /* per value: index + 1 of its newest contribution */
    contribution *items;
    uint32_t n_items, capacity;
} walk;

static ds_status contribute(walk *w, ds_value value, ds_value gradient)
{
    contribution *items = dsi_graph_grow(w->items, &w->capacity, w->n_items + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(w->graph->ctx, DS_ERR_NOMEM, "no memory for gradients");
    }
    w->items = items;
    items[w->n_items++] = (contribution){.gradient = gradient, .older = w->newest[value]};
    w->newest[value] = w->n_items;
    return DS_OK;
}

/* The sum of two gradients: on the stage of both, else on the earlier one, where what they are the
 * gradients of was made. */
static ds_status add(walk *w, ds_value a, ds_value b, ds_value *sum_out)
{
    ds_graph *g = w->graph;
    const ds_value pair[2] = {a, b};
    const uint32_t stage = g->stage;
    ds_value out[DS_MAX_OUT];
    g->stage = 0;
    for (int i = 0; i < 2; ++i) {
        const ds_node maker = g->values[pair[i]].producer;
        const uint32_t of = maker != DS_NONE ? g->nodes[maker].stage : 0;
        g->stage = g->stage == 0 || (of != 0 && of < g->stage) ? of : g->stage;
    }
    const ds_status status = ds_graph_apply(g, &dsi_op_add, NULL, pair, 2, out);
    g->stage = stage;
    *sum_out = status >= 0 ? out[0] : DS_NONE;
    return status;
}

/* Sums a value's contributions in program order of its uses: the walk found them latest first. */
static ds_status total(walk *w, ds_value value, ds_value *sum_out)
{
    ds_value sum = DS_NONE;
    for (uint32_t at = w->newest[value]; at != 0; at = w->items[at - 1].older) {
        const ds_value next = w->items[at - 1].gradient;
        if (sum == DS_NONE) {
            sum = next;
            continue;
        }
        DS_TRY(add(w, sum, next, &sum));
    }
    *sum_out = sum;
    return DS_OK;
}

static void mark_wanted(walk *w)
{
    const ds_graph *g = w->graph;
    for (ds_value v = 0; v < w->n_values; ++v) {
        const dsi_value_info *value = &g->values[v];
        if (value->producer == DS_NONE) {
            const ds_cell_info *cell = &g->cells->items[value->cell];
            w->wants[v] = cell->kind == DS_CELL_PARAM && !cell->frozen;
        }
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        bool any = false;
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            any = any || (v != DS_NONE && w->wants[v]);
        }
        for (uint32_t i = 0; any && node->op->grad != NULL && i < node->n_out; ++i) {
            const ds_value v = dsi_node_out(g, node)[i];
            if (v != DS_NONE) {
                w->wants[v] = true;
            }
        }
    }
}

static ds_status visit(walk *w, ds_node n)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    ds_value d_out[DS_MAX_OUT];
    ds_value d_in[DS_MAX_IN];
    bool needs[DS_MAX_IN];
    const dsi_node_info node = w->graph->nodes[n]; /* a copy: the table grows below */
    bool any_out = false;
    bool any_in = false;
    memcpy(in, dsi_node_in(w->graph, &node), node.n_in * sizeof *in);
    memcpy(out, dsi_node_out(w->graph, &node), node.n_out * sizeof *out);
    DS_TRY(ds_graph_set_scope(w->graph, node.scope));
    w->graph->stage = node.stage;
    w->graph->region = node.region;
    for (uint32_t i = 0; i < node.n_in; ++i) {
        d_in[i] = DS_NONE;
        needs[i] = in[i] != DS_NONE && w->wants[in[i]];
        any_in = any_in || needs[i];
    }
    if (!any_in || node.op->grad == NULL) {
        return DS_OK;
    }
    for (uint32_t i = 0; i < node.n_out; ++i) {
        d_out[i] = DS_NONE;
        if (out[i] != DS_NONE) {
            DS_TRY(total(w, out[i], &d_out[i]));
        }
        any_out = any_out || d_out[i] != DS_NONE;
    }
    if (!any_out) {
        return DS_OK;
    }
    ds_grad call = {.graph = w->graph,
                    .op = node.op,
                    .attrs = node.attrs,
                    .n_in = node.n_in,
                    .in = in,
                    .needs = needs,
                    .n_out = node.n_out,
                    .out = out,
                    .d_out = d_out,
                    .d_in = d_in};
    DS_TRY(node.op->grad(&call));
    for (uint32_t i = node.n_in; i-- > 0;) {
        if (needs[i] && d_in[i] != DS_NONE) {
            DS_TRY(contribute(w, in[i], d_in[i]));
        }
    }
    return DS_OK;
}

/* Sums a parameter's contributions in the order in which the backward pass makes them, so that each
 * can be added as it comes: the uses latest first. */
static ds_status total_of_cell(walk *w, ds_value value, ds_value *sum_out)
{
    uint32_t n = 0;
    for (uint32_t at = w->newest[value]; at != 0; at = w->items[at - 1].older) {
        ++n;
    }
    ds_value *found = malloc(((size_t)n + 1) * sizeof *found);
    if (found == NULL) {
        return ds_fail(w->graph->ctx, DS_ERR_NOMEM, "no memory for gradients");
    }
    uint32_t left = n;
    for (uint32_t at = w->newest[value]; at != 0; at = w->items[at - 1].older) {
        found[--left] = w->items[at - 1].gradient;
    }
    ds_status status = DS_OK;
    *sum_out = n > 0 ? found[0] : DS_NONE;
    for (uint32_t i = 1; i < n && status >= 0; ++i) {
        status = add(w, *sum_out, found[i], sum_out);
    }
    free(found);
    return status;
}

static ds_status collect(walk *w, ds_value *d_cell_out)
{
    const uint32_t n_cells = w->graph->cells->n;
    for (ds_cell c = 0; c < n_cells; ++c) {
        d_cell_out[c] = DS_NONE;
    }
    for (ds_value v = 0; v < w->n_values; ++v) {
        const dsi_value_info value = w->graph->values[v];
        if (value.producer == DS_NONE && w->wants[v]) {
            DS_TRY(total_of_cell(w, v, &d_cell_out[value.cell]));
        }
    }
    return DS_OK;
}

ds_status dsi_grad_build(ds_graph *graph, const ds_value *roots, const ds_value *seeds,
                         uint32_t n_roots, ds_value *d_cell_out)
{
    walk w = {.graph = graph, .n_values = graph->n_values};
    const ds_node last = graph->n_nodes;
    w.wants = calloc(w.n_values + 1, sizeof *w.wants);
    w.newest = calloc(w.n_values + 1, sizeof *w.newest);
    ds_status status = DS_OK;
    if (w.wants == NULL || w.newest == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for gradients");
        goto done;
    }
    mark_wanted(&w);
    ds_graph_set_phase(graph, DS_PHASE_BACKWARD);
    for (uint32_t i = 0; i < n_roots; ++i) {
        if (!ds_shape_equal(graph->values[roots[i]].meta.shape,
                            graph->values[seeds[i]].meta.shape)) {
            status = ds_fail(graph->ctx, DS_ERR_SHAPE,
                             "gradient %u has another shape than its "
                             "output",
                             i);
            goto done;
        }
        DS_TRY_GOTO(status, contribute(&w, roots[i], seeds[i]), done);
    }
    for (ds_node n = last; n-- > 0;) {
        DS_TRY_GOTO(status, visit(&w, n), done);
    }
    DS_TRY_GOTO(status, collect(&w, d_cell_out), done);
done:
    graph->stage = 0;
    graph->region = 0;
    free(w.wants);
    free(w.newest);
    free(w.items);
    return status;
}
