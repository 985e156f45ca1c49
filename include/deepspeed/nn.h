/* SPDX-License-Identifier: Apache-2.0 */
/* Writing models: single-device code that is traced into a graph.
 *
 * A function that builds part of a model takes values and returns a value; nothing is computed. An
 * error is sticky: the first is recorded, every later call returns DS_NONE, and ds_nn_status()
 * reports at the end. So model code reads like the formula, without error handling on each line.
 *
 * Shapes: B batch, T positions, C model width, H query heads, KV key-value heads, D head width.
 * Parameters are cells named by the scope path: ds_nn_push(nn, "h.0"); ds_nn_linear(nn, "c_attn",
 * …) makes "h.0.c_attn.weight". One thread at a time.
 */
#ifndef DEEPSPEED_NN_H
#define DEEPSPEED_NN_H

#include <deepspeed/graph.h>
#include <deepspeed/op.h>
#include <deepspeed/preference.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_nn ds_nn;
struct ds_distillation; /* distillation.h */

/* What a trace is for. */
typedef enum ds_trace_mode {
    DS_TRACE_TRAIN,   /* loss, dropout active */
    DS_TRACE_EVAL,    /* loss, no dropout */
    DS_TRACE_GENERATE /* logits of one position a sequence, reading and writing KV cells; of an
                         encoder those of all positions, or what its task gives */
} ds_trace_mode;

/* What the head of a model gives. All but the first are of encoders. */
typedef enum ds_task {
    DS_TASK_TOKENS,           /* which token stands there: the next one, or one that is masked */
    DS_TASK_HIDDEN,           /* none: what the last layer gives; GENERATE alone, and of a decoder
                                 with `paged` alone */
    DS_TASK_SEQUENCE_CLASSES, /* a class of each document, learned and read at its first token */
    DS_TASK_TOKEN_CLASSES,    /* a class of each token */
    DS_TASK_CONTRAST          /* TRAIN, EVAL: an embedding of each row, learned from pairs that
                                 belong together (ds_contrast); of decoders too */
} ds_task;

/* What SEQUENCE_CLASSES learns of its n_classes logits: transformers' problem_type. */
typedef enum ds_problem {
    DS_PROBLEM_CLASSES, /* "single_label_classification": one class, softmax; `labels` i32 (B,T) */
    DS_PROBLEM_REGRESSION,  /* "regression": numbers, the mean of squared differences; n_classes may
                               be 1. `labels` f32 (B,T,n_classes), `counted` f32 (B,T): 1 at each
                               document's first token, else 0 */
    DS_PROBLEM_MULTI_LABEL, /* "multi_label_classification": each class holds or not, 1 or 0 or a
                               chance between; logistic loss. Inputs as of REGRESSION */
    DS_PROBLEMS
} ds_problem;

/* A module Dense behind a text's vector x: f(W·x + b), and with `adds` x besides, or R·x where the
 * widths differ. Parameters are "sentence_dense.I.linear.weight" (out,in), ".linear.bias" (out) and
 * ".residual.weight" (out,in) of the I-th; they begin drawn, whatever the model's folder holds
 * (ds_engine_set), and are no part of a model folder. Source: sentence-transformers' Dense. */
typedef enum ds_dense_function {
    DS_DENSE_TANH,
    DS_DENSE_IDENTITY,
    DS_DENSE_RELU,
    DS_DENSE_SIGMOID,
    DS_DENSE_SILU,
    DS_DENSE_GELU, /* with erf */
    DS_DENSE_FUNCTIONS
} ds_dense_function;

typedef struct ds_dense {
    int64_t n_in, n_out; /* the first n_in is the model's hidden size, others the n_out before */
    uint32_t function;   /* a ds_dense_function */
    bool bias, adds;     /* default false */
    DS_RESERVED(2);
} ds_dense;

/* A loss of embeddings: of a batch of B anchors, each with what belongs to it, all else in the
 * batch does not. Rows are B anchors, B positives, then B of each further negative; embedding e of
 * a row is the sum of its tokens' outputs weighed by the input `pool` f32 (rows,T), behind `dense`
 * what that makes of it; the loss is the
 * mean over anchors i of the cross entropy of scale·cos(e_i, e_j) over all rows j that are no
 * anchors, the class being i's positive: `labels` i32 (B), i, or -100 where anchor i is none. A row
 * whose weights are all 0 is none. Source: sentence-transformers' MultipleNegativesRankingLoss; van
 * den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018 (scale =
 * 1/temperature).
 */
