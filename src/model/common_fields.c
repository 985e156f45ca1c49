/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of config.json that every class of transformers knows (configuration_utils.py), and values
 * that the families share. */
#include "model/fields.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COMPOSITE "a model of several parts has its own model_type, which is not known"

static const ds_field causal[] = {
    DS_FIELD_REFUSE("is_causal", "true", "attention to later positions"),
};
enum { OF_DECODERS = 1 }; /* rows, the first */
static const ds_field common[] = {
    DS_FIELD_REFUSE("return_dict", "true", "transformers' models of this family fail with it"),
    DS_FIELD_REFUSE("per_layer_config", "null {}", "layers have one configuration"),
    DS_FIELD_REFUSE("mlp_layer_types", NULL, "the feed-forward layers are dense"),
    DS_FIELD_REFUSE("text_config", NULL, COMPOSITE),
    DS_FIELD_REFUSE("text_encoder", NULL, COMPOSITE),
    DS_FIELD_REFUSE("decoder", NULL, COMPOSITE),
    DS_FIELD_REFUSE("generator", NULL, COMPOSITE),
    DS_FIELD_REFUSE("attn_implementation", "null \"eager\" \"sdpa\"",
                    "transformers has it in a package of its own"),
    DS_FIELD_REFUSE("_attn_implementation", "null \"eager\" \"sdpa\"",
                    "transformers has it in a package of its own"),
    DS_FIELD_REFUSE("kv_sharing_modes", NULL, "layers do not share their keys and values"),
    DS_FIELD_CHECK("output_hidden_states", DS_FIELD_BOOL | DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("auto_map", DS_FIELD_OBJECT | DS_FIELD_LIST | DS_FIELD_TEXT),
    DS_FIELD_CHECK("id2label", DS_FIELD_OBJECT | DS_FIELD_NULL),
    DS_FIELD_CHECK("num_labels", DS_FIELD_INT),
};

/* Of families that read weights of no quantization, or of another; those in four and eight bits are
 * made real numbers when they are read (ckpt/int4.h, byte_weight.h, bnb_weight.h), which judges the
 * rest of the object. */
static const ds_field plain[] = {
    DS_FIELD_REFUSE("quantization_config", NULL,
                    "the weights must be stored plain, in four bits by GPTQ or AWQ, in FP8 by fp8 "
                    "or fbgemm_fp8, by bitsandbytes, or by compressed-tensors"),
};

static bool is_quantized_by(const ds_reader *reader, const char *method)
{
    const json_t *own = json_object_get(reader->json, "quantization_config");
    const char *name = json_string_value(json_object_get(own, "quant_method"));
    return method != NULL && name != NULL && strcmp(name, method) == 0;
}

static ds_status read_dtype(const ds_reader *reader, ds_dtype *dtype_out)
{
    static const struct {
        const char *name;
        ds_dtype dtype;
    } names[] = {{"float32", DS_DTYPE_F32},  {"float", DS_DTYPE_F32},   {"float64", DS_DTYPE_F64},
                 {"double", DS_DTYPE_F64},   {"float16", DS_DTYPE_F16}, {"half", DS_DTYPE_F16},
                 {"bfloat16", DS_DTYPE_BF16}};
    const bool newer = !json_is_null(json_object_get(reader->json, "dtype")) &&
                       json_object_get(reader->json, "dtype") != NULL;
    const char *key = newer ? "dtype" : "torch_dtype";
    const json_t *value = json_object_get(reader->json, key);
    *dtype_out = DS_DTYPE_NONE;
    if (value == NULL || json_is_null(value)) {
        return DS_OK;
    }
    for (size_t i = 0; json_is_string(value) && i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(json_string_value(value), names[i].name) == 0) {
            *dtype_out = names[i].dtype;
            return DS_OK;
        }
    }
    return ds_field_bad(reader, key, "float32, float64, float16 or bfloat16");
}

/* The labels of a classifier have no effect here, but transformers reads their numbers. */
static ds_status check_labels(const ds_reader *reader)
{
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(json_object_get(reader->json, "id2label"), key, value)
    {
        char *end = NULL;
        errno = 0;
        (void)strtoll(key, &end, 10);
        if (end == key || *end != '\0' || errno != 0) {
            return ds_field_bad(reader, "id2label", "an object whose keys are integers");
        }
    }
    return DS_OK;
}

static ds_status check_layer_types(const ds_reader *reader, int64_t n_layers, const char *other)
{
    const json_t *types = json_object_get(reader->json, "layer_types");
    if (types == NULL || json_is_null(types)) {
        return DS_OK;
    }
    if (!json_is_array(types)) {
        return ds_field_bad(reader, "layer_types", "a list or null");
    }
    if (json_array_size(types) != (size_t)n_layers) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: \"layer_types\" has %zu entries, expected one for each of "
                       "the %lld layers",
                       json_array_size(types), (long long)n_layers);
    }
    for (int64_t i = 0; i < n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        if (strcmp(type, "full_attention") != 0 && (other == NULL || strcmp(type, other) != 0)) {
            return ds_fail(reader->ctx, DS_ERR_UNSUPPORTED,
                           "config.json: \"layer_types\": layer type \"%s\" is not supported; "
                           "supported: full_attention%s%s",
                           type, other != NULL ? ", " : "", other != NULL ? other : "");
        }
    }
    return DS_OK;
}

