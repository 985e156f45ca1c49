/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the decoder's families: what is read and resolved alike for all. */
#include "decoder.h"

#include <math.h>
#include <string.h>

enum { MOST_GROUPS = 64 }; /* of the operator route */

static const ds_decoder_kind *const kinds[] = {
    &ds_kind_llama,      &ds_kind_mistral,     &ds_kind_qwen2,       &ds_kind_qwen3,
    &ds_kind_olmo2,      &ds_kind_granite,     &ds_kind_smollm3,     &ds_kind_starcoder2,
    &ds_kind_mixtral,    &ds_kind_qwen3_moe,   &ds_kind_qwen2_moe,   &ds_kind_olmoe,
    &ds_kind_granitemoe, &ds_kind_stablelm,    &ds_kind_phi3,        &ds_kind_glm,
    &ds_kind_glm4,       &ds_kind_gpt_neox,    &ds_kind_cohere,      &ds_kind_gemma,
    &ds_kind_gemma2,     &ds_kind_gemma3_text, &ds_kind_olmo,        &ds_kind_gptj,
    &ds_kind_opt,        &ds_kind_falcon,      &ds_kind_bloom,       &ds_kind_mpt,
    &ds_kind_cohere2,    &ds_kind_glm4_moe,    &ds_kind_deepseek_v2, &ds_kind_deepseek_v3,
    &ds_kind_gpt_oss,    &ds_kind_bert,        &ds_kind_roberta,     &ds_kind_modernbert,
    &ds_kind_qwen3_next,
};

static const ds_decoder_names llama_names = {DS_DECODER_LLAMA_NAMES};

static const ds_decoder_kind *kind_of(const char *model_type)
{
    size_t i = 0;
    while (strcmp(kinds[i]->model_type, model_type) != 0) {
        ++i; /* ds_family_decoder names no other */
    }
    return kinds[i];
}

ds_status ds_decoder_windows(const ds_reader *reader, ds_decoder_config *c, bool has_window,
                             int64_t first, const char *needs)
{
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        const bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (slides && !has_window) {
            return ds_fail(reader->ctx, DS_ERR_FORMAT,
                           "config.json: \"layer_types\" has sliding_attention, but there is no "
                           "window: it needs \"sliding_window\"%s",
                           needs);
        }
        c->windowed[i] = has_window && (type != NULL ? slides : i >= first);
    }
    if (has_window && c->window < 1) {
        return ds_field_bad(reader, "sliding_window", "at least 1, or null");
    }
    c->window = has_window ? c->window : 0;
    return DS_OK;
}

ds_status ds_decoder_one_window(const ds_reader *reader, ds_decoder_config *c, bool has_window)
{
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        if (type != NULL && (strcmp(type, ds_field_layer_type(reader, 0)) != 0 ||
                             (!has_window && strcmp(type, "sliding_attention") == 0))) {
            return ds_field_bad(reader, "layer_types",
                                "the same in all layers, sliding_attention only with "
                                "sliding_window");
        }
        c->windowed[i] = has_window;
    }
    if (has_window && c->window < 1) {
        return ds_field_bad(reader, "sliding_window", "at least 1, or null");
    }
    c->window = has_window ? c->window : 0;
    return DS_OK;
}

void ds_decoder_clip(const ds_reader *reader, ds_decoder_config *c)
{
    if (json_is_null(json_object_get(reader->json, "clip_qkv"))) {
        c->clip_qkv = HUGE_VAL;
    }
}

ds_status ds_decoder_pattern(const ds_reader *reader, ds_decoder_config *c, int64_t pattern)
{
    bool any = false;
    if (pattern == 0) {
        return ds_field_bad(reader, "sliding_window_pattern", "not 0");
    }
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        c->windowed[i] =
            type != NULL ? strcmp(type, "sliding_attention") == 0 : (i + 1) % pattern != 0;
        any = any || c->windowed[i];
    }
    c->window = any ? c->window : 0;
    return DS_OK;
}

ds_status ds_decoder_experts(const ds_reader *reader, const ds_decoder_config *c)
{
    return c->n_chosen <= c->n_experts
               ? DS_OK
               : ds_fail(reader->ctx, DS_ERR_FORMAT,
                         "config.json: num_experts_per_tok %lld is above the number of experts, "
                         "%lld",
                         (long long)c->n_chosen, (long long)c->n_experts);
}

ds_status ds_decoder_sparse(const ds_reader *reader, ds_decoder_config *c)
{
    const json_t *only = json_object_get(reader->json, "mlp_only_layers");
    const json_t *entry;
    size_t i;
    if (c->sparse_step == 0) {
        return ds_field_bad(reader, "decoder_sparse_step", "not 0");
    }
    for (int64_t layer = 0; layer < c->n_layers; ++layer) {
        c->dense[layer] = (layer + 1) % c->sparse_step != 0;
    }
    json_array_foreach(only, i, entry)
    {
        const double layer = json_number_value(entry);
        if (layer >= 0.0 && layer < (double)c->n_layers) {
            c->dense[(int64_t)layer] = true;
        }
    }
    return DS_OK;
}