typedef struct ds_contrast {
    double scale;                   /* above 0; sentence-transformers: 20 */
    uint32_t n_negatives;           /* further negatives of each anchor; default 0 */
    uint32_t n_dense;               /* modules; default 0, at most 4 */
    uint64_t gather_across_devices; /* 1: rows j are those of all data-parallel ranks, and gradients
                                       go back to the ranks that they are of; the loss is the mean
                                       of the ranks'. Default 0: those of the own micro-batch */
    uint64_t mini_batch;   /* rows that are computed at a time, forward and, once more, backward:
                              memory is that of so many rows, the loss that of all of a micro-batch
                              (sentence-transformers' CachedMultipleNegativesRankingLoss). Default 0:
                              all at once */
    const ds_dense *dense; /* [n_dense], borrowed as long as the engine lives */
    DS_RESERVED(1);
} ds_contrast;

/* What a task has besides. */
typedef struct ds_task_params {
    uint32_t token_types; /* default 0: all tokens are of the first type; 1: an input
                             token_type_ids, i32 (B,T), of models with a table of them */
    uint32_t problem;     /* a ds_problem; default CLASSES */
    ds_contrast contrast; /* of CONTRAST */
    DS_RESERVED(4);
} ds_task_params;

/* Keys and values of many sequences in blocks of shared cells: the trace's batch is 1, its tokens
 * are those of any sequences in a row. The attention of each takes keys and values from the blocks
 * that the inputs say: tables i32 (sequences,table), the blocks of each; sequence i32 (T), each
 * token's, -1: none; slots i32 (T), the position of all blocks' that takes the token's key, -1:
 * none. `last` is i32 (rows): the tokens whose logits are wanted. Of a model of sources and what
 * is made of them (ds_model_info.pairs) source_tables i32 (sequences,table) has the blocks of each
 * one's source, source_last i32 (1,T) its last position; with the task HIDDEN the trace reads one
 * source, whose keys go to `slots`. */
typedef struct ds_paged {
    int64_t blocks;    /* of each cell */
    int64_t block;     /* positions of a block */
    int64_t sequences; /* most of a batch */
    int64_t table;     /* most blocks of a sequence */
    int64_t rows;      /* of logits */
    ds_dtype kv_type;  /* of the cells: f32, bf16, f16, or i8 with a scale in fp32 a position and
                          head (D + 4 bytes); default NONE: the trace's dtype */
    int64_t states;    /* rows of what layers carry; those behind `sequences` no token names: they
                          are for copies. Default 0: sequences */
    DS_RESERVED(2);
} ds_paged;

/* How ranks that share sequences share attention. */
typedef enum ds_sequence_form {
    DS_SEQUENCE_HEADS,      /* by heads; where those do not suffice, by queries of gathered keys */
    DS_SEQUENCE_RING,       /* each has the queries of a run of positions; keys and values travel */
    DS_SEQUENCE_RING_HALVES /* likewise, of two runs that together see as much everywhere */
} ds_sequence_form;

/* Which of the dtypes of blocks each matrix (out,in) has; NONE, or one whose blocks its rows are
 * not whole ones of: the trace's dtype. Called while a model is traced, on that thread. */
typedef struct ds_weight_types {
    ds_dtype (*of)(const void *user, const char *path, ds_shape shape);
    const void *user; /* borrowed */
} ds_weight_types;

/* What routers of experts do in place of what the model's configuration says (DeepSpeed's AutoEP:
 * deepspeed/moe/ep_router.py). Of experts of families (models/), not of ds_nn_moe. */
typedef struct ds_routing {
    int64_t n_chosen;   /* experts a token goes to; default 0: as the model says, and so below */
    int64_t n_groups;   /* equal groups of experts side by side … */
    int64_t top_groups; /* … of which a token's experts are; both or neither. A group is as good as
                           its best two experts, or as the model says where that has groups */
    double factor;      /* of a token's weights, above 0 */
    double scale;       /* likewise, where the family has no factor of its own */
    int normalise;      /* a token's weights sum to 1: 1; do not: -1 */
    int sigmoid;        /* scores are sigmoids of logits: 1; their softmax: -1 */
    int weighs_first;   /* weights are factors of what experts read: 1; of what they make: -1 */
    DS_RESERVED(4);
} ds_routing;

