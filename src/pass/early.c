/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts a graph with early updates. See early.h. */
#include "pass/early.h"

#include "ir/rewrite.h"
#include "pass/order.h"

#include <stdlib.h>

/* Where a gradient was complete is no node any more: it is what it was made from. */
static ds_status copy_node(dsi_rewrite *r, const dsi_node_info *node)
{
    if (node->op->role == DS_ROLE_GRADIENT) {
        r->map[dsi_node_out(r->from, node)[0]] = r->map[dsi_node_in(r->from, node)[0]];
        return DS_OK;
    }
    return dsi_rewrite_copy(r, node);
}

ds_status dsi_early(const ds_graph *graph, ds_graph **early_out)
{
    dsi_rewrite r;
    uint32_t n = 0;
    ds_node *order = calloc((size_t)graph->n_nodes + 1, sizeof *order);
    if (order == NULL) {
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to order the graph");
    }
    ds_status status = dsi_rewrite_begin(&r, graph, graph->cells);
    if (status >= 0) {
        status = dsi_order(graph, order, &n);
    }
    for (uint32_t i = 0; i < n && status >= 0; ++i) {
        status = copy_node(&r, &graph->nodes[order[i]]);
    }
    free(order);
    return dsi_rewrite_end(&r, status, early_out);
}
