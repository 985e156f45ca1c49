/* SPDX-License-Identifier: Apache-2.0 */
/* T5's config.json: transformers' T5Config and what T5ForConditionalGeneration makes of it. */
#include "t5.h"

#include <math.h>
#include <string.h>

#define APPLIED(...)             DS_FIELD_APPLY(ds_t5_config, __VA_ARGS__)
#define SIZE(key, member, value) APPLIED(key, DS_FIELD_INT, member, value, 1, INT32_MAX)
#define ALIAS(key, member)                                                                         \
    {                                                                                              \
        key, DS_FIELD_INT, DS_FIELD_ALIAS, offsetof(ds_t5_config, member), 0, 1, INT32_MAX, NULL,  \
            NULL                                                                                   \
    }
#define TOKEN(key, member, value)                                                                  \
    APPLIED(key, DS_FIELD_INT | DS_FIELD_NULL, member, value, INT32_MIN, INT32_MAX)
#define NO_INT ((double)DS_NO_INT)

static const ds_field fields[] = {
    SIZE("vocab_size", vocab_size, 32128),
    SIZE("d_model", hidden_size, 512),
    ALIAS("hidden_size", hidden_size),
    SIZE("d_kv", head_dim, 64),
    ALIAS("head_dim", head_dim),
    SIZE("d_ff", intermediate_size, 2048),
    SIZE("num_layers", own_layers, 6),
    SIZE("num_layers", n_layers, 6),
    ALIAS("num_hidden_layers", n_layers), /* not of the decoder, as there */
    APPLIED("num_decoder_layers", DS_FIELD_INT | DS_FIELD_NULL, n_decoder_layers, NO_INT, 1,
            INT32_MAX),
    SIZE("num_heads", n_heads, 8),
    ALIAS("num_attention_heads", n_heads),
    APPLIED("relative_attention_num_buckets", DS_FIELD_INT, n_buckets, 32, 4, 65536),
    APPLIED("relative_attention_max_distance", DS_FIELD_INT, max_distance, 128, 1, 1048576),
    APPLIED("dropout_rate", DS_FIELD_NUMBER, dropout, 0.1, 0.0, DS_BELOW_ONE),
    APPLIED("layer_norm_epsilon", DS_FIELD_REAL, norm_eps, 1e-6, 0.0, HUGE_VAL),
    APPLIED("initializer_factor", DS_FIELD_REAL, init_factor, 1.0, 0.0, HUGE_VAL),
    TOKEN("pad_token_id", pad_id, 0),
    TOKEN("decoder_start_token_id", start_id, NO_INT),
    DS_FIELD_CHECK("feed_forward_proj", DS_FIELD_TEXT), /* read by resolve() */
    DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),
    DS_FIELD_CHECK("is_decoder", DS_FIELD_BOOL),
    DS_FIELD_CHECK("classifier_dropout", DS_FIELD_NUMBER),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_FIELD_REFUSE("is_encoder_decoder", "true", "one half alone is not built"),
    DS_FIELD_REFUSE("return_dict", "true", "transformers' models of this family fail with it"),
    DS_FIELD_REFUSE("rope_scaling", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("rope_parameters", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("sliding_window", NULL, "transformers has it in the cache alone"),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, "transformers has it in the cache alone"),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* "relu", or "gated-gelu", where gelu is the form with tanh. A file's own keys replace what is read
 * off it, which need be no activation then. */
static ds_status resolve_mlp(const ds_reader *reader, ds_t5_config *c)
{
    const json_t *own = json_object_get(reader->json, "feed_forward_proj");
    const json_t *gated = json_object_get(reader->json, "is_gated_act");
    const char *text = own != NULL ? json_string_value(own) : "relu";
    const char *name = strrchr(text, '-');
    c->gated = strncmp(text, "gated", 5) == 0 && (text[5] == '\0' || text[5] == '-');
    if ((name != NULL && !c->gated) || strchr(text, '-') != name) {
        return ds_field_bad(reader, "feed_forward_proj", "an activation, or gated- and one");
    }
    c->gated = gated != NULL ? !ds_field_is_falsy(gated) : c->gated;
    if (json_object_get(reader->json, "dense_act_fn") != NULL) {
        return ds_field_activation(reader, "dense_act_fn", "", &c->activation);
    }
    name = name != NULL ? name + 1 : text;
    name = strcmp(text, "gated-gelu") == 0 ? "gelu_new" : name;
    json_t *act = json_pack("{s:s}", "feed_forward_proj", name);
    if (act == NULL) {
        return ds_fail(reader->ctx, DS_ERR_NOMEM, "no memory for an activation");
    }
    ds_reader inner = *reader;
    inner.json = act;
    const ds_status status = ds_field_activation(&inner, "feed_forward_proj", "", &c->activation);
    json_decref(act);
    return status;
}

/* transformers hands it to each attention where it is not null, and makes the decoder's mask by it.
 * sdpa heeds it in whatever has no mask, the encoder's rows and what the decoder sees of the source
 * too: rows that are filled up would be read otherwise than others. So what has no effect is right:
 * null in sdpa, what is true in eager, which goes by masks alone. */
static ds_status check_causal(const ds_reader *reader)
{
    const json_t *value = json_object_get(reader->json, "is_causal");
    const ds_eager eager = ds_field_eager(reader);
    return value == NULL || (json_is_null(value) && eager == DS_EAGER_NOT) ||
                   (!ds_field_is_falsy(value) && eager == DS_EAGER)
               ? DS_OK
               : ds_field_bad(reader, "is_causal", "null, or true with eager attention");
}

static ds_status check_token(const ds_reader *reader, const ds_t5_config *c, const char *key,
                             int64_t id)
{
    return id >= 0 && id < c->vocab_size
               ? DS_OK
               : ds_field_bad(reader, key, "a token: decoders begin with it");
}

/* T5 1.1 has no factor before the output projection. Where a file does not say so, transformers
 * goes by whether the projection is tied, as the first files of T5 1.1 said it: whatever is not
 * false is true there. The other key is true where Python's `if` takes it so. */
static void resolve_head(const ds_reader *reader, ds_t5_config *c)
{
    const json_t *scaled = json_object_get(reader->json, "scale_decoder_outputs");
    c->tied = !json_is_false(json_object_get(reader->json, "tie_word_embeddings"));
    c->scaled = scaled != NULL ? !ds_field_is_falsy(scaled) : c->tied;
}

/* Both keys, so that neither is read off the other. */
void ds_t5_set_tied(const void *opaque, json_t *json, bool tied)
{
    const ds_t5_config *c = opaque;
    (void)json_object_set_new(json, "tie_word_embeddings", json_boolean(tied));
    (void)json_object_set_new(json, "scale_decoder_outputs", json_boolean(c->scaled));
}

static ds_status resolve(const ds_reader *reader, ds_t5_config *c)
{
    c->n_decoder_layers = c->n_decoder_layers == DS_NO_INT ? c->own_layers : c->n_decoder_layers;
    if (c->n_layers > DS_MODEL_MAX_LAYERS || c->n_decoder_layers > DS_MODEL_MAX_LAYERS) {
        return ds_fail(reader->ctx, DS_ERR_LIMIT,
                       "config.json: %lld and %lld layers, at most %d are possible",
                       (long long)c->n_layers, (long long)c->n_decoder_layers, DS_MODEL_MAX_LAYERS);
    }
    if (c->max_distance <= c->n_buckets / 2) {
        return ds_field_bad(reader, "relative_attention_max_distance",
                            "above half of relative_attention_num_buckets");
    }
    DS_TRY(resolve_mlp(reader, c));
    DS_TRY(check_causal(reader));
    DS_TRY(check_token(reader, c, "pad_token_id", c->pad_id));
    DS_TRY(check_token(reader, c, "decoder_start_token_id", c->start_id));
    resolve_head(reader, c);
    return DS_OK;
}

ds_status ds_t5_read(const ds_reader *reader, void *opaque, ds_model_info *info)
{
    ds_t5_config *c = opaque;
    const ds_reader common = {reader->ctx, reader->json, reader->integers_vanish, true};
    DS_TRY(ds_fields_read(reader, fields, N_FIELDS, c));
    DS_TRY(ds_fields_read_common(&common, c->n_layers, NULL, NULL, &info->dtype));
    DS_TRY(resolve(reader, c));
    info->vocab_size = c->vocab_size;
    info->hidden_size = c->hidden_size;
    info->tied_embeddings = c->tied;
    info->base_prefix = "";
    info->embedding = "shared.weight";
    info->head = "lm_head.weight";
    info->encoder = true;
    info->pairs = true;
    info->pad_id = c->pad_id;
    info->start_id = c->start_id;
    return DS_OK;
}

bool ds_t5_ignores(const void *opaque, const char *name)
{
    static const char *const plain[] = {
        "layer.0.SelfAttention.q.weight",    "layer.0.SelfAttention.k.weight",
        "layer.0.SelfAttention.v.weight",    "layer.0.SelfAttention.o.weight",
        "layer.0.layer_norm.weight",         "layer.1.EncDecAttention.q.weight",
        "layer.1.EncDecAttention.k.weight",  "layer.1.EncDecAttention.v.weight",
        "layer.1.EncDecAttention.o.weight",  "layer.1.layer_norm.weight",
        "layer.2.DenseReluDense.wo.weight",  "layer.2.layer_norm.weight",
        "layer.2.DenseReluDense.wi.weight",  "layer.2.DenseReluDense.wi_0.weight",
        "layer.2.DenseReluDense.wi_1.weight"};
    enum { WI = 12, N = sizeof plain / sizeof plain[0] };
    const ds_t5_config *c = opaque;
    long long layer = -1;
    int at = 0;
    if (strcmp(name, "decoder.final_layer_norm.weight") == 0 ||
        (!c->tied && strcmp(name, "lm_head.weight") == 0)) {
        return true;
    }
    if (sscanf(name, "decoder.block.%9lld.%n", &layer, &at) != 1 || at == 0 || layer < 0 ||
        layer >= c->n_decoder_layers) {
        return false;
    }
    bool found = layer == 0 &&
                 strcmp(name + at, "layer.0.SelfAttention.relative_attention_bias.weight") == 0;
    for (int i = 0; i < N && !found; ++i) {
        const bool is_there = i < WI || (i > WI) == c->gated;
        found = is_there && strcmp(name + at, plain[i]) == 0;
    }
    return found;
}

void ds_t5_print(const char *model_type, const void *opaque, FILE *out)
{
    const ds_t5_config *c = opaque;
    (void)model_type;
    ds_fields_print(fields, N_FIELDS, c, out);
    (void)fprintf(out, "activation: %d, gated: %d, tied: %d, scaled: %d\n", (int)c->activation,
                  (int)c->gated, (int)c->tied, (int)c->scaled);
}
