/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters on experts: two more products by groups behind each. See adapter_rewriter.h.
 *
 * The cells are matrices of experts as any, A (E,rank,in) and B (E,out,rank), so that ranks share
 * them as they share those; folders have PEFT's shapes (adapter_experts.h). PEFT adds scale·B·A to
 * the weights themselves, which gives the same sums in another order.
 */
#include "compile/adapter_rewriter.h"

#include "model/adapter_experts.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ds_status apply1(dsi_adapter_rewriter *w, const ds_op *op, const void *attrs,
                        const ds_value *in, uint32_t n_in, ds_value *out)
{
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(w->r.to, op, attrs, in, n_in, made));
    *out = made[0];
    return DS_OK;
}

/* ---- what is meant --------------------------------------------------------------------------- */

/* What transformers' classes call a parameter; *expert_out: a matrix of experts. */
static void key_of(const ds_cell_info *cell, char key[DSI_EXPERTS_NAME_BYTES + 32],
                   bool *expert_out)
{
    static const char end[] = ".weight";
    const size_t n = strlen(cell->name), k = sizeof end - 1;
    dsi_expert_matrix matrix;
    *expert_out = dsi_expert_matrix_of(cell->name, &matrix) && cell->meta.shape.n_dims == 3;
    if (*expert_out) {
        (void)snprintf(key, DSI_EXPERTS_NAME_BYTES + 32, "%s.%s", matrix.module, matrix.parameter);
    } else if (n > k && n < DSI_EXPERTS_NAME_BYTES && strcmp(cell->name + n - k, end) == 0) {
        (void)snprintf(key, DSI_EXPERTS_NAME_BYTES, "%.*s", (int)(n - k), cell->name);
        dsi_router_module(key);
        (void)snprintf(key + strlen(key), sizeof end, "%s", end);
    } else {
        (void)snprintf(key, DSI_EXPERTS_NAME_BYTES + 32, "%s", cell->name);
    }
}

static ds_status find_one(dsi_adapter_rewriter *w, ds_cell c)
{
    static const char end[] = ".weight";
    const ds_cell_info *cell = ds_cells_get(w->cells, c);
    dsi_adapter_layer layer;
    char key[DSI_EXPERTS_NAME_BYTES + 32];
    bool on = false, expert = false;
    key_of(cell, key, &expert);
    DS_TRY(dsi_adapter_match_parameter(w->adapter, key, &on, &layer));
    const size_t n = strlen(key), k = sizeof end - 1;
    const bool matrix = cell->meta.shape.n_dims == 2 && n > k && strcmp(key + n - k, end) == 0;
    if (on && !expert && !matrix) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: target_parameters means %s, which is no matrix of experts, of a "
                       "router or of a linear layer in full precision",
                       key);
    }
    if (on && w->targets[c].on) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: %s is in target_modules and in target_parameters; leave it out "
                       "of one",
                       key);
    }
    if (on) {
        w->targets[c].on = w->targets[c].parameter = true;
        w->targets[c].layer = layer;
    }
    return DS_OK;
}

/* An entry of a fresh adapter that means nothing. */
static ds_status check_entries(const dsi_adapter_rewriter *w)
{
    const char *none = NULL;
    for (size_t i = 0; (none = dsi_adapter_parameter_at(w->adapter, i)) != NULL; ++i) {
        bool found = w->adapter->folder != NULL;
        for (ds_cell c = 0; c < w->n_cells && !found; ++c) {
            char key[DSI_EXPERTS_NAME_BYTES + 32];
            bool expert = false;
            if (w->targets[c].parameter) {
                key_of(ds_cells_get(w->cells, c), key, &expert);
                found = dsi_adapter_is_named(key, none);
            }
        }
        if (!found) {
            return ds_fail(
                w->ctx, DS_ERR_NOT_FOUND,
                "adapter: no parameter of this model is named like the target \"%s\"; matrices "
                "of experts are named like model.layers.0.mlp.experts." DSI_EXPERTS_FIRST
                " and ...experts." DSI_EXPERTS_LAST ", routers like model.layers.0.mlp.gate.weight",
                none);
        }
    }
    return DS_OK;
}

