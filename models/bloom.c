/* SPDX-License-Identifier: Apache-2.0 */
/* BLOOM (BigScience 2022): linear position biases, a norm behind the embedding, q, k and v of each
 * head in one matrix. */
#include "decoder.h"

#include <math.h>

/* Nothing says how long sequences may be; the published models were trained with this. */
enum { TRAINED = 2048 };

static const ds_field fields[] = {
    DS_DECODER_COMMON(true),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SIZE("vocab_size", vocab_size, 250880),
    DS_DECODER_SIZE("hidden_size", hidden_size, 64),
    DS_DECODER_ALIAS_SIZE("n_embed", hidden_size),
    DS_DECODER_SIZE("n_layer", n_layers, 2),
    DS_DECODER_ALIAS_SIZE("num_hidden_layers", n_layers),
    DS_DECODER_SIZE("n_head", n_heads, 8),
    DS_DECODER_ALIAS_SIZE("num_attention_heads", n_heads),
    DS_DECODER_REAL("layer_norm_epsilon", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_SWITCH("apply_residual_connection_post_layernorm", residual_normed, false),
    DS_DECODER_DROPOUT("hidden_dropout", residual_dropout),
    DS_FIELD_CHECK("pretraining_tp", DS_FIELD_INT),
    DS_FIELD_CHECK("slow_but_exact", DS_FIELD_BOOL), /* read by resolve() */
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("rope_scaling", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("rope_parameters", "null {}", "it has no effect in transformers"),
    DS_DECODER_EAGER,
};

static const ds_decoder_names names = {.base = "transformer",
                                       .base_prefix = "transformer.",
                                       .embedding = "transformer.word_embeddings.weight",
                                       .embedding_norm = "word_embeddings_layernorm",
                                       .layer = "h",
                                       .final_norm = "ln_f",
                                       .head = "lm_head.weight",
                                       .attention = "self_attention",
                                       .packed = "query_key_value",
                                       .out = "dense",
                                       .up = "dense_h_to_4h",
                                       .down = "dense_4h_to_h",
                                       .before_attention = "input_layernorm",
                                       .before_mlp = "post_attention_layernorm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const json_t *parts = json_object_get(reader->json, "pretraining_tp");
    if (json_is_true(json_object_get(reader->json, "slow_but_exact")) &&
        json_integer_value(parts) > 1) {
        return ds_field_bad(reader, "slow_but_exact",
                            "false with pretraining_tp above 1, where transformers leaves out "
                            "biases");
    }
    c->norm = DS_NORM_LAYER;
    c->qkv = DS_QKV_HEADS;
    c->mlp = DS_MLP_PLAIN;
    c->activation = DS_ACT_GELU_TANH;
    c->intermediate_size = 4 * c->hidden_size;
    c->qkv_bias = c->o_bias = c->mlp_bias = true;
    c->mlp_dropout = c->residual_dropout;
    c->alibi = 8.0;
    c->max_positions = TRAINED;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_bloom = {.model_type = "bloom",
                                       .fields = fields,
                                       .n_fields = DS_DECODER_N(fields),
                                       .names = &names,
                                       .no_rope = true,
                                       .whole_heads = true,
                                       .resolve = resolve};
