/* SPDX-License-Identifier: Apache-2.0 */
/* The graph's invariants, asserted. Called after each pass in tests and debug builds. */
#include "ir/graph.h"

#include <stdlib.h>

static ds_status broken(const ds_graph *graph, ds_node node, int invariant, const char *what)
{
    return ds_fail(graph->ctx, DS_ERR_GRAPH, "graph invariant %d broken at node %u (%s): %s",
                   invariant, node, graph->nodes[node].op->name, what);
}

static ds_status check_input(const ds_graph *graph, ds_node n, ds_value v, const uint32_t *written)
{
    if (v == DS_NONE) {
        return DS_OK;
    }
    if (v >= graph->n_values) {
        return broken(graph, n, 1, "input out of range");
    }
    const dsi_value_info *value = &graph->values[v];
    if (value->producer != DS_NONE && value->producer >= n) {
        return broken(graph, n, 2, "input is defined later");
    }
    if (value->cell != DS_NONE && value->version != written[value->cell]) {
        return broken(graph, n, 4, "an old version of a cell is read");
    }
    return DS_OK;
}

static ds_status check_node(const ds_graph *graph, ds_node n, uint32_t *written)
{
    const dsi_node_info *node = &graph->nodes[n];
    if (n > 0 && node->phase < graph->nodes[n - 1].phase) {
        return broken(graph, n, 5, "phase decreases");
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        DS_TRY(check_input(graph, n, dsi_node_in(graph, node)[i], written));
    }
    for (uint32_t i = 0; i < node->n_out; ++i) {
        const ds_value v = dsi_node_out(graph, node)[i];
        if (v == DS_NONE) {
            continue;
        }
        if (v >= graph->n_values) {
            return broken(graph, n, 1, "output out of range");
        }
        const dsi_value_info *value = &graph->values[v];
        if (value->producer != n || value->index != i) {
            return broken(graph, n, 3, "output belongs to another node");
        }
        if (value->cell != DS_NONE && value->version != ++written[value->cell]) {
            return broken(graph, n, 3, "a cell's version is skipped");
        }
    }
    return DS_OK;
}

ds_status dsi_graph_check(const ds_graph *graph)
{
    uint32_t *written = calloc(graph->cells->n + 1, sizeof *written);
    if (written == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to check the graph");
    }
    ds_status status = DS_OK;
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = check_node(graph, n, written);
    }
    free(written);
    return status;
}
