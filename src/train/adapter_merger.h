/* SPDX-License-Identifier: Apache-2.0 */
/* What adapter_merge.c (the folders) and adapter_merge_weights.c (what each weight becomes) share.
 *
 * Invariant: the cells of the model have the same numbers in the cells of every part, since the
 * model is traced anew for each, and an adapter's own cells come behind them.
 */
#ifndef DSI_TRAIN_ADAPTER_MERGER_H
#define DSI_TRAIN_ADAPTER_MERGER_H

#include "ckpt/model_weights.h"
#include "train/adapter_sum.h"

#include <deepspeed/adapter.h>
#include <deepspeed/graph.h>

/* One of the adapters, and the model traced with it. */
typedef struct dsi_merge_part {
    const ds_adapter *adapter;
    double weight; /* that its scale is multiplied by */
    ds_cells *cells;
    ds_graph *graph;
    ds_safetensors *own;
    const ds_safetensor **own_of; /* of the adapter, by cell */
} dsi_merge_part;

typedef struct dsi_merger {
    ds_ctx *ctx;
    dsi_merge_part *parts;
    uint32_t n_parts;
    ds_model *model;
    const ds_cells *cells; /* of the first part */
    ds_cell n_cells;       /* of the model's */
    ds_safetensors *st;
    dsi_weights *stored;
    const ds_safetensor **by_cell; /* those of one tensor; stacked ones are in `experts` */
    const ds_safetensor **own_of;  /* what takes the place of a parameter; NULL: nothing */
    dsi_adapter_sum *sums;         /* per cell */
    dsi_adapter_sum *experts;      /* those that are stored one by one */
    size_t n_experts, room;
    bool has_blocks; /* of MXFP4 */
    bool unpacks;    /* some are stored in few bits, and are written as real numbers */
    ds_dtype dtype;  /* asked for; NONE: as stored */
} dsi_merger;

/* Adds what a part makes of each weight of its graph. Errors: ERR_UNSUPPORTED, ERR_NOMEM, those of
 * tensors. */
ds_status dsi_merge_weights(dsi_merger *m, uint32_t part);

#endif