const char *ds_field_layer_type(const ds_reader *reader, int64_t layer)
{
    const json_t *types = json_object_get(reader->json, "layer_types");
    if (!json_is_array(types)) {
        return NULL;
    }
    const char *type = json_string_value(json_array_get(types, (size_t)layer));
    return type == NULL                     ? ""
           : strcmp(type, "attention") == 0 ? "full_attention"
           : strcmp(type, "mamba") == 0     ? "linear_attention"
                                            : type;
}

ds_eager ds_field_eager(const ds_reader *reader)
{
    static const char *const keys[] = {"attn_implementation", "_attn_implementation"};
    int n_eager = 0;
    int n_other = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        const json_t *name = json_object_get(reader->json, keys[i]);
        const bool eager = json_is_string(name) && strcmp(json_string_value(name), "eager") == 0;
        n_eager += eager;
        n_other += name != NULL && !eager;
    }
    return n_eager == 0 ? DS_EAGER_NOT : n_other == 0 ? DS_EAGER : DS_EAGER_UNCLEAR;
}

/* What is true for Python makes a causal mask; sdpa takes no other value than true itself, which
 * the eager attention does not see, and that of these classes neither. */
static ds_status check_causal(const ds_reader *reader)
{
    static const char *const own[] = {"bloom", "falcon", "mpt", "stablelm"};
    const char *type = json_string_value(json_object_get(reader->json, "model_type"));
    bool unseen = ds_field_eager(reader) == DS_EAGER;
    for (size_t i = 0; i < sizeof own / sizeof own[0] && type != NULL; ++i) {
        unseen = unseen || strcmp(type, own[i]) == 0;
    }
    return unseen && !ds_field_is_falsy(json_object_get(reader->json, "is_causal"))
               ? DS_OK
               : ds_fields_read(reader, causal, 1, NULL);
}

/* The attention that returns its weights is the eager one. */
static ds_status check_attentions(const ds_reader *reader)
{
    static const char *const keys[] = {"attn_implementation", "_attn_implementation"};
    const bool wanted = !ds_field_is_falsy(json_object_get(reader->json, "output_attentions"));
    for (size_t i = 0; wanted && i < sizeof keys / sizeof keys[0]; ++i) {
        const char *name = json_string_value(json_object_get(reader->json, keys[i]));
        if (name != NULL && strcmp(name, "eager") != 0) {
            return ds_field_bad(reader, keys[i], "\"eager\" with output_attentions");
        }
    }
    return DS_OK;
}

ds_status ds_fields_read_common(const ds_reader *reader, int64_t n_layers, const char *other,
                                const char *quantized, ds_dtype *dtype_out)
{
    const size_t skipped = reader->encoder ? OF_DECODERS : 0;
    DS_TRY(
        ds_fields_read(reader, common + skipped, sizeof common / sizeof common[0] - skipped, NULL));
    DS_TRY(reader->encoder ? DS_OK : check_causal(reader));
    const bool read_so = is_quantized_by(reader, quantized) || is_quantized_by(reader, "gptq") ||
                         is_quantized_by(reader, "awq") ||
                         is_quantized_by(reader, "compressed-tensors") ||
                         is_quantized_by(reader, "bitsandbytes") ||
                         is_quantized_by(reader, "fp8") || is_quantized_by(reader, "fbgemm_fp8");
    DS_TRY(read_so ? DS_OK : ds_fields_read(reader, plain, 1, NULL));
    DS_TRY(check_labels(reader));
    DS_TRY(check_attentions(reader));
    DS_TRY(check_layer_types(reader, n_layers, other));
    return read_dtype(reader, dtype_out);
}

ds_status ds_field_activation(const ds_reader *reader, const char *key, const char *fallback,
                              ds_activation *value_out)
{
    static const struct {
        const char *name;
        ds_activation kind;
    } names[] = {{"silu", DS_ACT_SILU},
                 {"swish", DS_ACT_SILU},
                 {"gelu", DS_ACT_GELU_ERF},
                 {"gelu_python", DS_ACT_GELU_ERF},
                 {"gelu_new", DS_ACT_GELU_TANH},
                 {"gelu_pytorch_tanh", DS_ACT_GELU_TANH},
                 {"gelu_python_tanh", DS_ACT_GELU_TANH},
                 {"gelu_fast", DS_ACT_GELU_TANH},
                 {"gelu_accurate", DS_ACT_GELU_TANH},
                 {"relu", DS_ACT_RELU}};
    const char *name = fallback;
    DS_TRY(ds_field_text(reader, key, &name));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(name, names[i].name) == 0) {
            *value_out = names[i].kind;
            return DS_OK;
        }
    }
    return ds_fail(reader->ctx, DS_ERR_UNSUPPORTED,
                   "config.json: %s \"%s\" is not supported; supported are silu, swish, gelu, "
                   "gelu_python, gelu_new, gelu_pytorch_tanh, gelu_python_tanh, gelu_fast, "
                   "gelu_accurate, relu",
                   key, name);
}
