/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma, Gemma 2 and Gemma 3 (Gemma Team 2024, 2025), text: norms whose stored weights are added to
 * 1, scaled embeddings, wide heads; in 2 and 3 norms behind attention and MLP too, and windows in
 * some layers; in 2 soft caps; in 3 norms of q and k, and rotary positions by the type of a layer.
 */
#include "decoder.h"

#include <math.h>
#include <string.h>

#define SHARED(vocab, hidden, intermediate, layers, heads, kv_heads, positions)                    \
    DS_DECODER_COMMON(true), DS_DECODER_PAD(0.0),                                                  \
        DS_DECODER_SIZE("vocab_size", vocab_size, vocab),                                          \
        DS_DECODER_SIZE("hidden_size", hidden_size, hidden),                                       \
        DS_DECODER_SIZE("intermediate_size", intermediate_size, intermediate),                     \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, layers),                                    \
        DS_DECODER_SIZE("num_attention_heads", n_heads, heads),                                    \
        DS_DECODER_SIZE("num_key_value_heads", n_kv_heads, kv_heads),                              \
        DS_DECODER_SIZE("head_dim", head_dim, 256),                                                \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, positions),                      \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),                                 \
        DS_DECODER_SWITCH("attention_bias", o_bias, false),                                        \
        DS_FIELD_REFUSE("use_bidirectional_attention", "null false",                               \
                        "attention to later positions")

#define CAPPED(logits, scores)                                                                     \
    DS_DECODER_SIZE("query_pre_attn_scalar", query_scalar, 256),                                   \
        DS_DECODER_SIZE("sliding_window", window, 4096),                                           \
        DS_DECODER_APPLIED("final_logit_softcapping", DS_FIELD_REAL | DS_FIELD_NULL, logits_cap,   \
                           logits, -1e6, 1e6),                                                     \
        scores

static const ds_field gemma_fields[] = {
    SHARED(256000, 3072, 24576, 28, 16, 16, 8192),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

static const ds_field gemma2_fields[] = {
    SHARED(256000, 2304, 9216, 26, 8, 4, 8192),
    CAPPED(30.0, DS_DECODER_APPLIED("attn_logit_softcapping", DS_FIELD_REAL | DS_FIELD_NULL,
                                    attention_cap, 50.0, -1e6, 1e6)),
    DS_DECODER_EAGER,
};

/* No layer of Gemma 3 reads attn_logit_softcapping. */
static const ds_field gemma3_text_fields[] = {
    SHARED(262208, 2304, 9216, 26, 8, 4, 131072),
    CAPPED(0.0, DS_FIELD_CHECK("attn_logit_softcapping", DS_FIELD_REAL | DS_FIELD_NULL)),
    DS_DECODER_ANY_INT("sliding_window_pattern", DS_FIELD_INT, interval, 6),
};

static const ds_decoder_names between = {
    DS_DECODER_LLAMA_BASE, .before_attention = "input_layernorm",
    .after_attention = "post_attention_layernorm", .before_mlp = "pre_feedforward_layernorm",
    .after_mlp = "post_feedforward_layernorm"};

static void resolve_all(ds_decoder_config *c)
{
    c->norm = DS_NORM_RMS_PLUS;
    c->qkv_bias = c->o_bias;
    c->embedding_scale = sqrt((double)c->hidden_size);
    c->rounded_scale = true;
}

/* In old files gelu is the form with tanh. */
static ds_status resolve_gemma(const ds_reader *reader, ds_decoder_config *c)
{
    const char *name = json_string_value(json_object_get(reader->json, "hidden_act"));
    if (name != NULL && strcmp(name, "gelu") == 0) {
        c->activation = DS_ACT_GELU_TANH;
    }
    resolve_all(c);
    return ds_decoder_windows(reader, c, false, 0, "");
}

/* cap·tanh(z/cap) is the same for ±cap. */
static ds_status check_cap(const ds_reader *reader, const char *key, double *cap)
{
    const json_t *value = json_object_get(reader->json, key);
    *cap = fabs(*cap);
    return value == NULL || json_is_null(value) || *cap >= 1e-3
               ? DS_OK
               : ds_field_bad(reader, key, "null, or 0.001 or more");
}

static ds_status resolve_gemma2(const ds_reader *reader, ds_decoder_config *c)
{
    resolve_all(c);
    c->attention_scale = 1.0 / sqrt((double)c->query_scalar);
    DS_TRY(check_cap(reader, "attn_logit_softcapping", &c->attention_cap));
    DS_TRY(check_cap(reader, "final_logit_softcapping", &c->logits_cap));
    return ds_decoder_pattern(reader, c, 2);
}

static ds_status resolve_gemma3_text(const ds_reader *reader, ds_decoder_config *c)
{
    resolve_all(c);
    c->qk_norm = DS_QK_HEAD;
    c->attention_scale = 1.0 / sqrt((double)c->query_scalar);
    DS_TRY(check_cap(reader, "final_logit_softcapping", &c->logits_cap));
    return ds_decoder_pattern(reader, c, c->interval);
}

#define KIND(name, key, words, base, several, whole)                                               \
    const ds_decoder_kind ds_kind_##name = {.model_type = #name,                                   \
                                            .fields = name##_fields,                               \
                                            .n_fields = DS_DECODER_N(name##_fields),               \
                                            .activation = "gelu_pytorch_tanh",                     \
                                            .activation_key = key,                                 \
                                            .rope = {.theta = base},                               \
                                            .names = words,                                        \
                                            .local = several,                                      \
                                            .typed = whole,                                        \
                                            .whole_heads = whole,                                  \
                                            .resolve = resolve_##name}
KIND(gemma, "hidden_act", NULL, 10000.0, false, false);
KIND(gemma2, "hidden_activation", &between, 10000.0, false, true);
KIND(gemma3_text, "hidden_activation", &between, 1000000.0, true, true);
