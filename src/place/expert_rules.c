/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of experts. See expert_rules.h. */
#include "place/expert_rules.h"

#include "op/ops.h"

enum { WEIGHT = 1 };

/* The value that a weight is a view of: biases of experts are columns of matrices (E,O,1). */
static const dsi_value_info *stored_value(const ds_graph *graph, ds_value weight)
{
    const dsi_value_info *value = &graph->values[weight];
    while (value->producer != DS_NONE && graph->nodes[value->producer].op == &dsi_op_reshape) {
        const ds_value in = dsi_node_in(graph, &graph->nodes[value->producer])[0];
        if (graph->values[in].meta.shape.dims[0] != value->meta.shape.dims[0]) {
            break;
        }
        value = &graph->values[in];
    }
    return value;
}

ds_status dsi_expert_rules(const ds_graph *graph, uint32_t ep, dsi_place_on *on_out)
{
    uint32_t n = 0;
    for (ds_node i = 0; i < graph->n_nodes; ++i) {
        const dsi_node_info *node = &graph->nodes[i];
        if (node->op != &dsi_op_grouped_linear ||
            ((const dsi_grouped_attrs *)node->attrs)->parts < 2) {
            continue;
        }
        const dsi_value_info *weight = stored_value(graph, dsi_node_in(graph, node)[WEIGHT]);
        if (weight->cell == DS_NONE || weight->producer != DS_NONE ||
            ds_cells_get(graph->cells, weight->cell)->kind != DS_CELL_PARAM) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           "expert_parallel.autoep_size %u: the weight of the experts at %s is "
                           "computed by %s; set autoep_size to 1, or take what does that away",
                           ep, node->scope,
                           weight->producer != DS_NONE ? graph->nodes[weight->producer].op->name
                                                       : "somebody else");
        }
        on_out[weight->cell] = (dsi_place_on){DSI_SHARD, 0, 0};
        n += 1;
    }
    return n > 0 || ep < 2
               ? DS_OK
               : ds_fail(graph->ctx, DS_ERR_CONFIG,
                         "expert_parallel.autoep_size is %u, but the model has no experts; set it "
                         "to 1",
                         ep);
}
