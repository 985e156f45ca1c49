/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a GGUF file's entries. See gguf_model.h. */
#include "ckpt/gguf_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 128 };

static const dsi_gguf_arch archs[] = {
    {"llama", "llama", "LlamaForCausalLM", .pairs = true, .tells = true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", .tells = false},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", .tells = true},
    {"gpt2", "gpt2", "GPT2LMHeadModel", .gpt2 = true},
};

ds_status dsi_gguf_arch_of(ds_ctx *ctx, const dsi_gguf *g, const dsi_gguf_arch **arch_out)
{
    const dsi_gguf_entry *e = dsi_gguf_find(g, "general.architecture");
    if (e == NULL || e->kind != DSI_GGUF_TEXT) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: general.architecture is missing", dsi_gguf_path(g));
    }
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; ++i) {
        if (dsi_gguf_text_is(e->texts[0], archs[i].name)) {
            *arch_out = &archs[i];
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s: architecture %.*s; llama (Mistral too), qwen2, qwen3 and gpt2 are read",
                   dsi_gguf_path(g), (int)(e->texts[0].n < 60 ? e->texts[0].n : 60),
                   e->texts[0].data);
}

const dsi_gguf_arch *dsi_gguf_arch_of_model(const char *model_type)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; ++i) {
        if (strcmp(model_type, archs[i].model_type) == 0 ||
            (i == 0 && strcmp(model_type, "mistral") == 0)) {
            return &archs[i];
        }
    }
    return NULL;
}

const dsi_gguf_entry *dsi_gguf_field(const dsi_gguf *g, const char *key)
{
    char whole[KEY_BYTES];
    const dsi_gguf_entry *of = dsi_gguf_find(g, "general.architecture");
    if (of == NULL || of->kind != DSI_GGUF_TEXT) {
        return NULL;
    }
    const int n = (int)(of->texts[0].n < 32 ? of->texts[0].n : 32);
    (void)snprintf(whole, sizeof whole, "%.*s.%s", n, of->texts[0].data, key);
    return dsi_gguf_find(g, whole);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* A single number; of an array only where all are equal. */
static ds_status number(ds_ctx *ctx, const dsi_gguf *g, const char *key, double *value_out)
{
    const dsi_gguf_entry *e = dsi_gguf_field(g, key);
    bool good = e != NULL && e->n > 0 && e->of != DSI_GGUF_TEXT;
    for (size_t i = 1; good && i < e->n; ++i) {
        good = dsi_gguf_number(e, i) == dsi_gguf_number(e, 0);
    }
    if (!good || !isfinite(dsi_gguf_number(e, 0))) {
        return ds_fail(ctx, e == NULL ? DS_ERR_FORMAT : DS_ERR_UNSUPPORTED, "%s: %s is %s",
                       dsi_gguf_path(g), key,
                       e == NULL ? "missing" : "no number, or not the same in all layers");
    }
    *value_out = dsi_gguf_number(e, 0);
    return DS_OK;
}

ds_status dsi_gguf_count(ds_ctx *ctx, const dsi_gguf *g, const char *key, int64_t *value_out)
{
    double value = 0.0;
    DS_TRY(number(ctx, g, key, &value));
    if (value < 1.0 || value > 0x1p40 || value != floor(value)) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: %s is %g, expected a number from 1 on",
                       dsi_gguf_path(g), key, value);
    }
    *value_out = (int64_t)value;
    return DS_OK;
}

static ds_status put_count(ds_ctx *ctx, const dsi_gguf *g, const char *key, json_t *config,
                           const char *name)
{
    int64_t value = 0;
    DS_TRY(dsi_gguf_count(ctx, g, key, &value));
    (void)json_object_set_new(config, name, json_integer(value));
    return DS_OK;
}

/* fp32 in the file: the shortest decimals that give it. */
static json_t *real_of(double value)
{
    char text[32];
    for (int digits = 1; digits < 17; ++digits) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value) {
            break;
        }
    }
    return json_real(strtod(text, NULL));
}

