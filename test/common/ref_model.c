/* SPDX-License-Identifier: Apache-2.0 */
/* See ref_model.h. */
#include "common/ref_model.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

static int64_t int_of(const json_t *json, const char *key, int64_t fallback)
{
    const json_t *v = json_object_get(json, key);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : fallback;
}

static double real_of(const json_t *json, const char *key, double fallback)
{
    const json_t *v = json_object_get(json, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

static bool bool_of(const json_t *json, const char *key, bool fallback)
{
    const json_t *v = json_object_get(json, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

static bool text_is(const json_t *json, const char *key, const char *text)
{
    const char *v = json_string_value(json_object_get(json, key));
    return v != NULL && strcmp(v, text) == 0;
}

static ref_gpt2_config gpt2_of(const json_t *json)
{
    const int64_t width = int_of(json, "n_embd", 768);
    assert_true(text_is(json, "activation_function", "gelu_new"));
    return (ref_gpt2_config){.vocab_size = int_of(json, "vocab_size", 50257),
                             .n_positions = int_of(json, "n_positions", 1024),
                             .n_embd = width,
                             .n_layer = int_of(json, "n_layer", 12),
                             .n_head = int_of(json, "n_head", 12),
                             .n_inner = int_of(json, "n_inner", 4 * width),
                             .layer_norm_epsilon = (float)real_of(json, "layer_norm_epsilon", 1e-5),
                             .activation = REF_GELU_TANH,
                             .scale_attn_weights = bool_of(json, "scale_attn_weights", true),
                             .scale_attn_by_inverse_layer_idx =
                                 bool_of(json, "scale_attn_by_inverse_layer_idx", false),
                             .tied = bool_of(json, "tie_word_embeddings", true)};
}

static ref_rope rope_of(const json_t *json, int64_t head_dim)
{
    static const char *const kinds[] = {"default", "linear", "dynamic", "yarn", "llama3"};
    const json_t *p = json_object_get(json, "rope_parameters");
    const int64_t longest = int_of(json, "max_position_embeddings", 2048);
    ref_rope rope = {.head_dim = head_dim,
                     .theta = real_of(p, "rope_theta", 10000.0),
                     .factor = real_of(p, "factor", 1.0),
                     .low_freq_factor = real_of(p, "low_freq_factor", 1.0),
                     .high_freq_factor = real_of(p, "high_freq_factor", 4.0),
                     .original_max_positions =
                         int_of(p, "original_max_position_embeddings", longest),
                     .beta_fast = real_of(p, "beta_fast", 32.0),
                     .beta_slow = real_of(p, "beta_slow", 1.0),
                     .attention_factor = real_of(p, "attention_factor", -1.0),
                     .mscale = real_of(p, "mscale", 0.0),
                     .mscale_all_dim = real_of(p, "mscale_all_dim", 0.0),
                     .truncate = bool_of(p, "truncate", true)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        if (text_is(p, "rope_type", kinds[i])) {
            rope.kind = (ref_rope_kind)i;
            return rope;
        }
    }
    fail_msg("unknown rope_type");
    return rope;
}

/* layer_types, when given; else Mistral windows every layer. */
static void read_windows(ref_llama_config *c, const json_t *json)
{
    const json_t *types = json_object_get(json, "layer_types");
    const int64_t window = int_of(json, "sliding_window", 0);
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        const bool windowed = type != NULL ? strcmp(type, "sliding_attention") == 0
                                           : text_is(json, "model_type", "mistral");
        c->window[i] = windowed ? window : 0;
    }
}

static ref_llama_config llama_of(const json_t *json)
{
    const int64_t hidden = int_of(json, "hidden_size", 4096);
    const int64_t heads = int_of(json, "num_attention_heads", 32);
    const bool bias = bool_of(json, "attention_bias", false);
    ref_llama_config c = {.vocab_size = int_of(json, "vocab_size", 32000),
                          .hidden_size = hidden,
                          .intermediate_size = int_of(json, "intermediate_size", 11008),
                          .n_layers = int_of(json, "num_hidden_layers", 32),
                          .n_heads = heads,
                          .n_kv_heads = int_of(json, "num_key_value_heads", heads),
                          .head_dim = int_of(json, "head_dim", hidden / heads),
                          .rms_norm_eps = (float)real_of(json, "rms_norm_eps", 1e-6),
                          .activation = REF_SILU,
                          .tied = bool_of(json, "tie_word_embeddings", false),
                          .qkv_bias = bias || text_is(json, "model_type", "qwen2"),
                          .o_bias = bias,
                          .mlp_bias = bool_of(json, "mlp_bias", false),
                          .qk_norm = text_is(json, "model_type", "qwen3")};
    assert_true(text_is(json, "hidden_act", "silu"));
    c.rope = rope_of(json, c.head_dim);
    read_windows(&c, json);
    return c;
}

static size_t index_of(const ref_model *model, const char *name)
{
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        if (strcmp(model->weights.tensors[i].name, name) == 0) {
            return i;
        }
    }
    return model->weights.n_tensors;
}

void ref_model_load(ref_model *model, const char *folder)
{
    json_t *json = golden_json("%s/config.json", folder);
    *model = (ref_model){.is_gpt2 = text_is(json, "model_type", "gpt2")};
    if (model->is_gpt2) {
        model->gpt2 = gpt2_of(json);
        model->vocab_size = model->gpt2.vocab_size;
    } else {
        model->llama = llama_of(json);
        model->vocab_size = model->llama.vocab_size;
    }
    json_decref(json);
    model->weights = golden_read("%s/model.safetensors", folder);
    model->grads = calloc(model->weights.n_tensors, sizeof *model->grads);
    assert_non_null(model->grads);
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        assert_string_equal(model->weights.tensors[i].dtype, "F32");
        model->grads[i] = calloc(model->weights.tensors[i].count, sizeof(float));
        assert_non_null(model->grads[i]);
    }
}

void ref_model_close(ref_model *model)
{
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        free(model->grads[i]);
    }
    free(model->grads);
    golden_close(&model->weights);
}

float *ref_model_weight(ref_model *model, const char *name)
{
    const size_t i = index_of(model, name);
    return i < model->weights.n_tensors ? (float *)(uintptr_t)model->weights.tensors[i].data : NULL;
}

float *ref_model_grad(ref_model *model, const char *name)
{
    const size_t i = index_of(model, name);
    return i < model->weights.n_tensors ? model->grads[i] : NULL;
}

static const float *lookup_weight(void *user, const char *name)
{
    const float *w = ref_model_weight(user, name);
    if (w == NULL) {
        fail_msg("no parameter %s", name);
    }
    return w;
}

static float *lookup_grad(void *user, const char *name)
{
    float *g = ref_model_grad(user, name);
    if (g == NULL) {
        fail_msg("no parameter %s", name);
    }
    return g;
}

float ref_model_run(ref_model *model, const ref_batch *batch, float *logits, bool backward)
{
    const ref_io io = {model, lookup_weight, lookup_grad, backward};
    return model->is_gpt2 ? ref_gpt2(&model->gpt2, &io, batch, logits)
                          : ref_llama(&model->llama, &io, batch, logits);
}

ref_batch ref_batch_of(const golden_file *golden)
{
    const golden_tensor *tokens = golden_find(golden, "tokens");
    assert_non_null(tokens);
    return (ref_batch){.b = tokens->dims[0],
                       .t = tokens->dims[1],
                       .tokens = golden_i32(golden, "tokens"),
                       .targets = golden_i32(golden, "targets"),
                       .positions = golden_i32(golden, "positions"),
                       .first = golden_i32(golden, "first")};
}
