/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the Llama family: a table for each model_type, as its class in transformers 5
 * declares the fields. */
#include "llama.h"
#include "model/fields.h"

#include <math.h>
#include <string.h>

#define NO_INT                   ((double)DS_NO_INT)
#define APPLIED(...)             DS_FIELD_APPLY(ds_llama_config, __VA_ARGS__)
#define SIZE(key, member, value) APPLIED(key, DS_FIELD_INT, member, value, 1, INT32_MAX)
#define SIZE_OR_NULL(key, member, value)                                                           \
    APPLIED(key, DS_FIELD_INT | DS_FIELD_NULL, member, value, 1, INT32_MAX)
#define ANY_INT(key, types, member, value) APPLIED(key, types, member, value, INT32_MIN, INT32_MAX)
#define SWITCH(key, member, value)         APPLIED(key, DS_FIELD_BOOL, member, value, 0, 1)

/* Fields of all four, with the same defaults; std_max bounds initializer_range. */
#define SHARED(std_max)                                                                            \
    SIZE("num_attention_heads", n_heads, 32),                                                      \
        APPLIED("initializer_range", DS_FIELD_REAL, initializer_range, 0.02, 0.0, std_max),        \
        APPLIED("rms_norm_eps", DS_FIELD_REAL, rms_norm_eps, 1e-6, 0.0, HUGE_VAL),                 \
        APPLIED("attention_dropout", DS_FIELD_NUMBER, attention_dropout, 0.0, 0.0, DS_BELOW_ONE),  \
        SWITCH("tie_word_embeddings", tied, false), DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),    \
        DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),                              \
        DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),              \
        ANY_INT("pad_token_id", DS_FIELD_INT | DS_FIELD_NULL, pad_id, NO_INT)

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

#define KIND(name, qwen, qk_norm, qkv_bias)                                                        \
    {                                                                                              \
#name, name##_fields,                                                                      \
            sizeof name##_fields / sizeof name##_fields[0], qwen, qk_norm, qkv_bias                \
    }
typedef struct kind {
    const char *model_type;
    const ds_field *fields;
    size_t n_fields;
    bool qwen; /* windows layer by layer */
    bool qk_norm, qkv_bias;
} kind;
static const kind kinds[] = {
    KIND(llama, false, false, false),
    KIND(mistral, false, false, false),
    KIND(qwen2, true, false, true),
    KIND(qwen3, true, true, false),
};

static const kind *kind_of(const char *model_type)
{
    size_t i = 0;
    while (strcmp(kinds[i].model_type, model_type) != 0) {
        ++i; /* ds_family_llama names no other */
    }
    return &kinds[i];
}

/* transformers takes mistral with the key layer_types for ministral, which has no defaults for
 * these.
 */
static ds_status check_ministral(const ds_reader *reader, const ds_llama_config *c)
{
    if (c->head_dim == DS_NO_INT) {
        return ds_field_bad(reader, "head_dim", "an integer beside layer_types");
    }
    return c->window == DS_NO_INT
               ? ds_field_bad(reader, "sliding_window", "an integer beside layer_types")
               : DS_OK;
}

/* Which layers attend through a window: layer_types when given, else the family's rule. */
static ds_status resolve_windows(const ds_reader *reader, const kind *k, ds_llama_config *c)
{
    const bool has_window = c->window != DS_NO_INT && (!k->qwen || c->use_window);
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        const bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (slides && !has_window) {
            return ds_fail(reader->ctx, DS_ERR_FORMAT,
                           "config.json: \"layer_types\" has sliding_attention, but there is no "
                           "window: it needs \"sliding_window\"%s",
                           k->qwen ? " and \"use_sliding_window\": true" : "");
        }
        c->windowed[i] =
            has_window && (type != NULL ? slides : !k->qwen || i >= c->max_window_layers);
    }
    if (has_window && c->window < 1) {
        return ds_field_bad(reader, "sliding_window", "at least 1, or null");
    }
    c->window = has_window ? c->window : 0;
    return DS_OK;
}