static ds_status check_groups(const ds_reader *reader, const ds_decoder_config *c, int64_t least)
{
    const int64_t each = c->n_groups > 0 ? c->n_experts / c->n_groups : 0;
    if (c->n_groups < 1 || c->n_groups > MOST_GROUPS || c->n_experts % c->n_groups != 0 ||
        each < least) {
        char expected[96];
        (void)snprintf(expected, sizeof expected,
                       "1 to %d, and a divisor of the number of experts, %lld, with %lld or more "
                       "a group",
                       MOST_GROUPS, (long long)c->n_experts, (long long)least);
        return ds_field_bad(reader, "n_group", expected);
    }
    return c->top_groups >= 1 && c->top_groups <= c->n_groups && c->n_chosen <= c->top_groups * each
               ? DS_OK
               : ds_field_bad(reader, "topk_group",
                              "1 to n_group, and groups with num_experts_per_tok experts");
}

ds_status ds_decoder_grouped_experts(const ds_reader *reader, ds_decoder_config *c, bool by_two)
{
    c->group_by_two = by_two;
    c->shared_width = c->n_shared * c->expert_width;
    for (int64_t layer = 0; layer < c->n_layers; ++layer) {
        c->dense[layer] = layer < c->first_dense;
    }
    DS_TRY(ds_decoder_experts(reader, c));
    return check_groups(reader, c, by_two ? 2 : 1);
}

void ds_decoder_ahead(const ds_reader *reader, ds_decoder_config *c)
{
    static const char *const keys[] = {"num_mtp_layers", "num_nextn_predict_layers"};
    c->n_ahead = 1;
    for (size_t i = 0; i < 2; ++i) {
        const json_t *value = json_object_get(reader->json, keys[i]);
        c->n_ahead = json_is_integer(value) ? json_integer_value(value) : c->n_ahead;
    }
}

ds_status ds_decoder_check_head_dim(const ds_reader *reader, const ds_decoder_config *c)
{
    const json_t *value = json_object_get(reader->json, "head_dim");
    return value == NULL || json_is_null(value) ||
                   (json_is_integer(value) && json_integer_value(value) == c->head_dim)
               ? DS_OK
               : ds_field_bad(reader, "head_dim",
                              "hidden_size over num_attention_heads, or absent");
}

int64_t ds_decoder_window(const ds_decoder_config *config, int64_t layer)
{
    return config->windowed[layer] ? config->window : 0;
}

static ds_status resolve_heads(const ds_reader *reader, const ds_decoder_kind *k,
                               ds_decoder_config *c)
{
    c->n_kv_heads = c->n_kv_heads != DS_NO_INT ? c->n_kv_heads : c->n_heads;
    c->head_dim = c->head_dim != DS_NO_INT ? c->head_dim : c->hidden_size / c->n_heads;
    if (k->whole_heads && c->hidden_size % c->n_heads != 0) {
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
    if (!k->no_rope && (c->head_dim < 2 || c->head_dim % 2 != 0)) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: head_dim %lld must be even and at least 2",
                       (long long)c->head_dim);
    }
    return DS_OK;
}

static ds_status check_pad(const ds_reader *reader, const ds_decoder_config *c)
{
    const bool inside = c->pad_id >= -c->vocab_size && c->pad_id < c->vocab_size;
    return inside || c->pad_id == DS_NO_INT
               ? DS_OK
               : ds_field_bad(reader, "pad_token_id", "null or a token of the vocabulary");
}

/* Dynamic scaling is for sequences of up to factor times the positions. */
static int64_t reach_of(const ds_decoder_config *c)
{
    if (c->longrope.max_positions > 0) {
        return c->longrope.max_positions;
    }
    const double factor =
        c->rope.scaling == DS_ROPE_DYNAMIC && !c->local ? fmax(c->rope.factor, 1.0) : 1.0;
    return (int64_t)fmin(floor((double)c->max_positions * factor), INT32_MAX);
}

/* Values of families that have no field for them. */
static void set_defaults(ds_decoder_config *c)
{
    c->window = c->head_dim = c->n_kv_heads = c->embedding_width = DS_NO_INT;
    c->embedding_scale = c->residual_scale = c->logits_divisor = c->expert_factor = 1.0;
    c->clip_qkv = HUGE_VAL;
}

static ds_status read_ropes(const ds_reader *reader, const ds_decoder_kind *k, ds_decoder_config *c)
{
    c->local = k->local;
    if (k->local) {
        return ds_rope_read_typed(reader, &k->rope, c->head_dim, c->max_positions, &c->rope,
                                  &c->local_rope);
    }
    return k->no_rope ? DS_OK
                      : ds_rope_read(reader, &k->rope, c->head_dim, c->max_positions, &c->rope,
                                     &c->longrope);
}

