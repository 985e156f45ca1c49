/* SPDX-License-Identifier: Apache-2.0 */
/* One decoder for many families. A family is data: the fields of its config.json and a
 * ds_decoder_config that says which variants its layers take. decoder.c traces the model,
 * decoder_config.c reads config.json, and each family has a file with its tables. */
#ifndef DS_MODELS_DECODER_H
#define DS_MODELS_DECODER_H

#include "families.h"
#include "model/fields.h"

typedef enum ds_qk_norm {
    DS_QK_NONE,
    DS_QK_HEAD,  /* over each head's width: one weight for all heads */
    DS_QK_WHOLE, /* over all heads together */
    DS_QK_EACH   /* over each head's width, with a weight of its own */
} ds_qk_norm;

typedef enum ds_norm {
    DS_NORM_RMS,
    DS_NORM_RMS_PLUS,     /* the stored weight is what is added to 1 */
    DS_NORM_LAYER,        /* with weight and bias */
    DS_NORM_LAYER_WEIGHT, /* with a weight alone */
    DS_NORM_LAYER_BARE    /* with neither; names of norms say where they are */
} ds_norm;

/* How the weights of q, k and v are stored. */
typedef enum ds_qkv {
    DS_QKV_APART,
    DS_QKV_SIDE,  /* one matrix: all of q, all of k, all of v */
    DS_QKV_HEADS, /* one matrix: q, k and v of each head; as many heads of k and v as of q */
    DS_QKV_GROUPS /* one matrix: of each head of keys the queries that share it, k and v */
} ds_qkv;

typedef enum ds_mlp {
    DS_MLP_GATED,
    DS_MLP_PACKED, /* gate and up are one matrix: all of gate, all of up */
    DS_MLP_PLAIN
} ds_mlp;

/* The family's words for parameters and their scopes. */
typedef struct ds_decoder_names {
    const char *base, *embedding, *final_norm, *head; /* embedding, head: whole names */
    const char *base_prefix;                          /* base and a point */
    const char *layer;                                /* before the number; NULL: layers */
    const char *positions;                            /* whole name of a table of positions */
    const char *embedding_norm;                       /* NULL: there is none */
    const char *head_bias;                            /* whole name; NULL: there is none */
    const char *untied_bias;     /* of encoders: likewise, where it is not tied */
    const char *attention, *out; /* scope; output projection */
    const char *packed;          /* where q, k and v are one matrix */
    const char *mlp;             /* scope; NULL: mlp, "": none */
    const char *up, *down;       /* of DS_MLP_PLAIN; down of others: NULL, down_proj */
    const char *gate_up;         /* of DS_MLP_PACKED; NULL: gate_up_proj */
    /* Norms of what attention and MLP get and give; NULL: there is none. In a parallel layer
     * before_mlp NULL: the MLP gets what attention gets. */
    const char *before_attention, *after_attention, *before_mlp, *after_mlp;
    const char *behind_attention, *behind_mlp; /* norms of the sums with what they add; or NULL */
    const char *q_norm, *k_norm;               /* of DS_QK_EACH; NULL: q_norm, k_norm */
    const char *q, *k, *v;                     /* NULL: q_proj, k_proj, v_proj */
    const char *token_types;                   /* whole name of their table; NULL: there is none */
    const char *head_dense, *head_norm;        /* of encoders, whole names before the head */
    const char *pooler, *classifier;           /* likewise, of classes of documents */
    const char *token_classifier;              /* and of tokens */
    const char *project_in, *project_out;      /* where embedding_width is not hidden_size */
    const char *linear, *linear_out;           /* linear attention: scope; output projection */
    const char *ahead; /* how names begin of what predicts further tokens; NULL: layers' names */
} ds_decoder_names;

/* How a family stores its experts: names below a layer. */
typedef struct ds_expert_names {
    const char *scope, *router;
    const char *gate, *up, *down;
    const char *gate_up;                 /* instead of gate and up, where it is not NULL */
    const char *shared_gate, *shared[3]; /* of an expert that every token goes to, or NULL */
    const char *choice_bias;             /* of the choice of experts, or NULL */
    const char *router_bias, *gate_up_bias, *down_bias; /* or NULL */
    bool transposed, alternate;                         /* of ds_experts_params */
} ds_expert_names;

