/* SPDX-License-Identifier: Apache-2.0 */
/* Linear attention by the gated delta rule (Yang, Kautz, Hatamizadeh, "Gated Delta Networks",
 * 2024), as Qwen3-Next has it: queries, keys and values go through a short convolution, and what
 * comes out is normed head by head and gated. For the families of models/. */
#ifndef DSI_MODEL_DELTA_NET_H
#define DSI_MODEL_DELTA_NET_H

#include <deepspeed/nn.h>

typedef struct ds_delta_net_params {
    int64_t n_heads, n_key_heads; /* of values; of queries and keys, each for as many of values */
    int64_t key_dim, value_dim;   /* of a head */
    int64_t kernel;               /* positions of the convolution */
    ds_activation activation;     /* behind it */
    double eps;                   /* of the norm */
    double init_std;
} ds_delta_net_params;

/* x (B,T,C) → (B,T,H·value_dim), with the scope's in_proj_qkvz, in_proj_ba, conv1d, A_log, dt_bias
 * and norm; first: of ds_nn_attention. */
ds_value ds_model_delta_net(ds_nn *nn, ds_value x, ds_value first,
                            const ds_delta_net_params *params);

#endif
