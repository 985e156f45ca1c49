/* SPDX-License-Identifier: Apache-2.0 */
/* What the bytes of each value of a graph are for, for the ledger. Called by plan_place.c. */
#include "plan/plan_kinds.h"
#include "op/ops.h"

dsi_memory_kind dsi_memory_kind_of(ds_cell_kind kind)
{
    switch (kind) {
    case DS_CELL_PARAM:
        return DSI_MEMORY_PARAM;
    case DS_CELL_GRAD:
    case DS_CELL_WAITING:
    case DS_CELL_HANDED:
        return DSI_MEMORY_GRAD;
    case DS_CELL_MASTER:
        return DSI_MEMORY_MASTER;
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_MOMENTUM:
    case DS_CELL_CHOSEN:
    case DS_CELL_MASK:
    case DS_CELL_WORKER_ERROR:
    case DS_CELL_SERVER_ERROR:
    case DS_CELL_FROZEN:
    case DS_CELL_LOCAL:
    case DS_CELL_EXP_AVG_SQ_ROW:
    case DS_CELL_EXP_AVG_SQ_COL:
    case DS_CELL_Z:
    case DS_CELL_ABSMAX:
    case DS_CELL_ABSMAX_SQ:
    case DS_CELL_ABSMAX_SLOW:
    case DS_CELL_EXP_AVG_SLOW:
        return DSI_MEMORY_MOMENT;
    default:
        return DSI_MEMORY_INPUT;
    }
}

static bool of_kind(const ds_graph *g, ds_value v, ds_cell_kind kind)
{
    const ds_cell cell = v != DS_NONE ? g->values[v].cell : DS_NONE;
    return cell != DS_NONE && ds_cells_get(g->cells, cell)->kind == kind;
}

static bool makes_gradient(const ds_graph *g, const dsi_node_info *node)
{
    for (uint32_t i = 0; i < node->n_out; ++i) {
        if (of_kind(g, dsi_node_out(g, node)[i], DS_CELL_GRAD)) {
            return true;
        }
    }
    return node->op->role == DS_ROLE_ALL_REDUCE || node->op->role == DS_ROLE_REDUCE_SCATTER ||
           node->op->role == DS_ROLE_NORM;
}

static dsi_memory_kind kind_of(const ds_graph *g, const dsi_node_info *node)
{
    if (node->op->role == DS_ROLE_ALL_GATHER &&
        of_kind(g, dsi_node_in(g, node)[0], DS_CELL_PARAM)) {
        return DSI_MEMORY_GATHERED;
    }
    if (node->op->role == DS_ROLE_SWAP_IN) {
        const ds_cell cell = g->values[dsi_node_in(g, node)[0]].cell;
        return dsi_memory_kind_of(ds_cells_get(g->cells, cell)->kind);
    }
    if ((node->op->flags & DS_OP_COMM) != 0) {
        return DSI_MEMORY_COMM;
    }
    if (node->op->role == DS_ROLE_UPDATE) {
        return DSI_MEMORY_WORKSPACE;
    }
    switch (g->phases.items[node->phase].like) {
    case DS_PHASE_FORWARD:
        return DSI_MEMORY_ACTIVATION;
    case DS_PHASE_BACKWARD:
        return node->recomputed ? DSI_MEMORY_ACTIVATION : DSI_MEMORY_ACTIVATION_GRAD;
    default:
        return DSI_MEMORY_WORKSPACE;
    }
}

/* A weight's gradient on its way to its cell: what a store, an accumulation or a reduction takes,
 * and what a cast or a sum makes that of. Program order, walked from the end, is enough. */
static void mark_gradients(const ds_graph *g, uint8_t *kinds)
{
    for (ds_node n = g->n_nodes; n-- > 0;) {
        const dsi_node_info *node = &g->nodes[n];
        const ds_value out = node->n_out > 0 ? dsi_node_out(g, node)[0] : DS_NONE;
        const bool passes = out != DS_NONE && kinds[out] == DSI_MEMORY_GRAD &&
                            (node->op->role == DS_ROLE_CAST || node->op == &dsi_op_add ||
                             (node->op->flags & DS_OP_VIEW) != 0);
        if (!passes && !makes_gradient(g, node)) {
            continue;
        }
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE && kinds[v] == DSI_MEMORY_ACTIVATION_GRAD) {
                kinds[v] = DSI_MEMORY_GRAD;
            }
        }
    }
}

void dsi_plan_kinds(const ds_graph *graph, uint8_t *kinds)
{
    for (ds_value v = 0; v < graph->n_values; ++v) {
        const ds_node producer = graph->values[v].producer;
        kinds[v] = producer == DS_NONE ? DSI_MEMORY_WORKSPACE
                                       : (uint8_t)kind_of(graph, &graph->nodes[producer]);
    }
    mark_gradients(graph, kinds);
}