/* Resolved: no value here depends on whether its key was there. */
typedef struct ds_decoder_config {
    int64_t vocab_size, max_positions, hidden_size, intermediate_size;
    int64_t n_layers, n_heads, n_kv_heads, head_dim;
    double norm_eps, initializer_range;
    double attention_dropout, embedding_dropout;
    double joint_dropout;                 /* of the sum of both, in a parallel layer */
    double inner_dropout;                 /* within the MLP, behind its activation */
    double layer_dropout;                 /* of whole layers in training, which is not built */
    double residual_dropout, mlp_dropout; /* of what attention and MLP add */
    double embedding_scale, residual_scale, attention_scale, logits_divisor; /* attention: of q·k */
    ds_activation activation;
    ds_rope_params rope;
    ds_longrope longrope;             /* where its max_positions is above 0 */
    ds_rope_params local_rope;        /* of layers with a window, where local is true */
    double attention_cap, logits_cap; /* soft caps; 0: none */
    double alibi;                     /* of ds_attention_params; no rotary positions then */
    const char *sinks;                /* likewise */
    const ds_decoder_names *names;
    ds_norm norm;
    ds_qk_norm qk_norm;
    ds_qkv qkv;
    ds_mlp mlp;
    bool alibi_rounded; /* of ds_attention_params */
    bool parallel;      /* x + attention(x) + MLP(x), norms aside; else one behind the other */
    bool rope_pairs;    /* x[2i] turns with x[2i+1] */
    bool local;
    bool rounded_scale;   /* embedding_scale is rounded to the model's dtype */
    bool residual_normed; /* what attention and MLP add to is the norm of x */
    bool tied, qkv_bias, o_bias, mlp_bias;
    /* latent attention, where kv_rank is above 0: of ds_latent_params. head_dim is `rotated` */
    int64_t q_rank, kv_rank, plain_dim, value_dim;
    /* linear attention in layers that recur: of ds_delta_net_params */
    int64_t delta_heads, delta_key_heads, delta_key_dim, delta_value_dim, delta_kernel;
    bool recurs[DS_MODEL_MAX_LAYERS];
    bool gated_attention; /* each head times the sigmoid of as many numbers, beside q in q_proj */
    /* experts, where n_experts is above 0 */
    const ds_expert_names *expert_names;
    int64_t n_experts, n_chosen, expert_width;
    int64_t shared_width;        /* of an expert that every token goes to; 0: none */
    double router_noise;         /* on what experts and routers read in training */
    double balance_factor;       /* of the loss that balances the routers */
    bool normalise;              /* a token's weights sum to 1 */
    bool sigmoid, group_by_two;  /* of ds_experts_params, as n_groups and top_groups */
    double expert_factor;        /* of a token's weights */
    double glu_limit, glu_alpha; /* of ds_experts_params */
    int64_t n_groups, top_groups;
    bool balance;                       /* that loss is there */
    bool dense[DS_MODEL_MAX_LAYERS];    /* layers with an MLP instead */
    double clip_qkv;                    /* q, k and v stay within ± of it; infinite: no bounds */
    int64_t window;                     /* 0: none */
    bool windowed[DS_MODEL_MAX_LAYERS]; /* layers that use it */
    bool unrotated[DS_MODEL_MAX_LAYERS];
    int64_t embedding_width;       /* of tokens' embeddings and of what the head reads */
    int64_t position_offset;       /* rows of the table of positions before that of position 0 */
    bool encoder;                  /* attention sees a document's later positions too */
    int64_t token_types;           /* rows of their table, of which all tokens have the first */
    ds_activation head_activation; /* behind head_dense */
    double head_dropout;           /* of the heads for classes */
    bool head_drops_first;         /* before the pooler, too */
    bool head_bias;                /* of head_dense */
    bool head_means;               /* a document's class is of the mean of its tokens */
    bool first_bare;               /* layer 0 has no norm before attention */
    /* read, and resolved into the others */
    bool use_window;
    double logit_scale;
    int64_t max_window_layers, pad_id, interval, sparse_step, query_scalar;
    int64_t first_dense, n_shared; /* layers without experts at the bottom; shared experts */
    int64_t n_ahead; /* layers behind the last that predict further tokens: files may hold them */
    bool norm_heads;
} ds_decoder_config;