typedef struct ds_trace {
    ds_trace_mode mode;
    ds_dtype dtype;     /* of parameters and activations */
    int64_t batch;      /* B */
    int64_t seq_length; /* T of this trace */
    int64_t kv_length;  /* GENERATE: positions that the KV cells hold */
    int64_t mlp_rows;   /* TRAIN, EVAL: positions of a tile of ds_nn_tiled; default 0: not tiled */
    uint64_t seed;      /* not used by the trace itself */
    int64_t head_ranks; /* ranks that share the heads of attention: fewer heads of keys and values
                           are repeated until each rank has one; default 0: none are */
    const ds_preference *preference; /* TRAIN, EVAL: ds_nn_linear_cross_entropy makes this loss of
                                        the rows, and there is no dropout; borrowed for the life of
                                        the tracer; default NULL: cross entropy */
    int64_t sequence_ranks; /* ranks that share each sequence: the loss is divided by the targets
                               that all of them have together; default 0: none */
    int64_t expert_ranks; /* ranks that share the experts of each layer: rows of tokens are sent to
                             the rank that has their expert, and back; default 0: each has all.
                             They hold sequence_ranks and token_ranks as factors */
    ds_packing packing;   /* the weights of ds_nn_linear are packed (packing.h), for products alone:
                             they get no gradient; default NONE */
    ds_dtype weights;     /* GENERATE: of linear layers' matrices (out,in) and of an output
                             projection that is no embedding, where rows are whole blocks: q8_0,
                             q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k. Where rows are whole blocks
                             of 32 but not of 256: q5_0 for q4_k, q5_1 for q5_k, q8_0 for q6_k. An
                             embedding that the head reads too: q8_0. Default NONE: as dtype */
    const ds_paged *paged;        /* GENERATE: many sequences in a row; borrowed for the life of the
                                     tracer; default NULL: a cell a sequence, kv_length long */
    const ds_weight_types *types; /* GENERATE: in place of `weights`, matrix by matrix; borrowed for
                                     the life of the tracer; default NULL */
    int64_t sequence_form;        /* TRAIN, EVAL: a ds_sequence_form; with sequence_ranks */
    uint32_t task;                /* a ds_task; default TOKENS */
    uint32_t n_classes;  /* of the tasks with classes, 2 or more; of regression 1 or more */
    int64_t token_ranks; /* of expert_ranks, those that have the same tokens: each sends its share
                            of them; default 0: none */
    const struct ds_distillation *distillation; /* TRAIN: the loss is made with the logits of a
                                                   teacher, whose parameters are "teacher." with
                                                   their name, and frozen; borrowed for the life of
                                                   the tracer; default NULL */
    int64_t sequence_chunk; /* TRAIN, EVAL: positions of the chunks that sequences are computed in,
                               so that dropout knows its rows, and q, k and v are three tensors;
                               default 0: in one piece */
    const ds_task_params *task_params; /* borrowed for the life of the tracer; default NULL: all of
                                          them are their defaults */
    int64_t whole_heads; /* GENERATE: 1: latent attention keeps keys and values of whole heads, as
                            it has them in training, and its kv_b_proj is a ds_nn_linear (for ranks
                            that share heads, adapters); default 0: what they are made of, once */
    const ds_routing *routing; /* borrowed for the life of the tracer; default NULL: as the model's
                                  configuration says */
    int64_t data_ranks; /* TRAIN, EVAL: ranks that have samples of their own; default 0: one */
    DS_RESERVED(1);
} ds_trace;

/* A tracer over a graph, borrowed for its life. trace is copied. */
DS_API ds_status ds_nn_create(ds_graph *graph, const ds_trace *trace, ds_nn **nn_out);
DS_API void ds_nn_destroy(ds_nn **nn);
/* DS_OK, or the first error. */
DS_API ds_status ds_nn_status(const ds_nn *nn);
/* Records an error found by model code, e.g. a width that is not a multiple of the heads. */
DS_API void ds_nn_fail(ds_nn *nn, ds_status status, const char *format, ...) DS_PRINTF(3, 4);
DS_API const ds_trace *ds_nn_trace(const ds_nn *nn);
DS_API ds_graph *ds_nn_graph(const ds_nn *nn);

/* Enters and leaves a scope; `format` as printf, e.g. "layers.%d". */
DS_API void ds_nn_push(ds_nn *nn, const char *format, ...) DS_PRINTF(2, 3);
DS_API void ds_nn_pop(ds_nn *nn);

/* Marks what is applied in between as one region of activation checkpointing: with recomputation
 * on, its inputs and outputs are kept for the backward pass, what lies inside is computed again
 * there, to the same bits. Regions do not nest (ERR_STATE). Our model families mark each layer.
 * Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; DeepSpeed's
 * checkpointing.checkpoint(). */
DS_API void ds_nn_region_begin(ds_nn *nn);
DS_API void ds_nn_region_end(ds_nn *nn);