ds_status ds_decoder_read(const ds_reader *reader, void *opaque, ds_model_info *info)
{
    ds_decoder_config *c = opaque;
    const ds_decoder_kind *k = kind_of(info->architecture);
    set_defaults(c);
    c->names = k->names != NULL ? k->names : &llama_names;
    DS_TRY(ds_fields_read(reader, k->fields, k->n_fields, c));
    if (c->n_layers > DS_MODEL_MAX_LAYERS) {
        return ds_fail(reader->ctx, DS_ERR_LIMIT, "config.json: num_hidden_layers %lld is above %d",
                       (long long)c->n_layers, DS_MODEL_MAX_LAYERS);
    }
    if (k->activation != NULL) {
        DS_TRY(ds_field_activation(reader,
                                   k->activation_key != NULL ? k->activation_key : "hidden_act",
                                   k->activation, &c->activation));
    }
    const ds_reader common = {reader->ctx, reader->json, reader->integers_vanish, k->encoder};
    const char *other = k->recurs ? "linear_attention" : k->typed ? "sliding_attention" : NULL;
    DS_TRY(ds_fields_read_common(&common, c->n_layers, other, k->quantized, &info->dtype));
    c->encoder = k->encoder;
    c->embedding_width = c->embedding_width != DS_NO_INT ? c->embedding_width : c->hidden_size;
    DS_TRY(resolve_heads(reader, k, c));
    DS_TRY(k->resolve(reader, c));
    DS_TRY(check_pad(reader, c));
    DS_TRY(read_ropes(reader, k, c));
    if (c->alibi > 0.0) {
        c->rope = (ds_rope_params){0};
    }
    if (k->scaled_by_head &&
        (c->rope.scaling == DS_ROPE_DYNAMIC || c->rope.scaling == DS_ROPE_YARN) &&
        ds_field_is_falsy(json_object_get(reader->json, "head_dim"))) {
        return ds_field_bad(reader, "head_dim", "an integer beside dynamic and yarn");
    }
    info->vocab_size = c->vocab_size;
    info->max_positions = reach_of(c);
    info->hidden_size = c->hidden_size;
    info->tied_embeddings = c->tied;
    info->base_prefix = c->names->base_prefix;
    info->embedding = c->names->embedding;
    info->head = c->names->head;
    info->encoder = c->encoder;
    info->token_types = c->names->token_types != NULL ? c->token_types : 0;
    for (int64_t i = 0; i < c->n_layers; ++i) {
        info->carries = info->carries || c->recurs[i];
    }
    return DS_OK;
}

/* Layers behind the last predict further tokens; transformers' models leave them out as well. */
bool ds_decoder_ignores(const void *opaque, const char *name)
{
    const ds_decoder_config *c = opaque;
    const size_t n = strlen(c->names->base_prefix);
    if (c->names->ahead != NULL && strncmp(name, c->names->ahead, strlen(c->names->ahead)) == 0) {
        return true;
    }
    long long layer = 0;
    return c->n_ahead > 0 && strncmp(name, c->names->base_prefix, n) == 0 &&
           sscanf(name + n, "layers.%9lld.", &layer) == 1 && layer >= c->n_layers &&
           layer < c->n_layers + c->n_ahead;
}

void ds_decoder_print(const char *model_type, const void *opaque, FILE *out)
{
    const ds_decoder_config *c = opaque;
    const ds_decoder_kind *k = kind_of(model_type);
    ds_fields_print(k->fields, k->n_fields, c, out);
    (void)fprintf(out, "hidden_act: %d\n", (int)c->activation);
    if (c->rope.head_dim > 0) {
        ds_rope_print(&c->rope, out);
    }
    for (int64_t i = 0; c->longrope.max_positions > 0 && i < c->rope.head_dim / 2; ++i) {
        (void)fprintf(out, "frequency %lld is divided by %.17g\n", (long long)i,
                      c->longrope.divisors[i]);
    }
    if (c->longrope.max_positions > 0) {
        (void)fprintf(out, "attention_factor: %.17g\n", c->rope.attention_factor);
    }
    if (c->local) {
        (void)fprintf(out, "of layers with a window:\n");
        ds_rope_print(&c->local_rope, out);
    }
    for (int64_t layer = 0; layer < c->n_layers; ++layer) {
        if (c->window > 0) {
            (void)fprintf(out, "window of layer %lld: %lld\n", (long long)layer,
                          (long long)ds_decoder_window(c, layer));
        }
        if (c->recurs[layer]) {
            (void)fprintf(out, "layer %lld has linear attention\n", (long long)layer);
        }
        if (c->unrotated[layer]) {
            (void)fprintf(out, "layer %lld has no rotary positions\n", (long long)layer);
        }
    }
}
