/* SPDX-License-Identifier: Apache-2.0 */
/* Llama, Mistral, Qwen2 and Qwen3: config.json as their classes in transformers 5 declare the
 * fields. */
#include "decoder.h"

#include <math.h>

#define NO_INT       DS_DECODER_NO_INT
#define APPLIED      DS_DECODER_APPLIED
#define SIZE         DS_DECODER_SIZE
#define SIZE_OR_NULL DS_DECODER_SIZE_OR_NULL
#define ANY_INT      DS_DECODER_ANY_INT
#define SWITCH       DS_DECODER_SWITCH

/* Fields of all four, with the same defaults; std_max bounds initializer_range. */
#define SHARED(std_max)                                                                            \
    SIZE("num_attention_heads", n_heads, 32),                                                      \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, std_max),                    \
        DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL), DS_DECODER_COMMON(false),       \
        DS_DECODER_PAD(NO_INT)

static const ds_field llama_fields[] = {
    SHARED(1.0),
    SIZE("vocab_size", vocab_size, 32000),
    SIZE("hidden_size", hidden_size, 4096),
    SIZE("intermediate_size", intermediate_size, 11008),
    SIZE("num_hidden_layers", n_layers, 32),
    SIZE_OR_NULL("num_key_value_heads", n_kv_heads, NO_INT),
    SIZE_OR_NULL("head_dim", head_dim, NO_INT),
    SIZE("max_position_embeddings", max_positions, 2048),
    SWITCH("attention_bias", o_bias, false),
    SWITCH("mlp_bias", mlp_bias, false),
    DS_FIELD_CHECK("pretraining_tp", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_REFUSE("attention_chunk_size", NULL,
                    "transformers has it in the cache of llama, not in "
                    "its attention"),
    DS_FIELD_REFUSE("sliding_window", NULL,
                    "transformers has it in the cache of llama, not in its attention"),
};

static const ds_field mistral_fields[] = {
    SHARED(HUGE_VAL),
    SIZE("vocab_size", vocab_size, 32000),
    SIZE("hidden_size", hidden_size, 4096),
    SIZE("intermediate_size", intermediate_size, 14336),
    SIZE("num_hidden_layers", n_layers, 32),
    SIZE("num_key_value_heads", n_kv_heads, 8),
    SIZE_OR_NULL("head_dim", head_dim, NO_INT),
    SIZE("max_position_embeddings", max_positions, 131072),
    DS_FIELD_REFUSE("attention_chunk_size", NULL,
                    "transformers has it in the cache of mistral, not in "
                    "its attention"),
    SIZE_OR_NULL("sliding_window", window, 4096),
};

/* head_dim is none of its fields, but its layers take it. */
static const ds_field qwen2_fields[] = {
    SHARED(HUGE_VAL),
    SIZE("vocab_size", vocab_size, 151936),
    SIZE("hidden_size", hidden_size, 4096),
    SIZE("intermediate_size", intermediate_size, 22016),
    SIZE("num_hidden_layers", n_layers, 32),
    SIZE_OR_NULL("num_key_value_heads", n_kv_heads, 32),
    SIZE("head_dim", head_dim, NO_INT),
    SIZE("max_position_embeddings", max_positions, 32768),
    SWITCH("use_sliding_window", use_window, false),
    ANY_INT("sliding_window", DS_FIELD_INT | DS_FIELD_NULL, window, 4096),
    ANY_INT("max_window_layers", DS_FIELD_INT, max_window_layers, 28),
};

static const ds_field qwen3_fields[] = {
    SHARED(HUGE_VAL),
    SIZE("vocab_size", vocab_size, 151936),
    SIZE("hidden_size", hidden_size, 4096),
    SIZE("intermediate_size", intermediate_size, 22016),
    SIZE("num_hidden_layers", n_layers, 32),
    SIZE_OR_NULL("num_key_value_heads", n_kv_heads, 32),
    SIZE("head_dim", head_dim, 128),
    SIZE("max_position_embeddings", max_positions, 32768),
    SWITCH("attention_bias", o_bias, false),
    SWITCH("use_sliding_window", use_window, false),
    ANY_INT("sliding_window", DS_FIELD_INT | DS_FIELD_NULL, window, 4096),
    ANY_INT("max_window_layers", DS_FIELD_INT, max_window_layers, 28),
};

static ds_status resolve_llama(const ds_reader *reader, ds_decoder_config *c)
{
    c->qkv_bias = c->o_bias;
    return ds_decoder_windows(reader, c, false, 0, "");
}

/* transformers takes mistral with the key layer_types for ministral, which has no defaults for
 * these. */
static ds_status resolve_mistral(const ds_reader *reader, ds_decoder_config *c)
{
    if (json_object_get(reader->json, "layer_types") != NULL) {
        if (ds_field_is_falsy(json_object_get(reader->json, "head_dim"))) {
            return ds_field_bad(reader, "head_dim", "an integer beside layer_types");
        }
        if (c->window == DS_NO_INT) {
            return ds_field_bad(reader, "sliding_window", "an integer beside layer_types");
        }
    }
    return ds_decoder_windows(reader, c, c->window != DS_NO_INT, 0, "");
}

static ds_status qwen_windows(const ds_reader *reader, ds_decoder_config *c)
{
    return ds_decoder_windows(reader, c, c->window != DS_NO_INT && c->use_window,
                              c->max_window_layers, " and \"use_sliding_window\": true");
}

static ds_status resolve_qwen2(const ds_reader *reader, ds_decoder_config *c)
{
    c->qkv_bias = true;
    return qwen_windows(reader, c);
}

static ds_status resolve_qwen3(const ds_reader *reader, ds_decoder_config *c)
{
    c->qkv_bias = c->o_bias;
    c->qk_norm = DS_QK_HEAD;
    return qwen_windows(reader, c);
}

#define KIND(name, windows, whole)                                                                 \
    const ds_decoder_kind ds_kind_##name = {.model_type = #name,                                   \
                                            .fields = name##_fields,                               \
                                            .n_fields = DS_DECODER_N(name##_fields),               \
                                            .activation = "silu",                                  \
                                            .rope = {.theta = 10000.0},                            \
                                            .typed = windows,                                      \
                                            .whole_heads = whole,                                  \
                                            .resolve = resolve_##name}
KIND(llama, false, true);
KIND(mistral, true, false);
KIND(qwen2, true, false);
KIND(qwen3, true, false);
