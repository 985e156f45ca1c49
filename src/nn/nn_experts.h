/* SPDX-License-Identifier: Apache-2.0 */
/* Rows sorted by expert, through the experts: on this rank, or on those that share them. For layers
 * of experts, those of model families (model/expert_layer.h) and of programs (nn_moe.c). */
#ifndef DSI_NN_NN_EXPERTS_H
#define DSI_NN_NN_EXPERTS_H

#include "nn/nn.h"
#include "op/ops.h"

/* What experts make of rows (R,C) sorted by expert at these offsets, as products `how`: → (R,C').
 */
typedef ds_value (*dsi_experts_fn)(ds_nn *nn, ds_value rows, ds_value offsets,
                                   const dsi_grouped_attrs *how, const void *user);

/* Parts of the sequences whose tokens are sorted apart: the ranks that share the sequences, and
 * those that have the same tokens and share the experts. 0: none. */
int64_t dsi_nn_parts(const ds_nn *nn);

/* Of tokens (B,T,..) that ranks have alike the part that each sends to the experts, and back. */
ds_value dsi_nn_split_tokens(ds_nn *nn, ds_value x);
ds_value dsi_nn_join_tokens(ds_nn *nn, ds_value x);

/* fn on the ranks that have the experts. rows (T·K,C), a token's in K of the E experts, at most
 * `capacity` of each (0: any number). */
typedef struct dsi_experts_of {
    int64_t n_experts, n_chosen, capacity;
} dsi_experts_of;
ds_value dsi_nn_experts(ds_nn *nn, const dsi_experts_of *of, ds_value rows, ds_value offsets,
                        dsi_experts_fn fn, const void *user);

#endif
