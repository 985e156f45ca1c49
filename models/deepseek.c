/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2 (2024) and DeepSeek-V3 (2024; R1, and Kimi K2 by its config.json): latent attention,
 * and experts in groups behind the first layers, with others that every token goes to. */
#include "decoder.h"

#include <math.h>
#include <string.h>

/* qk_rope_head_dim is what rotary positions take for a head. */
#define SHARED(vocab, hidden, inner, layers, heads, positions)                                     \
    DS_DECODER_COMMON(false), DS_DECODER_PAD(DS_DECODER_NO_INT),                                   \
        DS_DECODER_SIZE("vocab_size", vocab_size, vocab),                                          \
        DS_DECODER_SIZE("hidden_size", hidden_size, hidden),                                       \
        DS_DECODER_SIZE("intermediate_size", intermediate_size, inner),                            \
        DS_DECODER_SIZE("num_hidden_layers", n_layers, layers),                                    \
        DS_DECODER_SIZE("num_attention_heads", n_heads, heads),                                    \
        DS_DECODER_SIZE("max_position_embeddings", max_positions, positions),                      \
        DS_DECODER_REAL("initializer_range", initializer_range, 0.02, HUGE_VAL),                   \
        DS_DECODER_REAL("rms_norm_eps", norm_eps, 1e-6, HUGE_VAL),                                 \
        DS_DECODER_SIZE_OR_NULL("q_lora_rank", q_rank, 1536),                                      \
        DS_DECODER_SIZE("kv_lora_rank", kv_rank, 512),                                             \
        DS_DECODER_SIZE("qk_nope_head_dim", plain_dim, 128),                                       \
        DS_DECODER_SIZE("qk_rope_head_dim", head_dim, 64),                                         \
        DS_DECODER_SIZE("v_head_dim", value_dim, 128),                                             \
        DS_DECODER_SWITCH("attention_bias", o_bias, false),                                        \
        DS_FIELD_CHECK("pretraining_tp", DS_FIELD_INT | DS_FIELD_NULL),                            \
        DS_FIELD_REFUSE("attention_chunk_size", NULL, DS_DECODER_ONLY_CACHE),                      \
        DS_FIELD_REFUSE("sliding_window", NULL, DS_DECODER_ONLY_CACHE)

static const ds_field deepseek_v2_fields[] = {
    SHARED(102400, 4096, 11008, 32, 32, 2048),
    DS_DECODER_GROUPED(1407, 64, 2, 1.0),
    DS_DECODER_ALIAS_SIZE("num_experts", n_experts),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, DS_DECODER_NO_INT),
    DS_DECODER_SIZE_OR_NULL("num_experts_per_tok", n_chosen, DS_DECODER_NO_INT),
    DS_DECODER_ANY_INT("n_group", DS_FIELD_INT | DS_FIELD_NULL, n_groups, DS_DECODER_NO_INT),
    DS_DECODER_ANY_INT("topk_group", DS_FIELD_INT | DS_FIELD_NULL, top_groups, DS_DECODER_NO_INT),
    DS_DECODER_ANY_INT("first_k_dense_replace", DS_FIELD_INT, first_dense, 0),
    DS_FIELD_CHECK("attention_dropout", DS_FIELD_REAL),
    DS_FIELD_CHECK("topk_method", DS_FIELD_TEXT | DS_FIELD_NULL),    /* read by resolve() */
    DS_FIELD_CHECK("norm_topk_prob", DS_FIELD_BOOL | DS_FIELD_NULL), /* no layer has it */
    DS_FIELD_CHECK("head_dim", DS_FIELD_INT | DS_FIELD_NULL),        /* nor this */
    DS_FIELD_REFUSE("mlp_bias", "null false", "biases of shared experts are not built"),
};

