/* SPDX-License-Identifier: Apache-2.0 */
/* Muon's update of a matrix. Called by train_graph.c.
 *
 * The momentum is updated where it is kept (a slice of it on each rank under ZeRO), its Nesterov
 * form is gathered, orthogonalized whole by a Newton-Schulz iteration on every rank, and each rank
 * takes from the result what it updates: so all stages have the same bits. What is no matrix, and
 * embeddings and heads by their names, has AdamW's update, with rates of its own.
 */
#ifndef DSI_COMPILE_MUON_GRAPH_H
#define DSI_COMPILE_MUON_GRAPH_H

#include "compile/train_graph_build.h"

/* Whether Muon updates the parameter: as DeepSpeed has it, a matrix, or a stack of matrices, each
 * of which is orthogonalized by itself, without "embed" or "lm_head" in its name. */
bool dsi_muon_takes(const ds_cell_info *param);
/* The update by operands as dsi_train_read_update reads them; in[5] is the momentum. */
ds_status dsi_muon_build_update(dsi_train_builder *b, const ds_value *in);

#endif
