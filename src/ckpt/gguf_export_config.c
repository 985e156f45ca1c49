/* SPDX-License-Identifier: Apache-2.0 */
/* A config.json's fields as entries of a GGUF file. See gguf_export.h. What is not looked at here
 * shows when the file is read back: its graph must be the folder's. */
#include "ckpt/gguf_export.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 96 };

typedef struct job {
    ds_ctx *ctx;
    const dsi_gguf_arch *arch;
    const json_t *config;
    dsi_gguf_out *out;
} job;

static const char *key_of(const job *j, const char *key, char whole[KEY_BYTES])
{
    (void)snprintf(whole, KEY_BYTES, "%s.%s", j->arch->name, key);
    return whole;
}

static ds_status missing(const job *j, const char *name)
{
    return ds_fail(j->ctx, DS_ERR_FORMAT, "config.json: \"%s\" is missing or no number", name);
}

static const json_t *field(const job *j, const char *name)
{
    const json_t *v = json_object_get(j->config, name);
    return json_is_null(v) ? NULL : v;
}

static ds_status whole_number(const job *j, const char *name, int64_t otherwise, int64_t *value_out)
{
    const json_t *v = field(j, name);
    const int64_t value = v != NULL ? (int64_t)json_integer_value(v) : otherwise;
    if ((v != NULL && !json_is_integer(v)) || value < 1 || value > UINT32_MAX) {
        return missing(j, name);
    }
    *value_out = value;
    return DS_OK;
}

static ds_status put_count(const job *j, const char *key, const char *name, int64_t otherwise)
{
    char whole[KEY_BYTES];
    int64_t value = 0;
    DS_TRY(whole_number(j, name, otherwise, &value));
    dsi_gguf_out_u32(j->out, key_of(j, key, whole), (uint32_t)value);
    return DS_OK;
}

static ds_status put_real(const job *j, const char *key, const char *name)
{
    char whole[KEY_BYTES];
    const json_t *v = field(j, name);
    if (!json_is_number(v)) {
        return missing(j, name);
    }
    dsi_gguf_out_f32(j->out, key_of(j, key, whole), (float)json_number_value(v));
    return DS_OK;
}

/* ---- rotary positions ------------------------------------------------------------------------ */

static double number(const json_t *object, const char *name, double otherwise)
{
    const json_t *v = json_object_get(object, name);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* Llama 3's divisors: 1 for short waves, the factor for long ones, a way between in the middle. */
static ds_status llama3(const job *j, const json_t *scaling, double base, int64_t width,
                        float **divisors_out, int64_t *n_out)
{
    const double factor = number(scaling, "factor", 8.0);
    const double low = number(scaling, "low_freq_factor", 1.0);
    const double high = number(scaling, "high_freq_factor", 4.0);
    const double original = number(scaling, "original_max_position_embeddings", 8192.0);
    if (low != 1.0 || high != 4.0) {
        return ds_fail(j->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: \"rope_scaling\": the type llama3 is written with a "
                       "low_freq_factor of 1 and a high_freq_factor of 4, as Llama 3 has them");
    }
    float *divisors = malloc((size_t)(width / 2) * sizeof *divisors);
    if (divisors == NULL) {
        return ds_fail(j->ctx, DS_ERR_NOMEM, "no memory for rotary positions");
    }
    for (int64_t i = 0; i < width / 2; ++i) {
        const double length = 2.0 * M_PI * pow(base, (double)(2 * i) / (double)width);
        const double smooth = (original / length - low) / (high - low);
        divisors[i] = (float)(length < original / high  ? 1.0
                              : length > original / low ? factor
                                                        : 1.0 / ((1.0 - smooth) / factor + smooth));
    }
    *divisors_out = divisors;
    *n_out = width / 2;
    return DS_OK;
}

static ds_status put_scaling(const job *j, const json_t *scaling, double base, int64_t width,
                             float **divisors_out, int64_t *n_out)
{
    char whole[KEY_BYTES];
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));
    type = type != NULL ? type : json_string_value(json_object_get(scaling, "type"));
    if (type == NULL || strcmp(type, "default") == 0) {
        return DS_OK;
    }
    if (strcmp(type, "llama3") == 0) {
        return llama3(j, scaling, base, width, divisors_out, n_out);
    }
    if (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0) {
        return ds_fail(j->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: rotary positions of the type \"%s\" are not written; linear, "
                       "yarn and llama3 are",
                       type);
    }
    dsi_gguf_out_text(j->out, key_of(j, "rope.scaling.type", whole), type, strlen(type));
    dsi_gguf_out_f32(j->out, key_of(j, "rope.scaling.factor", whole),
                     (float)number(scaling, "factor", 1.0));
    const double original = number(scaling, "original_max_position_embeddings", 0.0);
    if (strcmp(type, "yarn") == 0 && original > 0.0) {
        dsi_gguf_out_u32(j->out, key_of(j, "rope.scaling.original_context_length", whole),
                         (uint32_t)original);
    }
    return DS_OK;
}

