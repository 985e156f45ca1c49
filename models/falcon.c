/* SPDX-License-Identifier: Apache-2.0 */
/* Falcon (Almazrouei et al. 2023): one head of keys for all (7B), or groups of queries with their
 * keys side by side (40B), attention and MLP side by side behind one norm or two; or one behind the
 * other with linear position biases (RW). */
#include "decoder.h"

#include <math.h>
#include <string.h>

#define SWITCH_OR_NULL(key, member, value)                                                         \
    DS_DECODER_APPLIED(key, DS_FIELD_BOOL | DS_FIELD_NULL, member, value, 0, 1)
#define DROPOUT_OR_NULL(key, member)                                                               \
    DS_DECODER_APPLIED(key, DS_FIELD_NUMBER | DS_FIELD_NULL, member, 0.0, 0.0, DS_BELOW_ONE)

static const ds_field fields[] = {
    DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),
    DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),
    DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL),
    DS_DECODER_PAD(DS_DECODER_NO_INT),
    DS_DECODER_SWITCH("tie_word_embeddings", tied, true),
    DS_DECODER_SIZE("vocab_size", vocab_size, 65024),
    DS_DECODER_SIZE("hidden_size", hidden_size, 4544),
    DS_DECODER_ALIAS_SIZE("n_embed", hidden_size),
    DS_DECODER_SIZE("num_hidden_layers", n_layers, 32),
    DS_DECODER_SIZE("num_attention_heads", n_heads, 71),
    DS_DECODER_ANY_INT("num_ln_in_parallel_attn", DS_FIELD_INT | DS_FIELD_NULL, interval,
                       DS_DECODER_NO_INT),
    DS_DECODER_REAL("layer_norm_epsilon", norm_eps, 1e-5, HUGE_VAL),
    DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),
    DROPOUT_OR_NULL("hidden_dropout", mlp_dropout),
    DROPOUT_OR_NULL("attention_dropout", residual_dropout),
    DS_DECODER_SIZE_OR_NULL("num_kv_heads", n_kv_heads, DS_DECODER_NO_INT),
    SWITCH_OR_NULL("alibi", alibi_rounded, false),
    SWITCH_OR_NULL("new_decoder_architecture", use_window, false), /* read by resolve() */
    SWITCH_OR_NULL("multi_query", normalise, true),                /* likewise */
    SWITCH_OR_NULL("parallel_attn", parallel, true),
    SWITCH_OR_NULL("bias", o_bias, false),
    DS_DECODER_SIZE("max_position_embeddings", max_positions, 2048),
    DS_DECODER_SIZE_OR_NULL("ffn_hidden_size", intermediate_size, DS_DECODER_NO_INT),
    DS_FIELD_REFUSE("head_dim", "", "it is hidden_size over num_attention_heads"),
    DS_FIELD_REFUSE("output_attentions", "null false 0", "transformers forgets the mask with it"),
    DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),
    DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE),
};

#define NAMES                                                                                      \
    .base = "transformer", .base_prefix = "transformer.",                                          \
    .embedding = "transformer.word_embeddings.weight", .layer = "h", .final_norm = "ln_f",         \
    .head = "lm_head.weight", .attention = "self_attention", .packed = "query_key_value",          \
    .out = "dense", .up = "dense_h_to_4h", .down = "dense_4h_to_h"
static const ds_decoder_names one_norm = {NAMES, .before_attention = "input_layernorm"};
static const ds_decoder_names two_norms = {NAMES, .before_attention = "ln_attn",
                                           .before_mlp = "ln_mlp"};
static const ds_decoder_names one_behind_the_other = {NAMES, .before_attention = "input_layernorm",
                                                      .before_mlp = "post_attention_layernorm"};

/* The norms that transformers makes and uses; other combinations fail there. */
static ds_status resolve_norms(const ds_reader *reader, ds_decoder_config *c, bool newer)
{
    const int64_t n = c->interval != DS_NO_INT ? c->interval : newer ? 2 : 1;
    if (newer && !c->parallel) {
        return ds_field_bad(reader, "parallel_attn", "true with new_decoder_architecture");
    }
    if (c->parallel && newer ? n != 1 && n != 2 : c->parallel && n == 2) {
        return ds_field_bad(reader, "num_ln_in_parallel_attn",
                            newer ? "1 or 2" : "not 2 without new_decoder_architecture");
    }
    c->names = !c->parallel ? &one_behind_the_other : newer && n == 2 ? &two_norms : &one_norm;
    return DS_OK;
}

/* attention_dropout is of what attention adds, where it is added by itself, and with position
 * biases of probabilities too; hidden_dropout of the MLP, or of the sum of both. */
static void resolve_dropouts(ds_decoder_config *c)
{
    c->attention_dropout = c->alibi_rounded ? c->residual_dropout : 0.0;
    c->joint_dropout = c->parallel ? c->mlp_dropout : 0.0;
    c->residual_dropout = c->parallel ? 0.0 : c->residual_dropout;
    c->mlp_dropout = c->parallel ? 0.0 : c->mlp_dropout;
}

/* transformers' eager attention adds position biases twice. */
static ds_status check_biases(const ds_reader *reader)
{
    static const char *const keys[] = {"attn_implementation", "_attn_implementation"};
    for (size_t i = 0; i < DS_DECODER_N(keys); ++i) {
        const char *name = json_string_value(json_object_get(reader->json, keys[i]));
        if (name != NULL && strcmp(name, "eager") == 0) {
            return ds_field_bad(reader, keys[i],
                                "\"sdpa\" with alibi, which transformers adds twice in eager");
        }
    }
    return DS_OK;
}

static ds_status resolve(const ds_reader *reader, ds_decoder_config *c)
{
    const bool newer = c->use_window;
    const bool shared = c->normalise && !newer; /* one head of keys */
    c->use_window = c->normalise = false;
    DS_TRY(resolve_norms(reader, c, newer));
    if (!newer && !shared && c->n_kv_heads != c->n_heads) {
        return ds_field_bad(reader, "num_kv_heads", "num_attention_heads without multi_query");
    }
    c->n_kv_heads = shared ? 1 : c->n_kv_heads;
    c->qkv = newer ? DS_QKV_GROUPS : shared ? DS_QKV_SIDE : DS_QKV_HEADS;
    c->norm = DS_NORM_LAYER;
    c->mlp = DS_MLP_PLAIN;
    c->qkv_bias = c->mlp_bias = c->o_bias;
    if (c->intermediate_size == DS_NO_INT) {
        c->intermediate_size = 4 * c->hidden_size;
    }
    resolve_dropouts(c);
    c->alibi = c->alibi_rounded ? 8.0 : 0.0;
    DS_TRY(c->alibi_rounded ? check_biases(reader) : DS_OK);
    return ds_decoder_windows(reader, c, false, 0, "");
}

const ds_decoder_kind ds_kind_falcon = {.model_type = "falcon",
                                        .fields = fields,
                                        .n_fields = DS_DECODER_N(fields),
                                        .activation = "gelu",
                                        .activation_key = "activation",
                                        .rope = {.theta = 10000.0},
                                        .names = &one_norm,
                                        .whole_heads = true,
                                        .resolve = resolve};
