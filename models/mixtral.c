/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtral (Jiang et al. 2024): Mistral whose MLPs are experts, of which a token goes to two. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 32000),
    DS_DECODER_SIZE("hidden_size", hidden_size, 4096),
    DS_DECODER_SIZE("intermediate_size", expert_width, 14336),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 8),
    DS_DECODER_SIZE_OR_NULL("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 131072),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SIZE_OR_NULL("sliding_window", window, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("num_local_experts", n_experts, 8),
    DS_DECODER_ALIAS_SIZE("num_experts", n_experts),
    DS_DECODER_EXPERTS(2, 0.001),
    DS_DECODER_REAL("router_jitter_noise", router_noise, 0.0, HUGE_VAL),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_expert_names names = {.scope = "block_sparse_moe",
                                      .router = "gate.weight",
                                      .gate = "experts.*.w1.weight",
                                      .up = "experts.*.w3.weight",
                                      .down = "experts.*.w2.weight"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->expert_names = &names;
    c->normalise = true;
    DS_TRY(ds_decoder_experts(reader, c));
    return ds_decoder_one_window(reader, c, c->window != DS_NO_INT);
}

const ds_decoder_kind ds_kind_mixtral = {.model_type = "mixtral",
                                         .fields = fields,
                                         .n_fields = DS_DECODER_N(fields),
                                         .activation = "silu",
                                         .rope = {.theta = 1000000.0},
                                         .scaled_by_head = true,
                                         .typed = true,
                                         .resolve = resolve};
