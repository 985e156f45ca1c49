/* SPDX-License-Identifier: Apache-2.0 */
/* Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with q, k and v in one matrix, gate and up in
 * another, and rotary positions that may be of a part of each head. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(32000),
    DS_DECODER_SIZE("vocab_size", vocab_size, 32064),
    DS_DECODER_SIZE("hidden_size", hidden_size, 3072),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 8192),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 4096),
    DS_FIELD_CHECK("original_max_position_embeddings", DS_FIELD_INT),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_DROPOUT("resid_pdrop", residual_dropout),
    DS_FIELD_CHECK("embd_pdrop", DS_FIELD_NUMBER), /* no layer of its class has it */
    DS_DECODER_SIZE_OR_NULL("sliding_window", window, DS_DECODER_NO_INT),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("layer_types", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_decoder_names names = {DS_DECODER_LLAMA_NAMES, .packed = "qkv_proj"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->qkv = DS_QKV_SIDE;
    c->mlp = DS_MLP_PACKED;
    c->mlp_dropout = c->residual_dropout;
    return ds_decoder_windows(reader, c, c->window != DS_NO_INT, 0, "");
}

const ds_decoder_kind ds_kind_phi3 = {.model_type = "phi3",
                                      .fields = fields,
                                      .n_fields = DS_DECODER_N(fields),
                                      .activation = "silu",
                                      .rope = {.theta = 10000.0, .partial = 1.0, .plain = true},
                                      .names = &names,
                                      .resolve = resolve};
