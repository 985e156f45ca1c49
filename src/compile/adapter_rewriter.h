/* SPDX-License-Identifier: Apache-2.0 */
/* What adapter_graph.c and adapter_experts_graph.c share: the rewrite of a graph and what is meant
 * of its cells. */
#ifndef DSI_COMPILE_ADAPTER_REWRITER_H
#define DSI_COMPILE_ADAPTER_REWRITER_H

#include "ir/rewrite.h"
#include "model/adapter.h"

/* A parameter's part in it. */
typedef struct dsi_adapter_target {
    bool on; /* it is the weight of a module that is meant */
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

/* Reads a cell, which is added unless it is there. */
ds_status dsi_adapter_read_cell(dsi_adapter_rewriter *w, const ds_cell_info *info,
                                ds_value *value_out);

/* ---- experts (adapter_experts_graph.c) ---- */

/* Marks what target_parameters means; what is none of experts is ERR_UNSUPPORTED. */
ds_status dsi_adapter_find_experts(dsi_adapter_rewriter *w);
/* y + scale·(x·Aᵀ)·Bᵀ of each expert, in place of y, behind a grouped_linear whose weight is meant.
 * in: the node's inputs in the new graph. */
ds_status dsi_adapter_adapt_experts(dsi_adapter_rewriter *w, const dsi_node_info *node,
                                    ds_cell weight, const ds_value *in, ds_value *y);

#endif