/* rope_theta and rope_scaling; newer files have both in rope_parameters. */
static ds_status put_rope(const job *j, int64_t width, float **divisors_out, int64_t *n_out)
{
    char whole[KEY_BYTES];
    const json_t *both = field(j, "rope_parameters");
    const json_t *scaling = both != NULL ? both : field(j, "rope_scaling");
    const double base = number(both, "rope_theta", number(j->config, "rope_theta", 10000.0));
    dsi_gguf_out_u32(j->out, key_of(j, "rope.dimension_count", whole), (uint32_t)width);
    dsi_gguf_out_f32(j->out, key_of(j, "rope.freq_base", whole), (float)base);
    return scaling == NULL ? DS_OK : put_scaling(j, scaling, base, width, divisors_out, n_out);
}

/* ---- the kinds of config.json ---------------------------------------------------------------- */

static ds_status decoder(const job *j, float **divisors_out, int64_t *n_out)
{
    char whole[KEY_BYTES];
    int64_t hidden = 0;
    int64_t heads = 0;
    int64_t width = 0;
    DS_TRY(whole_number(j, "hidden_size", 0, &hidden));
    DS_TRY(whole_number(j, "num_attention_heads", 0, &heads));
    DS_TRY(whole_number(j, "head_dim", hidden / heads, &width));
    DS_TRY(put_count(j, "context_length", "max_position_embeddings", 0));
    DS_TRY(put_count(j, "embedding_length", "hidden_size", 0));
    DS_TRY(put_count(j, "block_count", "num_hidden_layers", 0));
    DS_TRY(put_count(j, "feed_forward_length", "intermediate_size", 0));
    DS_TRY(put_count(j, "attention.head_count", "num_attention_heads", 0));
    DS_TRY(put_count(j, "attention.head_count_kv", "num_key_value_heads", heads));
    DS_TRY(put_real(j, "attention.layer_norm_rms_epsilon", "rms_norm_eps"));
    if (width * heads != hidden) {
        dsi_gguf_out_u32(j->out, key_of(j, "attention.key_length", whole), (uint32_t)width);
        dsi_gguf_out_u32(j->out, key_of(j, "attention.value_length", whole), (uint32_t)width);
    }
    DS_TRY(put_count(j, "vocab_size", "vocab_size", 0));
    return put_rope(j, width, divisors_out, n_out);
}

static ds_status gpt2(const job *j)
{
    int64_t width = 0;
    DS_TRY(whole_number(j, "n_embd", 0, &width));
    DS_TRY(put_count(j, "context_length", "n_positions", 1024));
    DS_TRY(put_count(j, "embedding_length", "n_embd", 0));
    DS_TRY(put_count(j, "block_count", "n_layer", 0));
    DS_TRY(put_count(j, "feed_forward_length", "n_inner", 4 * width));
    DS_TRY(put_count(j, "attention.head_count", "n_head", 0));
    return put_real(j, "attention.layer_norm_epsilon", "layer_norm_epsilon");
}

ds_status dsi_gguf_export_config(ds_ctx *ctx, const dsi_gguf_arch *arch, const json_t *config,
                                 dsi_gguf_out *out, float **divisors_out, int64_t *n_out)
{
    const job j = {ctx, arch, config, out};
    dsi_gguf_out_text(out, "general.architecture", arch->name, strlen(arch->name));
    dsi_gguf_out_text(out, "general.type", "model", strlen("model"));
    return arch->gpt2 ? gpt2(&j) : decoder(&j, divisors_out, n_out);
}
