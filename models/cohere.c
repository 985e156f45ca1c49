/* SPDX-License-Identifier: Apache-2.0 */
/* Cohere (Command R): attention and MLP side by side behind one LayerNorm without bias, rotary
 * positions of neighbours, scaled logits. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(true),
    DS_DECODER_PAD(0),
    DS_DECODER_SIZE("vocab_size", vocab_size, 256000),
    DS_DECODER_SIZE("hidden_size", hidden_size, 8192),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 22528),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 40),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 64),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 8192),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("layer_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_REAL("logit_scale", logit_scale, 0.0625, HUGE_VAL),
    DS_FIELD_REFUSE("use_qk_norm", "null false", "norms of each head's own are not built"),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_decoder_names names = {DS_DECODER_LLAMA_BASE,
                                       .before_attention = "input_layernorm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    if (!(c->logit_scale >= 1e-6 && c->logit_scale <= 1e6)) {
        return ds_field_bad(reader, "logit_scale", "1e-6 to 1000000");
    }
    c->logits_divisor = 1.0 / c->logit_scale;
    c->norm = DS_NORM_LAYER_WEIGHT;
    c->parallel = true;
    c->rope_pairs = true;
    c->qkv_bias = c->o_bias;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_cohere = {.model_type = "cohere",
                                        .fields = fields,
                                        .n_fields = DS_DECODER_N(fields),
                                        .activation = "silu",
                                        .rope = {.theta = 500000.0},
                                        .names = &names,
                                        .resolve = resolve};
