/* SPDX-License-Identifier: Apache-2.0 */
/* GPT-J (Wang and Komatsuzaki 2021): attention and MLP side by side behind one norm, rotary
 * positions of neighbours in a part of each head, an output projection with a bias. */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),
    DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_FIELD_CHECK("pad_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_DECODER_SWITCH("tie_word_embeddings", tied, false),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50400),
    DS_DECODER_SIZE("n_positions", max_positions, 2048),
    DS_DECODER_ALIAS_SIZE("max_position_embeddings", max_positions),
    DS_DECODER_SIZE("n_embd", hidden_size, 4096),
    DS_DECODER_ALIAS_SIZE("hidden_size", hidden_size),
    DS_DECODER_SIZE("n_layer", n_layers, 28),
    DS_DECODER_ALIAS_SIZE("num_hidden_layers", n_layers),
    DS_DECODER_SIZE("n_head", n_heads, 16),
    DS_DECODER_ALIAS_SIZE("num_attention_heads", n_heads),
    DS_DECODER_SIZE("rotary_dim", interval, 64),
    DS_DECODER_SIZE_OR_NULL("n_inner", intermediate_size, DS_DECODER_NO_INT),
    DS_DECODER_DROPOUT("resid_pdrop", residual_dropout),
    DS_DECODER_DROPOUT("embd_pdrop", embedding_dropout),
    DS_DECODER_DROPOUT("attn_pdrop", attention_dropout),
    DS_DECODER_REAL("layer_norm_epsilon", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("rope_scaling", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("rope_parameters", "null {}", "it has no effect in transformers"),
};

static const ds_decoder_names names = {.base = "transformer",
                                       .base_prefix = "transformer.",
                                       .embedding = "transformer.wte.weight",
                                       .layer = "h",
                                       .final_norm = "ln_f",
                                       .head = "lm_head.weight",
                                       .head_bias = "lm_head.bias",
                                       .attention = "attn",
                                       .out = "out_proj",
                                       .up = "fc_in",
                                       .down = "fc_out",
                                       .before_attention = "ln_1"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const int64_t rotated = c->interval;
    if (rotated % 2 != 0 || rotated > c->head_dim) {
        return ds_field_bad(reader, "rotary_dim", "even, and at most n_embd over n_head");
    }
    if (c->intermediate_size == DS_NO_INT) {
        c->intermediate_size = 4 * c->hidden_size;
    }
    c->pad_id = DS_NO_INT;
    c->norm = DS_NORM_LAYER;
    c->mlp = DS_MLP_PLAIN;
    c->mlp_bias = true;
    c->mlp_dropout = c->residual_dropout;
    c->parallel = true;
    c->rope_pairs = true;
    c->rope = (ds_rope_params){.head_dim = rotated, .theta = 10000.0, .factor = 1.0};
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_gptj = {.model_type = "gptj",
                                      .fields = fields,
                                      .n_fields = DS_DECODER_N(fields),
                                      .activation = "gelu_new",
                                      .activation_key = "activation_function",
                                      .names = &names,
                                      .no_rope = true,
                                      .whole_heads = true,
                                      .resolve = resolve};
