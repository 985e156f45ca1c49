/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters on an output head that is one operator with the loss. See adapter_rewriter.h.
 *
 * x·Wᵀ + h·Bᵀ, where h = scale·x·Aᵀ, is one product: of x with h beside it, and of W with B beside
 * it. So the loss stays one operator, whose logits are never whole in memory; the price is a copy
 * of W, and a gradient of it that nobody takes but for B's part. DoRA scales each logit by itself:
 * there the logits are made, as an adapted linear layer makes them, and the loss is of those.
 */
#include "compile/adapter_rewriter.h"
#include "op/ops.h"

bool dsi_adapter_is_head(const dsi_node_info *node)
{
    return node->op == &dsi_op_linear_cross_entropy || node->op == &dsi_op_linear_logprob;
}

/* Side by side on a dim. */
static ds_status beside(dsi_adapter_rewriter *w, ds_value a, ds_value b, ds_value *out)
{
    const dsi_concat_attrs attrs = {.dim = ds_graph_meta(w->r.to, a).shape.n_dims - 1};
    const ds_value in[2] = {a, b};
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_concat, &attrs, in, 2, made));
    *out = made[0];
    return DS_OK;
}

/* Of several adapters that are trained each begins at an even column: processors that multiply bf16
 * in pairs of columns (gemm.md: avx512_bf16, amx) then pair each with what it is paired with alone,
 * and a row has the bits that it has with its own adapter alone. */
static ds_status fill_pair(dsi_adapter_rewriter *w, ds_value *v)
{
    const ds_shape shape = ds_graph_meta(w->r.to, *v).shape;
    const dsi_pad_attrs attrs = {.dim = (int64_t)shape.n_dims - 1, .after = 1};
    ds_value made[DS_MAX_OUT];
    if (!dsi_adapter_has_rows(w->adapter) || ds_shape_last(shape) % 2 == 0) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_pad, &attrs, v, 1, made));
    *v = made[0];
    return DS_OK;
}

static ds_status adapt_fused(dsi_adapter_rewriter *w, const dsi_node_info *node, ds_cell weight,
                             ds_value *in, ds_value *out)
{
    ds_value x = DS_NONE, parts[3];
    const int64_t n_out = ds_graph_meta(w->r.to, in[1]).shape.dims[0];
    (void)dsi_adapter_head_weight(w->r.from, node, &x);
    x = w->r.map[x];
    w->targets[weight].uses += 1;
    DS_TRY(dsi_adapter_drops(w) ? dsi_adapter_drop_input(w, weight, &x) : DS_OK);
    DS_TRY(dsi_adapter_project(w, weight, x, n_out, parts));
    DS_TRY(fill_pair(w, &parts[0]));
    DS_TRY(fill_pair(w, &parts[2]));
    DS_TRY(beside(w, in[0], parts[0], &in[0]));
    DS_TRY(beside(w, in[1], parts[2], &in[1]));
    return ds_graph_apply(w->r.to, node->op, node->attrs, in, node->n_in, out);
}

/* The loss of logits that DoRA made. */
static ds_status adapt_apart(dsi_adapter_rewriter *w, const dsi_node_info *node, ds_cell weight,
                             const ds_value *in, ds_value *out)
{
    const ds_dtype dtype = ds_graph_meta(w->r.to, in[0]).dtype;
    const dsi_linear_ce_attrs *a = node->attrs;
    const dsi_linear_attrs attrs = {.out_dtype =
                                        dtype == DS_DTYPE_F64 ? DS_DTYPE_F64 : DS_DTYPE_F32};
    const dsi_node_info linear = {.op = &dsi_op_linear, .attrs = &attrs, .n_in = 2};
    if (w->r.from->values[dsi_node_in(w->r.from, node)[1]].cell == DS_NONE) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: use_dora on %s, the output head, beside a frozen adapter that is "
                       "on it, too: leave it out of one",
                       ds_cells_get(w->cells, weight)->name);
    }
    if (node->op == &dsi_op_linear_logprob) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: target_modules means %s, the output head, with use_dora beside a "
                       "preference loss: leave one of the three out",
                       ds_cells_get(w->cells, weight)->name);
    }
    ds_value of[3] = {DS_NONE, in[2], node->n_in > 3 ? in[3] : DS_NONE};
    DS_TRY(dsi_adapter_adapt_linear(w, &linear, weight, in, &of[0]));
    return ds_graph_apply(w->r.to, &dsi_op_cross_entropy, &a->ce, of, a->ce.counted != 0 ? 3 : 2,
                          out);
}

ds_status dsi_adapter_adapt_head(dsi_adapter_rewriter *w, const dsi_node_info *node, ds_cell weight)
{
    const bool loss = node->op == &dsi_op_linear_cross_entropy;
    const dsi_ce_attrs *a =
        loss ? &((const dsi_linear_ce_attrs *)node->attrs)->ce : (const dsi_ce_attrs *)node->attrs;
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    if (a->transposed != 0 || (loss && ((const dsi_linear_ce_attrs *)node->attrs)->keep != 0)) {
        return ds_fail(w->ctx, DS_ERR_INTERNAL,
                       "an adapter on a head that is turned, or keeps "
                       "its logits");
    }
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    DS_TRY(w->adapter->dora ? adapt_apart(w, node, weight, in, out)
                            : adapt_fused(w, node, weight, in, out));
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}
