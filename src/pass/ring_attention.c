/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of attention over parts of keys and values. See ring_attention.h; part_attention.h makes
 * the steps. */
#include "pass/ring_attention.h"

#include "ir/rewrite.h"
#include "op/ops.h"
#include "pass/part_attention.h"

typedef struct ring {
    dsi_rewrite r;
    int64_t ranks;
    bool halves;
} ring;

/* The one round of the ring, and its queries. in: the operands, of which q is at `q`; ROWS becomes
 * the numbers that a part has. */
static ds_status begin(ring *x, const dsi_node_info *node, ds_value *in, uint32_t q,
                       dsi_part_queries *queries_out, dsi_part_round *round_out)
{
    const dsi_attention_attrs *a = node->attrs;
    const int64_t length = ds_graph_meta(x->r.to, in[q]).shape.dims[1];
    if (a->packed != 0) {
        return ds_fail(x->r.from->ctx, DS_ERR_INTERNAL,
                       "%s: q, k and v that travel are packed, expected three tensors",
                       node->scope);
    }
    *queries_out = (dsi_part_queries){.attrs = *a, .of = in, .all_keys = length, .length = length};
    *round_out = (dsi_part_round){.k = in[q + 1],
                                  .v = in[q + 2],
                                  .numbers = DS_NONE,
                                  .length = length,
                                  .ranks = x->ranks,
                                  .halves = x->halves,
                                  .last = true};
    DS_TRY(dsi_part_numbers(x->r.to, round_out, 0, &round_out->numbers));
    in[q == DSI_AT_Q ? DSI_AT_ROWS : DSI_ATB_ROWS] = round_out->numbers;
    return DS_OK;
}

static ds_status make_forward(ring *x, const dsi_node_info *node, ds_value *in, ds_value *out)
{
    dsi_part_queries queries;
    dsi_part_round round;
    out[0] = out[1] = DS_NONE;
    DS_TRY(begin(x, node, in, DSI_AT_Q, &queries, &round));
    return dsi_part_forward(x->r.to, &queries, &round, out);
}

static ds_status make_backward(ring *x, const dsi_node_info *node, ds_value *in, ds_value *out)
{
    const ds_dtype act = ds_graph_meta(x->r.to, in[DSI_ATB_Q]).dtype;
    dsi_part_queries queries;
    dsi_part_round round;
    out[0] = out[1] = out[2] = DS_NONE;
    DS_TRY(begin(x, node, in, DSI_ATB_Q, &queries, &round));
    DS_TRY(dsi_part_backward(x->r.to, &queries, &round, out));
    DS_TRY(dsi_part_cast(x->r.to, act, &out[1]));
    return dsi_part_cast(x->r.to, act, &out[2]);
}

static ds_status rebuild_node(ring *x, const dsi_node_info *node)
{
    const bool is_forward = node->op == &dsi_op_attention;
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    if (!is_forward && node->op != &dsi_op_attention_backward) {
        return dsi_rewrite_copy(&x->r, node);
    }
    dsi_rewrite_inputs(&x->r, node, in);
    if (in[is_forward ? DSI_AT_ROWS : DSI_ATB_ROWS] == DS_NONE) {
        return dsi_rewrite_copy(&x->r, node);
    }
    DS_TRY(dsi_rewrite_stand_at(&x->r, node));
    DS_TRY(is_forward ? make_forward(x, node, in, out) : make_backward(x, node, in, out));
    dsi_rewrite_made(&x->r, node, out);
    return DS_OK;
}

ds_status dsi_ring_attention(const ds_graph *graph, int64_t ranks, bool halves, ds_graph **ring_out)
{
    ring x = {.ranks = ranks, .halves = halves};
    ds_status status = dsi_rewrite_begin(&x.r, graph, graph->cells);
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = rebuild_node(&x, &graph->nodes[n]);
    }
    return dsi_rewrite_end(&x.r, status, ring_out);
}