/* Computes y = fn(x) tile by tile along T: x (B,T,C) is cut into tiles of at most `rows` positions,
 * fn runs on each (B,t,C) and gives (B,t,C'), and the results stand side by side in y (B,T,C').
 * What fn holds inside is so as large as a tile. rows 0, or not below T: fn(x).
 *
 * fn may treat each position only by itself; it is called once a tile in the same scope, so that
 * its parameters are shared. The numbers are those of fn(x), but that parameters' gradients add
 * over tiles, in fp32 in the order of the positions. (Products of at most 4 rows in all, B·t, are
 * left to another kernel, which adds in another order.) Dropout inside of fn would draw other
 * numbers: ERR_UNSUPPORTED. Source: the tiled MLP of Bekman et al., "Arctic Long Sequence
 * Training", 2025. */
typedef ds_value (*ds_nn_fn)(ds_nn *nn, ds_value x, const void *user);
DS_API ds_value ds_nn_tiled(ds_nn *nn, ds_value x, int64_t rows, ds_nn_fn fn, const void *user);

/* The parameter scope.name in the trace's dtype; made at first use, shared afterwards (tied
 * weights). Errors: ERR_SHAPE when it exists with another shape. */
DS_API ds_value ds_nn_param(ds_nn *nn, const char *name, ds_shape shape, ds_init init,
                            bool no_decay);
/* The same by its whole path, whatever the scope. */
DS_API ds_value ds_nn_param_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init,
                               bool no_decay);
/* A named input that the host writes before each run, e.g. i32 (B,T). Its cell is named
 * "train/NAME", "eval/NAME" or "generate.T/NAME" (T: trace length): the modes do not share inputs,
 * so evaluation may run between forward and backward. */
DS_API ds_value ds_nn_input(ds_nn *nn, const char *name, ds_dtype dtype, ds_shape shape);
/* Declares an output. The model's loss, a f32 scalar, is named "loss"; the number of counted
 * targets behind it "count". */
DS_API void ds_nn_output(ds_nn *nn, const char *name, ds_value value);

DS_API ds_meta ds_nn_meta(const ds_nn *nn, ds_value value);
/* Any operator, also a custom one; returns its output 0. attrs NULL when it has none. */
DS_API ds_value ds_nn_apply(ds_nn *nn, const ds_op *op, const void *attrs, const ds_value *in,
                            uint32_t n_in);

/* ---- layers ------------------------------------------------------------------------------- */

typedef struct ds_linear_params {
    int64_t n_out;
    bool bias;          /* default false: adds scope.name.bias (n_out), zeros */
    bool transposed;    /* default false: weight is (out,in); true: (in,out), GPT-2's Conv1D */
    double init_std;    /* default 0: 0.02 */
    ds_dtype out_dtype; /* default 0: that of x */
    DS_RESERVED(8);
} ds_linear_params;
/* x (..,K) → (..,n_out) by scope.name.weight. */
DS_API ds_value ds_nn_linear(ds_nn *nn, const char *name, ds_value x,
                             const ds_linear_params *params);
/* The same as a grid of tiles with weights of their own: the inputs are cut into in_splits, the
 * outputs into out_splits parts (1 to 64 each; as even as possible, the first ones larger by one).
 * A tile is a parameter by itself, scope.name.linears.O.I.weight (O out, I in; the bias of outputs
 * O is linears.O.LAST.bias): ZeRO stage 3 gathers and offload fetches one tile at a time, where the
 * whole weight would not fit. Names and shapes are those of DeepSpeed's TiledLinear.
 *
 * Cutting outputs changes no bit of y and of weight gradients; cutting inputs adds the tiles' fp32
 * sums in the order of the inputs, bias last, with one rounding to y. The gradient of x adds over
 * out_splits in the order of the outputs, each sum rounded to x's dtype. (Products of few rows, or
 * tiles of few columns, may be left to another kernel, which adds in another order.) Errors:
 * ERR_ARG when a number of splits is out of range or above the width that it cuts. */
DS_API ds_value ds_nn_tiled_linear(ds_nn *nn, const char *name, ds_value x,
                                   const ds_linear_params *params, int64_t in_splits,
                                   int64_t out_splits);
/* x · weightᵀ with a given weight value (out,in): output projections with tied embeddings. */
DS_API ds_value ds_nn_matmul(ds_nn *nn, ds_value x, ds_value weight, bool transposed,
                             ds_dtype out_dtype);
/* ids i32 (..) → rows of scope.name.weight (n_rows,width). */
DS_API ds_value ds_nn_embedding(ds_nn *nn, const char *name, ds_value ids, int64_t n_rows,
                                int64_t width, double init_std);
