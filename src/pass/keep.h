/* SPDX-License-Identifier: Apache-2.0 */
/* Kept logits: the forward pass leaves the loss's logits to the backward pass. */
#ifndef DSI_PASS_KEEP_H
#define DSI_PASS_KEEP_H

#include "ir/graph.h"

/* Makes a new graph over the same cells in which each node n with keep[n], a linear_cross_entropy,
 * keeps its logits, and in which linear_cross_entropy_dx and linear_cross_entropy_dw stand in place
 * of its backward node. keep: a flag a node of a fused graph, of dsi_policy_keep(). The numbers are
 * the same. Pure. The caller destroys *kept_out. */
ds_status dsi_keep(const ds_graph *graph, const bool *keep, ds_graph **kept_out);

#endif
