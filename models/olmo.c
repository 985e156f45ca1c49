/* SPDX-License-Identifier: Apache-2.0 */
/* OLMo (Groeneveld et al. 2024): Llama with norms that have no tensors, and bounds of queries, keys
 * and values. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(1),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50304),
    DS_DECODER_SIZE("hidden_size", hidden_size, 4096),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 11008),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 2048),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_CLIP,
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->norm = DS_NORM_LAYER_BARE;
    c->norm_eps = 1e-5;
    c->qkv_bias = c->o_bias;
    ds_decoder_clip(reader, c);
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_olmo = {.model_type = "olmo",
                                      .fields = fields,
                                      .n_fields = DS_DECODER_N(fields),
                                      .activation = "silu",
                                      .rope = {.theta = 10000.0},
                                      .resolve = resolve};
