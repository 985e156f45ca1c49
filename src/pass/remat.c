/* Obeys the tags of policy.c. See remat.h. */
#include "pass/remat.h"

#include <stdlib.h>

typedef struct rebuilder {
    const ds_graph *from;
    ds_graph *to;
    const bool *drop;
    ds_value *map;   /* per value: as made in its own phase */
    ds_value *again; /* per value: as made again, DS_NONE before */
    const char *scope;
} rebuilder;

static ds_status check(const ds_graph *g, const bool *drop)
{
    for (ds_value v = 0; v < g->n_values; ++v) {
        const dsi_value_info *value = &g->values[v];
        if (drop[v] && (value->producer == DS_NONE || value->cell != DS_NONE ||
                        g->nodes[value->producer].phase != DS_PHASE_FORWARD)) {
            return ds_fail(g->ctx, DS_ERR_GRAPH, "value %%%u cannot be computed again", v);
        }
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        if (drop[g->outputs[i].value]) {
            return ds_fail(g->ctx, DS_ERR_GRAPH, "output %s cannot be computed again",
                           g->outputs[i].name);
        }
    }
    return DS_OK;
}

static ds_status apply(rebuilder *r, const dsi_node_info *node, const ds_value *in, ds_value *out)
{
    r->to->region = node->region;
    if (node->scope != r->scope) {
        DS_TRY(ds_graph_set_scope(r->to, node->scope));
        r->scope = node->scope;
    }
    return ds_graph_apply(r->to, node->op, node->attrs, in, node->n_in, out);
}

/* Runs the node that made v once more, after whatever that needs itself. */
static ds_status make_again(rebuilder *r, ds_value v)
{
    const dsi_node_info *node = &r->from->nodes[r->from->values[v].producer];
    const ds_value *made = dsi_node_out(r->from, node);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value x = dsi_node_in(r->from, node)[i];
        in[i] = x;
        if (x != DS_NONE && r->drop[x] && r->again[x] == DS_NONE) {
            DS_TRY(make_again(r, x));
        }
        if (x != DS_NONE) {
            in[i] = r->drop[x] ? r->again[x] : r->map[x];
        }
    }
    r->to->recomputed = true;
    DS_TRY(apply(r, node, in, out));
    r->to->recomputed = false;
    for (uint32_t i = 0; i < node->n_out; ++i) {
        if (made[i] != DS_NONE) {
            r->again[made[i]] = out[i];
        }
    }
    return DS_OK;
}

static ds_status rebuild_node(rebuilder *r, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    ds_graph_set_phase(r->to, node->phase);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(r->from, node)[i];
        const bool dropped = v != DS_NONE && r->drop[v] && node->phase != DS_PHASE_FORWARD;
        if (dropped && r->again[v] == DS_NONE) {
            DS_TRY(make_again(r, v));
        }
        in[i] = v == DS_NONE ? DS_NONE : dropped ? r->again[v] : r->map[v];
    }
    DS_TRY(apply(r, node, in, out));
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(r->from, node)[i];
        if (v != DS_NONE) {
            r->map[v] = out[i];
        }
    }
    return DS_OK;
}

static ds_status rebuild(rebuilder *r)
{
    const ds_graph *g = r->from;
    for (ds_value v = 0; v < g->n_values; ++v) {
        r->again[v] = DS_NONE;
        if (g->values[v].producer == DS_NONE) {
            DS_TRY(ds_graph_read(r->to, g->values[v].cell, &r->map[v]));
        }
    }
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        DS_TRY(rebuild_node(r, &g->nodes[n]));
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        DS_TRY(ds_graph_output(r->to, g->outputs[i].name, r->map[g->outputs[i].value]));
    }
    return DS_OK;
}

ds_status dsi_remat(const ds_graph *graph, const bool *drop, ds_graph **remat_out)
{
    rebuilder r = {.from = graph, .drop = drop};
    DS_TRY(check(graph, drop));
    r.map = calloc((size_t)graph->n_values + 1, sizeof *r.map);
    r.again = calloc((size_t)graph->n_values + 1, sizeof *r.again);
    ds_status status = r.map == NULL || r.again == NULL
                           ? ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to recompute values")
                           : ds_graph_create(graph->ctx, graph->cells, &r.to);
    if (status >= 0) {
        status = rebuild(&r);
    }
    free(r.map);
    free(r.again);
    if (status < 0) {
        ds_graph_destroy(&r.to);
        return status;
    }
    *remat_out = r.to;
    return DS_OK;
}
