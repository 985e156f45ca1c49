/* SPDX-License-Identifier: Apache-2.0 */
/* Linear order: when each node runs. */
#ifndef DSI_PASS_ORDER_H
#define DSI_PASS_ORDER_H

#include "ir/graph.h"

/* Fills order (room for graph->n_nodes) with the nodes to run, *n_out of them: dead nodes (nothing
 * reads their outputs, no cell written, no named output) are dropped, and inside a phase a node
 * runs early when that frees at least the memory that it takes. Pure; preserves numerics. */
ds_status dsi_order(const ds_graph *graph, ds_node *order, uint32_t *n_out);

/* The bucket that a collective's node belongs to; -1 for none, and for other nodes. */
int64_t dsi_order_bucket(const dsi_node_info *node);

#endif