static ds_status put_real(ds_ctx *ctx, const dsi_gguf *g, const char *key, json_t *config,
                          const char *name)
{
    double value = 0.0;
    DS_TRY(number(ctx, g, key, &value));
    (void)json_object_set_new(config, name, real_of(value));
    return DS_OK;
}

static ds_status put_vocab(ds_ctx *ctx, const dsi_gguf *g, json_t *config)
{
    const dsi_gguf_tensor *t = dsi_gguf_tensor_find(g, "token_embd.weight");
    if (t == NULL || t->shape.n_dims != 2) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: token_embd.weight is missing or no matrix",
                       dsi_gguf_path(g));
    }
    (void)json_object_set_new(config, "vocab_size", json_integer(t->shape.dims[0]));
    return DS_OK;
}

static void put_id(const dsi_gguf *g, const char *key, json_t *config, const char *name)
{
    const dsi_gguf_entry *e = dsi_gguf_find(g, key);
    if (e != NULL && e->n == 1 && dsi_gguf_is_whole(e)) {
        (void)json_object_set_new(config, name, json_integer((json_int_t)dsi_gguf_number(e, 0)));
    }
}

/* ---- rotary positions ------------------------------------------------------------------------ */

/* Llama 3's stretching of low frequencies, as the divisors of rope_freqs.weight have it. */
static bool is_llama3(const float *divisors, int64_t n, double base, double factor, double original)
{
    const double low = 1.0;
    const double high = 4.0;
    for (int64_t i = 0; i < n; ++i) {
        const double length = 2.0 * M_PI * pow(base, (double)i / (double)n);
        const double smooth = (original / length - low) / (high - low);
        const double want = length < original / high  ? 1.0
                            : length > original / low ? factor
                                                      : 1.0 / ((1.0 - smooth) / factor + smooth);
        if (!(fabs((double)divisors[i] - want) <= 1e-4 * want)) {
            return false;
        }
    }
    return true;
}

static ds_status put_llama3(ds_ctx *ctx, const dsi_gguf *g, const dsi_gguf_tensor *t, double base,
                            json_t *config)
{
    enum { MOST = 512 };
    static const double originals[] = {8192.0, 4096.0, 2048.0, 16384.0, 32768.0, 65536.0, 131072.0};
    float divisors[MOST];
    const int64_t n = t->shape.dims[t->shape.n_dims - 1];
    if (t->shape.n_dims != 1 || n < 1 || n > MOST) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: rope_freqs.weight is no vector",
                       dsi_gguf_path(g));
    }
    DS_TRY(dsi_gguf_read_rows(g, t, 0, 1, divisors));
    /* another factor is that of the longest wave, unless the model has no long ones */
    const double factors[] = {8.0, 32.0, 4.0, 16.0, (double)divisors[n - 1]};
    enum { N_ORIGINALS = sizeof originals / sizeof originals[0] };
    for (size_t i = 0; i < N_ORIGINALS * sizeof factors / sizeof factors[0]; ++i) {
        const double factor = factors[i / N_ORIGINALS];
        const double original = originals[i % N_ORIGINALS];
        if (is_llama3(divisors, n, base, factor, original)) {
            (void)json_object_set_new(config, "rope_scaling",
                                      json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3",
                                                "factor", factor, "low_freq_factor", 1.0,
                                                "high_freq_factor", 4.0,
                                                "original_max_position_embeddings", (int)original));
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s: rope_freqs.weight holds other divisors than Llama 3's", dsi_gguf_path(g));
}

static ds_status put_scaling(ds_ctx *ctx, const dsi_gguf *g, json_t *config)
{
    const dsi_gguf_entry *type = dsi_gguf_field(g, "rope.scaling.type");
    static const char original[] = "rope.scaling.original_context_length";
    int64_t length = 0;
    double factor = 0.0;
    if (type == NULL || (type->kind == DSI_GGUF_TEXT && dsi_gguf_text_is(type->texts[0], "none"))) {
        return DS_OK;
    }
    const bool yarn = type->kind == DSI_GGUF_TEXT && dsi_gguf_text_is(type->texts[0], "yarn");
    if (!yarn && !(type->kind == DSI_GGUF_TEXT && dsi_gguf_text_is(type->texts[0], "linear"))) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: rope.scaling.type is neither none, linear nor yarn", dsi_gguf_path(g));
    }
    DS_TRY(number(ctx, g, "rope.scaling.factor", &factor));
    if (yarn && dsi_gguf_field(g, original) != NULL) {
        DS_TRY(dsi_gguf_count(ctx, g, original, &length));
    }
    json_t *scaling =
        json_pack("{s:s, s:o}", "rope_type", yarn ? "yarn" : "linear", "factor", real_of(factor));
    if (length > 0) {
        (void)json_object_set_new(scaling, "original_max_position_embeddings",
                                  json_integer(length));
    }
    (void)json_object_set_new(config, "rope_scaling", scaling);
    return DS_OK;
}

