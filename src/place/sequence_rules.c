/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs along the sequence. See sequence_rules.h. */
#include "place/sequence_rules.h"

#include "op/ops.h"
#include "place/rule.h"

enum { SEQUENCE_DIM = 1 };

/* Whether a node may have input `at` cut along the sequence. */
static bool takes_part(const ds_graph *g, const dsi_node_info *node, uint32_t at,
                       const dsi_mesh *mesh)
{
    const dsi_place_policy policy = dsi_place_policy_default();
    ds_meta in[DS_MAX_IN] = {{0}};
    ds_meta out[DS_MAX_OUT] = {{0}};
    dsi_strategy list[DSI_RULE_STRATEGIES];
    ds_place_case rule;
    bool takes = false;
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(g, node)[i];
        in[i] = v != DS_NONE ? g->values[v].meta : (ds_meta){0};
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        const ds_value v = dsi_node_out(g, node)[o];
        out[o] = v != DS_NONE ? g->values[v].meta : (ds_meta){0};
    }
    dsi_rule_case_make(node->op, node->attrs, in, node->n_in, out, node->n_out, &rule);
    const uint32_t n = dsi_rule_strategies(&rule, mesh, DSI_AXIS_SP, &policy, 0, list);
    for (uint32_t k = 0; k < n; ++k) {
        takes = takes || (list[k].in[at].kind == DSI_SHARD && list[k].in[at].dim == SEQUENCE_DIM);
    }
    return takes;
}

/* Of rows of it (domino's halves) those who read them have to. */
static bool all_take_part(const ds_graph *g, ds_value v, const dsi_mesh *mesh)
{
    bool all = true;
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        for (uint32_t i = 0; i < node->n_in && all; ++i) {
            if (dsi_node_in(g, node)[i] != v) {
                continue;
            }
            all = takes_part(g, node, i, mesh) &&
                  (node->op != &dsi_op_slice || all_take_part(g, dsi_node_out(g, node)[0], mesh));
        }
    }
    return all;
}

ds_status dsi_sequence_check_length(ds_ctx *ctx, uint32_t ranks, int64_t length)
{
    const int64_t below = length / ranks * ranks;
    if (length % ranks == 0) {
        return DS_OK;
    }
    uint32_t fewer = ranks;
    while (length % fewer != 0) {
        --fewer;
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "sequence_parallel_size is %u, which does not divide the seq_length %lld; the "
                   "nearest that goes is a seq_length of %lld or %lld, or sequence_parallel_size "
                   "%u",
                   ranks, (long long)length, (long long)(below > 0 ? below : ranks),
                   (long long)(below + ranks), fewer);
}

ds_status dsi_sequence_rules(const ds_graph *graph, const dsi_mesh *mesh, int64_t seq_length,
                             const char *order, dsi_place_on *on_out)
{
    for (ds_value v = 0; v < graph->n_values; ++v) {
        const dsi_value_info *info = &graph->values[v];
        if (info->producer != DS_NONE || info->cell == DS_NONE ||
            ds_cells_get(graph->cells, info->cell)->kind != DS_CELL_INPUT) {
            continue;
        }
        const ds_shape shape = info->meta.shape;
        const bool is_along = shape.n_dims > SEQUENCE_DIM && shape.dims[SEQUENCE_DIM] == seq_length;
        const bool is_cut = is_along && all_take_part(graph, v, mesh);
        if (is_along && !is_cut && order != NULL) {
            return ds_fail(graph->ctx, DS_ERR_UNSUPPORTED, "input %s is read whole, which %s",
                           ds_cells_get(graph->cells, info->cell)->name, order);
        }
        on_out[info->cell] =
            is_cut ? (dsi_place_on){DSI_SHARD, SEQUENCE_DIM, 0} : (dsi_place_on){0};
    }
    return DS_OK;
}
