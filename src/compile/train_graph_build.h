/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that build the training graph share. Private to them. */
#ifndef DSI_COMPILE_TRAIN_GRAPH_BUILD_H
#define DSI_COMPILE_TRAIN_GRAPH_BUILD_H

#include "compile/compress_graph.h"
#include "compile/train_graph.h"
#include "op/ops.h"

enum { DSI_TRAIN_PATH_BYTES = 1100 };

typedef struct dsi_train_builder {
    const dsi_train_spec *spec;
    ds_ctx *ctx;
    ds_cells *cells;
    ds_graph *graph;
    dsi_train_cells *own;
    uint32_t n_params; /* cells before the optimizer's were added */
    dsi_compress_masks masks;
    ds_value *d_cell;     /* per cell: complete fp32 gradient */
    ds_value *reduced;    /* per cell: value of the gradient cell at the boundary */
    dsi_stage_of *stages; /* per cell below n_params; NULL: one stage */
} dsi_train_builder;

ds_status dsi_train_add_cell(dsi_train_builder *b, ds_cell_kind kind, const char *name,
                             ds_meta meta, ds_cell of, ds_cell *cell_out);
ds_status dsi_train_apply(dsi_train_builder *b, const ds_op *op, const void *attrs,
                          const ds_value *in, uint32_t n_in, ds_value *out);
/* The two cells of hyperparameters NAME.decay and NAME.no_decay. */
ds_status dsi_train_add_hyper(dsi_train_builder *b, const char *name, ds_cell cells_out[2]);

/* The update of a parameter by the configuration's optimizer, from `gradient`, a value like it. */
typedef struct dsi_train_update {
    ds_cell param;
    ds_value gradient, factor;
    const ds_cell *hyper; /* two cells */
} dsi_train_update;
ds_status dsi_train_build_update(dsi_train_builder *b, const dsi_train_update *update);

/* Each gradient through `map` (with `extra` unless it is DS_NONE), then all by `combine`.
 * gradients: per cell below n_params, DS_NONE: none. */
ds_status dsi_train_map_fold(dsi_train_builder *b, const ds_value *gradients, const ds_op *map,
                             ds_value extra, const ds_op *combine, ds_value *out);
/* The cell that undoes loss scale and predivision, made at its first use. */
ds_status dsi_train_read_inverse_scale(dsi_train_builder *b, ds_value *value_out);
enum { DSI_UPDATE_IN = 8 }; /* the most operands of an update: three states */
/* Operands 0 and 2 on of every update: parameter, hyperparameters, master, states. in: 7, or as
 * many as the optimizer's operator has. */
ds_status dsi_train_read_update(dsi_train_builder *b, const dsi_train_update *update, ds_value *in);
dsi_optim_attrs dsi_train_update_attrs(const dsi_train_spec *spec);

/* 1-bit optimizers behind the warm-up. factor: of norm. */
ds_status dsi_onebit_add_phases(dsi_train_builder *b);
ds_status dsi_onebit_build(dsi_train_builder *b, ds_value factor);
/* Nearly the mean of the ranks' x, with errors NAME; x itself on one rank. */
ds_status dsi_onebit_mean(dsi_train_builder *b, const char *name, ds_cell of, ds_value *x);
/* Of 0/1 Adam: the phases signs, local and sync. */
ds_status dsi_zero_one_add_phases(dsi_train_builder *b);
ds_status dsi_zero_one_build(dsi_train_builder *b, const ds_value *own, ds_value factor);
/* Of 1-bit LAMB: an update of the warm-up, the phases freeze and frozen. own: gradients. */
ds_status dsi_onebit_lamb_warm_up(dsi_train_builder *b, ds_cell param, ds_value sums);
ds_status dsi_onebit_lamb_freeze(dsi_train_builder *b);
ds_status dsi_onebit_lamb_frozen(dsi_train_builder *b, const ds_value *own, ds_value factor);

/* All updates under ZenFlow. */
ds_status dsi_zenflow_add_phases(dsi_train_builder *b);
ds_status dsi_zenflow_build(dsi_train_builder *b, ds_value factor);

/* Cells of LoCo for a parameter's gradient, which localize finds by name; none without it. */
ds_status dsi_train_add_errors(dsi_train_builder *b, ds_cell param);

#endif