/* The table of an embedding (rows,width). That of a head, too: in the trace's type of weights. */
DS_API ds_value ds_nn_table_at(ds_nn *nn, const char *path, ds_shape shape, ds_init init,
                               bool of_head);
/* Token plus position embedding, one rounding: tables as given values. Rows of a table in blocks
 * are rounded to the trace's dtype before the positions are added. */
DS_API ds_value ds_nn_embedding_sum(ds_nn *nn, ds_value table, ds_value ids, ds_value pos_table,
                                    ds_value positions);
/* name NULL: without weight, and bias must be false. */
DS_API ds_value ds_nn_layer_norm(ds_nn *nn, const char *name, ds_value x, double eps, bool bias);
DS_API ds_value ds_nn_rms_norm(ds_nn *nn, const char *name, ds_value x, double eps);
/* x·rstd·(weight + shift): weights start at 1 - shift, 0 or 1 (ERR_ARG). Gemma's is 1. */
DS_API ds_value ds_nn_rms_norm_shifted(ds_nn *nn, const char *name, ds_value x, double eps,
                                       double shift);

typedef enum ds_activation {
    DS_ACT_NONE = 0,
    DS_ACT_GELU_TANH = 1,
    DS_ACT_SILU = 2,
    DS_ACT_GELU_ERF = 3,
    DS_ACT_RELU = 4
} ds_activation;
DS_API ds_value ds_nn_activation(ds_nn *nn, ds_value x, ds_activation kind);
/* act(gate)·up: SwiGLU with SILU, GeGLU with GELU. */
DS_API ds_value ds_nn_glu(ds_nn *nn, ds_value gate, ds_value up, ds_activation kind);
DS_API ds_value ds_nn_softmax(ds_nn *nn, ds_value x);

typedef enum ds_rope_scaling {
    DS_ROPE_NONE = 0,
    DS_ROPE_LINEAR = 1,
    DS_ROPE_DYNAMIC = 2,
    DS_ROPE_YARN = 3,
    DS_ROPE_LLAMA3 = 4
} ds_rope_scaling;
/* Hugging Face's rope_scaling, resolved: names as there. */
typedef struct ds_rope_params {
    int64_t head_dim; /* or how much of it is rotated, from its beginning on */
    double theta;     /* base */
    ds_rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn, dynamic */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; negative: computed */
    double mscale, mscale_all_dim;            /* yarn; 0: absent */
    bool truncate;                            /* yarn */
    DS_RESERVED(8);
} ds_rope_params;
/* positions i32 (B,T) → cosines and sines f32 (B,T,D), once for all layers. Dynamic scaling is by
 * lengths i32 (B) of the sequences, or (B,T) of the tokens; DS_NONE: by the length of each document
 * in a row, positions rising as far as it goes. */
DS_API ds_value ds_nn_rope_table(ds_nn *nn, ds_value positions, ds_value lengths,
                                 const ds_rope_params *params);
/* x (B,T,H·D) rotated by the table (B,T,R): of each head x[i] with x[i+R/2]; what is behind R stays
 * as it is. */
DS_API ds_value ds_nn_rope(ds_nn *nn, ds_value x, ds_value table, int64_t head_dim);
/* The same with neighbours for pairs, x[2i] with x[2i+1]. */
DS_API ds_value ds_nn_rope_pairs(ds_nn *nn, ds_value x, ds_value table, int64_t head_dim);

typedef struct ds_attention_params {
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t window; /* default 0: none; W: a query sees keys less than W positions off */
    double scale;   /* default 0: 1/sqrt(D) */
    double dropout; /* default 0; only in TRAIN */
    bool all_keys;  /* default false: causal. true: every query sees every key, and keys may be of
                       another sequence and number (cross-attention) */
    double cap;     /* default 0: none; a score s becomes cap·tanh(s/cap) */
    double alibi;   /* default 0: none; linear position biases, of causal attention alone: a score
                       is less by slope·distance, slopes of heads from 2^(-alibi/p) down to
                       2^-alibi, p the largest power of two up to n_heads */
    bool alibi_rounded; /* default false. true: as Falcon's, q·k is more by the key's place in its
                           document times the slope, both and their product rounded to bf16 */
    const char *sinks; /* default NULL: none; name of a parameter (H) of the scope: a score for each
                          head that is in the sum under its softmax, and adds no value */
    double sinks_std;  /* of their start; default 0: 0.02 */
    DS_RESERVED(3);
} ds_attention_params;
/* Attention, causal unless all_keys. q (B,T,H·D) with k, v (B,T,KV·D); or k = v = DS_NONE and q
 * packed (B,T,(H+2·KV)·D). One value as both k and v is kept once in GENERATE. first i32 (B,T):
 * lowest visible position of each query (document mask), or DS_NONE. In GENERATE, k and v of causal
 * attention are written to the KV cells of the scope and read from there; with all_keys they are
 * given whole each time. */
