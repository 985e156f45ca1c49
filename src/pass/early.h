/* SPDX-License-Identifier: Apache-2.0 */
/* Early updates: nodes that use up gradients in the backward phase stand right behind them. */
#ifndef DSI_PASS_EARLY_H
#define DSI_PASS_EARLY_H

#include "ir/graph.h"

/* Makes a new graph over the same cells, its nodes in the order of dsi_order, which moves updates
 * of the backward phase up to their gradients; the marks `gradient` are gone. For offload.c, which
 * puts swaps where it finds the updates. A graph without such updates is only sorted. Pure. The
 * caller destroys *early_out. */
ds_status dsi_early(const ds_graph *graph, ds_graph **early_out);

#endif
