/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes between the rows that ranks along ep and sp have of their own and those of the experts that
 * they have. See localize_impl.h.
 *
 *     gather_offsets   all_gather of each rank's offsets: everybody knows what everybody sends
 *     to_experts       dispatch_rows: an all-to-all whose blocks are as long as the table says
 *     from_experts     return_rows: the same the other way
 */
#include "place/localize_impl.h"

ds_status dsi_localize_experts(dsi_localizing *l, const dsi_node_info *node, const ds_value *in,
                               ds_value *value_out)
{
    const ds_graph *g = l->r.from;
    const dsi_spread *made = &l->placed->use[node->out_at];
    const ds_meta whole = g->values[dsi_node_out(g, node)[0]].meta;
    const ds_shape shape = dsi_local_meta(&l->placed->mesh, &made->at, whole).shape;
    const dsi_axes axes = dsi_axes_of(1u << DSI_AXIS_EP | 1u << DSI_AXIS_SP);
    const int64_t n_ranks = ((const dsi_expert_ranks_attrs *)node->attrs)->n_ranks;
    dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
    ds_value out[DS_MAX_OUT];
    if (attrs.n_ranks != n_ranks) {
        return ds_fail(g->ctx, DS_ERR_INTERNAL, "%s: experts of %lld ranks, expected %lld",
                       node->scope, (long long)n_ranks, (long long)attrs.n_ranks);
    }
    if (node->op == &dsi_op_gather_offsets) {
        *value_out = in[0];
        return dsi_localize_gather(l, &axes, shape, value_out);
    }
    const ds_value operands[2] = {in[1], in[0]};
    attrs.n_dims = shape.n_dims;
    attrs.dims[0] = shape.dims[0];
    attrs.dims[1] = shape.dims[1];
    DS_TRY(ds_graph_apply(
        l->r.to, node->op == &dsi_op_to_experts ? &dsi_op_dispatch_rows : &dsi_op_return_rows,
        &attrs, operands, 2, out));
    *value_out = out[0];
    return DS_OK;
}
