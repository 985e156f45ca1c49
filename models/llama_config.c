/* config.json of the Llama family, in the layouts of transformers 4 (rope_theta, rope_scaling) and
 * 5 (rope_parameters). */
#include "llama.h"

#include <string.h>

static ds_status rope_kind(ds_ctx *ctx, const json_t *scaling, ds_rope_params *rope)
{
    static const struct {
        const char *name;
        ds_rope_scaling kind;
    } kinds[] = {{"default", DS_ROPE_NONE},
                 {"linear", DS_ROPE_LINEAR},
                 {"dynamic", DS_ROPE_DYNAMIC},
                 {"yarn", DS_ROPE_YARN},
                 {"llama3", DS_ROPE_LLAMA3}};
    const char *name = NULL;
    DS_TRY(ds_model_text(ctx, scaling, "rope_type", NULL, &name));
    if (name == NULL) {
        DS_TRY(ds_model_text(ctx, scaling, "type", "default", &name));
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        if (strcmp(name, kinds[i].name) == 0) {
            rope->scaling = kinds[i].kind;
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "config.json: rotary scaling \"%s\" is not supported; supported are default, "
                   "linear, dynamic, yarn, llama3",
                   name);
}

static ds_status read_scaling(ds_ctx *ctx, const json_t *scaling, ds_llama_config *c)
{
    ds_rope_params *rope = &c->rope;
    DS_TRY(rope_kind(ctx, scaling, rope));
    DS_TRY(ds_model_real(ctx, scaling, "rope_theta", rope->theta, &rope->theta));
    DS_TRY(ds_model_real(ctx, scaling, "factor", 1.0, &rope->factor));
    DS_TRY(ds_model_real(ctx, scaling, "low_freq_factor", 1.0, &rope->low_freq_factor));
    DS_TRY(ds_model_real(ctx, scaling, "high_freq_factor", 4.0, &rope->high_freq_factor));
    DS_TRY(ds_model_int(ctx, scaling, "original_max_position_embeddings", c->max_positions, 1,
                        &rope->original_max_positions));
    DS_TRY(ds_model_real(ctx, scaling, "beta_fast", 32.0, &rope->beta_fast));
    DS_TRY(ds_model_real(ctx, scaling, "beta_slow", 1.0, &rope->beta_slow));
    DS_TRY(ds_model_real(ctx, scaling, "attention_factor", -1.0, &rope->attention_factor));
    DS_TRY(ds_model_real(ctx, scaling, "mscale", 0.0, &rope->mscale));
    DS_TRY(ds_model_real(ctx, scaling, "mscale_all_dim", 0.0, &rope->mscale_all_dim));
    DS_TRY(ds_model_bool(ctx, scaling, "truncate", true, &rope->truncate));
    if (rope->factor < 1.0 && rope->scaling != DS_ROPE_NONE) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "config.json: rotary scaling \"factor\" must be at least 1");
    }
    return DS_OK;
}

static ds_status read_rope(ds_ctx *ctx, const json_t *json, ds_llama_config *c)
{
    const json_t *scaling = json_object_get(json, "rope_parameters");
    if (!json_is_object(scaling)) {
        scaling = json_object_get(json, "rope_scaling");
    }
    double partial = 1.0;
    c->rope.head_dim = c->head_dim;
    DS_TRY(ds_model_real(ctx, json, "rope_theta", 10000.0, &c->rope.theta));
    DS_TRY(ds_model_real(ctx, json, "partial_rotary_factor", 1.0, &partial));
    if (partial != 1.0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "config.json: partial_rotary_factor %g is not supported; only 1 is",
                       partial);
    }
    return json_is_object(scaling) ? read_scaling(ctx, scaling, c) : DS_OK;
}

/* Which layers attend through a window: layer_types when given, else the family's rule. */
static ds_status read_windows(ds_ctx *ctx, const json_t *json, ds_llama_config *c, bool qwen)
{
    const json_t *types = json_object_get(json, "layer_types");
    bool use = !qwen;
    int64_t max_window_layers = 0;
    if (json_object_get(json, "sliding_window") == NULL && !qwen) {
        c->window = 4096; /* Mistral's default; null switches it off */
    } else {
        DS_TRY(ds_model_int(ctx, json, "sliding_window", 0, 0, &c->window));
    }
    DS_TRY(ds_model_bool(ctx, json, "use_sliding_window", use, &use));
    DS_TRY(ds_model_int(ctx, json, "max_window_layers", qwen ? 28 : 0, 0, &max_window_layers));
    if (!use) {
        c->window = 0;
    }
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->windowed[i] =
            type != NULL ? strcmp(type, "sliding_attention") == 0 : !qwen || i >= max_window_layers;
        if (type != NULL && strcmp(type, "sliding_attention") != 0 &&
            strcmp(type, "full_attention") != 0) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "config.json: layer type \"%s\" is not supported", type);
        }
    }
    return DS_OK;
}

