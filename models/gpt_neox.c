/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-NeoX (Black et al. 2022; Pythia): attention and MLP side by side with a norm each, q, k and v
 * of each head in one matrix, rotary positions of a part of each head. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50432),
    DS_DECODER_SIZE("hidden_size", hidden_size, 6144),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 24576),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 44),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 64),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 2048),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("layer_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_DROPOUT("hidden_dropout", residual_dropout),
    DS_DECODER_SWITCH("attention_bias", o_bias, true),
    DS_DECODER_SWITCH("use_parallel_residual", parallel, true),
    DS_FIELD_CHECK("classifier_dropout", DS_FIELD_NUMBER),
    DS_FIELD_CHECK("is_decoder", DS_FIELD_BOOL),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_decoder_names names = {.base = "gpt_neox",
                                       .base_prefix = "gpt_neox.",
                                       .embedding = "gpt_neox.embed_in.weight",
                                       .final_norm = "final_layer_norm",
                                       .head = "embed_out.weight",
                                       .attention = "attention",
                                       .packed = "query_key_value",
                                       .out = "dense",
                                       .up = "dense_h_to_4h",
                                       .down = "dense_4h_to_h",
                                       .before_attention = "input_layernorm",
                                       .before_mlp = "post_attention_layernorm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(ds_decoder_check_head_dim(reader, c));
    c->norm = DS_NORM_LAYER;
    c->qkv = DS_QKV_HEADS;
    c->mlp = DS_MLP_PLAIN;
    c->qkv_bias = c->o_bias;
    c->mlp_bias = true;
    c->mlp_dropout = c->embedding_dropout = c->residual_dropout;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_gpt_neox = {.model_type = "gpt_neox",
                                          .fields = fields,
                                          .n_fields = DS_DECODER_N(fields),
                                          .activation = "gelu",
                                          .rope = {.theta = 10000.0,
                                                   .partial = 0.25,
                                                   .theta_key = "rotary_emb_base",
                                                   .partial_key = "rotary_pct"},
                                          .names = &names,
                                          .whole_heads = true,
                                          .resolve = resolve};