int64_t ds_llama_window(const ds_llama_config *config, int64_t layer)
{
    return config->windowed[layer] ? config->window : 0;
}

static ds_status resolve_heads(const ds_reader *reader, const kind *k, ds_llama_config *c)
{
    c->n_kv_heads = c->n_kv_heads != DS_NO_INT ? c->n_kv_heads : c->n_heads;
    c->head_dim = c->head_dim != DS_NO_INT ? c->head_dim : c->hidden_size / c->n_heads;
    if (strcmp(k->model_type, "llama") == 0 && c->hidden_size % c->n_heads != 0) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: hidden_size %lld is not a multiple of num_attention_heads "
                       "%lld",
                       (long long)c->hidden_size, (long long)c->n_heads);
    }
    if (c->n_heads % c->n_kv_heads != 0) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: num_attention_heads %lld is not a multiple of "
                       "num_key_value_heads %lld",
                       (long long)c->n_heads, (long long)c->n_kv_heads);
    }
    if (c->head_dim < 2 || c->head_dim % 2 != 0) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: head_dim %lld must be even and at least 2",
                       (long long)c->head_dim);
    }
    return DS_OK;
}

static ds_status check_pad(const ds_reader *reader, const ds_llama_config *c)
{
    const bool inside = c->pad_id >= -c->vocab_size && c->pad_id < c->vocab_size;
    return inside || c->pad_id == DS_NO_INT
               ? DS_OK
               : ds_field_bad(reader, "pad_token_id", "null or a token of the vocabulary");
}

/* Dynamic scaling is for sequences of up to factor times the positions. */
static int64_t reach_of(const ds_llama_config *c)
{
    const double factor = c->rope.scaling == DS_ROPE_DYNAMIC ? fmax(c->rope.factor, 1.0) : 1.0;
    return (int64_t)fmin(floor((double)c->max_positions * factor), INT32_MAX);
}

ds_status ds_llama_read(const ds_reader *reader, void *opaque, ds_model_info *info)
{
    ds_llama_config *c = opaque;
    const kind *k = kind_of(info->architecture);
    c->window = DS_NO_INT;
    DS_TRY(ds_fields_read(reader, k->fields, k->n_fields, c));
    if (c->n_layers > DS_MODEL_MAX_LAYERS) {
        return ds_fail(reader->ctx, DS_ERR_LIMIT, "config.json: num_hidden_layers %lld is above %d",
                       (long long)c->n_layers, DS_MODEL_MAX_LAYERS);
    }
    DS_TRY(ds_field_activation(reader, "hidden_act", "silu", &c->activation));
    DS_TRY(ds_fields_read_common(reader, c->n_layers, k != &kinds[0], &info->dtype));
    if (k == &kinds[1] && json_object_get(reader->json, "layer_types") != NULL) {
        DS_TRY(check_ministral(reader, c));
    }
    DS_TRY(resolve_heads(reader, k, c));
    DS_TRY(resolve_windows(reader, k, c));
    DS_TRY(check_pad(reader, c));
    DS_TRY(ds_rope_read(reader, c->head_dim, c->max_positions, &c->rope));
    c->qk_norm = k->qk_norm;
    c->qkv_bias = k->qkv_bias || c->o_bias;
    info->vocab_size = c->vocab_size;
    info->max_positions = reach_of(c);
    info->hidden_size = c->hidden_size;
    info->tied_embeddings = c->tied;
    info->base_prefix = "model.";
    info->embedding = "model.embed_tokens.weight";
    return DS_OK;
}

void ds_llama_print(const char *model_type, const void *opaque, FILE *out)
{
    const ds_llama_config *c = opaque;
    const kind *k = kind_of(model_type);
    ds_fields_print(k->fields, k->n_fields, c, out);
    (void)fprintf(out, "hidden_act: %d\n", (int)c->activation);
    ds_rope_print(&c->rope, out);
    for (int64_t layer = 0; layer < c->n_layers && c->window > 0; ++layer) {
        (void)fprintf(out, "window of layer %lld: %lld\n", (long long)layer,
                      (long long)ds_llama_window(c, layer));
    }
}
