/* SPDX-License-Identifier: Apache-2.0 */
/* Granite: Llama with multipliers of embeddings, sublayers, attention scores and logits; and
 * GraniteMoE, whose MLPs are experts. */
#include "decoder.h"

#include <math.h>

#define MULTIPLIER(key, member)                                                                    \
    DS_DECODER_APPLIED(key, DS_FIELD_NUMBER, member, 1.0, -(double)INT32_MAX, INT32_MAX)

/* head_dim is none of their fields, but their layers take it. */
#define SHARED                                                                                     \
    DS_DECODER_COMMON(false), DS_DECODER_PAD(DS_DECODER_NO_INT),                                   \
        DS_DECODER_SIZE("vocab_size", vocab_size, 32000),                                          \
        DS_DECODER_SIZE("hidden_size", hidden_size, 4096),                                         \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),                                        \
        DS_DECODER_SIZE("num_attention_heads", n_heads, 32),                                       \
        DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),             \
        DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),                                  \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, 2048),                           \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),                                 \
        DS_DECODER_SWITCH("attention_bias", o_bias, false),                                        \
        MULTIPLIER("embedding_multiplier", embedding_scale),                                       \
        MULTIPLIER("residual_multiplier", residual_scale),                                         \
        MULTIPLIER("attention_multiplier", attention_scale),                                       \
        MULTIPLIER("logits_scaling", logits_divisor),                                              \
        DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),                      \
        DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE)

static const ds_field granite_fields[] = {
    SHARED,
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 11008),
    DS_DECODER_SWITCH("mlp_bias", mlp_bias, false),
};

static const ds_field granitemoe_fields[] = {
    SHARED,
    DS_DECODER_SIZE("intermediate_size", expert_width, 11008),
    DS_DECODER_SIZE("num_local_experts", n_experts, 8),
    DS_DECODER_EXPERTS(2, 0.001),
};

static const ds_expert_names names = {.scope = "block_sparse_moe",
                                      .router = "router.layer.weight",
                                      .gate_up = "input_linear.weight",
                                      .down = "output_linear.weight"};

static ds_status resolve_granite(const ds_reader *reader, ds_decoder_config *c)
{
    c->qkv_bias = c->o_bias;
    /* 0 is the default of ds_attention_params.scale, and huge scores are no numbers */
    if (!(c->attention_scale >= 1e-6 && c->attention_scale <= 1e4)) {
        return ds_field_bad(reader, "attention_multiplier", "1e-6 to 10000");
    }
    if (fabs(c->logits_divisor) < 1e-6) {
        return ds_field_bad(reader, "logits_scaling", "1e-6 or more, of either sign");
    }
    return ds_decoder_windows(reader, c, false, 0, "");
}

static ds_status resolve_granitemoe(const ds_reader *reader, ds_decoder_config *c)
{
    c->expert_names = &names;
    c->normalise = true; /* a softmax over the chosen logits is that over all, normalised */
    DS_TRY(ds_decoder_experts(reader, c));
    return resolve_granite(reader, c);
}

#define KIND(name)                                                                                 \
    const ds_decoder_kind ds_kind_##name = {.model_type = #name,                                   \
                                            .fields = name##_fields,                               \
                                            .n_fields = DS_DECODER_N(name##_fields),               \
                                            .activation = "silu",                                  \
                                            .rope = {.theta = 10000.0},                            \
                                            .resolve = resolve_##name}
KIND(granite);
KIND(granitemoe);