DS_API ds_value ds_nn_attention(ds_nn *nn, ds_value q, ds_value k, ds_value v, ds_value first,
                                const ds_attention_params *params);

/* The same with a mask from both sides, for all_keys: a query sees keys first ≤ j < end, both i32
 * (B,T). */
DS_API ds_value ds_nn_attention_within(ds_nn *nn, ds_value q, ds_value k, ds_value v,
                                       ds_value first, ds_value end,
                                       const ds_attention_params *params);
/* first i32 (B,T), as a loader gives it: the position at which each one's document begins → end i32
 * (B,T), that behind its last. Padding is a document of its own. */
DS_API ds_value ds_nn_document_end(ds_nn *nn, ds_value first);

/* The same with the ids i32 (B,T): ends before the first that is padding. */
DS_API ds_value ds_nn_filled_end(ds_nn *nn, ds_value first, ds_value ids, int64_t pad);
/* labels i32 (B,T) → what a decoder that learns them reads, i32 (B,T): at a document's beginning
 * `start`, behind it the label before, `pad` for -100. */
DS_API ds_value ds_nn_shift_labels(ds_nn *nn, ds_value labels, ds_value first, int64_t start,
                                   int64_t pad);

typedef struct ds_relative_params {
    int64_t n_heads;
    int64_t n_buckets;    /* rows of the table; with `end` half of them for keys behind a query */
    int64_t max_distance; /* from which on all distances have one row */
    double init_std;      /* default 0: 0.02 */
    DS_RESERVED(4);
} ds_relative_params;
/* What attention's scores get by the distance of key and query, (B,H,T,K): rows of
 * scope.name.weight (n_buckets,H), for single distances and, behind half of them, for ranges that
 * grow; a number far below any score for keys that a query does not see. It sees keys first ≤ j <
 * end, all i32 (B,T); end DS_NONE: those up to itself. offset i32 (B): queries stand there in what
 * ds_nn_kv_write keeps, K is kv_length; DS_NONE: K is T. Source: Raffel et al. 2020. */
DS_API ds_value ds_nn_relative_bias(ds_nn *nn, const char *name, ds_value first, ds_value end,
                                    ds_value offset, const ds_relative_params *params);
/* GENERATE: x (B,T,C) into the scope's KV cell `name` from position offset i32 (B) on → all that it
 * holds, (B,kv_length,C); and what other traces have put into it. */
DS_API ds_value ds_nn_kv_write(ds_nn *nn, const char *name, ds_value x, ds_value offset);
DS_API ds_value ds_nn_kv_read(ds_nn *nn, const char *name, int64_t width);

/* GENERATE of many sequences in a row (ds_trace.paged), in parts: for layers whose scores have a
 * bias of a table, and for those that see a source, whose keys and values lie in blocks of the same
 * cells. Errors, as of all ds_nn_ functions, in ds_nn_status: ERR_STATE in another trace. */
/* x (1,T,KV·D) into the scope's cell `name` where the input `slots` i32 (T) says, -1: nowhere → the
 * cell's next version (blocks,block,C), which all that reads it in this trace must be given.
 * Errors: ERR_ARG where x is not whole heads. */
DS_API ds_value ds_nn_paged_write(ds_nn *nn, const char *name, ds_value x, int64_t head_dim);
/* q (1,T,H·D) over what ds_nn_paged_write gave: of a token's sequence the keys up to its position,
 * by the inputs `tables` and `positions`. of_source: of its source those up to the input
 * source_last i32 (1,T), by source_tables i32 (sequences,table). bias: of ds_nn_distance_bias, or
 * DS_NONE. Of params n_heads, n_kv_heads, head_dim and scale alone; ERR_UNSUPPORTED with others. */
DS_API ds_value ds_nn_paged_attention(ds_nn *nn, ds_value q, ds_value keys, ds_value values,
                                      ds_value bias, bool of_source,
                                      const ds_attention_params *params);
/* What ds_nn_relative_bias's table gives by the distance of a key before its query, f32 (1,H,1,E):
 * the last element at 0, the one before it at 1, the first at E - 1 and beyond. */
DS_API ds_value ds_nn_distance_bias(ds_nn *nn, const char *name, const ds_relative_params *params);

