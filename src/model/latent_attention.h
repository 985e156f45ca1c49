/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are made of one
 * narrow vector a token, and beside them of one rotated key that all heads share; queries may be
 * made of a narrow vector as well. For the families of models/.
 *
 * In training keys and values are made whole before they are attended to. In generation the cache
 * holds the narrow vector and the rotated key, once for all heads, and kv_b_proj goes to the
 * queries and to what comes out: with K = W_k·c of a head, q·K = (qᵀ·W_k)·c, and Σ p·(W_v·c) =
 * W_v·(Σ p·c), so that all heads attend to one head of keys, which are the values, too. The same
 * for prompts and for steps, which therefore have the same bits. ds_trace.whole_heads: as in
 * training. */
#ifndef DSI_MODEL_LATENT_ATTENTION_H
#define DSI_MODEL_LATENT_ATTENTION_H

#include <deepspeed/nn.h>

typedef struct ds_latent_params {
    int64_t n_heads;
    int64_t q_rank, kv_rank; /* of the narrow vectors; q_rank 0: queries are projected at once */
    int64_t plain, rotated;  /* dims of a head of q and k that positions leave, and turn */
    int64_t value;           /* dims of a head of v */
    double eps;              /* of the norms of the narrow vectors */
    double scale, dropout;   /* of ds_attention_params */
    double init_std;
    bool pairs; /* x[2i] turns with x[2i+1]; else halves */
    bool bias;  /* of what makes the narrow vectors */
} ds_latent_params;

/* x (B,T,C) → (B,T,H·value), with the scope's q_proj, or q_a_proj, q_a_layernorm and q_b_proj;
 * kv_a_proj_with_mqa, kv_a_layernorm and kv_b_proj. table: rotary positions of `rotated` dims;
 * first: of ds_nn_attention. */
ds_value ds_model_latent_attention(ds_nn *nn, ds_value x, ds_value table, ds_value first,
                                   const ds_latent_params *params);

#endif
