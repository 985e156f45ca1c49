/* SPDX-License-Identifier: Apache-2.0 */
/* GLM-4.5 and 4.6 (GLM-4-MoE, 2025): Llama with rotary positions of a part of each head, and
 * experts behind the first layers: each token's by the sigmoids of the router, and one that all go
 * to. */
#include "decoder.h"

#include <math.h>

/* head_dim is none of its fields, but its layers take it. */
static const ds_field fields[] = {
    DS_DECODER_COMMON(false),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 151552),
    DS_DECODER_SIZE("hidden_size", hidden_size, 4096),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 10944),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 46),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 96),
    DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, 8),
    DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 131072),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SWITCH("attention_bias", qkv_bias, false),
    DS_DECODER_SWITCH("use_qk_norm", norm_heads, false),
    DS_DECODER_GROUPED(1408, 128, 1, 1.0),
    DS_DECODER_ALIAS_SIZE("num_local_experts", n_experts),
    DS_DECODER_SIZE("num_experts_per_tok", n_chosen, 8),
    DS_DECODER_SIZE("n_group", n_groups, 1),
    DS_DECODER_SIZE("topk_group", top_groups, 1),
    DS_DECODER_SWITCH("norm_topk_prob", normalise, true),
    DS_DECODER_ANY_INT("first_k_dense_replace", DS_FIELD_INT, first_dense, 1),
    DS_FIELD_CHECK("num_mtp_layers", DS_FIELD_INT), /* read by resolve() */
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_expert_names names = {.scope = "mlp",
                                      .router = "gate.weight",
                                      .choice_bias = "gate.e_score_correction_bias",
                                      .gate = "experts.*.gate_proj.weight",
                                      .up = "experts.*.up_proj.weight",
                                      .down = "experts.*.down_proj.weight",
                                      .shared = {"shared_experts.gate_proj.weight",
                                                 "shared_experts.up_proj.weight",
                                                 "shared_experts.down_proj.weight"}};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->qk_norm = c->norm_heads ? DS_QK_HEAD : DS_QK_NONE;
    c->expert_names = &names;
    ds_decoder_ahead(reader, c);
    c->sigmoid = true;
    DS_TRY(ds_decoder_grouped_experts(reader, c, true));
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_glm4_moe = {
    .model_type = "glm4_moe",
    .fields = fields,
    .n_fields = DS_DECODER_N(fields),
    .activation = "silu",
    .rope = {.theta = 10000.0, .partial = 0.5, .null_is_all = true},
    .resolve = resolve};
