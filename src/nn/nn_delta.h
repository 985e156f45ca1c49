/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that carry a state from position to position of a document: a short convolution, and the
 * gated delta rule. A trace of generation keeps what they carry in cells of the scope, instead of
 * keys and values. For the models of src/model. */
#ifndef DSI_NN_NN_DELTA_H
#define DSI_NN_NN_DELTA_H

#include <deepspeed/nn.h>

typedef struct dsi_delta_params {
    int64_t n_heads, n_key_heads; /* of values; of queries and keys */
    int64_t key_dim, value_dim;   /* of a head */
    double scale, eps;            /* of q·k; of the norm of q and k */
} dsi_delta_params;

/* x (B,T,C), w (C,1,K) → (B,T,C): op causal_conv, over documents that begin at first (B,T). Its
 * cell is scope.name. */
ds_value dsi_nn_causal_conv(ds_nn *nn, const char *name, ds_value x, ds_value w, ds_value first);
/* q, k (B,T,HK·D), v (B,T,H·V), g f32 and beta (B,T,H) → (B,T,H·V): op delta_rule; likewise. */
ds_value dsi_nn_delta_rule(ds_nn *nn, const char *name, const ds_value *qkv, ds_value g,
                           ds_value beta, ds_value first, const dsi_delta_params *params);

#endif