typedef struct ds_decoder_kind {
    const char *model_type;
    const ds_field *fields;
    size_t n_fields;
    const char *activation;     /* when its key is absent; NULL: it has none */
    const char *activation_key; /* NULL: hidden_act */
    const char *quantized;      /* of ds_fields_read_common */
    ds_rope_rules rope;
    const ds_decoder_names *names; /* NULL: those of Llama */
    bool encoder;                  /* attention sees later positions too */
    bool no_rope;                  /* no rotary positions, or resolve() says which */
    bool local;                    /* rotary parameters of each type of layer */
    bool typed;                    /* layer_types may have sliding_attention */
    bool recurs;                   /* layer_types may have linear_attention */
    bool whole_heads;              /* hidden_size must be a multiple of the heads */
    bool scaled_by_head;           /* dynamic and yarn need head_dim itself, as in transformers */
    /* What is the family's own: which layers have a window, and variants. After the fields. */
    ds_status (*resolve)(const ds_reader *reader, ds_decoder_config *config);
} ds_decoder_kind;

/* Llama's names, without norms but those before attention and MLP. */
#define DS_DECODER_LLAMA_BASE                                                                      \
    .base = "model", .base_prefix = "model.", .embedding = "model.embed_tokens.weight",            \
    .final_norm = "norm", .head = "lm_head.weight", .attention = "self_attn", .out = "o_proj"
#define DS_DECODER_LLAMA_NAMES                                                                     \
    DS_DECODER_LLAMA_BASE, .before_attention = "input_layernorm",                                  \
                           .before_mlp = "post_attention_layernorm"

extern const ds_decoder_kind ds_kind_llama, ds_kind_mistral, ds_kind_qwen2, ds_kind_qwen3,
    ds_kind_olmo2, ds_kind_granite, ds_kind_smollm3, ds_kind_starcoder2, ds_kind_mixtral,
    ds_kind_qwen3_moe, ds_kind_qwen2_moe, ds_kind_olmoe, ds_kind_granitemoe, ds_kind_stablelm,
    ds_kind_phi3, ds_kind_glm, ds_kind_glm4, ds_kind_gpt_neox, ds_kind_cohere, ds_kind_gemma,
    ds_kind_gemma2, ds_kind_gemma3_text, ds_kind_olmo, ds_kind_gptj, ds_kind_opt, ds_kind_falcon,
    ds_kind_bloom, ds_kind_mpt, ds_kind_cohere2, ds_kind_glm4_moe, ds_kind_deepseek_v2,
    ds_kind_deepseek_v3, ds_kind_gpt_oss, ds_kind_bert, ds_kind_roberta, ds_kind_modernbert,
    ds_kind_qwen3_next;
extern const ds_expert_names ds_qwen_experts; /* with one that every token goes to */

/* Gives layers a window: in those where layer_types says so, else in those from `first` on. */
ds_status ds_decoder_windows(const ds_reader *reader, ds_decoder_config *config, bool has_window,
                             int64_t first, const char *needs);

/* The same window in all layers, of a family whose masks go by sliding_window alone and whose cache
 * goes by layer_types: what it holds must be enough for the masks, and the same in all layers. */
ds_status ds_decoder_one_window(const ds_reader *reader, ds_decoder_config *config,
                                bool has_window);
/* clip_qkv null: no bounds. */
void ds_decoder_clip(const ds_reader *reader, ds_decoder_config *config);
/* Which layers have the window, where layer_types does not say: all but every `pattern`th. */
ds_status ds_decoder_pattern(const ds_reader *reader, ds_decoder_config *config, int64_t pattern);
/* Checks what belongs to experts together. */
ds_status ds_decoder_experts(const ds_reader *reader, const ds_decoder_config *config);
/* Experts are in every sparse_step-th layer, but for those of mlp_only_layers. */
ds_status ds_decoder_sparse(const ds_reader *reader, ds_decoder_config *config);
/* Likewise of experts in groups, behind the first layers: by_two: of ds_experts_params. */
ds_status ds_decoder_grouped_experts(const ds_reader *reader, ds_decoder_config *config,
                                     bool by_two);
/* Layers that predict further tokens, 1 when absent. Whatever has another type counts for nothing,
 * as no layer of transformers' models has it. */
void ds_decoder_ahead(const ds_reader *reader, ds_decoder_config *config);
/* For families whose layers take hidden_size over the heads and whose rotary positions take
 * head_dim: the key must say the same, or nothing. */
ds_status ds_decoder_check_head_dim(const ds_reader *reader, const ds_decoder_config *config);

ds_status ds_decoder_read(const ds_reader *reader, void *config, ds_model_info *info);
bool ds_decoder_ignores(const void *config, const char *name);
void ds_decoder_print(const char *model_type, const void *config, FILE *out);
int64_t ds_decoder_window(const ds_decoder_config *config, int64_t layer);
/* x (B,T,C) behind the last layer to loss or outputs, by the trace's task. encoder_head.c */
void ds_encoder_head(ds_nn *nn, const ds_decoder_config *config, ds_value x, ds_value embedding);

