/* SPDX-License-Identifier: Apache-2.0 */
/* Fusion: several nodes become one with an epilogue or an accumulating operand. */
#ifndef DSI_PASS_FUSE_H
#define DSI_PASS_FUSE_H

#include "ir/graph.h"

/* Makes a new graph over the same cells in which these patterns are one node:
 *   1. linear, then activation(gelu_tanh)         → linear with activation (exact; without a
 *                                                   backward pass one rounding less)
 *   2. linear, then add(x, linear)                → linear with residual (one rounding less); in
 * the forward phase also the first of a chain, each with the one before as its residual
 *   3. norm_backward, then add(dx, dres)          → norm_backward with dres (one rounding less)
 *   4. f32 weight gradient, then cast             → the product writes the narrow dtype (exact)
 *   5. add(f32 dw, linear_dw | embedding_dw | …)  → the second accumulates onto the first (the sum
 * is associated differently) Only single-use intermediate values are fused. Pure. The caller
 * destroys *fused_out. */
ds_status dsi_fuse(const ds_graph *graph, ds_graph **fused_out);

#endif
