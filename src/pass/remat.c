/* SPDX-License-Identifier: Apache-2.0 */
/* Obeys the tags of policy.c. See remat.h. */
#include "pass/remat.h"

#include "ir/rewrite.h"

#include <stdlib.h>

typedef struct again {
    dsi_rewrite r;
    const bool *drop;
    ds_value *made; /* per value: as made again, DS_NONE before */
} again;

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

/* Runs the node that made v once more, in the phase that asks for it, after whatever it needs
 * itself. */
static ds_status make_again(again *a, ds_value v, ds_phase phase)
{
    const ds_graph *from = a->r.from;
    const dsi_node_info *node = &from->nodes[from->values[v].producer];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&a->r, node, in);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value x = dsi_node_in(from, node)[i];
        if (x == DS_NONE || !a->drop[x]) {
            continue;
        }
        if (a->made[x] == DS_NONE) {
            DS_TRY(make_again(a, x, phase));
        }
        in[i] = a->made[x];
    }
    DS_TRY(dsi_rewrite_stand_at(&a->r, node));
    ds_graph_set_phase(a->r.to, phase);
    a->r.to->recomputed = true;
    DS_TRY(ds_graph_apply(a->r.to, node->op, node->attrs, in, node->n_in, out));
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value x = dsi_node_out(from, node)[i];
        if (x != DS_NONE) {
            a->made[x] = out[i];
        }
    }
    return DS_OK;
}

static ds_status rebuild_node(again *a, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&a->r, node, in);
    for (uint32_t i = 0; node->phase != DS_PHASE_FORWARD && i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(a->r.from, node)[i];
        if (v == DS_NONE || !a->drop[v]) {
            continue;
        }
        if (a->made[v] == DS_NONE) {
            DS_TRY(make_again(a, v, node->phase));
        }
        in[i] = a->made[v];
    }
    DS_TRY(dsi_rewrite_stand_at(&a->r, node));
    DS_TRY(ds_graph_apply(a->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&a->r, node, out);
    return DS_OK;
}

ds_status dsi_remat(const ds_graph *graph, const bool *drop, ds_graph **remat_out)
{
    again a = {.drop = drop};
    DS_TRY(check(graph, drop));
    a.made = malloc(((size_t)graph->n_values + 1) * sizeof *a.made);
    if (a.made == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to recompute values");
    }
    for (ds_value v = 0; v < graph->n_values; ++v) {
        a.made[v] = DS_NONE;
    }
    ds_status status = dsi_rewrite_begin(&a.r, graph, graph->cells);
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = rebuild_node(&a, &graph->nodes[n]);
    }
    free(a.made);
    return dsi_rewrite_end(&a.r, status, remat_out);
}
