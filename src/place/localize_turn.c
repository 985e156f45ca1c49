/* SPDX-License-Identifier: Apache-2.0 */
/* turn_parts where ranks have a part of a sequence each: a shift to the next rank. See
 * localize_impl.h. */
#include "place/localize_impl.h"

enum { SEQUENCE_DIM = 1 };

ds_status dsi_localize_turn(dsi_localizing *l, const dsi_node_info *node, const ds_value *in,
                            ds_value *value_out)
{
    const dsi_spread *need = &l->placed->use[node->in_at];
    const uint32_t shards = dsi_placement_dim_axes(&need->at, SEQUENCE_DIM);
    const dsi_axes axes = dsi_axes_of(shards);
    const int64_t part = ((const dsi_turn_attrs *)node->attrs)->part;
    if (axes.n != 1 || ds_graph_meta(l->r.to, in[0]).shape.dims[SEQUENCE_DIM] != part) {
        char text[DSI_PLACEMENT_TEXT];
        return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s: keys and values that travel are placed %s, expected a part of %lld "
                       "positions on each rank along one axis",
                       node->scope, dsi_placement_str(&need->at, text), (long long)part);
    }
    const dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
    return ds_graph_apply(l->r.to, &dsi_op_shift, &attrs, in, 1, value_out);
}