/* What the router's choice is disturbed by in training. */
typedef enum ds_moe_noise {
    DS_MOE_NO_NOISE,
    DS_MOE_JITTER, /* "Jitter": the router reads x times uniform numbers of [0.99, 1.01] */
    DS_MOE_GUMBEL  /* "RSample": chosen is by the logits plus Gumbel's noise; weights are without */
} ds_moe_noise;
/* DeepSpeed's layer of experts (deepspeed.moe.layer.MoE): its gates, capacity, and residual form.
 */
typedef struct ds_moe_params {
    int64_t n_experts, n_chosen; /* E, of which a token goes to K: "k" */
    int64_t width;               /* F, of an expert */
    ds_activation activation;    /* default NONE is refused: say which */
    bool gated;    /* default false: down(act(up(x))); true: down(act(gate(x))·up(x)) */
    bool residual; /* PR-MoE: a dense layer like an expert beside them; the two are added by weights
                      softmax(x·coefficientᵀ) */
    double capacity_factor, eval_capacity_factor; /* an expert takes ceil(tokens·K·factor/E) pairs
                                                     of token and expert of a rank's micro-batch at
                                                     most; default 0: all, "drop_tokens" false */
    int64_t min_capacity;                         /* default 0: 4, as there */
    bool drop_by_score; /* which it takes: default false, those of the first tokens ("position";
                           with K = 2 all first choices before second ones); true: the largest
                           probabilities ("probs") */
    double init_std;    /* default 0: 0.02 */
    ds_moe_noise noise; /* "noisy_gate_policy"; DS_MOE_GUMBEL with K = 1 alone */
    bool sample_second; /* "top2_2nd_expert_sampling", of K = 2: the second expert is chosen by the
                           logits plus Gumbel's noise. There the default is true */
    bool random_tokens; /* "use_rts", of K = 1 with a capacity: an expert takes tokens at random in
                           place of the first ones. There the default is true */
    DS_RESERVED(7);
} ds_moe_params;
/* x (..,C) → (..,C). Parameters below scope.name.deepspeed_moe: gate.wg.weight (E,C), and
 * experts.deepspeed_experts.*.up_proj.weight (E,F,C), down_proj (E,C,F), gate_proj where gated; the
 * residual form has scope.name.mlp and scope.name.coefficient (2,C). Weights of a token's experts
 * are their probabilities, with K above 1 divided by the sum of those that took it; a token that
 * none takes gets 0. *balance_out, when not NULL: f32 (), the loss that balances experts ("l_aux"):
 * E Σ_e me_e ce_e, me the mean probability and ce the share of tokens, of first choices where K is
 * at most 2, else of all divided by K. What is drawn (noise, sample_second, random_tokens) is drawn
 * in TRAIN alone, by seed, step, global sample and element: the same for any number of ranks.
 * Errors: ERR_ARG; ERR_UNSUPPORTED (a capacity with sequence_ranks). */
DS_API ds_value ds_nn_moe(ds_nn *nn, const char *name, ds_value x, const ds_moe_params *params,
                          ds_value *balance_out);

/* Mean cross entropy of x·weightᵀ against targets i32 (..), -100 ignored; declares "loss" and
 * "count". The logits are never whole in memory. In a trace with a preference that loss of the rows
 * in its place (deepspeed/preference.h), declared with "logps" f32 (rows) and "preference_sums"; of
 * REWARD weight is the head of scores (1,C), and a row's target stands at its last token. */
DS_API ds_value ds_nn_linear_cross_entropy(ds_nn *nn, ds_value x, ds_value weight,
                                           ds_value targets);
/* The same from logits (..,V) that exist. */
DS_API ds_value ds_nn_cross_entropy(ds_nn *nn, ds_value logits, ds_value targets);
/* Identity unless in TRAIN with p > 0. */
DS_API ds_value ds_nn_dropout(ds_nn *nn, ds_value x, double p);

/* ---- arithmetic: b has a's shape, or (last dim of a), or is a f32 scalar ----------------------
 */
