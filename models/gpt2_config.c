/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of GPT-2, as GPT2Config of transformers 5 declares the fields. */
#include "gpt2.h"

#include <math.h>
#include <string.h>

#define ALIAS(key, member)                                                                         \
    {                                                                                              \
        key, DS_FIELD_INT, DS_FIELD_ALIAS, offsetof(ds_gpt2_config, member), 0, 1, INT32_MAX,      \
            NULL, NULL                                                                             \
    }
#define APPLIED(...)               DS_FIELD_APPLY(ds_gpt2_config, __VA_ARGS__)
#define SIZE(key, member, value)   APPLIED(key, DS_FIELD_INT, member, value, 1, INT32_MAX)
#define SWITCH(key, member, value) APPLIED(key, DS_FIELD_BOOL, member, value, 0, 1)
#define DROPOUT(key, member)       APPLIED(key, DS_FIELD_NUMBER, member, 0.1, 0.0, DS_BELOW_ONE)
#define FALSY                      "null false 0 0.0 \"\" [] {}"

static const ds_field fields[] = {
    SIZE("vocab_size", vocab_size, 50257),
    SIZE("n_positions", n_positions, 1024),
    SIZE("n_embd", n_embd, 768),
    SIZE("n_layer", n_layer, 12),
    SIZE("n_head", n_head, 12),
    APPLIED("n_inner", DS_FIELD_INT | DS_FIELD_NULL, n_inner, (double)DS_NO_INT, 1, INT32_MAX),
    ALIAS("max_position_embeddings", n_positions), /* these are set over the names above */
    ALIAS("hidden_size", n_embd),
    ALIAS("num_hidden_layers", n_layer),
    ALIAS("num_attention_heads", n_head),
    APPLIED("layer_norm_epsilon", DS_FIELD_REAL, layer_norm_epsilon, 1e-5, 0.0, HUGE_VAL),
    APPLIED("initializer_range", DS_FIELD_REAL, initializer_range, 0.02, 0.0, HUGE_VAL),
    DROPOUT("resid_pdrop", resid_pdrop),
    DROPOUT("embd_pdrop", embd_pdrop),
    DROPOUT("attn_pdrop", attn_pdrop),
    SWITCH("scale_attn_weights", scale_attn_weights, true),
    SWITCH("scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx, false),
    SWITCH("tie_word_embeddings", tied, true),
    DS_FIELD_CHECK("reorder_and_upcast_attn",
                   DS_FIELD_BOOL), /* fp32 attention, as it always is here */
    DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),
    DS_FIELD_CHECK("summary_type", DS_FIELD_TEXT),
    DS_FIELD_CHECK("summary_use_proj", DS_FIELD_BOOL),
    DS_FIELD_CHECK("summary_activation", DS_FIELD_TEXT | DS_FIELD_NULL),
    DS_FIELD_CHECK("summary_proj_to_labels", DS_FIELD_BOOL),
    DS_FIELD_CHECK("summary_first_dropout", DS_FIELD_NUMBER),
    DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_FIELD_CHECK("pad_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_REFUSE("add_cross_attention", "false", "the model has no encoder"),
    DS_FIELD_REFUSE("rope_parameters", FALSY, "gpt2 has learned positions"),
    DS_FIELD_REFUSE("rope_scaling", FALSY, "gpt2 has learned positions"),
    DS_FIELD_REFUSE("attention_chunk_size", NULL,
                    "transformers has it in the cache of gpt2, not in "
                    "its attention"),
    DS_FIELD_REFUSE("sliding_window", NULL,
                    "transformers has it in the cache of gpt2, not in its attention"),
};

ds_status ds_gpt2_read(const ds_reader *reader, void *opaque, ds_model_info *info)
{
    ds_gpt2_config *c = opaque;
    DS_TRY(ds_fields_read(reader, fields, sizeof fields / sizeof fields[0], c));
    if (c->n_layer > DS_MODEL_MAX_LAYERS) {
        return ds_fail(reader->ctx, DS_ERR_LIMIT, "config.json: n_layer %lld is above %d",
                       (long long)c->n_layer, DS_MODEL_MAX_LAYERS);
    }
    DS_TRY(ds_field_activation(reader, "activation_function", "gelu_new", &c->activation));
    DS_TRY(ds_fields_read_common(reader, c->n_layer, NULL, NULL, &info->dtype));
    c->n_inner = c->n_inner != DS_NO_INT ? c->n_inner : 4 * c->n_embd;
    if (c->n_embd % c->n_head != 0) {
        return ds_fail(reader->ctx, DS_ERR_FORMAT,
                       "config.json: n_embd %lld is not a multiple of n_head %lld",
                       (long long)c->n_embd, (long long)c->n_head);
    }
    info->vocab_size = c->vocab_size;
    info->max_positions = c->n_positions;
    info->hidden_size = c->n_embd;
    info->tied_embeddings = c->tied;
    info->base_prefix = "transformer.";
    info->embedding = "transformer.wte.weight";
    return DS_OK;
}

void ds_gpt2_print(const char *model_type, const void *opaque, FILE *out)
{
    const ds_gpt2_config *c = opaque;
    (void)model_type;
    ds_fields_print(fields, sizeof fields / sizeof fields[0], c, out);
    (void)fprintf(out, "activation_function: %d\n", (int)c->activation);
}
