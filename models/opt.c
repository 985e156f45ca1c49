/* SPDX-License-Identifier: Apache-2.0 */
/* OPT (Zhang et al. 2022): learned positions behind two rows that none has, LayerNorm before
 * attention and MLP. In 350m they are of the sums behind them, and embeddings have another width.
 */
#include "decoder.h"

#include <math.h>

static const ds_field fields[] = {
    DS_DECODER_COMMON(true),
    DS_DECODER_PAD(1),
    DS_DECODER_SIZE("vocab_size", vocab_size, 50272),
    DS_DECODER_SIZE("hidden_size", hidden_size, 768),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 12),
    DS_DECODER_SIZE("ffn_dim", intermediate_size, 3072),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 2048),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 12),
    DS_DECODER_APPLIED("dropout", DS_FIELD_NUMBER, residual_dropout, 0.1, 0.0, DS_BELOW_ONE),
    DS_DECODER_REAL("init_std", initializer_range, 0.02, HUGE_VAL),
    DS_DECODER_SWITCH("enable_bias", o_bias, true),
    DS_DECODER_SWITCH("layer_norm_elementwise_affine", use_window, true), /* read by resolve() */
    DS_DECODER_SWITCH("_remove_final_layer_norm", parallel, false),       /* likewise */
    DS_DECODER_DROPOUT("layerdrop", layer_dropout),
    DS_DECODER_SWITCH("do_layer_norm_before", normalise, true), /* likewise */
    DS_DECODER_SIZE_OR_NULL("word_embed_proj_dim", embedding_width, DS_DECODER_NO_INT),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("rope_scaling", "null {}", "it has no effect in transformers"),
    DS_FIELD_REFUSE("rope_parameters", "null {}", "it has no effect in transformers"),
};

#define NAMES                                                                                      \
    .base = "model.decoder", .base_prefix = "model.",                                              \
    .embedding = "model.decoder.embed_tokens.weight",                                              \
    .positions = "model.decoder.embed_positions.weight", .head = "lm_head.weight",                 \
    .attention = "self_attn", .out = "out_proj", .mlp = "", .up = "fc1", .down = "fc2",            \
    .project_in = "project_in", .project_out = "project_out"
#define BEFORE .before_attention = "self_attn_layer_norm", .before_mlp = "final_layer_norm"
static const ds_decoder_names names = {NAMES, BEFORE, .final_norm = "final_layer_norm"};
static const ds_decoder_names without_last = {NAMES, BEFORE};
static const ds_decoder_names norms_behind = {NAMES, .behind_attention = "self_attn_layer_norm",
                                              .behind_mlp = "final_layer_norm"};

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    c->norm = c->use_window ? DS_NORM_LAYER : DS_NORM_LAYER_BARE;
    c->names = !c->normalise ? &norms_behind : c->parallel ? &without_last : &names;
    c->use_window = c->parallel = c->normalise = false;
    c->norm_eps = 1e-5;
    c->mlp = DS_MLP_PLAIN;
    c->qkv_bias = c->mlp_bias = c->o_bias;
    c->mlp_dropout = c->residual_dropout;
    c->position_offset = 2;
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_opt = {.model_type = "opt",
                                     .fields = fields,
                                     .n_fields = DS_DECODER_N(fields),
                                     .activation = "relu",
                                     .activation_key = "activation_function",
                                     .names = &names,
                                     .no_rope = true,
                                     .whole_heads = true,
                                     .resolve = resolve};
