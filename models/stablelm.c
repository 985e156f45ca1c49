/* SPDX-License-Identifier: Apache-2.0 */
/* StableLM: LayerNorm, rotary positions of a part of each head, and, where asked for, attention and
 * MLP side by side. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50304),
    DS_DECODER_SIZE("hidden_size", hidden_size, 2560),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 6912),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 32),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 4096),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("layer_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_DROPOUT("hidden_dropout", mlp_dropout),
    DS_DECODER_SWITCH("use_qkv_bias", qkv_bias, false),
    DS_DECODER_SWITCH("use_parallel_residual", parallel, false),
    DS_DECODER_SWITCH("qk_layernorm", normalise, false), /* read by resolve() */
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

/* A norm of q and k has weights of each head's own, stored one by one. */
#define QK .q_norm = "q_layernorm.norms.*", .k_norm = "k_layernorm.norms.*"
static const ds_decoder_names names = {DS_DECODER_LLAMA_NAMES, QK};
static const ds_decoder_names parallel_names = {DS_DECODER_LLAMA_BASE, QK,
                                                .before_attention = "input_layernorm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(ds_decoder_check_head_dim(reader, c));
    c->norm = DS_NORM_LAYER;
    c->names = c->parallel ? &parallel_names : &names;
    c->qk_norm = c->normalise ? DS_QK_EACH : DS_QK_NONE;
    c->normalise = false;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_stablelm = {.model_type = "stablelm",
                                          .fields = fields,
                                          .n_fields = DS_DECODER_N(fields),
                                          .activation = "silu",
                                          .rope = {.theta = 10000.0, .partial = 0.25},
                                          .whole_heads = true,
                                          .resolve = resolve};