DS_API ds_value ds_nn_add(ds_nn *nn, ds_value a, ds_value b);
DS_API ds_value ds_nn_sub(ds_nn *nn, ds_value a, ds_value b);
DS_API ds_value ds_nn_mul(ds_nn *nn, ds_value a, ds_value b);
DS_API ds_value ds_nn_div(ds_nn *nn, ds_value a, ds_value b);
DS_API ds_value ds_nn_scale(ds_nn *nn, ds_value x, double factor);
DS_API ds_value ds_nn_cast(ds_nn *nn, ds_value x, ds_dtype dtype);
DS_API ds_value ds_nn_reshape(ds_nn *nn, ds_value x, ds_shape shape);
DS_API ds_value ds_nn_mean_all(ds_nn *nn, ds_value x); /* f32 scalar */
DS_API ds_value ds_nn_sum_all(ds_nn *nn, ds_value x);  /* f32 scalar */
/* Functions of each element, computed in f32 and rounded once to x's dtype. */
DS_API ds_value ds_nn_neg(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_exp(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_log(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_sqrt(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_square(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_tanh(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_sigmoid(ds_nn *nn, ds_value x);
DS_API ds_value ds_nn_relu(ds_nn *nn, ds_value x);

/* ---- parts and reductions: a dim below 0 counts from the last, -1 -------------------------- */
/* x[.., start : start + length, ..] of dim. */
DS_API ds_value ds_nn_slice(ds_nn *nn, ds_value x, int64_t dim, int64_t start, int64_t length);
/* x in n equal parts, 2 to 8, side by side on dim, into parts_out; all DS_NONE after an error, such
 * as ERR_SHAPE where n does not divide the dim. */
DS_API void ds_nn_split(ds_nn *nn, ds_value x, int64_t dim, uint32_t n, ds_value *parts_out);
/* 1 to 16 values side by side on dim, alike on the others. */
DS_API ds_value ds_nn_concat(ds_nn *nn, const ds_value *parts, uint32_t n, int64_t dim);
/* Two dims exchanged. */
DS_API ds_value ds_nn_transpose(ds_nn *nn, ds_value x, int64_t dim_a, int64_t dim_b);
/* Over one dim, which the result lacks. f32 whatever x is. ds_nn_mean: ERR_SHAPE where the dim is
 * empty. */
DS_API ds_value ds_nn_sum(ds_nn *nn, ds_value x, int64_t dim);
DS_API ds_value ds_nn_mean(ds_nn *nn, ds_value x, int64_t dim);
/* Over one dim, which the result lacks, in x's dtype; NaN where one is NaN. The gradient goes in
 * equal parts to all elements that are the largest (smallest), as torch.amax's. ERR_SHAPE where the
 * dim is empty. */
DS_API ds_value ds_nn_max(ds_nn *nn, ds_value x, int64_t dim);
DS_API ds_value ds_nn_min(ds_nn *nn, ds_value x, int64_t dim);
/* a (..,M,K) times b (..,K,N) → (..,M,N), a product for each item of the leading dims, which are
 * alike; sums in f32, rounded once to a's dtype. b_transposed: b is (..,N,K), as the keys in
 * attention scores. ERR_SHAPE names both shapes. */
DS_API ds_value ds_nn_bmm(ds_nn *nn, ds_value a, ds_value b, bool b_transposed);

/* ---- masks: bool, true where something holds. Inputs of the host may be i32, 0 for false -------
 */
typedef enum ds_comparison {
    DS_LESS,
    DS_LESS_EQUAL,
    DS_EQUAL,
    DS_NOT_EQUAL,
    DS_GREATER,
    DS_GREATER_EQUAL
} ds_comparison;
/* a against b of the same dtype (a float, i32 or bool) and shape, or against a number, which must
 * be one of a's dtype when that is no float; → bool of a's shape. With NaN only DS_NOT_EQUAL holds.
 * No gradient. */
DS_API ds_value ds_nn_compare(ds_nn *nn, ds_value a, ds_comparison kind, ds_value b);
DS_API ds_value ds_nn_compare_to(ds_nn *nn, ds_value a, ds_comparison kind, double number);
/* a where the mask is true, else b; a and b alike. The mask's dims are a's, or 1, from the last on:
 * (B,1,1,S) masks the keys of scores (B,H,T,S). On masks themselves: and is where(m, n, m), or is
 * where(m, m, n). */
DS_API ds_value ds_nn_where(ds_nn *nn, ds_value mask, ds_value a, ds_value b);
/* x where the mask is false, else the number, rounded to x's dtype. */
DS_API ds_value ds_nn_masked_fill(ds_nn *nn, ds_value x, ds_value mask, double number);
/* x (..,T,S) at and below (ds_nn_tril), or at and above (ds_nn_triu), the diagonal s - t =
 * diagonal; the number elsewhere. Causal scores: ds_nn_tril(nn, scores, 0, -INFINITY). */
DS_API ds_value ds_nn_tril(ds_nn *nn, ds_value x, int64_t diagonal, double number);
DS_API ds_value ds_nn_triu(ds_nn *nn, ds_value x, int64_t diagonal, double number);

/* x (B,T,C), index i32 (B) → (B,C). No gradient. */
DS_API ds_value ds_nn_take_rows(ds_nn *nn, ds_value x, ds_value index);

#ifdef __cplusplus
}
#endif
#endif
