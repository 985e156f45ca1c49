/* SPDX-License-Identifier: Apache-2.0 */
/* GLM and GLM-4: Llama with gate and up in one matrix and rotary positions of neighbours in a part
 * of each head; GLM-4 has norms behind attention and MLP as well. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(151329),
    DS_DECODER_SIZE("vocab_size", vocab_size, 151552),
    DS_DECODER_SIZE("hidden_size", hidden_size, 4096),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 13696),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 40),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 2),
    DS_DECODER_SIZE("head_dim", head_dim, 128),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 131072),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1.5625e-7, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", qkv_bias, true),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_decoder_names glm4_names = {DS_DECODER_LLAMA_NAMES,
                                            .after_attention = "post_self_attn_layernorm",
                                            .after_mlp = "post_mlp_layernorm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->mlp = DS_MLP_PACKED;
    c->rope_pairs = true;
    return ds_decoder_windows(reader, c, false, 0, "");
}

#define KIND(name, words)                                                                          \
    const ds_decoder_kind ds_kind_##name = {                                                       \
        .model_type = #name,                                                                       \
        .fields = fields,                                                                          \
        .n_fields = DS_DECODER_N(fields),                                                          \
        .activation = "silu",                                                                      \
        .rope = {.theta = 10000.0, .partial = 0.5, .null_is_all = true},                           \
        .names = words,                                                                            \
        .resolve = resolve}
KIND(glm, NULL);
KIND(glm4, &glm4_names);
