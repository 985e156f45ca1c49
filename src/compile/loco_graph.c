/* SPDX-License-Identifier: Apache-2.0 */
/* Cells for what the exchanges of quantized gradients lose (LoCo), of as many ranks as add a
 * gradient up. See train_graph_build.h. */
#include "compile/train_graph_build.h"

#include "ir/graph.h"
#include "op/ops.h"
#include "place/localize.h"

/* Whether it is a weight of experts that ranks share. */
static bool is_dealt(const dsi_train_builder *b, ds_cell param)
{
    const ds_graph *g = b->graph;
    bool dealt = false;
    for (ds_node n = 0; n < g->n_nodes && b->spec->expert_ranks > 1 && !dealt; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        ds_value w = node->op == &dsi_op_grouped_linear ? dsi_node_in(g, node)[1] : DS_NONE;
        while (w != DS_NONE && g->values[w].producer != DS_NONE) { /* a bias is looked at as one */
            const dsi_node_info *maker = &g->nodes[g->values[w].producer];
            w = (maker->op->flags & DS_OP_VIEW) != 0 ? dsi_node_in(g, maker)[0] : DS_NONE;
        }
        dealt = w != DS_NONE && g->values[w].cell == param;
    }
    return dealt;
}

/* Between which ranks the gradient of a weight of experts is added: not those that share them; and
 * where those are a whole group, in one exchange. */
static void leave_expert_ranks(const dsi_train_builder *b, ds_shape *shape, int64_t *n_inner,
                               int64_t *n_outer)
{
    const int64_t ranks = b->spec->expert_ranks;
    shape->dims[0] /= ranks;
    *n_inner /= ranks;
    if (*n_inner == 1) {
        *n_inner = *n_outer;
        *n_outer = 1;
    }
}

ds_status dsi_train_add_errors(dsi_train_builder *b, ds_cell param)
{
    const dsi_loco_spec *loco = &b->spec->loco;
    const ds_cell_info info = *ds_cells_get(b->cells, param);
    ds_shape shape = info.meta.shape;
    int64_t n_inner = loco->n_inner;
    int64_t n_outer = loco->n_outer;
    ds_cell cell = DS_NONE;
    ds_meta worker = {0};
    ds_meta server = {0};
    if (loco->on) {
        if (is_dealt(b, param)) {
            leave_expert_ranks(b, &shape, &n_inner, &n_outer);
        }
        dsi_quantized_errors(n_inner, n_outer, shape, &worker, &server);
    }
    if (worker.dtype != DS_DTYPE_NONE) {
        DS_TRY(dsi_train_add_cell(b, DS_CELL_WORKER_ERROR, info.name, worker, param, &cell));
    }
    return server.dtype != DS_DTYPE_NONE
               ? dsi_train_add_cell(b, DS_CELL_SERVER_ERROR, info.name, server, param, &cell)
               : DS_OK;
}
