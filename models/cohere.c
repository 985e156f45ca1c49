/* SPDX-License-Identifier: Apache-2.0 */
/* Cohere (Command R) and Cohere 2 (Command R7B, Command A): attention and MLP side by side behind
 * one LayerNorm without bias, rotary positions of neighbours, scaled logits; in Cohere norms of q
 * and k where asked for, in Cohere 2 a window in some layers, and rotary positions in those alone.
 */
#include "decoder.h"

#include <math.h>

/* head_dim is none of their fields, but their layers take it. */
#define SHARED                                                                                     \
    DS_DECODER_COMMON(true), DS_DECODER_PAD(0), DS_DECODER_SIZE("vocab_size", vocab_size, 256000), \
        DS_DECODER_SIZE("hidden_size", hidden_size, 8192),                                         \
        DS_DECODER_SIZE("intermediate_size", intermediate_size, 22528),                            \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, 40),                                        \
        DS_DECODER_SIZE("num_attention_heads", n_heads, 64),                                       \
        DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),             \
        DS_DECODER_SIZE("head_dim", head_dim, DS_DECODER_NO_INT),                                  \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, 8192),                           \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("layer_norm_eps", norm_eps, 1e-5, HUGE_VAL),                               \
        DS_DECODER_SWITCH("attention_bias", o_bias, false),                                        \
        DS_DECODER_REAL("logit_scale", logit_scale, 0.0625, HUGE_VAL)

static const ds_field cohere_fields[] = {
    SHARED,
    DS_DECODER_APPLIED("use_qk_norm", DS_FIELD_BOOL | DS_FIELD_NULL, use_window, false, 0,
                       1), /* read by resolve_cohere() */
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_field cohere2_fields[] = {
    SHARED,
    DS_DECODER_SIZE("sliding_window", window, 4096),
    DS_DECODER_ANY_INT("sliding_window_pattern", DS_FIELD_INT, interval, 4),
};

static const ds_decoder_names names = {DS_DECODER_LLAMA_BASE,
                                       .before_attention = "input_layernorm"};

static ds_status resolve_all(const ds_reader *reader, ds_decoder_config *c)
{
    if (!(c->logit_scale >= 1e-6 && c->logit_scale <= 1e6)) {
        return ds_field_bad(reader, "logit_scale", "1e-6 to 1000000");
    }
    c->logits_divisor = 1.0 / c->logit_scale;
    c->norm = DS_NORM_LAYER_WEIGHT;
    c->parallel = true;
    c->rope_pairs = true;
    c->qkv_bias = c->o_bias;
    return DS_OK;
}

static ds_status resolve_cohere(const ds_reader *reader, ds_decoder_config *c)
{
    c->qk_norm = c->use_window ? DS_QK_EACH : DS_QK_NONE;
    c->use_window = false;
    DS_TRY(resolve_all(reader, c));
    return ds_decoder_windows(reader, c, false, 0, "");
}

static ds_status resolve_cohere2(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(resolve_all(reader, c));
    DS_TRY(ds_decoder_pattern(reader, c, c->interval));
    for (int64_t i = 0; i < c->n_layers; ++i) {
        c->unrotated[i] = !c->windowed[i];
    }
    return DS_OK;
}

#define KIND(name, base, slides)                                                                   \
    const ds_decoder_kind ds_kind_##name = {.model_type = #name,                                   \
                                            .fields = name##_fields,                               \
                                            .n_fields = DS_DECODER_N(name##_fields),               \
                                            .activation = "silu",                                  \
                                            .rope = {.theta = base},                               \
                                            .names = &names,                                       \
                                            .typed = slides,                                       \
                                            .resolve = resolve_##name}
KIND(cohere, 500000.0, false);
KIND(cohere2, 10000.0, true);