static ds_status put_rope(ds_ctx *ctx, const dsi_gguf *g, json_t *config)
{
    const dsi_gguf_tensor *divisors = dsi_gguf_tensor_find(g, "rope_freqs.weight");
    double base = 10000.0;
    if (dsi_gguf_field(g, "rope.freq_base") != NULL) {
        DS_TRY(number(ctx, g, "rope.freq_base", &base));
    }
    (void)json_object_set_new(config, "rope_theta", real_of(base));
    return divisors != NULL ? put_llama3(ctx, g, divisors, base, config)
                            : put_scaling(ctx, g, config);
}

/* ---- the kinds of config.json ---------------------------------------------------------------- */

/* Width of a head: key_length, else hidden size over heads; rotary positions on all of it. */
static ds_status put_head(ds_ctx *ctx, const dsi_gguf *g, json_t *config)
{
    static const char *const same[] = {"attention.value_length", "rope.dimension_count"};
    int64_t hidden = 0;
    int64_t heads = 0;
    int64_t width = 0;
    DS_TRY(dsi_gguf_count(ctx, g, "embedding_length", &hidden));
    DS_TRY(dsi_gguf_count(ctx, g, "attention.head_count", &heads));
    if (dsi_gguf_field(g, "attention.key_length") != NULL) {
        DS_TRY(dsi_gguf_count(ctx, g, "attention.key_length", &width));
    } else {
        width = hidden / heads;
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; ++i) {
        int64_t other = width;
        if (dsi_gguf_field(g, same[i]) != NULL) {
            DS_TRY(dsi_gguf_count(ctx, g, same[i], &other));
        }
        if (other != width) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: %s is %lld, heads are %lld wide",
                           dsi_gguf_path(g), same[i], (long long)other, (long long)width);
        }
    }
    (void)json_object_set_new(config, "head_dim", json_integer(width));
    return DS_OK;
}

static ds_status decoder_config(ds_ctx *ctx, const dsi_gguf *g, const dsi_gguf_arch *a,
                                json_t *config)
{
    const bool biased = dsi_gguf_tensor_find(g, "blk.0.attn_q.bias") != NULL;
    const bool tied = dsi_gguf_tensor_find(g, "output.weight") == NULL;
    const bool few = dsi_gguf_field(g, "attention.head_count_kv") != NULL;
    DS_TRY(put_count(ctx, g, "embedding_length", config, "hidden_size"));
    DS_TRY(put_count(ctx, g, "feed_forward_length", config, "intermediate_size"));
    DS_TRY(put_count(ctx, g, "block_count", config, "num_hidden_layers"));
    DS_TRY(put_count(ctx, g, "attention.head_count", config, "num_attention_heads"));
    DS_TRY(put_count(ctx, g, few ? "attention.head_count_kv" : "attention.head_count", config,
                     "num_key_value_heads"));
    DS_TRY(put_count(ctx, g, "context_length", config, "max_position_embeddings"));
    DS_TRY(put_real(ctx, g, "attention.layer_norm_rms_epsilon", config, "rms_norm_eps"));
    DS_TRY(put_head(ctx, g, config));
    DS_TRY(put_rope(ctx, g, config));
    (void)json_object_set_new(config, "hidden_act", json_string("silu"));
    (void)json_object_set_new(config, "tie_word_embeddings", json_boolean(tied));
    if (a->tells) {
        (void)json_object_set_new(config, "attention_bias", json_boolean(biased));
    }
    return DS_OK;
}

