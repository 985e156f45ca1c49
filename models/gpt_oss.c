/* SPDX-License-Identifier: Apache-2.0 */
/* gpt-oss (OpenAI, 2025): experts in every layer with biases and a gate within bounds, attention
 * with a sink for each head, and a window in the layers of layer_types, or in every other. */
#include "decoder.h"

#include <math.h>
#include <string.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 201088),
    DS_DECODER_SIZE("hidden_size", hidden_size, 2880),
    DS_DECODER_SIZE("intermediate_size", expert_width, 2880),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 36),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 64),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 8),
    DS_DECODER_SIZE("head_dim", head_dim, 64),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 131072),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", o_bias, true),
    DS_DECODER_ANY_INT("sliding_window", DS_FIELD_INT, window, 128),
    DS_DECODER_SIZE("num_local_experts", n_experts, 128),
    DS_DECODER_ALIAS_SIZE("num_experts", n_experts),
    DS_DECODER_EXPERTS(4, 0.001),
    DS_DECODER_APPLIED("swiglu_limit", DS_FIELD_REAL, glu_limit, 7.0, 1e-6, 1e6),
    DS_DECODER_APPLIED("swiglu_alpha", DS_FIELD_REAL, glu_alpha, 1.702, -1e6, 1e6),
    DS_FIELD_CHECK("hidden_act", DS_FIELD_TEXT), /* the experts' own is another */
    DS_DECODER_EAGER,
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_expert_names names = {.scope = "mlp",
                                      .router = "router.weight",
                                      .router_bias = "router.bias",
                                      .gate_up = "experts.gate_up_proj",
                                      .gate_up_bias = "experts.gate_up_proj_bias",
                                      .down = "experts.down_proj",
                                      .down_bias = "experts.down_proj_bias",
                                      .transposed = true,
                                      .alternate = true};

static const char absent_rope[] =
    "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
    "\"truncate\": false, \"original_max_position_embeddings\": 4096}";

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const bool typed = json_is_array(json_object_get(reader->json, "layer_types"));
    c->expert_names = &names;
    c->qkv_bias = c->o_bias;
    c->normalise = true; /* a softmax over the chosen logits is that over all, normalised */
    c->sinks = "sinks";
    DS_TRY(ds_decoder_experts(reader, c));
    DS_TRY(ds_decoder_windows(reader, c, true, 0, ""));
    for (int64_t i = 0; i < c->n_layers && !typed; ++i) {
        c->windowed[i] = i % 2 == 0;
    }
    return DS_OK;
}

const ds_decoder_kind ds_kind_gpt_oss = {.model_type = "gpt_oss",
                                         .fields = fields,
                                         .n_fields = DS_DECODER_N(fields),
                                         .rope = {.theta = 150000.0, .absent = absent_rope},
                                         .quantized = "mxfp4", /* of experts: ckpt/mxfp4.h */
                                         .typed = true,
                                         .resolve = resolve};
