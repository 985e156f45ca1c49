/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2-MoE (Qwen1.5-MoE, 2024) and Qwen3-MoE (Yang et al. 2025): Qwen whose MLPs are experts, all
 * of them or every few layers; in Qwen2-MoE with an expert that every token goes to. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of their fields, but their layers take it. */
#define SHARED                                                                                     \
    DS_DECODER_COMMON(false), DS_DECODER_PAD(DS_DECODER_NO_INT),                                   \
        DS_DECODER_SIZE("vocab_size", vocab_size, 151936),                                         \
        DS_DECODER_SIZE("hidden_size", hidden_size, 2048),                                         \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, 24),                                        \
        DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),                                  \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, 32768),                          \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),                                 \
        DS_DECODER_SWITCH("use_sliding_window", use_window, false),                                \
        DS_DECODER_ANY_INT("sliding_window", DS_FIELD_INT | DS_FIELD_NULL, window, 4096),          \
        DS_DECODER_SWITCH("norm_topk_prob", normalise, false),                                     \
        DS_DECODER_ANY_INT("decoder_sparse_step", DS_FIELD_INT, sparse_step, 1),                   \
        DS_FIELD_CHECK("mlp_only_layers", DS_FIELD_INTS | DS_FIELD_NULL) /* read by resolve() */

static const ds_field qwen2_moe_fields[] = {
    SHARED,
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 5632),
    DS_DECODER_SIZE("moe_intermediate_size", expert_width, 1408),
    DS_DECODER_SIZE("shared_expert_intermediate_size", shared_width, 5632),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 16),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, 16),
    DS_DECODER_ANY_INT("max_window_layers", DS_FIELD_INT, max_window_layers, 28),
    DS_DECODER_SWITCH("qkv_bias", qkv_bias, true),
    DS_DECODER_SIZE("num_experts", n_experts, 60),
    DS_DECODER_EXPERTS(4, 0.001),
};

static const ds_field qwen3_moe_fields[] = {
    SHARED,
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 6144),
    DS_DECODER_SIZE("moe_intermediate_size", expert_width, 768),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 32),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 4),
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_SIZE("num_experts", n_experts, 128),
    DS_DECODER_ALIAS_SIZE("num_local_experts", n_experts),
    DS_DECODER_EXPERTS(8, 0.001),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
};

const ds_expert_names ds_qwen_experts = {.scope = "mlp",
                                         .router = "gate.weight",
                                         .gate = "experts.*.gate_proj.weight",
                                         .up = "experts.*.up_proj.weight",
                                         .down = "experts.*.down_proj.weight",
                                         .shared_gate = "shared_expert_gate.weight",
                                         .shared = {"shared_expert.gate_proj.weight",
                                                    "shared_expert.up_proj.weight",
                                                    "shared_expert.down_proj.weight"}};
static const ds_expert_names names = {.scope = "mlp",
                                      .router = "gate.weight",
                                      .gate = "experts.*.gate_proj.weight",
                                      .up = "experts.*.up_proj.weight",
                                      .down = "experts.*.down_proj.weight"};

/* Without layer_types every other of the first max_window_layers has the window. */
static ds_status resolve_qwen2_moe(const ds_reader *reader, ds_decoder_config *c)
{
    const bool has_window = c->use_window && c->window != DS_NO_INT;
    const bool typed = json_is_array(json_object_get(reader->json, "layer_types"));
    c->expert_names = &ds_qwen_experts;
    DS_TRY(ds_decoder_experts(reader, c));
    DS_TRY(ds_decoder_sparse(reader, c));
    DS_TRY(ds_decoder_windows(reader, c, has_window, 0, " and \"use_sliding_window\": true"));
    for (int64_t i = 0; i < c->n_layers && has_window && !typed; ++i) {
        c->windowed[i] = i % 2 == 0 && i < c->max_window_layers;
    }
    return DS_OK;
}

static ds_status resolve_qwen3_moe(const ds_reader *reader, ds_decoder_config *c)
{
    c->expert_names = &names;
    c->qkv_bias = c->o_bias;
    c->qk_norm = DS_QK_HEAD;
    DS_TRY(ds_decoder_experts(reader, c));
    DS_TRY(ds_decoder_sparse(reader, c));
    return ds_decoder_one_window(reader, c, c->use_window && c->window != DS_NO_INT);
}

const ds_decoder_kind ds_kind_qwen2_moe = {.model_type = "qwen2_moe",
                                           .fields = qwen2_moe_fields,
                                           .n_fields = DS_DECODER_N(qwen2_moe_fields),
                                           .activation = "silu",
                                           .rope = {.theta = 10000.0},
                                           .typed = true,
                                           .resolve = resolve_qwen2_moe};
const ds_decoder_kind ds_kind_qwen3_moe = {.model_type = "qwen3_moe",
                                           .fields = qwen3_moe_fields,
                                           .n_fields = DS_DECODER_N(qwen3_moe_fields),
                                           .activation = "silu",
                                           .rope = {.theta = 10000.0},
                                           .typed = true,
                                           .resolve = resolve_qwen3_moe};
