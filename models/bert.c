/* SPDX-License-Identifier: Apache-2.0 */
/* BERT (Devlin et al. 2018) and RoBERTa (Liu et al. 2019): encoders. Attention sees each document
 * whole; learned positions and types of tokens, LayerNorm of the sums behind attention and MLP; the
 * head for masked tokens is a layer, a norm and the embedding. */
#include "decoder.h"

#include <math.h>

#define DROPOUT(key, member)                                                                       \
    DS_DECODER_APPLIED(key, DS_FIELD_NUMBER, member, 0.1, 0.0, DS_BELOW_ONE)
#define NO_DECODER "attention of encoders sees all positions; decoders have their own model_type"

#define FIELDS(vocab, rows, types, pad)                                                            \
    DS_DECODER_SIZE("vocab_size", vocab_size, vocab),                                              \
        DS_DECODER_SIZE("hidden_size", hidden_size, 768),                                          \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, 12),                                        \
        DS_DECODER_SIZE("num_attention_heads", n_heads, 12),                                       \
        DS_DECODER_SIZE("intermediate_size", intermediate_size, 3072),                             \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, rows),                           \
        DS_DECODER_SIZE("type_vocab_size", token_types, types),                                    \
        DROPOUT("hidden_dropout_prob", residual_dropout),                                          \
        DROPOUT("attention_probs_dropout_prob", attention_dropout),                                \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("layer_norm_eps", norm_eps, 1e-12, HUGE_VAL),                              \
        DS_DECODER_SWITCH("tie_word_embeddings", tied, true), DS_DECODER_PAD(pad),                 \
        DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),                                                \
        DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),                              \
        DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),              \
        DS_DECODER_APPLIED("classifier_dropout", DS_FIELD_NUMBER | DS_FIELD_NULL, head_dropout,    \
                           DS_DECODER_NO_INT, 0.0, DS_BELOW_ONE),                                  \
        DS_FIELD_REFUSE("chunk_size_feed_forward", "0 1",                                          \
                        "transformers fails where it does not divide a sequence"),                 \
        DS_FIELD_REFUSE("is_causal", "null false", NO_DECODER),                                    \
        DS_FIELD_CHECK("return_dict", DS_FIELD_BOOL | DS_FIELD_INT | DS_FIELD_NULL),               \
        DS_FIELD_REFUSE("is_decoder", "false", NO_DECODER),                                        \
        DS_FIELD_REFUSE("add_cross_attention", "false", NO_DECODER),                               \
        DS_FIELD_REFUSE("position_embedding_type", "\"absolute\"",                                 \
                        "positions by distance are not built")

static const ds_field bert_fields[] = {FIELDS(30522, 512, 2, 0)};
static const ds_field roberta_fields[] = {FIELDS(50265, 512, 2, 1)};

#define LAYER                                                                                      \
    .layer = "encoder.layer", .attention = "attention", .q = "self.query", .k = "self.key",        \
    .v = "self.value", .out = "output.dense", .mlp = "", .up = "intermediate.dense",               \
    .down = "output.dense", .behind_attention = "attention.output.LayerNorm",                      \
    .behind_mlp = "output.LayerNorm", .embedding_norm = "embeddings.LayerNorm"

static const ds_decoder_names bert_names = {
    LAYER,
    .base = "bert",
    .base_prefix = "bert.",
    .embedding = "bert.embeddings.word_embeddings.weight",
    .positions = "bert.embeddings.position_embeddings.weight",
    .token_types = "bert.embeddings.token_type_embeddings.weight",
    .head_dense = "cls.predictions.transform.dense",
    .head_norm = "cls.predictions.transform.LayerNorm",
    .head = "cls.predictions.decoder.weight",
    .head_bias = "cls.predictions.bias",
    .untied_bias = "cls.predictions.decoder.bias",
    .pooler = "bert.pooler.dense",
    .classifier = "classifier",
    .token_classifier = "classifier"};

static const ds_decoder_names roberta_names = {
    LAYER,
    .base = "roberta",
    .base_prefix = "roberta.",
    .embedding = "roberta.embeddings.word_embeddings.weight",
    .positions = "roberta.embeddings.position_embeddings.weight",
    .token_types = "roberta.embeddings.token_type_embeddings.weight",
    .head_dense = "lm_head.dense",
    .head_norm = "lm_head.layer_norm",
    .head = "lm_head.decoder.weight",
    .head_bias = "lm_head.bias",
    .untied_bias = "lm_head.decoder.bias",
    .pooler = "classifier.dense",
    .classifier = "classifier.out_proj",
    .token_classifier = "classifier"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->norm = DS_NORM_LAYER;
    c->head_bias = true;
    c->mlp = DS_MLP_PLAIN;
    c->qkv_bias = c->o_bias = c->mlp_bias = true;
    c->embedding_dropout = c->mlp_dropout = c->residual_dropout;
    c->head_dropout = c->head_dropout < 0.0 ? c->residual_dropout : c->head_dropout;
    return ds_decoder_windows(reader, c, false, 0, "");
}

/* The first rows of the table of positions, up to that of the padding, are of no position. */
static ds_status resolve_roberta(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(resolve(reader, c));
    if (c->pad_id == DS_NO_INT || c->pad_id < 0) {
        return ds_field_bad(reader, "pad_token_id", "a token: positions are counted from it on");
    }
    c->head_activation = DS_ACT_GELU_ERF; /* whatever hidden_act is */
    c->head_drops_first = true;
    c->position_offset = c->pad_id + 1;
    c->max_positions -= c->position_offset;
    return c->max_positions > 0
               ? DS_OK
               : ds_field_bad(reader, "max_position_embeddings", "above pad_token_id + 1");
}

static ds_status resolve_bert(const ds_reader *reader, ds_decoder_config *c)
{
    DS_TRY(resolve(reader, c));
    c->head_activation = c->activation;
    return DS_OK;
}

#define KIND(name, resolves)                                                                       \
    {                                                                                              \
        .model_type = #name, .fields = name##_fields, .n_fields = DS_DECODER_N(name##_fields),     \
        .activation = "gelu", .names = &name##_names, .encoder = true, .no_rope = true,            \
        .whole_heads = true, .resolve = resolves                                                   \
    }
const ds_decoder_kind ds_kind_bert = KIND(bert, resolve_bert);
const ds_decoder_kind ds_kind_roberta = KIND(roberta, resolve_roberta);