/* Rows of the tables. */
#define DS_DECODER_NO_INT       ((double)DS_NO_INT)
#define DS_DECODER_APPLIED(...) DS_FIELD_APPLY(ds_decoder_config, __VA_ARGS__)
#define DS_DECODER_SIZE(key, member, value)                                                        \
    DS_DECODER_APPLIED(key, DS_FIELD_INT, member, value, 1, INT32_MAX)
#define DS_DECODER_SIZE_OR_NULL(key, member, value)                                                \
    DS_DECODER_APPLIED(key, DS_FIELD_INT | DS_FIELD_NULL, member, value, 1, INT32_MAX)
#define DS_DECODER_ANY_INT(key, types, member, value)                                              \
    DS_DECODER_APPLIED(key, types, member, value, INT32_MIN, INT32_MAX)
#define DS_DECODER_SWITCH(key, member, value)                                                      \
    DS_DECODER_APPLIED(key, DS_FIELD_BOOL, member, value, 0, 1)
#define DS_DECODER_DROPOUT(key, member)                                                            \
    DS_DECODER_APPLIED(key, DS_FIELD_NUMBER, member, 0.0, 0.0, DS_BELOW_ONE)
#define DS_DECODER_REAL(key, member, value, max)                                                   \
    DS_DECODER_APPLIED(key, DS_FIELD_REAL, member, value, 0.0, max)

#define DS_DECODER_CLIP                                                                            \
    DS_DECODER_APPLIED("clip_qkv", DS_FIELD_REAL | DS_FIELD_NULL, clip_qkv, HUGE_VAL, 0.0, HUGE_VAL)

#define DS_DECODER_ALIAS_SIZE(key, member)                                                         \
    {                                                                                              \
        key, DS_FIELD_INT, DS_FIELD_ALIAS, offsetof(ds_decoder_config, member), 0, 1, INT32_MAX,   \
            NULL, NULL                                                                             \
    }
/* Of families with experts; a family says how many there are, and calls ds_decoder_experts(). */
#define DS_DECODER_EXPERTS(chosen, factor)                                                         \
    DS_DECODER_SIZE("num_experts_per_tok", n_chosen, chosen),                                      \
        DS_DECODER_SWITCH("output_router_logits", balance, false),                                 \
        DS_DECODER_REAL("router_aux_loss_coef", balance_factor, factor, HUGE_VAL)

/* Of families with experts in groups; see ds_decoder_grouped_experts(). */
#define DS_DECODER_GROUPED(width, n, n_always, weights_factor)                                     \
    DS_DECODER_SIZE("moe_intermediate_size", expert_width, width),                                 \
        DS_DECODER_SIZE("n_routed_experts", n_experts, n),                                         \
        DS_DECODER_SIZE("n_shared_experts", n_shared, n_always),                                   \
        DS_DECODER_APPLIED("routed_scaling_factor", DS_FIELD_REAL, expert_factor, weights_factor,  \
                           -HUGE_VAL, HUGE_VAL),                                                   \
        DS_FIELD_CHECK("output_router_logits", DS_FIELD_BOOL) /* there is no loss of balance */

/* Fields of all, with the same defaults. */
#define DS_DECODER_COMMON(tied_default)                                                            \
    DS_DECODER_DROPOUT("attention_dropout", attention_dropout),                                    \
        DS_DECODER_SWITCH("tie_word_embeddings", tied, tied_default),                              \
        DS_FIELD_CHECK("use_cache", DS_FIELD_BOOL),                                                \
        DS_FIELD_CHECK("bos_token_id", DS_FIELD_INT | DS_FIELD_NULL),                              \
        DS_FIELD_CHECK("eos_token_id", DS_FIELD_INT | DS_FIELD_INTS | DS_FIELD_NULL)
#define DS_DECODER_PAD(value)                                                                      \
    DS_DECODER_ANY_INT("pad_token_id", DS_FIELD_INT | DS_FIELD_NULL, pad_id, value)

#define DS_DECODER_ONLY_CACHE                                                                      \
    "transformers has it in the cache of this family, not in its attention"
/* Of families whose class has one attention. */
#define DS_DECODER_EAGER                                                                           \
    DS_FIELD_REFUSE("attn_implementation", "null \"eager\"", "transformers has eager alone"),      \
        DS_FIELD_REFUSE("_attn_implementation", "null \"eager\"", "transformers has eager alone")
#define DS_DECODER_N(table) (sizeof(table) / sizeof(table)[0])

#endif
