/* SPDX-License-Identifier: Apache-2.0 */
/* ModernBERT (Warner et al. 2024): an encoder with rotary positions, norms before attention and
 * MLP, a gated MLP, and a window to both sides in all but every third layer, whose rotary positions
 * have a base of their own. The first layer has no norm before attention. */
#include "decoder.h"

#include <math.h>
#include <string.h>

#define NOT_BUILT "attention of encoders sees all positions"

static const ds_field fields[] = {
    DS_DECODER_SIZE("vocab_size", vocab_size, 50368),
    DS_DECODER_SIZE("hidden_size", hidden_size, 768),
    DS_DECODER_SIZE("intermediate_size", intermediate_size, 1152),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 22),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 12),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 8192),
    DS_DECODER_SIZE("local_attention", window, 128), /* read by resolve() */
    DS_DECODER_ANY_INT("global_attn_every_n_layers", DS_FIELD_INT, interval, 3),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_REAL("norm_eps", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_SWITCH("norm_bias", use_window, false), /* likewise */
    DS_DECODER_SWITCH("attention_bias", o_bias, false),
    DS_DECODER_SWITCH("mlp_bias", mlp_bias, false),
    DS_DECODER_SWITCH("decoder_bias", normalise, true), /* likewise */
    DS_DECODER_SWITCH("classifier_bias", head_bias, false),
    DS_DECODER_DROPOUT("attention_dropout", attention_dropout),
    DS_DECODER_DROPOUT("embedding_dropout", embedding_dropout),
    DS_DECODER_DROPOUT("mlp_dropout", inner_dropout),
    DS_DECODER_DROPOUT("classifier_dropout", head_dropout),
    DS_DECODER_SWITCH("tie_word_embeddings", tied, true),
    DS_DECODER_PAD(50283),
    DS_FIELD_CHECK("initializer_cutoff_factor", DS_FIELD_REAL),
    DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_FIELD_CHECK("cls_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("sep_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("deterministic_flash_attn", DS_FIELD_BOOL),
    DS_FIELD_CHECK("sparse_prediction", DS_FIELD_BOOL), /* the loss is the same */
    DS_FIELD_CHECK("sparse_pred_ignore_index", DS_FIELD_INT),
    DS_FIELD_REFUSE("return_dict", "true", "transformers' models of this family fail with it"),
    DS_FIELD_REFUSE("is_causal", "null false", NOT_BUILT),
    DS_FIELD_REFUSE("rope_scaling", NULL, "say it in rope_parameters, for each type of layer"),
    DS_FIELD_REFUSE("sliding_window", NULL, "say it as local_attention, of twice the width"),
};

#define NAMES                                                                                      \
    .base = "model", .base_prefix = "model.",                                                      \
    .embedding = "model.embeddings.tok_embeddings.weight", .embedding_norm = "embeddings.norm",    \
    .final_norm = "final_norm", .head = "decoder.weight", .attention = "attn", .packed = "Wqkv",   \
    .out = "Wo", .mlp = "mlp", .gate_up = "Wi", .down = "Wo", .before_attention = "attn_norm",     \
    .before_mlp = "mlp_norm", .head_dense = "head.dense", .head_norm = "head.norm",                \
    .classifier = "classifier", .token_classifier = "classifier"
static const ds_decoder_names names = {NAMES, .head_bias = "decoder.bias",
                                       .untied_bias = "decoder.bias"};
static const ds_decoder_names without_bias = {NAMES};

static ds_status read_pooling(const ds_reader *reader, ds_decoder_config *c)
{
    const char *pooling = "cls";
    DS_TRY(ds_field_text(reader, "classifier_pooling", &pooling));
    c->head_means = strcmp(pooling, "mean") == 0;
    return c->head_means || strcmp(pooling, "cls") == 0
               ? DS_OK
               : ds_field_bad(reader, "classifier_pooling", "cls or mean");
}

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->norm = c->use_window ? DS_NORM_LAYER : DS_NORM_LAYER_WEIGHT;
    c->names = c->normalise ? &names : &without_bias;
    c->use_window = c->normalise = false;
    c->qkv = DS_QKV_SIDE;
    c->mlp = DS_MLP_PACKED;
    c->qkv_bias = c->o_bias;
    c->residual_dropout = c->attention_dropout;
    c->first_bare = true;
    c->window = c->window / 2 + 1; /* a distance of half of it is seen */
    DS_TRY(read_pooling(reader, c));
    DS_TRY(ds_field_activation(reader, "classifier_activation", "gelu", &c->head_activation));
    DS_TRY(ds_decoder_check_head_dim(reader, c));
    if (c->interval == 0) {
        return ds_field_bad(reader, "global_attn_every_n_layers", "not 0");
    }
    for (int64_t i = 0; i < c->n_layers; ++i) {
        const char *type = ds_field_layer_type(reader, i);
        c->windowed[i] =
            type != NULL ? strcmp(type, "sliding_attention") == 0 : i % c->interval != 0;
    }
    return DS_OK;
}

const ds_decoder_kind ds_kind_modernbert = {.model_type = "modernbert",
                                            .fields = fields,
                                            .n_fields = DS_DECODER_N(fields),
                                            .activation = "gelu",
                                            .activation_key = "hidden_activation",
                                            .rope = {.theta = 160000.0,
                                                     .theta_key = "global_rope_theta",
                                                     .local_theta_key = "local_rope_theta"},
                                            .names = &names,
                                            .encoder = true,
                                            .local = true,
                                            .typed = true,
                                            .whole_heads = true,
                                            .resolve = resolve};
