/* Sorts a graph with early updates. See early.h. */
#include "pass/early.h"

#include "op/ops.h"
#include "pass/order.h"

#include <stdlib.h>

typedef struct sorting {
    const ds_graph *from;
    ds_graph *to;
    ds_value *map; /* per value of from */
    const char *scope;
} sorting;

static ds_status copy_node(sorting *s, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(s->from, node)[i];
        in[i] = v == DS_NONE ? DS_NONE : s->map[v];
    }
    if (node->op == &dsi_op_gradient) {
        s->map[dsi_node_out(s->from, node)[0]] = in[0];
        return DS_OK;
    }
    ds_graph_set_phase(s->to, node->phase);
    ds_graph_set_region(s->to, node->region);
    s->to->recomputed = node->recomputed;
    if (node->scope != s->scope) {
        s->scope = node->scope;
        DS_TRY(ds_graph_set_scope(s->to, s->scope));
    }
    DS_TRY(ds_graph_apply(s->to, node->op, node->attrs, in, node->n_in, out));
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(s->from, node)[i];
        if (v != DS_NONE) {
            s->map[v] = out[i];
        }
    }
    return DS_OK;
}

static ds_status rebuild(sorting *s, const ds_node *order, uint32_t n)
{
    const ds_graph *g = s->from;
    DS_TRY(ds_graph_create(g->ctx, g->cells, &s->to));
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (g->values[v].producer == DS_NONE) {
            DS_TRY(ds_graph_read(s->to, g->values[v].cell, &s->map[v]));
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        DS_TRY(copy_node(s, &g->nodes[order[i]]));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        DS_TRY(ds_graph_output(s->to, g->outputs[i].name, s->map[g->outputs[i].value]));
    }
    return DS_OK;
}

ds_status dsi_early(const ds_graph *graph, ds_graph **early_out)
{
    sorting s = {.from = graph};
    uint32_t n = 0;
    ds_node *order = calloc((size_t)graph->n_nodes + 1, sizeof *order);
    s.map = calloc((size_t)graph->n_values + 1, sizeof *s.map);
    ds_status status = DS_OK;
    if (order == NULL || s.map == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to order the graph");
    } else {
        status = dsi_order(graph, order, &n);
    }
    if (status >= 0) {
        status = rebuild(&s, order, n);
    }
    free(order);
    free(s.map);
    if (status < 0) {
        ds_graph_destroy(&s.to);
        return status;
    }
    *early_out = s.to;
    return DS_OK;
}
