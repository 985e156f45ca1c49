/* SPDX-License-Identifier: Apache-2.0 */
/* What adapter_graph.c, adapter_experts_graph.c and adapter_head_graph.c share: the rewrite of a
 * graph and what is meant of its cells. */
#ifndef DSI_COMPILE_ADAPTER_REWRITER_H
#define DSI_COMPILE_ADAPTER_REWRITER_H

#include "ir/rewrite.h"
#include "model/adapter.h"

/* A parameter's part in it. */
typedef struct dsi_adapter_target {
    bool on;        /* it is the weight of a module that is meant */
    bool parameter; /* by target_parameters */
    dsi_adapter_layer layer;
    uint32_t uses;
} dsi_adapter_target;

typedef struct dsi_adapter_rewriter {
    const ds_adapter *adapter;
    const ds_trace *trace;
    dsi_rewrite r;
    ds_ctx *ctx;
    ds_cells *cells;
    dsi_adapter_target *targets; /* per cell of the model */
    uint32_t n_cells;
    struct {
        ds_value a, x, h;
    } experts; /* the last h = scale·x·Aᵀ, which gate and up have in common; DS_NONE: none yet */
} dsi_adapter_rewriter;

/* A matrix of the adapter that belongs to a weight: module with what follows, behind the prefix of
 * a frozen one. */
ds_status dsi_adapter_read_own(dsi_adapter_rewriter *w, ds_cell weight, const char *module,
                               const char *end, ds_meta meta, ds_init init, ds_value *value_out);

/* ---- linear layers (adapter_graph.c) ---- */

/* parts: h = scale·x·Aᵀ, A (rank,in), B (n_out,rank). */
ds_status dsi_adapter_project(dsi_adapter_rewriter *w, ds_cell weight, ds_value x, int64_t n_out,
                              ds_value *parts);
/* What a linear layer makes of its inputs, with its adapter. node: whose operator and attributes
 * it has, of which n_in inputs are read. */
ds_status dsi_adapter_adapt_linear(dsi_adapter_rewriter *w, const dsi_node_info *node,
                                   ds_cell weight, const ds_value *in, ds_value *y);
/* Whether lora_dropout is on, and what it leaves of x. */
bool dsi_adapter_drops(const dsi_adapter_rewriter *w);
ds_status dsi_adapter_drop_input(dsi_adapter_rewriter *w, ds_cell weight, ds_value *x);

/* ---- output heads (adapter_head_graph.c) ---- */

/* Whether the node is a loss with the output projection in it. */
bool dsi_adapter_is_head(const dsi_node_info *node);
/* Its weight and x: where another adapter is on it already, those without h and B beside them.
 * DS_NONE: it is no parameter of the model. */
ds_cell dsi_adapter_head_weight(const ds_graph *g, const dsi_node_info *node, ds_value *x_out);
ds_status dsi_adapter_adapt_head(dsi_adapter_rewriter *w, const dsi_node_info *node,
                                 ds_cell weight);

/* ---- parameters and experts (adapter_experts_graph.c) ---- */

/* Marks what target_parameters means: matrices of experts, and weights of routers and of linear
 * layers; others are ERR_UNSUPPORTED. */
ds_status dsi_adapter_find_parameters(dsi_adapter_rewriter *w);
/* y + scale·(x·Aᵀ)·Bᵀ of each expert, in place of y, behind a grouped_linear whose weight is meant.
 * in: the node's inputs in the new graph. */
ds_status dsi_adapter_adapt_experts(dsi_adapter_rewriter *w, const dsi_node_info *node,
                                    ds_cell weight, const ds_value *in, ds_value *y);

#endif