static ds_status gpt2_config(ds_ctx *ctx, const dsi_gguf *g, json_t *config)
{
    DS_TRY(put_count(ctx, g, "embedding_length", config, "n_embd"));
    DS_TRY(put_count(ctx, g, "feed_forward_length", config, "n_inner"));
    DS_TRY(put_count(ctx, g, "block_count", config, "n_layer"));
    DS_TRY(put_count(ctx, g, "attention.head_count", config, "n_head"));
    DS_TRY(put_count(ctx, g, "context_length", config, "n_positions"));
    DS_TRY(put_real(ctx, g, "attention.layer_norm_epsilon", config, "layer_norm_epsilon"));
    (void)json_object_set_new(config, "activation_function", json_string("gelu_new"));
    return DS_OK;
}

/* Fields of the architecture that are read, or say nothing that is not in the tensors. */
static ds_status check_fields(ds_ctx *ctx, const dsi_gguf *g, const dsi_gguf_arch *a)
{
    static const char *const known[] = {"context_length",
                                        "embedding_length",
                                        "block_count",
                                        "feed_forward_length",
                                        "vocab_size",
                                        "attention.head_count",
                                        "attention.head_count_kv",
                                        "attention.key_length",
                                        "attention.value_length",
                                        "attention.layer_norm_rms_epsilon",
                                        "attention.layer_norm_epsilon",
                                        "rope.dimension_count",
                                        "rope.freq_base",
                                        "rope.scaling.type",
                                        "rope.scaling.factor",
                                        "rope.scaling.original_context_length",
                                        "rope.scaling.finetuned"};
    const size_t prefix = strlen(a->name) + 1;
    for (size_t i = 0; i < dsi_gguf_n_entries(g); ++i) {
        const dsi_gguf_entry *e = dsi_gguf_entry_at(g, i);
        const bool ours = e->key.n > prefix && memcmp(e->key.data, a->name, prefix - 1) == 0 &&
                          e->key.data[prefix - 1] == '.';
        bool found = !ours;
        for (size_t k = 0; k < sizeof known / sizeof known[0] && !found; ++k) {
            found = dsi_gguf_text_is((dsi_gguf_text){e->key.data + prefix, e->key.n - prefix},
                                     known[k]);
        }
        if (!found) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: the field %.*s is not supported",
                           dsi_gguf_path(g), (int)(e->key.n < 100 ? e->key.n : 100), e->key.data);
        }
    }
    return DS_OK;
}

ds_status dsi_gguf_config(ds_ctx *ctx, const dsi_gguf *g, json_t **config_out)
{
    const dsi_gguf_arch *a = NULL;
    DS_TRY(dsi_gguf_arch_of(ctx, g, &a));
    DS_TRY(check_fields(ctx, g, a));
    json_t *config =
        json_pack("{s:s, s:[s]}", "model_type", a->model_type, "architectures", a->class_name);
    if (config == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for config.json");
    }
    ds_status status = put_vocab(ctx, g, config);
    if (status >= 0) {
        status = a->gpt2 ? gpt2_config(ctx, g, config) : decoder_config(ctx, g, a, config);
    }
    put_id(g, "tokenizer.ggml.bos_token_id", config, "bos_token_id");
    put_id(g, "tokenizer.ggml.eos_token_id", config, "eos_token_id");
    if (status < 0) {
        json_decref(config);
        return status;
    }
    *config_out = config;
    return DS_OK;
}

ds_status dsi_gguf_config_text(ds_ctx *ctx, const char *path, char **text_out)
{
    dsi_gguf *gguf = NULL;
    json_t *config = NULL;
    char *text = NULL;
    DS_TRY(dsi_gguf_open(ctx, path, &gguf));
    ds_status status = dsi_gguf_config(ctx, gguf, &config);
    if (status == DS_OK) {
        text = json_dumps(config, JSON_INDENT(2));
        status = text != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for config.json");
    }
    json_decref(config);
    dsi_gguf_close(&gguf);
    DS_TRY(status);
    *text_out = text;
    return DS_OK;
}