static const ds_field deepseek_v3_fields[] = {
    SHARED(129280, 7168, 18432, 61, 128, 4096),
    DS_DECODER_GROUPED(2048, 256, 1, 2.5),
    DS_DECODER_ALIAS_SIZE("num_local_experts", n_experts),
    DS_DECODER_SIZE_OR_NULL("num_key_value_heads", n_kv_heads, 128),
    DS_DECODER_SIZE("num_experts_per_tok", n_chosen, 8),
    DS_DECODER_SIZE("n_group", n_groups, 8),
    DS_DECODER_SIZE("topk_group", top_groups, 4),
    DS_DECODER_ANY_INT("first_k_dense_replace", DS_FIELD_INT, first_dense, 3),
    DS_DECODER_APPLIED("norm_topk_prob", DS_FIELD_BOOL | DS_FIELD_NULL, normalise, true, 0, 1),
    DS_DECODER_APPLIED("rope_interleave", DS_FIELD_BOOL | DS_FIELD_NULL, rope_pairs, true, 0, 1),
    DS_FIELD_CHECK("num_mtp_layers", DS_FIELD_INT), /* read by resolve() */
};

#define NAMES                                                                                      \
    .scope = "mlp", .router = "gate.weight", .gate = "experts.*.gate_proj.weight",                 \
    .up = "experts.*.up_proj.weight", .down = "experts.*.down_proj.weight",                        \
    .shared = {"shared_experts.gate_proj.weight", "shared_experts.up_proj.weight",                 \
               "shared_experts.down_proj.weight"}
static const ds_expert_names v2_names = {NAMES};
static const ds_expert_names v3_names = {NAMES, .choice_bias = "gate.e_score_correction_bias"};

/* What scores are times: over the root of a head's dims, by what yarn says of them besides. */
static ds_status resolve_attention(const ds_reader *reader, ds_decoder_config *c)
{
    double factor = 1.0;
    c->qkv_bias = c->o_bias;
    c->q_rank = c->q_rank != DS_NO_INT ? c->q_rank : 0;
    if (c->n_kv_heads != c->n_heads) {
        return ds_field_bad(reader, "num_key_value_heads",
                            "num_attention_heads: each head has keys of its own");
    }
    DS_TRY(ds_rope_score_factor(reader, &factor));
    if (!(factor >= 1e-3 && factor <= 1e3)) {
        return ds_field_bad(reader, "mscale_all_dim", "such that scores are times 0.001 to 1000");
    }
    c->attention_scale = factor / sqrt((double)(c->plain_dim + c->head_dim));
    return ds_decoder_windows(reader, c, false, 0, "");
}

/* Its groups are as good as their best expert, and only where topk_method says so. */
static ds_status resolve_deepseek_v2(const ds_reader *reader, ds_decoder_config *c)
{
    const char *method = "greedy";
    c->expert_names = &v2_names;
    c->rope_pairs = true;
    DS_TRY(ds_field_text(reader, "topk_method", &method));
    if (strcmp(method, "greedy") == 0) {
        c->n_groups = c->top_groups = 1;
    } else if (strcmp(method, "group_limited_greedy") != 0) {
        return ds_field_bad(reader, "topk_method", "greedy or group_limited_greedy");
    }
    if (c->n_chosen == DS_NO_INT) {
        return ds_field_bad(reader, "num_experts_per_tok", "an integer");
    }
    DS_TRY(ds_decoder_grouped_experts(reader, c, false));
    return resolve_attention(reader, c);
}

static ds_status resolve_deepseek_v3(const ds_reader *reader, ds_decoder_config *c)
{
    const json_t *head_dim = json_object_get(reader->json, "head_dim");
    c->expert_names = &v3_names;
    ds_decoder_ahead(reader, c);
    c->sigmoid = true;
    if (head_dim != NULL &&
        !(json_is_integer(head_dim) && json_integer_value(head_dim) == c->head_dim)) {
        return ds_field_bad(reader, "head_dim", "qk_rope_head_dim, or absent");
    }
    DS_TRY(ds_decoder_grouped_experts(reader, c, true));
    return resolve_attention(reader, c);
}

#define KIND(name)                                                                                 \
    const ds_decoder_kind ds_kind_##name = {.model_type = #name,                                   \
                                            .fields = name##_fields,                               \
                                            .n_fields = DS_DECODER_N(name##_fields),               \
                                            .activation = "silu",                                  \
                                            .rope = {.theta = 10000.0},                            \
                                            .whole_heads = true,                                   \
                                            .resolve = resolve_##name}
KIND(deepseek_v2);
KIND(deepseek_v3);
