/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes between the rows that ranks along ep, sp and tp have of their own and those of the experts
 * that they have. See localize_impl.h.
 *
 *     split_tokens     the rank's part, which the operand is already
 *     gather_offsets   all_gather of each rank's offsets: everybody knows what everybody sends
 *     expert_segments  everybody's, of which the rank takes its own
 *     to_experts       dispatch_rows: an all-to-all whose blocks are as long as the table says
 *     from_experts     return_rows: the same the other way
 *     join_tokens      all of them, which the operand is already
 */
#include "place/expert_rules.h"
#include "place/localize_impl.h"

static ds_status own_segments(dsi_localizing *l, const dsi_axes *axes, int64_t n_rows,
                              ds_value *value)
{
    const dsi_comm_attrs slice = dsi_localize_comm(l, axes, -1);
    const dsi_expert_ranks_attrs all = {.n_ranks = slice.n_ranks, .n_rows = n_rows};
    DS_TRY(dsi_localize_apply(l, &dsi_op_expert_segments, &all, *value, value));
    return dsi_localize_apply(l, &dsi_op_take_slice, &slice, *value, value);
}

ds_status dsi_localize_experts(dsi_localizing *l, const dsi_node_info *node, const ds_value *in,
                               ds_value *value_out)
{
    const ds_graph *g = l->r.from;
    const dsi_spread *made = &l->placed->use[node->out_at];
    const ds_meta whole = g->values[dsi_node_out(g, node)[0]].meta;
    const ds_shape shape = dsi_local_meta(&l->placed->mesh, &made->at, whole).shape;
    const dsi_expert_ranks_attrs *a = node->attrs;
    const dsi_axes axes = dsi_expert_ranks_axes(a);
    dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
    ds_value out[DS_MAX_OUT];
    *value_out = in[0];
    if ((node->op->place->flags & DSI_PLACE_TOKENS) != 0) {
        return DS_OK;
    }
    if (attrs.n_ranks != a->n_ranks) {
        return ds_fail(g->ctx, DS_ERR_INTERNAL, "%s: experts of %lld ranks, expected %lld",
                       node->scope, (long long)a->n_ranks, (long long)attrs.n_ranks);
    }
    if (node->op == &dsi_op_gather_offsets) {
        return dsi_localize_gather(l, &axes, shape, value_out);
    }
    if (node->op == &dsi_op_expert_segments) {
        return own_segments(l, &axes, a->n_rows, value_out);
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