int64_t ds_llama_window(const ds_llama_config *config, int64_t layer)
{
    return config->windowed[layer] ? config->window : 0;
}

static ds_status read_sizes(ds_ctx *ctx, const json_t *json, ds_llama_config *c, bool qwen3)
{
    const char *act = NULL;
    DS_TRY(ds_model_int(ctx, json, "vocab_size", 32000, 1, &c->vocab_size));
    DS_TRY(ds_model_int(ctx, json, "max_position_embeddings", 2048, 1, &c->max_positions));
    DS_TRY(ds_model_int(ctx, json, "hidden_size", 4096, 1, &c->hidden_size));
    DS_TRY(ds_model_int(ctx, json, "intermediate_size", 11008, 1, &c->intermediate_size));
    DS_TRY(ds_model_layers(ctx, json, "num_hidden_layers", 32, &c->n_layers));
    DS_TRY(ds_model_int(ctx, json, "num_attention_heads", 32, 1, &c->n_heads));
    DS_TRY(ds_model_int(ctx, json, "num_key_value_heads", c->n_heads, 1, &c->n_kv_heads));
    const int64_t head_dim = qwen3 ? 128 : c->hidden_size / c->n_heads;
    DS_TRY(ds_model_int(ctx, json, "head_dim", head_dim, 1, &c->head_dim));
    DS_TRY(ds_model_real(ctx, json, "rms_norm_eps", 1e-6, &c->rms_norm_eps));
    DS_TRY(ds_model_real(ctx, json, "initializer_range", 0.02, &c->initializer_range));
    DS_TRY(ds_model_real(ctx, json, "attention_dropout", 0.0, &c->attention_dropout));
    DS_TRY(ds_model_bool(ctx, json, "tie_word_embeddings", false, &c->tied));
    DS_TRY(ds_model_bool(ctx, json, "mlp_bias", false, &c->mlp_bias));
    DS_TRY(ds_model_text(ctx, json, "hidden_act", "silu", &act));
    if (strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0) {
        c->activation = DS_ACT_SILU;
    } else if (strcmp(act, "gelu_pytorch_tanh") == 0 || strcmp(act, "gelu_new") == 0) {
        c->activation = DS_ACT_GELU_TANH;
    } else if (strcmp(act, "gelu") == 0) {
        c->activation = DS_ACT_GELU_ERF;
    } else {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "config.json: hidden_act \"%s\" is not supported",
                       act);
    }
    return DS_OK;
}

static ds_status check_sizes(ds_ctx *ctx, const ds_llama_config *c)
{
    if (c->n_heads % c->n_kv_heads != 0) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "config.json: num_attention_heads %lld is not a multiple of "
                       "num_key_value_heads %lld",
                       (long long)c->n_heads, (long long)c->n_kv_heads);
    }
    if (c->head_dim % 2 != 0) {
        return ds_fail(ctx, DS_ERR_FORMAT, "config.json: head_dim %lld must be even",
                       (long long)c->head_dim);
    }
    return DS_OK;
}

ds_status ds_llama_read(ds_ctx *ctx, const json_t *json, void *opaque, ds_model_info *info)
{
    ds_llama_config *c = opaque;
    const bool qwen2 = strcmp(info->architecture, "qwen2") == 0;
    const bool qwen3 = strcmp(info->architecture, "qwen3") == 0;
    const bool mistral = strcmp(info->architecture, "mistral") == 0;
    bool bias = false;
    DS_TRY(read_sizes(ctx, json, c, qwen3));
    DS_TRY(check_sizes(ctx, c));
    DS_TRY(read_rope(ctx, json, c));
    DS_TRY(ds_model_bool(ctx, json, "attention_bias", false, &bias));
    c->qkv_bias = qwen2 || bias;
    c->o_bias = !qwen2 && bias;
    c->qk_norm = qwen3;
    if (qwen2 || qwen3 || mistral) {
        DS_TRY(read_windows(ctx, json, c, qwen2 || qwen3));
    }
    info->vocab_size = c->vocab_size;
    info->max_positions = c->max_positions;
    info->hidden_size = c->hidden_size;
    info->tied_embeddings = c->tied;
    info->base_prefix = "model.";
    return DS_OK;
}
