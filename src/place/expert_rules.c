/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of experts. See expert_rules.h. */
#include "place/expert_rules.h"

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

dsi_axes dsi_expert_ranks_axes(const dsi_expert_ranks_attrs *attrs)
{
    return dsi_axes_of(1u << DSI_AXIS_EP | (attrs->copies > 1 ? 0u : 1u << DSI_AXIS_SP) |
                       (attrs->tokens > 1 ? 1u << DSI_AXIS_TP : 0u));
}

bool dsi_expert_ranks_on(const dsi_expert_ranks_attrs *attrs, dsi_axis axis)
{
    const dsi_axes shared = dsi_expert_ranks_axes(attrs);
    return dsi_axes_has(&shared, axis) || axis == DSI_AXIS_SP;
}

ds_status dsi_expert_rules(const ds_graph *graph, const dsi_mesh *mesh, uint32_t folded,
                           uint8_t *axes_out)
{
    const dsi_axes asked = dsi_axes_of(folded | 1u << DSI_AXIS_EP);
    const uint32_t n_ranks = dsi_axes_size(mesh, &asked);
    uint32_t n = 0;
    for (ds_node i = 0; i < graph->n_nodes; ++i) {
        const dsi_node_info *node = &graph->nodes[i];
        const dsi_grouped_attrs *a = node->attrs;
        if (node->op != &dsi_op_grouped_linear || a->parts < 2) {
            continue;
        }
        n += 1;
        if (a->copies > 1 && (folded >> DSI_AXIS_SP & 1u) != 0) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           "expert_parallel.autoep_size: %u ranks, those of sequence_parallel_size "
                           "%u among them, do not divide the experts at %s; change one of the two",
                           n_ranks, mesh->size[DSI_AXIS_SP], node->scope);
        }
        if (a->copies == a->parts) {
            continue; /* every rank has all of them */
        }
        const dsi_value_info *weight = stored_value(graph, dsi_node_in(graph, node)[WEIGHT]);
        if (weight->cell == DS_NONE || weight->producer != DS_NONE ||
            ds_cells_get(graph->cells, weight->cell)->kind != DS_CELL_PARAM) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           "expert_parallel.autoep_size: the weight of the experts at %s is "
                           "computed by %s; set autoep_size to 1, or take what does that away",
                           node->scope,
                           weight->producer != DS_NONE ? graph->nodes[weight->producer].op->name
                                                       : "somebody else");
        }
        const dsi_axes axes = dsi_expert_ranks_axes(&(dsi_expert_ranks_attrs){
            .copies = a->copies, .tokens = (folded >> DSI_AXIS_TP & 1u) != 0 ? 2 : 0});
        axes_out[weight->cell] = (uint8_t)dsi_axes_mask(&axes);
    }
    return n > 0 || n_ranks < 2
               ? DS_OK
               : ds_fail(graph->ctx, DS_ERR_CONFIG,
                         "expert_parallel.autoep_size is %u, but the model has no experts; set it "
                         "to 1",
                         n_ranks);
}