ds_status dsi_adapter_find_parameters(dsi_adapter_rewriter *w)
{
    if (dsi_adapter_parameter_at(w->adapter, 0) == NULL) {
        return DS_OK;
    }
    for (ds_cell c = 0; c < w->n_cells; ++c) {
        const ds_cell_info *cell = ds_cells_get(w->cells, c);
        DS_TRY(cell->kind == DS_CELL_PARAM && cell->of == DS_NONE ? find_one(w, c) : DS_OK);
    }
    return check_entries(w);
}

/* ---- the products ---------------------------------------------------------------------------- */

/* scale·x·Aᵀ, of each row by its expert's A. */
static ds_status first_product(dsi_adapter_rewriter *w, const dsi_grouped_attrs *how,
                               const ds_value *in, ds_value a, double scale, ds_value *h)
{
    const dsi_scale_attrs factor = {.factor = scale};
    const ds_value x[3] = {in[0], a, in[2]};
    if (w->experts.h != DS_NONE && w->experts.a == a && w->experts.x == in[0]) {
        *h = w->experts.h;
        return DS_OK;
    }
    DS_TRY(apply1(w, &dsi_op_grouped_linear, how, x, 3, h));
    DS_TRY(apply1(w, &dsi_op_scale, &factor, h, 1, h));
    w->experts.a = a;
    w->experts.x = in[0];
    w->experts.h = *h;
    return DS_OK;
}

ds_status dsi_adapter_adapt_experts(dsi_adapter_rewriter *w, const dsi_node_info *node,
                                    ds_cell weight, const ds_value *in, ds_value *y)
{
    const dsi_adapter_layer layer = w->targets[weight].layer;
    const ds_meta x = ds_graph_meta(w->r.to, in[0]);
    const int64_t n_in = ds_shape_last(x.shape);
    const int64_t n_out = ds_shape_last(ds_graph_meta(w->r.to, *y).shape);
    const int64_t n_experts = ds_graph_meta(w->r.to, in[1]).shape.dims[0];
    const ds_init first = w->adapter->gaussian
                              ? (ds_init){DS_INIT_NORMAL, 1.0 / (double)layer.rank}
                              : (ds_init){DS_INIT_UNIFORM, 1.0 / sqrt((double)n_in)};
    dsi_grouped_attrs how = *(const dsi_grouped_attrs *)node->attrs;
    dsi_expert_matrix matrix;
    char base[DSI_EXPERTS_NAME_BYTES + 16];
    char last[DSI_EXPERTS_END_BYTES];
    ds_value a = DS_NONE;
    ds_value second[3] = {DS_NONE, DS_NONE, in[2]};
    how.transposed = 0;
    if (!dsi_expert_matrix_of(ds_cells_get(w->cells, weight)->name, &matrix)) {
        return ds_fail(w->ctx, DS_ERR_INTERNAL, "%s is no matrix of experts",
                       ds_cells_get(w->cells, weight)->name);
    }
    DS_TRY(dsi_expert_cells_of(w->adapter, &matrix, base));
    const ds_meta a_meta = {x.dtype, ds_shape_3d(n_experts, layer.rank, n_in)};
    const ds_meta b_meta = {x.dtype, ds_shape_3d(n_experts, n_out, layer.rank)};
    dsi_expert_b_end(&matrix, last);
    DS_TRY(dsi_adapter_read_own(w, weight, base, ".lora_A.weight", a_meta, first, &a));
    DS_TRY(dsi_adapter_read_own(w, weight, base, last, b_meta, (ds_init){.kind = DS_INIT_ZEROS},
                                &second[1]));
    DS_TRY(first_product(w, &how, in, a, layer.scale, &second[0]));
    const ds_value own = *y;
    ds_value sum[2] = {own, DS_NONE};
    DS_TRY(apply1(w, &dsi_op_grouped_linear, &how, second, 3, &sum[1]));
    return apply1(w, &dsi_op_add, NULL, sum, 2, y);
}
