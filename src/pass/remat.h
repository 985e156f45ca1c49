/* SPDX-License-Identifier: Apache-2.0 */
/* Recomputation: forward values that the backward pass needs are made there again. */
#ifndef DSI_PASS_REMAT_H
#define DSI_PASS_REMAT_H

#include "ir/graph.h"

/* Makes a new graph over the same cells, in which no node behind the forward phase reads a value v
 * with drop[v]: right before the first that would, the nodes that made it run once more, in the
 * reader's phase and marked `recomputed`, from values that were kept. drop: a flag a value of
 * graph; it must be false for values of cells and named outputs, and only values of the forward
 * phase may have it (ERR_GRAPH). The numbers are the same, since the same kernels run on the same
 * operands and random numbers are keyed by site (LAW 4g). Pure. The caller destroys *remat_out. */
ds_status dsi_remat(const ds_graph *graph, const bool *drop, ds_graph **remat_out);

#endif
