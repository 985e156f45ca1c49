/* SPDX-License-Identifier: Apache-2.0 */
/* StarCoder2 (Lozhkov et al. 2024): LayerNorm, biases, an MLP without gate, dropouts, and one
 * window for all layers. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(true),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 49152),
    DS_DECODER_SIZE("hidden_size", hidden_size, 3072),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 12288),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 30),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 24),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 2),
    DS_DECODER_SIZE_OR_NULL("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 4096),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.018042, HUGE_VAL),
    DS_DECODER_REAL("norm_epsilon", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_DROPOUT("residual_dropout", residual_dropout),
    DS_DECODER_DROPOUT("embedding_dropout", embedding_dropout),
    DS_DECODER_SWITCH("use_bias", o_bias, true),
    DS_DECODER_SIZE_OR_NULL("sliding_window", window, DS_DECODER_NO_INT),
};

static const ds_decoder_names names = {DS_DECODER_LLAMA_NAMES, .up = "c_fc", .down = "c_proj"};

/* Where nothing else says what the cache holds, it is chunks. */
static ds_status check_chunks(const ds_reader *reader, const ds_decoder_config *c)
{
    const json_t *size = json_object_get(reader->json, "attention_chunk_size");
    const bool chunks = size != NULL && !json_is_null(size);
    return !chunks || c->window != DS_NO_INT || ds_field_layer_type(reader, 0) != NULL
               ? DS_OK
               : ds_fail(reader->ctx, DS_ERR_UNSUPPORTED,
                         "config.json: \"attention_chunk_size\" is not supported: %s",
                         DS_DECODER_ONLY_CACHE);
}

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(check_chunks(reader, c));
    c->norm = DS_NORM_LAYER;
    c->mlp = DS_MLP_PLAIN;
    c->mlp_dropout = c->residual_dropout;
    c->qkv_bias = c->mlp_bias = c->o_bias;
    return ds_decoder_one_window(reader, c, c->window != DS_NO_INT);
}

const ds_decoder_kind ds_kind_starcoder2 = {.model_type = "starcoder2",
                                            .fields = fields,
                                            .n_fields = DS_DECODER_N(fields),
                                            .activation = "gelu_pytorch_tanh",
                                            .rope = {.theta = 10000.0},
                                            .names = &names,
                                            .typed = true,
                                            .resolve = resolve};
