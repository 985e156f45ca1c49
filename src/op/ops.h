/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in operators: their names, operands and attributes. The contract between models, the
 * gradient rules and the kernels of every accelerator; src/op/<file>.c holds the rules.
 *
 * Notation: N = rows (product of leading dims), (..,C) = any leading dims. "act" = the activation
 * dtype (f32, bf16 or f16). [x] = optional operand. Numbers: i32 indices, f32 statistics.
 * Attribute structs hold int64_t and double only. Shape rules also accept f64 activations, with f64
 * statistics and parameter gradients: no model uses them, finite differences do.
 */
#ifndef DSI_OP_OPS_H
#define DSI_OP_OPS_H

#include <deepspeed/comm.h>
#include <deepspeed/op.h>

/* Every built-in operator, NULL-terminated; by name: ds_op_find(). */
const ds_op *const *dsi_op_all(void);

/* ---- linear.c ------------------------------------------------------------------------------ */
enum { DSI_ACT_NONE = 0, DSI_ACT_GELU_TANH = 1, DSI_ACT_SILU = 2, DSI_ACT_GELU_ERF = 3 };

typedef struct dsi_linear_attrs {
    int64_t transposed; /* 0: w is (out,in), y = x·wᵀ. 1: w is (in,out), y = x·w (GPT-2's Conv1D) */
    int64_t activation; /* DSI_ACT_*; faster kernels may know NONE and GELU_TANH only */
    int64_t save_pre;   /* 1: output 1 is the pre-activation, in y's dtype */
    int64_t out_dtype;  /* ds_dtype of y; 0: that of x */
} dsi_linear_attrs;
/* linear: x (..,K), w, [bias (O)], [residual (..,O) in y's dtype] → y (..,O), [pre (..,O)].
 * Sum in fp32, + bias, round to pre when saved and go on from the rounded value, activation,
 * + residual, one rounding to y. */
extern const ds_op dsi_op_linear;

typedef struct dsi_linear_dw_attrs {
    int64_t transposed; /* layout of dw, as above */
    int64_t with_bias;  /* 1: output 1 is the column sum of dy */
    int64_t out_dtype;  /* of dw and dbias; 0: f32 */
} dsi_linear_dw_attrs;
/* linear_dw: x (..,K), dy (..,O), [dw_in, dbias_in (out_dtype f32)] → dw (O,K) or (K,O), [dbias
 * (O)]: xᵀ·dy summed over rows in fp32; dw_in is added in fp32 when present. */
extern const ds_op dsi_op_linear_dw;

/* ---- linear_packed.c ---------------------------------------------------------------------- */
typedef struct dsi_linear_packed_attrs {
    int64_t format;        /* ds_packing */
    int64_t rows, columns; /* of w */
    int64_t transposed;    /* 0: y = x·wᵀ. 1: y = x·w, the gradient of x */
    int64_t out_dtype;     /* ds_dtype of y; 0: that of x */
} dsi_linear_packed_attrs;
/* linear_packed: x (..,K), w u8 (N) which is a packed matrix, [bias (O)] → y (..,O): linear with
 * the elements of w rounded once to x's dtype. w has no gradient. */
extern const ds_op dsi_op_linear_packed;

/* ---- weight_norms.c ----------------------------------------------------------------------- */
typedef struct dsi_weight_norms_attrs {
    double scale;
    int64_t transposed;            /* w is (K,O); not when packed */
    int64_t format, rows, columns; /* ds_packing of w, and its sizes; 0: it is not packed */
} dsi_weight_norms_attrs;
/* weight_norms: w (O,K) or (K,O) or u8 (N), a (R,K), b (O,R) → f32 (O): the squared length of each
 * row of w + scale·b·a, in fp32, its squares added in double. DoRA; no gradient goes through it. */
extern const ds_op dsi_op_weight_norms;

/* ---- bmm.c -------------------------------------------------------------------------------- */
typedef struct dsi_bmm_attrs {
    int64_t a_transposed, b_transposed; /* 1: a is (..,K,M); b is (..,N,K) */
    int64_t out_dtype;                  /* ds_dtype of y; 0: that of a */
} dsi_bmm_attrs;
/* bmm: a (..,M,K), b (..,K,N) → y (..,M,N): for each item of the leading dims the product, summed
 * in fp32, rounded once. */
extern const ds_op dsi_op_bmm;

/* ---- embedding.c --------------------------------------------------------------------------- */
/* embedding: table (V,C), ids i32 (..), [position table (P,C)], [positions i32 (..)] → (..,C) in
 * the table's dtype; the sum of both rows in fp32, rounded once. An id out of range is an error of
 * the kernel (ERR_ARG naming the id). */
extern const ds_op dsi_op_embedding;
typedef struct dsi_embedding_dw_attrs {
    int64_t n_rows; /* V */
} dsi_embedding_dw_attrs;
/* embedding_dw: ids i32 (..), dy (..,C), [dtable_in f32 (V,C)] → dtable f32 (V,C): dtable_in (or 0)
 * plus rows added in token order. */
extern const ds_op dsi_op_embedding_dw;
typedef struct dsi_embedding_blocks_attrs {
    int64_t dtype; /* ds_dtype of the rows */
} dsi_embedding_blocks_attrs;
/* embedding_blocks: table (V,C) in blocks, ids i32 (..) → (..,C) in dtype: the rows' values,
 * rounded once. An id out of range is an error as above. */
extern const ds_op dsi_op_embedding_blocks;

/* ---- vocab.c ------------------------------------------------------------------------------- */
typedef struct dsi_vocab_attrs {
    int64_t n_rows; /* of the whole table */
} dsi_vocab_attrs;
/* row_numbers: → i32 (n_rows): 0, 1, 2 … Cut with a table, a rank knows which rows it has.
 * n_parts above 1: in the order of a sequence that so many ranks share (sequence_order.h): part i
 * has what part i - turn, counted around, has in that order; halves: each part is two pieces.
 * start: what the first number is. */
typedef struct dsi_row_numbers_attrs {
    int64_t n_rows, n_parts, turn, halves, start;
} dsi_row_numbers_attrs;
extern const ds_op dsi_op_row_numbers;
/* embedding_part: table (V,C), ids i32 (..), rows i32 (V) → (..,C), rows: -0 where the part lacks
 * the id; the sum over all parts is the embedding, bit for bit. */
extern const ds_op dsi_op_embedding_part;
/* embedding_part_dw: ids i32 (..), dy (..,C), rows i32 (V), [dtable_in f32 (V,C)] → dtable f32
 * (V,C), the rows that a whole table would have there, bit for bit. */
extern const ds_op dsi_op_embedding_part_dw;

/* ---- route.c ------------------------------------------------------------------------------- */
enum { DSI_SCORE_SOFTMAX, DSI_SCORE_SIGMOID, DSI_SCORE_COUNT };
enum { DSI_GROUP_MAX, DSI_GROUP_TOP2, DSI_GROUP_COUNT };
typedef struct dsi_route_attrs {
    int64_t n_chosen;   /* K experts a token */
    int64_t score;      /* DSI_SCORE_* */
    int64_t normalise;  /* 1: the chosen scores are divided by their sum */
    double factor;      /* of the weights */
    int64_t n_groups;   /* 0 or 1: none; else experts are in equal groups side by side … */
    int64_t top_groups; /* … and chosen from so many of them only */
    int64_t group_by;   /* DSI_GROUP_*: a group's score is its largest, or the sum of its top two */
    int64_t noisy_from; /* with noisy: the first choice that goes by it */
} dsi_route_attrs;
/* route: logits (..,E), [bias f32 (E)], [noisy (..,E) of logits' dtype] → weights f32 (..,K),
 * experts i32 (..,K): the K largest of score + bias, the largest first, of equal ones the lowest
 * index first; their weight is the score without bias. noisy, without bias and groups: choices from
 * noisy_from on are the largest of it among the experts that are left. route_backward: dweights,
 * logits, experts → dlogits. Neither the bias nor noisy has a gradient. */
extern const ds_op dsi_op_route, dsi_op_route_backward;
/* Which pairs an expert takes where it cannot take all. */
enum {
    DSI_TAKE_TOKENS,  /* those of the first tokens */
    DSI_TAKE_CHOICES, /* tokens' first choices before their second ones, and so on */
    DSI_TAKE_SCORES,  /* the largest scores, of equal ones the first tokens */
    DSI_TAKE_COUNT
};
typedef struct dsi_group_attrs {
    int64_t n_experts;
    int64_t capacity; /* 0: none; else an expert takes so many pairs at most */
    int64_t take;     /* DSI_TAKE_*: which */
    int64_t parts; /* N: experts are (B,T,K), and each N-th of T is sorted by itself; above 1 in a
                      logical graph alone, to be cut there along sp; 0: 1 */
} dsi_group_attrs;
typedef struct dsi_parts_attrs {
    int64_t parts; /* as in dsi_group_attrs */
} dsi_parts_attrs;
/* group_rows: experts i32 (..,K), [scores f32 (..,K)] → place i32 (..,K), offsets i32 (E+1), or
 * (N·(E+1)) of N parts. Counting all pairs (token,
 * expert) in their order, a pair's place is its row once they are sorted by expert, in a stable
 * way: expert e has the rows from offsets[e] to offsets[e+1]. What is beyond the capacity comes
 * behind offsets[E], in the order of pairs. */
extern const ds_op dsi_op_group_rows;
/* group_sizes (dsi_parts_attrs): offsets i32 (E+1), or those of parts → f32 (E): rows of each
 * expert, of all parts. */
extern const ds_op dsi_op_group_sizes;
typedef struct dsi_kept_attrs {
    int64_t normalise; /* 1: divided by the sum of those that are kept */
} dsi_kept_attrs;
/* kept_weights: weights f32 (..,K), place i32 (..,K), offsets i32 (E+1) → f32 (..,K): 0 where the
 * pair's place is behind offsets[E]; the gradient is kept_weights_backward of dy, weights, place,
 * offsets. */
extern const ds_op dsi_op_kept_weights, dsi_op_kept_weights_backward;

/* ---- experts.c ----------------------------------------------------------------------------- */
/* R rows, a row a pair: R = T·K. place holds each row's number once; a number that is no row is an
 * error of the kernel (ERR_ARG naming it), likewise offsets that do not ascend within R.
 * Their attributes are dsi_parts_attrs: with parts, place is within a part of x (B,T,C), and rows
 * are those of one part behind the other. spread_rows: x (..,C), place i32 (..,K), [weights f32
 * (..,K)] → (R,C): row place[t,j] is x[t], times weights[t,j] in fp32. combine_rows: rows (R,C),
 * place, [weights] → (..,C): the sum of each token's rows, times their weights, in fp32 in the
 * order of j, rounded once. Each is the other's gradient. combine_rows_dw: dy (..,C), rows, place →
 * dweights f32 (..,K): dot products. */
extern const ds_op dsi_op_spread_rows, dsi_op_combine_rows, dsi_op_combine_rows_dw;
typedef struct dsi_grouped_attrs {
    int64_t transposed; /* 0: w is (E,O,K); 1: w is (E,K,O) */
    int64_t sources;    /* S: rows are sorted by S sources, then by expert; 0: 1 */
    int64_t parts;  /* ranks among which rows, experts and offsets are dealt in equal parts; above 1
                       in a logical graph alone, to be cut there along ep; 0: 1 */
    int64_t copies; /* of parts, those that have the same experts (ranks along sp): rows and offsets
                       are dealt among them, experts are not; 0: 1 */
    int64_t expected; /* rows of a part that hold something when all experts have as many, for
                         costs; 0: all */
} dsi_grouped_attrs;
/* grouped_linear: x (R,K), w (E,O,K) or (E,K,O), offsets i32 (S·E+1) → y (R,O): the rows from
 * offsets[s·E+e] on by w[e], each with the bits that linear gives that row; zeros behind the last.
 * grouped_linear_dw: x (R,K), dy (R,O), offsets, [dw_in f32] → dw f32 (E,O,K) or (E,K,O), zeros (or
 * dw_in) for an expert without rows; 4096 rows at a time are summed as linear_dw sums them, and
 * added in order. What sources give is added in the canonical order (LAW 4b): the bits of a mean
 * over so many ranks. With parts the offsets are parts·(S·E/parts+1), those of each part of x by
 * itself. */
extern const ds_op dsi_op_grouped_linear, dsi_op_grouped_linear_dw;

/* ---- expert_ranks.c ------------------------------------------------------------------------ */
typedef struct dsi_expert_ranks_attrs {
    int64_t n_ranks;  /* P, along ep × sp × tp, as far as they share the experts */
    int64_t n_rows;   /* of to_experts: the most that a rank gets; of from_experts: a rank's own */
    int64_t gradient; /* 1: the rows are gradients of the mean over those ranks */
    int64_t parts;    /* of gather_offsets: lists of offsets, to be cut along sp and tp; 0: 1 */
    int64_t copies;   /* D ranks along sp that do not share the experts: each has all of what is
                         said here for itself, one behind the other; 0: 1 */
    int64_t tokens;   /* of n_ranks, those along tp, which have the same tokens; 0: 1 */
} dsi_expert_ranks_attrs;
/* gather_offsets: offsets i32 (E+1), each rank's own → i32 (D·P,E+1), which all P have.
 * expert_segments: that table → i32 (D·P·(E+1)): for each rank the offsets of the rows that
 * to_experts brings it, by source, then by its own experts. A table that does not ascend, or has
 * more rows for a rank than n_rows, is an error that names the expert. to_experts: rows (R,C)
 * sorted by expert, each rank's own, table → (D·P·n_rows,C): each rank's rows of its E/P experts.
 * from_experts: the way back: → (n_rows,C). Each is the other's gradient. */
extern const ds_op dsi_op_gather_offsets, dsi_op_expert_segments, dsi_op_to_experts,
    dsi_op_from_experts;
/* x (B,T,..) → x, of which each rank along tp has its part along T, and back: whole on each of
 * them. Views, each the other's gradient. */
extern const ds_op dsi_op_split_tokens, dsi_op_join_tokens;

/* ---- norm.c -------------------------------------------------------------------------------- */
typedef struct dsi_norm_attrs {
    double eps;
    double shift; /* added to w, in the precision of the sums: rms_norm alone */
} dsi_norm_attrs;
/* layer_norm: x (..,C), [w (C)], [b (C)] → y, mean f32 (..), rstd f32 (..) */
extern const ds_op dsi_op_layer_norm;
/* layer_norm_backward: dy, x, [w], mean, rstd, [dres (..,C)] → dx (act; + dres in fp32 before
 * rounding), [dw f32 (C): with w], [db f32 (C): when attr has_bias] */
typedef struct dsi_norm_backward_attrs {
    int64_t has_bias;
} dsi_norm_backward_attrs;
extern const ds_op dsi_op_layer_norm_backward;
/* rms_norm: x (..,C), w (C) → y, rstd f32 (..). y = x·rstd·(w + shift), one rounding. */
extern const ds_op dsi_op_rms_norm;
/* rms_norm_backward: dy, x, w, rstd, [dres] → dx, dw f32 (C); attrs of rms_norm */
extern const ds_op dsi_op_rms_norm_backward;

/* ---- activation.c -------------------------------------------------------------------------- */
typedef struct dsi_act_attrs {
    int64_t kind; /* DSI_ACT_* */
} dsi_act_attrs;
/* activation: x → y. activation_backward: dy, x → dx */
extern const ds_op dsi_op_activation;
extern const ds_op dsi_op_activation_backward;
/* glu: gate (..,F), up (..,F) → act(gate)·up: SwiGLU with SILU, GeGLU with GELU_TANH/ERF.
 * glu_backward: dy, gate, up → dgate, dup */
extern const ds_op dsi_op_glu;
extern const ds_op dsi_op_glu_backward;

/* ---- rope.c -------------------------------------------------------------------------------- */
enum {
    DSI_ROPE_NONE = 0,
    DSI_ROPE_LINEAR = 1,
    DSI_ROPE_DYNAMIC = 2,
    DSI_ROPE_YARN = 3,
    DSI_ROPE_LLAMA3 = 4
};
typedef struct dsi_rope_table_attrs {
    int64_t head_dim; /* D; with yarn even. Of an odd one the table is D + 1 wide */
    double theta;     /* base */
    int64_t scaling;  /* DSI_ROPE_* */
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn, dynamic: max_position_embeddings */
    double beta_fast, beta_slow, attention_factor; /* yarn; attention_factor < 0: computed */
    double mscale, mscale_all_dim;                 /* yarn, 0: absent */
    int64_t truncate;                              /* yarn: floor and ceil the range (default 1) */
} dsi_rope_table_attrs;
/* rope_table: positions i32 (B,T) [, lengths i32 (B) or (B,T)] → f32 (B,T,D): cos of D/2
 * frequencies, then sin, both multiplied by the attention factor. Dynamic scaling is by the length
 * of the sequence: lengths[b], or of each token lengths[b][t]; without lengths, of each document of
 * the row, which goes as far as positions rise. */
extern const ds_op dsi_op_rope_table;
typedef struct dsi_rope_attrs {
    int64_t head_dim;
    int64_t inverse; /* 1: the transposed rotation, for gradients */
    int64_t pairs;   /* 1: x[2i] turns with x[2i+1]; 0: x[i] with x[i+R/2] */
} dsi_rope_attrs;
/* rope: x (B,T,H·D), table (B,T,R) → x with the first R ≤ D of each head rotated, the rest as it
 * is.
 */
extern const ds_op dsi_op_rope;

/* ---- attention.c --------------------------------------------------------------------------- */
typedef struct dsi_attention_attrs {
    int64_t n_heads, n_kv_heads, head_dim; /* n_heads a multiple of n_kv_heads */
    int64_t
        packed; /* 1: in[0] is (B,T,(H+2·KV)·D) holding q, k, v side by side; in[1], in[2] absent */
    int64_t causal;        /* 1 */
    int64_t window;        /* 0: none; W: key j visible from i when |i-j| < W */
    double scale;          /* of q·k */
    double dropout;        /* on probabilities; needs rng */
    int64_t site;          /* of the random numbers */
    int64_t all_heads;     /* with `heads`: how many there are in all, for those numbers; else 0 */
    double cap;            /* 0: none; scores become cap·tanh(score/cap) */
    double alibi;          /* 0: none; position biases whose slopes are 2^(-alibi) at least */
    int64_t all_keys;      /* with `keys`: how many there are in all; else 0 */
    int64_t alibi_rounded; /* 1: biases are Falcon's, of op/alibi.h */
} dsi_attention_attrs;
/* attention: q (B,Tq,H·D) | packed, k (B,Tk,KV·D), v (B,Tk,KV·D), [first i32 (B,Tq): lowest visible
 * key of each query: document mask], [offset i32 (B): query i stands at position offset[b]+i among
 * the keys: generation with a KV cell; absent: 0], [rng i64 (4)], [heads], [rows], [keys], [end i32
 * (B,Tq): each query's lowest key above those that it sees] → y (B,Tq,H·D), lse f32 (B,H,Tq).
 * Key j is visible from position p when j ≤ p (if causal), |p-j| < window, first ≤ j < end. Its
 * score is scale·q·k, capped, less slope·(p-j) or, with alibi_rounded, more scale·bias(j-first)
 * (op/alibi.h). Never Tq×Tk in memory. Dropout: element ((g·H + h)·Tq + i)·Tk + j of g = rng[2]+b.
 */
extern const ds_op dsi_op_attention;
/* Pairs of n queries and n keys that see one another: causal ones see backwards, within a window
 * (0: none) on either side those less than it apart. */
double dsi_attention_visible(bool causal, int64_t window, int64_t n);
/* attention_backward: dy, q | packed, k, v, y, lse, [first], [rng], [heads], [rows], [keys], [end],
 * [dlse f32 (B,H,Tq)] → dq | dpacked, dk, dv; same attrs. No offset: training only. */
extern const ds_op dsi_op_attention_backward;
/* document_end: first i32 (B,T), the first position of each one's document → end i32 (B,T), that
 * behind its last. Documents are runs of the same `first`. */
extern const ds_op dsi_op_document_end;
typedef struct dsi_filled_attrs {
    int64_t pad; /* the id of padding */
} dsi_filled_attrs;
/* filled_end: first, ids i32 (B,T) → end i32 (B,T): where the document of each position ends, or
 * before that its first id that is padding stands. */
extern const ds_op dsi_op_filled_end;
typedef struct dsi_shift_labels_attrs {
    int64_t start, pad;
} dsi_shift_labels_attrs;
/* shift_labels: labels, first i32 (B,T) → i32 (B,T): `start` where a document begins, else the
 * label before, or `pad` for -100. */
extern const ds_op dsi_op_shift_labels;

/* ---- attention_part.c ---------------------------------------------------------------------- */
typedef struct dsi_turn_attrs {
    int64_t part; /* positions of a part */
} dsi_turn_attrs;
/* turn_parts: x (B,T,C) → along T each part in the place of the next, the last in the first's. No
 * kernels: localize makes a `shift` of it where ranks have a part each. */
extern const ds_op dsi_op_turn_parts;

typedef struct dsi_attention_part_attrs {
    int64_t n_heads, n_kv_heads, head_dim, causal, window; /* as in attention */
    double scale;
    double dropout; /* on probabilities; needs rng */
    int64_t site;
    int64_t all_heads; /* with `heads`, as there */
    double cap, alibi;
    int64_t all_keys;      /* positions of the whole sequence */
    int64_t part;          /* positions of a part */
    int64_t last;          /* 1: nothing comes behind: y, or dq, is of q's type */
    int64_t alibi_rounded; /* as in attention */
    int64_t key_part; /* positions of a part of the keys, of which there are as many parts as of
                         the queries; 0: `part` */
} dsi_attention_part_attrs;
/* key_part, or part. */
static inline int64_t dsi_attention_key_part(const dsi_attention_part_attrs *a)
{
    return a->key_part > 0 ? a->key_part : a->part;
}
/* attention_part: q (B,T,H·D), k, v (B,T,KV·D), rows i32 (T), keys i32 (T): which of all positions
 * these are, ascending by one in a few runs, [first], [rng], [heads], [y, lse of parts before] → y,
 * lse. Each part of the queries sees of the keys in its place those that attention would let it
 * see. Runs of queries by runs of keys, in the order in which they stand, are merged into (y, lse):
 *     top = max(lse, lse'), w = exp(lse - top), w' = exp(lse' - top)
 *     y = (w·y + w'·y') / (w + w'), lse = top + log(w + w')
 * in fp32; what sees no key adds nothing. */
extern const ds_op dsi_op_attention_part;
/* attention_part_backward: dy, q, k, v, y, lse (of all keys), rows, keys, [first], [rng], [heads],
 * [dq, dk, dv f32] → dq, dk, dv: those of each pair of runs, of q's type, added in that order in
 * fp32.
 */
extern const ds_op dsi_op_attention_part_backward;
/* ---- attention_sinks.c --------------------------------------------------------------------- */
typedef struct dsi_sinks_attrs {
    int64_t n_heads;
} dsi_sinks_attrs;
/* attention_sinks: y (B,T,H·D) and lse f32 (B,H,T) of attention, sinks (H) → (B,T,H·D): what
 * attention gives with one more key for each head, whose score is its sink and whose value is zero:
 * y·sigmoid(lse - sink). attention_sinks_backward: dy, y, lse, sinks → dy of attention, dlse f32
 * (B,H,T), dsinks f32 (H), in the order of samples and positions. */
extern const ds_op dsi_op_attention_sinks, dsi_op_attention_sinks_backward;

/* ---- causal_conv.c ------------------------------------------------------------------------- */
/* causal_conv: x (B,T,C), w (C,1,K), [first i32 (B,T)] → y (B,T,C): in each channel
 *     y[t] = sum over j of w[j]·x[t-K+1+j]
 * over the positions from first[t] on (0 without it), in the order of j, in fp32, rounded once.
 * first, here and in delta_rule: t where a document begins, else that of the position before; what
 * is neither is an error of the kernel. */
extern const ds_op dsi_op_causal_conv;
/* causal_conv_backward: dy, x, w, [first] → dx (B,T,C), dw f32 (C,1,K), summed in the order of
 * samples and positions. */
extern const ds_op dsi_op_causal_conv_backward;
/* causal_conv_step: x (B,T,C), w (C,1,K), cell (B,K-1,C), offset i32 (B), last i32 (B) → y (B,T,C),
 * the cell's next version: the positions 0 to last of x go on behind what the cell holds, which is
 * zeros where offset is 0; then it holds the last K-1. y is zeros behind last. */
extern const ds_op dsi_op_causal_conv_step;

/* ---- delta_rule.c -------------------------------------------------------------------------- */
/* decay: a (..,H), a_log (H), dt_bias (H) → g f32 (..,H): -exp(a_log)·softplus(a + dt_bias).
 * decay_backward: dg, a, a_log, dt_bias → da, da_log f32 (H), ddt_bias f32 (H), summed in the order
 * of rows. */
extern const ds_op dsi_op_decay, dsi_op_decay_backward;
enum { DSI_DELTA_CHUNK = 64 }; /* positions from one state that is kept to the next */
typedef struct dsi_delta_attrs {
    int64_t n_heads, n_key_heads; /* H of values; HK of queries and keys, each for H/HK of values */
    int64_t key_dim;              /* D */
    double scale, eps;            /* of q·k; of the norm of q and k */
} dsi_delta_attrs;
/* delta_rule: q, k (B,T,HK·D), v (B,T,H·V), g f32 (B,T,H), beta (B,T,H), [first i32 (B,T)] → y
 * (B,T,H·V), states f32 (B,H,N,D,V). With q and k of a head divided by sqrt(sum of squares + eps),
 * and q times scale, a head's state S (D,V), zeros where a document begins, goes on by
 *     S = exp(g)·S;  u = beta·(v - Sᵀk);  S = S + k·uᵀ;  y = Sᵀq
 * all in fp32. states: what S is ahead of positions 0, DSI_DELTA_CHUNK, 2·DSI_DELTA_CHUNK …, for
 * the gradient. */
extern const ds_op dsi_op_delta_rule;
/* delta_rule_backward: dy, q, k, v, g, beta, states, [first] → dq, dk, dv, dg f32, dbeta. The
 * states of a chunk are computed again from the one that is kept. */
extern const ds_op dsi_op_delta_rule_backward;
/* delta_rule_step: q, k, v, g, beta, cell f32 (B,H,D,V), offset i32 (B), last i32 (B) → y, the
 * cell's next version: positions 0 to last go on from the state in the cell, which is zeros where
 * offset is 0. y is zeros behind last. A position's bits do not depend on how many are given at
 * once. */
extern const ds_op dsi_op_delta_rule_step;

/* ---- relative_bias.c ----------------------------------------------------------------------- */
typedef struct dsi_relative_attrs {
    int64_t n_buckets;    /* rows of the table */
    int64_t max_distance; /* from which on all are of one bucket */
    int64_t both;   /* 1: keys behind a query too, which have the second half of the buckets */
    int64_t n_keys; /* with `offset`: K; else 0: T */
} dsi_relative_attrs;
/* relative_bias: table (N,H), first i32 (B,T), [end i32 (B,T), with `both`], [offset i32 (B)] →
 * (B,H,T,K): table[bucket(j - i)][h] (op/relative_buckets.h) where query i sees key j, else a
 * number far below any score. relative_bias_backward: dy, first, [end] → dtable f32 (N,H), in the
 * order of samples, queries and keys. */
extern const ds_op dsi_op_relative_bias, dsi_op_relative_bias_backward;

/* ---- cross_entropy.c ----------------------------------------------------------------------- */
typedef struct dsi_ce_attrs {
    int64_t ignore_index; /* -100 */
    int64_t transposed;   /* layout of w as in linear; 0: (V,C) */
    int64_t counted;      /* 1: count is an input: what the losses of all ranks' rows are divided
                             by, so that the loss of a part of the rows is a term of a sum */
} dsi_ce_attrs;
/* targets i32 (..) → count f32 (): those that are not ignore_index; attrs dsi_ce_attrs. */
extern const ds_op dsi_op_count_targets;
typedef struct dsi_linear_ce_attrs {
    dsi_ce_attrs ce;
    int64_t keep; /* 1: the logits are an output */
} dsi_linear_ce_attrs;
/* linear_cross_entropy: x (..,C), w (V,C), targets i32 (..) → loss f32 () mean over counted rows (0
 * when none), lse f32 (..), count f32 () of rows with target ≠ ignore_index, [logits f32 (..,V)].
 * Logits stay fp32, a block of rows and columns at a time, whole only when they are kept. A target
 * out of range that is not ignore_index is an error of the kernel (ERR_ARG naming it); likewise in
 * the next ones. */
extern const ds_op dsi_op_linear_cross_entropy;
typedef struct dsi_ce_backward_attrs {
    dsi_ce_attrs ce;      /* of the forward operator */
    int64_t no_dx, no_dw; /* 1: that output is absent and not computed: frozen weights */
} dsi_ce_backward_attrs;
/* linear_cross_entropy_backward: dloss f32 (), x, w, targets, lse, count, [dw_in f32] → [dx act],
 * [dw f32 in w's layout (+ dw_in)]. The logit gradients are rounded to act dtype before the two
 * products. */
extern const ds_op dsi_op_linear_cross_entropy_backward;
/* The same, apart and bit for bit, of the logits that a forward operator kept; attrs dsi_ce_attrs.
 * linear_cross_entropy_dx: dloss f32 (), w, logits, targets, lse, count → dx act
 * linear_cross_entropy_dw: dloss f32 (), x, logits, targets, lse, count, [dw_in f32] → dw f32 */
extern const ds_op dsi_op_linear_cross_entropy_dx;
extern const ds_op dsi_op_linear_cross_entropy_dw;
typedef struct dsi_ce_part_attrs {
    dsi_ce_backward_attrs back; /* the forward operator has its `ce` alone */
    int64_t n_rows;             /* of the whole w */
} dsi_ce_part_attrs;
/* vocab.c: the same by parts of w. linear_cross_entropy_part: x, w, targets, rows i32 (V) → terms
 * f32 (..,2): each row's log-sum-exp and its target's logit or -0; rows. cross_entropy_join: the
 * terms of all parts (..,2) or (n,..,2), targets [, counted: count] → loss, lse, count; attrs
 * dsi_ce_attrs. */
extern const ds_op dsi_op_linear_cross_entropy_part;
extern const ds_op dsi_op_cross_entropy_join;
/* linear_cross_entropy_part_backward: dloss, x, w, targets, lse, count (of all), rows, [dw_in] →
 * [what the part adds to dx], [dw]. */
extern const ds_op dsi_op_linear_cross_entropy_part_backward;
/* cross_entropy: logits (..,V), targets i32 (..) → loss (), lse (..), count ().
 * cross_entropy_backward: dloss, logits, targets, lse, count → dlogits */
extern const ds_op dsi_op_cross_entropy;
extern const ds_op dsi_op_cross_entropy_backward;

/* ---- distillation.c ------------------------------------------------------------------------- */
typedef struct dsi_distillation_attrs {
    dsi_ce_attrs ce;
    double weight, temperature, mix; /* of ds_distillation */
} dsi_distillation_attrs;
/* distillation: logits (..,V), the teacher's f32 (..,V), targets i32 (..) [, counted: count] → loss
 * f32
 * (), lse f32 (..), count f32 (); and of the logits divided by the temperature lse f32 (..), the
 * teacher's f32 (..), and the mean of log q - log m by q f32 (..) (q - p where mix is 0).
 * distillation_backward: dloss f32 (), logits, the teacher's, targets, lse, count, the last three →
 * dlogits. The formulas: deepspeed/distillation.h. */
extern const ds_op dsi_op_distillation;
extern const ds_op dsi_op_distillation_backward;

/* ---- logprob.c ------------------------------------------------------------------------------ */
/* linear_logprob: x (..,C), w, targets i32 (..) → logp f32 (..): log softmax(x·wᵀ)[target], 0 where
 * the target is ignore_index; lse f32 (..). Attrs dsi_ce_attrs; logits as of linear_cross_entropy.
 * linear_logprob_backward: dlogp f32 (..), x, w, targets, lse, [dw_in f32] → [dx act], [dw f32 in
 * w's layout (+ dw_in)]; attrs dsi_ce_backward_attrs. */
extern const ds_op dsi_op_linear_logprob;
extern const ds_op dsi_op_linear_logprob_backward;

/* ---- preference.c --------------------------------------------------------------------------- */
typedef struct dsi_preference_attrs {
    int64_t loss; /* a ds_preference_loss, not NONE */
    double beta, label_smoothing, gamma, center;
    double desirable_weight, undesirable_weight;
} dsi_preference_attrs;
/* What the operator counts, in its output `sums`: the fields of ds_preference_sums. */
enum { DSI_PREFERENCE_SUMS = 11 };
/* preference: logp f32 (R,T), counted i32 (R,T) (-100: not in the answer), [targets i32 (R,T) of
 * ORPO's nll], [ref f32 (R)], [labels i32 (R)], [kl f32 ()] → loss f32 (), count f32 () of pairs or
 * rows with a counted target, logps f32 (R), sums f32 (DSI_PREFERENCE_SUMS). The formulas stand in
 * deepspeed/preference.h.
 * preference_backward: dloss f32 (), then the same → dlogp f32 (R,T) */
extern const ds_op dsi_op_preference;
extern const ds_op dsi_op_preference_backward;

/* ---- softmax.c ------------------------------------------------------------------------------ */
/* softmax: x (..,C) → y over the last dim. softmax_backward: dy, y → dx */
extern const ds_op dsi_op_softmax;
extern const ds_op dsi_op_softmax_backward;

/* ---- random.c ------------------------------------------------------------------------------- */
typedef struct dsi_dropout_attrs {
    double p;
    int64_t site;
    int64_t n_rows;    /* with rows: how many there are in all; else 0 */
    int64_t n_columns; /* likewise with columns */
} dsi_dropout_attrs;
/* rng i64 (4): {seed, step, first global sample of this micro-batch, 0}. Element e of a tensor
 * with B samples of S elements: counter element = (rng[2]·S + e), site, step; kept when
 * dsi_rng_unit(word) >= p, then scaled by 1/(1-p). dropout: x, rng, [rows i32 (T)], [columns i32
 * (C)] → y; its gradient is dropout of dy. rows: the numbers of the rows of dim 1, ascending; e
 * counts as in the tensor with all n_rows of them. columns: those of the last dim, likewise.
 */
extern const ds_op dsi_op_dropout;
enum {
    DSI_NOISE_FACTOR,  /* x·(1 + amount·(2u-1)) */
    DSI_NOISE_GUMBEL,  /* x - log(-log(u)) */
    DSI_NOISE_UNIFORM, /* u; x says its shape alone */
    DSI_NOISE_COUNT
};
typedef struct dsi_noise_attrs {
    int64_t kind;         /* DSI_NOISE_* */
    double amount;        /* of FACTOR; else 0 */
    int64_t site, n_rows; /* as in dsi_dropout_attrs */
} dsi_noise_attrs;
/* noise: x, rng, [rows] → y of x's dtype; u in (0,1) is ((word >> 9) + 0.5)/2^23 of the element's
 * word, which is dropout's of the same site. */
extern const ds_op dsi_op_noise;
typedef struct dsi_rng_ahead_attrs {
    int64_t samples; /* 0 or more */
} dsi_rng_ahead_attrs;
/* rng_ahead: rng → the same, of samples so many behind: rng[2] + samples. */
extern const ds_op dsi_op_rng_ahead;

/* ---- elementwise.c -------------------------------------------------------------------------- */
/* add, sub, mul, div: a, b → c in a's dtype, computed in fp32. b has a's shape, or is (C) = a's
 * last dim, or () scalar f32. */
extern const ds_op dsi_op_add, dsi_op_sub, dsi_op_mul, dsi_op_div;
typedef struct dsi_scale_attrs {
    double factor;
} dsi_scale_attrs;
/* scale: x → factor·x. neg, exp, log, sqrt, tanh, sigmoid, relu, square: x → y */
extern const ds_op dsi_op_scale, dsi_op_neg, dsi_op_exp, dsi_op_log, dsi_op_sqrt, dsi_op_tanh,
    dsi_op_sigmoid, dsi_op_relu, dsi_op_square;
/* relu_backward: dy, y → dx */
extern const ds_op dsi_op_relu_backward;

/* ---- reduce.c ------------------------------------------------------------------------------- */
/* sum_all, mean_all: x → f32 (). sum_last: (..,C) → f32 (..). sum_rows: (..,C) → f32 (C).
 * fill: like x, a scalar s f32 () → tensor of x's shape and dtype (gradient of the reductions);
 * expand_last: x f32 (..), like (..,C) → (..,C) in like's dtype; expand_rows: x f32 (C), like
 * (..,C) → (..,C) in like's dtype. */
extern const ds_op dsi_op_sum_all, dsi_op_mean_all, dsi_op_sum_last, dsi_op_sum_rows, dsi_op_fill,
    dsi_op_expand_last, dsi_op_expand_rows;

/* ---- maximum.c ------------------------------------------------------------------------------ */
/* max_last: x (..,C), C > 0 → (..) in x's dtype; -0 counts as 0. max_last_backward: dy (..), x, y
 * (..) → dx: dy / n at the n elements of the row that are y. */
extern const ds_op dsi_op_max_last, dsi_op_max_last_backward;

/* ---- select.c ------------------------------------------------------------------------------- */
enum {
    DSI_COMPARE_LT,
    DSI_COMPARE_LE,
    DSI_COMPARE_EQ,
    DSI_COMPARE_NE,
    DSI_COMPARE_GT,
    DSI_COMPARE_GE,
    DSI_COMPARE_COUNT
};
typedef struct dsi_compare_attrs {
    int64_t kind; /* DSI_COMPARE_* */
    double value; /* without b; rounded to fp32 beside floats */
} dsi_compare_attrs;
/* compare: a (floats, i32, bool), [b as a] → bool of a's shape. */
extern const ds_op dsi_op_compare;
typedef struct dsi_where_attrs {
    int64_t inverse; /* 1: a where the mask is 0 */
    double other;    /* without b, rounded to a's dtype */
} dsi_where_attrs;
/* where: mask (bool or i32), a (floats, i32, bool), [b as a] → a where mask ≠ 0, else b or other.
 */
extern const ds_op dsi_op_where;
typedef struct dsi_band_attrs {
    int64_t lower, upper; /* diagonals that stay, s - t */
    double other;
} dsi_band_attrs;
/* band: x (..,T,S) → x[..,t,s] where lower ≤ s - t ≤ upper, else other. */
extern const ds_op dsi_op_band;

/* ---- fake_quant.c -------------------------------------------------------------------------- */
/* control of fake_quant, one cell a group, written by the host before each forward pass: */
enum {
    DSI_QUANT_ON,   /* 0: w itself */
    DSI_QUANT_BITS, /* 1: sign times mean magnitude; 2: three values; from 3 on a grid */
    DSI_QUANT_MIX,  /* part of w that is mixed in: mix·w + (1-mix)·quantized */
    DSI_QUANT_SPARE,
    DSI_QUANT_COUNT,
    DSI_QUANT_MAX_BITS = 16
};
typedef struct dsi_fake_quant_attrs {
    int64_t groups;     /* parts of the flat (O,I) weight, each with its own scale */
    int64_t asymmetric; /* 1: the grid covers [min,max], else [-max|w|,max|w|]; from 3 bits on */
    int64_t transposed; /* 1: w is stored (I,O) */
    int64_t stochastic; /* 1: rounded up or down at random, from 3 bits on */
    int64_t site;       /* of the random numbers */
} dsi_fake_quant_attrs;
/* fake_quant: w (O,I), control, [draw i64 (2): seed, step] → w as its format holds it. Straight
 * gradient. The arithmetic: base/quantize.h. */
extern const ds_op dsi_op_fake_quant;
typedef struct dsi_fake_quant_rows_attrs {
    int64_t bits, asymmetric;
} dsi_fake_quant_rows_attrs;
/* fake_quant_rows: x (..,C), on f32 () → the same of activations, a scale a row. */
extern const ds_op dsi_op_fake_quant_rows;

/* ---- prune.c ------------------------------------------------------------------------------- */
enum { DSI_TOP_VALUE, DSI_TOP_MAGNITUDE, DSI_TOP_ROW };
typedef struct dsi_top_mask_attrs {
    double ratio;       /* ceil(ratio·n) of n are kept */
    int64_t by;         /* DSI_TOP_* */
    int64_t transposed; /* of DSI_TOP_ROW: x is (I,O) */
} dsi_top_mask_attrs;
/* top_mask: x → mask, f32 for DSI_TOP_VALUE with a straight gradient, else bool without. */
extern const ds_op dsi_op_top_mask;
enum { DSI_MASK_ELEMENTS, DSI_MASK_ROWS, DSI_MASK_HEADS };
typedef struct dsi_mask_attrs {
    int64_t along;      /* DSI_MASK_* */
    int64_t heads;      /* of DSI_MASK_HEADS: blocks of the I inputs */
    int64_t transposed; /* w is (I,O) */
} dsi_mask_attrs;
/* mask_weight: w (O,I), mask, on f32 () → w, 0 where the mask is. mask_scores: dy, w, on, mask →
 * the gradient of mask. */
extern const ds_op dsi_op_mask_weight, dsi_op_mask_scores;

/* ---- shape.c -------------------------------------------------------------------------------- */
typedef struct dsi_cast_attrs {
    int64_t dtype;
} dsi_cast_attrs;
extern const ds_op dsi_op_cast; /* x → x in dtype, round to nearest even */
typedef struct dsi_reshape_attrs {
    int64_t n_dims;
    int64_t dims[DS_MAX_DIMS];
} dsi_reshape_attrs;
extern const ds_op dsi_op_reshape;  /* view */
extern const ds_op dsi_op_gradient; /* view */
/* whole: x → x, whole on each rank that shares it, as its gradient is; a view */
extern const ds_op dsi_op_whole;
typedef struct dsi_permute_attrs {
    int64_t n_dims;
    int64_t order[DS_MAX_DIMS]; /* out dim i is in dim order[i] */
} dsi_permute_attrs;
extern const ds_op dsi_op_permute;
typedef struct dsi_slice_attrs {
    int64_t dim, start, length;
} dsi_slice_attrs;
extern const ds_op dsi_op_slice; /* x → x[.., start:start+length, ..] on dim */
typedef struct dsi_pad_attrs {
    int64_t dim, before, after;
} dsi_pad_attrs;
extern const ds_op dsi_op_pad; /* zeros around x on dim: gradient of slice */
typedef struct dsi_concat_attrs {
    int64_t dim;
} dsi_concat_attrs;
typedef struct dsi_split_attrs {
    int64_t dim, length; /* of each part but the last, which may be shorter */
} dsi_split_attrs;
extern const ds_op dsi_op_split;  /* x → 2..8 parts, side by side on dim */
extern const ds_op dsi_op_concat; /* 2..16 inputs → one, on dim */
/* take_rows: x (B,T,C), index i32 (B) → (B,C): row index[b] of sample b. No gradient. */
extern const ds_op dsi_op_take_rows;

/* ---- cell.c: nodes that write cells ---------------------------------------------------------- */
/* store: cell, x of the same shape → cell's next version = x cast to the cell's dtype */
extern const ds_op dsi_op_store;
/* accumulate: cell f32/bf16/f16, x → cell + x in fp32, rounded to the cell's dtype; the rounding of
 * x to the communication dtype happened before (cast) */
extern const ds_op dsi_op_accumulate;
/* kv_write: cell (B,Tmax,C), x (B,T,C), offset i32 (B) → rows offset[b].. of the cell = x */
extern const ds_op dsi_op_kv_write;

/* ---- paged.c: many sequences in blocks of shared cells -------------------------------------- */
/* paged_write: cell (N,P,C), x (1,T,C), slots i32 (T) → position slots[t] of all N·P = row t of x,
 * rounded to the cell's dtype: of i8 as paged_cell.h says, with C = KV·(D+4) there;
 * -1: nothing */
typedef struct dsi_paged_write_attrs {
    int64_t head_dim; /* of a cell of i8: values that share a scale; else 0 */
} dsi_paged_write_attrs;
extern const ds_op dsi_op_paged_write;
typedef struct dsi_paged_attrs {
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t window; /* keys that a query sees, itself included; 0: all before it */
    double scale;
    double cap, alibi; /* as those of attention */
    int64_t alibi_rounded;
    int64_t all_heads; /* with `heads`: how many there are in all; else 0 */
} dsi_paged_attrs;
/* paged_attention: q (1,T,H·D), k, v (N,P,KV·D) or as paged_write makes them of i8, tables i32
 * (S,M), sequence i32 (T), positions i32 (1,T), [heads i32 (H): which of all heads these are],
 * [bias f32 (1,H,1,E): what a score gets by distance, nearest last] → y (1,T,H·D), lse f32 (1,H,T)
 * as attention's: causal attention of each token over its own sequence. No gradient. */
extern const ds_op dsi_op_paged_attention;

/* ---- slot_adapter.c -------------------------------------------------------------------------- */
/* slot_adapter: y (1,T,N), x (1,T,C), a (S,C,R), b (S,R,N), slots i32 (T) → y + (x·a[s])·b[s], y
 * where a token's slot is -1. No gradient. */
extern const ds_op dsi_op_slot_adapter;

/* ---- gradnorm.c (phase norm) ----------------------------------------------------------------- */
/* abs_max: x → f32 (): largest magnitude; NaN when any element is NaN, Inf when any is infinite. */
extern const ds_op dsi_op_abs_max;
/* max_of: 1..16 f32 () → f32 (): NaN-propagating maximum. Chained for more. */
extern const ds_op dsi_op_max_of;
/* sum_squares: x, top f32 () (largest magnitude of all tensors) → f64 (2): the sum of x² as an
 * exact pair, by base/exact_sum.h. Let top < 2^E, coarse grid q1 = 2^(2E-17), fine grid q2 =
 * q1·2^-34. A square (exact in double) is rounded to nearest even on q2; S, the sum of the rounded
 * squares, is exact; the pair is (S - r, r) with r in [0,q1) and S - r a multiple of q1, which is
 * unique. So any split and any order give the same bits. (After Demmel and Nguyen, "Fast
 * reproducible floating-point summation", ARITH 2013.) Holds for up to 2^36 elements; rounding errs
 * by at most q2/2 = 2^(2E-52) an element. A kernel sums the parts on the two grids apart and moves
 * floor(low/q1)·q1 from the low to the high sum at least every 2^19 additions. Subnormal x count as
 * 0, since kernels run with FTZ and DAZ set. Both members are 0 when top is 0 or not finite:
 * whoever asks looks at top first. */
extern const ds_op dsi_op_sum_squares;
/* sum_parts: 1..16 f64 (2) → f64 (2): both members added, exact for up to 2^19 parts in all. The
 * number itself, high + low rounded once, is independent of how parts were split. */
extern const ds_op dsi_op_sum_parts;
typedef struct dsi_clip_attrs {
    double max_norm; /* 0: no clipping */
} dsi_clip_attrs;
/* clip_factor: parts f64 (2), top f32 (), inverse_scale f32 () → norm f32 () =
 * sqrt(sum)·inverse_scale, factor f32 () = inverse_scale·min(1, max_norm/(norm+1e-6)). When top is
 * not finite: norm = top, factor = 0. */
extern const ds_op dsi_op_clip_factor;

/* ---- optimizer.c (phase update) ---------------------------------------------------------------
 */
/* hyper f32 (8), one cell a parameter group, written by the host before each step: */
enum {
    DSI_HYPER_LR,
    DSI_HYPER_BETA1, /* momentum for SGD */
    DSI_HYPER_BETA2,
    DSI_HYPER_WEIGHT_DECAY,
    DSI_HYPER_BIAS1, /* 1-beta1^step, or 1 without bias correction */
    DSI_HYPER_BIAS2, /* sqrt(1-beta2^step), or 1 */
    DSI_HYPER_FIRST, /* 1 on the very first step (SGD's buffer) */
    DSI_HYPER_SPARE, /* schedule-free: how much of the step goes into the average */
    DSI_HYPER_COUNT,
    DSI_HYPER_BETA3 = DSI_HYPER_FIRST, /* AdEMAMix: of the slow moment … */
    DSI_HYPER_ALPHA = DSI_HYPER_SPARE  /* … and what it weighs */
};
typedef struct dsi_optim_attrs {
    double eps;
    int64_t adamw;               /* 1: decoupled decay; 0: L2 added to the gradient */
    double dampening;            /* SGD */
    int64_t nesterov;            /* SGD */
    double max_coeff, min_coeff; /* LAMB */
} dsi_optim_attrs;
/* Operands of each: param (act; written), grad (any float), hyper, factor f32 () (multiplies the
 * gradient: clip and inverse loss scale), [master f32 (written); absent when param is f32], states
 * f32 or bf16 (written) → the same written ones in the order param, [master], states. One stated
 * sequence of fp32 operations with explicit fma, identical on every instruction set;
 * docs/internals/optim.md. adam:    states exp_avg, exp_avg_sq      sgd: state momentum [absent
 * when momentum is 0] lion:    state exp_avg                   adagrad: state exp_avg_sq */
extern const ds_op dsi_op_adam, dsi_op_sgd, dsi_op_lion, dsi_op_adagrad;
/* Likewise, with a third state, exp_avg_slow, behind the two of adam. */
extern const ds_op dsi_op_ademamix;
/* lamb.c: LAMB in three steps, operands where the others have them.
 * lamb_moments: exp_avg (written), grad, hyper, factor, none, exp_avg_sq (written) → exp_avg, none,
 * exp_avg_sq. lamb_sums: exp_avg, exp_avg_sq, weight (the master, or the parameter), hyper → f64
 * (38): exact sums in bins (sum_squares without top) of the squares of the weight, then of the
 * update. lamb: param (written), sums, hyper, none, [master (written)], exp_avg, exp_avg_sq →
 * param, [master]. */
extern const ds_op dsi_op_lamb_moments, dsi_op_lamb_sums, dsi_op_lamb;
typedef struct dsi_unit_matrix_attrs {
    int64_t out_dtype;
} dsi_unit_matrix_attrs;
/* muon.c. unit_matrix: x (R,C) → x / (‖x‖ + 1e-7), f32 or bf16. muon: param (written), direction,
 * hyper, none, [master (written)] → param, [master]. */
extern const ds_op dsi_op_unit_matrix, dsi_op_muon;
/* schedule_free.c. schedule_free: average f32 (written), grad, hyper, factor, none, z f32
 * (written), exp_avg_sq (written) → average, none, z, exp_avg_sq. schedule_free_point: average f32,
 * z f32, hyper → f32: the point between them at which gradients are taken, or the average (average
 * 1). */
typedef struct dsi_point_attrs {
    int64_t average;
} dsi_point_attrs;
extern const ds_op dsi_op_schedule_free, dsi_op_schedule_free_point;
/* adam_8bit.c: AdamW as in adam, its states u8 with f32 (ceil(N/256)) absmax each: param (written),
 * grad, hyper, factor, [master (written)], exp_avg, exp_avg_sq, absmax, absmax_sq (all written) →
 * the same, param and [master] first. */
enum { DSI_8BIT_BLOCK = 256 };
extern const ds_op dsi_op_adam_8bit;
/* Likewise ademamix, with exp_avg_slow behind exp_avg_sq and absmax_slow behind absmax_sq. */
extern const ds_op dsi_op_ademamix_8bit;
/* The same in two, where ranks have slices: grad, hyper, factor, states, magnitudes → direction
 * f32, states, magnitudes, of a whole tensor; and of slices param (written), direction, hyper,
 * none, [master (written)] → param, [master]. */
typedef struct dsi_8bit_step_attrs {
    int64_t mixes; /* AdEMAMix's: the direction has its bias corrections */
} dsi_8bit_step_attrs;
extern const ds_op dsi_op_adam_8bit_direction, dsi_op_ademamix_8bit_direction;
extern const ds_op dsi_op_adam_8bit_step;
typedef struct dsi_adafactor_attrs {
    double eps;            /* added to squares of the gradient */
    double scale_eps;      /* the least that a weight scales the rate by */
    double clip_threshold; /* root mean square that a direction is clipped to */
    int64_t scales;        /* 1: the rate is scaled by the weight's root mean square */
    int64_t count;         /* elements of the whole tensor */
} dsi_adafactor_attrs;
/* adafactor.c. adafactor_rows: rows f32 (..,R), grad (..,R,C), hyper, factor f32 () → rows;
 * adafactor_columns: likewise (..,C); adafactor_direction: grad, factor, rows, [columns] → f32 like
 * grad; a grad (N) has rows (N) and no columns. adafactor: param (written), direction, hyper,
 * squares of the direction f64 (19), [master (written)], [exp_avg (written)], squares of the weight
 * f64 (19) → param, [master], [exp_avg]. */
extern const ds_op dsi_op_adafactor_rows, dsi_op_adafactor_columns, dsi_op_adafactor_direction,
    dsi_op_adafactor;

/* ---- columns.c (phases norm to update) --------------------------------------------------------
 */
/* Some columns of a weight x (rows,columns) apart from the rest. x may also be a rank's slice of
 * it: one-dimensional, elements rank·n and on of its n, those behind the end being padding. index:
 * i32 (K), ascending; -1: none. */
typedef struct dsi_columns_attrs {
    int64_t rows, columns; /* of the whole weight */
} dsi_columns_attrs;
/* column_sums: x, top f32 (), rank i32 () → f64 (columns): sums of magnitudes, each magnitude
 * rounded to nearest even on the grid 2^(E-30) where top < 2^E. All additions are exact, so that
 * the order, and the split over ranks, do not matter. Zeros when top is 0 or not finite. */
extern const ds_op dsi_op_column_sums;
/* choose_columns: index (written), sums f64 (columns) or (n,columns) → index of the K largest.
 * weigh_columns: weights f64 (2) (written), sums, index, more f32 () → {rest, chosen}. */
extern const ds_op dsi_op_choose_columns, dsi_op_weigh_columns;
/* take_columns: x, index, rank → (rows,K) in x's dtype. put_columns: x (written), taken f32
 * (rows,K), index, rank → x. */
extern const ds_op dsi_op_take_columns, dsi_op_put_columns;
/* postpone: cell f32 (written), x, more f32 (), factor f32 () → cell: fma(factor, x, cell), or
 * factor·x where more is 0: a sum of gradients, begun anew without being cleared. */
extern const ds_op dsi_op_postpone;

/* ---- signs.c ----------------------------------------------------------------------------------
 */
/* Numbers as signs, eight a byte, the first in the highest bit, a set bit for x >= 0, and one scale
 * for all. The pieces of a compressed all-reduce: docs/internals/optim.md. */
typedef struct dsi_signs_attrs {
    int64_t count; /* of expand_signs: elements that are no padding; else 0 */
} dsi_signs_attrs;
/* compress_signs: x (P), error f32 (N), written → signs u8 (N/8), scale f32 (1), error. With
 * y = x + error (x 0 behind its end): scale = sqrt(mean of y²) by an exact sum, rounded once;
 * error = y - (±scale). */
extern const ds_op dsi_op_compress_signs;
/* average_signs: signs u8 (n·C/8), scales f32 (n) → f32 (C): the mean of the blocks' ±scale, in
 * fp64 in the order of blocks, rounded once. expand_signs: signs, scales → f32 (count): ±scale. */
extern const ds_op dsi_op_average_signs, dsi_op_expand_signs;

/* ---- quantize_blocks.c ------------------------------------------------------------------------
 */
/* Numbers as whole numbers of 4 or 8 bits, one scale for each block of them: what quantized
 * collectives send (docs/internals/quantized.md). A row is what goes to one rank, or comes from
 * one. */
enum { DSI_BLOCKS_MOST = 4096 };
typedef struct dsi_blocks_attrs {
    int64_t bits;          /* 4 or 8 */
    int64_t block;         /* elements that share a scale, even; the last of a row may be shorter */
    int64_t n_rows, width; /* rows, elements of one with padding */
    int64_t count;         /* of dequantize_blocks: elements that are no padding; else 0 */
    int64_t dtype;         /* of what the other two make; else 0 */
    double factor;         /* of dequantize_sum; else 0 */
    double beta;           /* of quantize_with_error: how much of an error stays; else 0 */
} dsi_blocks_attrs;
/* Blocks of a row, bytes of a row: scales f32, then numbers (4 bits: the first of two in the low
 * half), then padding to a multiple of 4. */
int64_t dsi_blocks_count(const dsi_blocks_attrs *attrs);
int64_t dsi_blocks_row_bytes(const dsi_blocks_attrs *attrs);
/* quantize_blocks: x (at most n_rows·width elements, 0 behind its end) → u8 (n_rows, bytes). Of a
 * block, in fp32: s = 2^bits / (2·largest magnitude), the numbers are x·s to the nearest whole
 * number, ties to even, from -2^(bits-1) to 2^(bits-1)-1, and 1/s is what is sent. All are 0 where
 * the largest is below 2^-110, with the scale 1; a scale of NaN where a number is not finite.
 * quantize_with_error: x, error u8 (n_rows, bytes of 8 bits; written), [unit f32 ()] → u8 as
 * quantize_blocks makes it of y = x + e, and the error, e being error's numbers times unit:
 * beta·e + (1-beta)·(y - what the blocks say), by unit, in 8 bits; 0 where a y is not finite.
 * dequantize_blocks: → dtype (count): number times scale. dequantize_sum: → dtype (width): the sum
 * over rows in fp32 by the aligned tree, times factor, rounded once. */
extern const ds_op dsi_op_quantize_blocks, dsi_op_quantize_with_error, dsi_op_dequantize_blocks,
    dsi_op_dequantize_sum;

/* ---- ranks.c ----------------------------------------------------------------------------------
 */
/* Between what each rank has and what all have, along the axes where a value is the ranks' own.
 * Logical operators: localize makes collectives of them, or nothing; they have no kernels. */
typedef struct dsi_ranks_attrs {
    int64_t n_ranks; /* of mean_by_signs and rows */
} dsi_ranks_attrs;
/* own_term: x, a sum over ranks that is not made yet → this rank's term of it, as its own.
 * largest_of_ranks: x f32 () ≥ 0, own → the largest of the ranks'. sum_of_ranks: x as sum_squares
 * makes it, own → the exact sum of the ranks'.
 * mean_by_signs: x, own; worker_error f32 (N), own, written; server_error f32 (N/n_ranks), own,
 * written → f32 like x: nearly the mean of the ranks', by an exchange of signs and scales
 * (docs/internals/onebit.md).
 * rows_of_ranks: x (R,C), own → (n_ranks·R,C): all ranks' rows. sum_rows_of_ranks, its gradient:
 * x (n_ranks·R,C), own → (R,C), own: the sum of all ranks' x, of the rank's rows. */
extern const ds_op dsi_op_own_term, dsi_op_largest_of_ranks, dsi_op_sum_of_ranks,
    dsi_op_mean_by_signs, dsi_op_rows_of_ranks, dsi_op_sum_rows_of_ranks;

/* ---- onebit.c ---------------------------------------------------------------------------------
 */
/* first_moment: exp_avg, grad, hyper, [factor], [scaling f32 ()] → f32: what exp_avg becomes by
 * adam, times scaling. frozen_adam: as adam with adamw and without bias correction, but the first
 * moment is given and the second one stays: param (written), moment f32, hyper, none, [master
 * (written)], exp_avg (written), exp_avg_sq → param, [master], exp_avg. */
extern const ds_op dsi_op_first_moment, dsi_op_frozen_adam;

/* ---- zero_one.c -------------------------------------------------------------------------------
 */
/* times: x (float), factor f32 () → f32.
 * local_adam: param (written), grad, hyper, factor, [master (written)], exp_avg (written),
 * exp_avg_sq, local f32 (written), lrs f32 () (written) → param, [master], exp_avg, local, lrs:
 * frozen_adam by this rank's gradient; local is the sum of such updates, lrs of their rates.
 * local_take: local, exp_avg_sq → f32: local·(sqrt(exp_avg_sq) + eps).
 * local_put: param (written), mean f32, none, none, [master (written)], exp_avg (written),
 * exp_avg_sq, local, lrs, weight f32 (all written) → param, [master], exp_avg, local, lrs, weight:
 * what the mean of the ranks' updates makes of weight, which is the parameter of the last exchange,
 * and of exp_avg; 0 of the others. */
extern const ds_op dsi_op_times, dsi_op_local_adam, dsi_op_local_take, dsi_op_local_put;

/* ---- onebit_lamb.c ----------------------------------------------------------------------------
 */
typedef struct dsi_onebit_lamb_attrs {
    double eps, max_coeff, min_coeff;                /* as dsi_optim_attrs */
    double coeff_beta;                               /* of average_ratio */
    double factor_max, factor_min, factor_threshold; /* of frozen_lamb_factor */
    int64_t count;                                   /* of root_mean: elements */
} dsi_onebit_lamb_attrs;
/* average_ratio: ratio f32 () (written), sums of lamb_sums → the running average of trust ratios.
 * root_mean: f64 (19) of sum_squares → f32 (): the root of the mean of count squares.
 * freeze_lamb: scaling, factor f32 () (both written), united, own f32 () → united/own (1 where own
 * is 0), 1.
 * frozen_lamb_moments: exp_avg (written), moment f32, scaling, fresh f32 (written), hyper → exp_avg
 * = moment/scaling, fresh = the second moment that goes on, of the gradient that would make that.
 * frozen_lamb_factor: factor (written), ratio, exp_avg, exp_avg_sq, fresh, weight, hyper → factor,
 * f32 (): ratio·factor, the trust ratio of the step.
 * frozen_lamb: param (written), trust ratio f32 (), hyper, none, [master (written)], exp_avg,
 * exp_avg_sq → param, [master]. */
extern const ds_op dsi_op_average_ratio, dsi_op_root_mean, dsi_op_freeze_lamb,
    dsi_op_frozen_lamb_moments, dsi_op_frozen_lamb_factor, dsi_op_frozen_lamb;

/* ---- swap_op.c --------------------------------------------------------------------------------
 */
/* swap_in: cell → its content. swap_out: cell, x → the cell's next version. For cells that live in
 * host memory or on disk, which nothing else may touch. */
extern const ds_op dsi_op_swap_in, dsi_op_swap_out;

/* ---- collective.c -------------------------------------------------------------------------- */
/* n_ranks, along axes: the mesh's, as a number (place/mesh.h), 0: all; stride: ranks of the world
 * from one of them to the next; bucket: nodes of one op with equal bucket >= 0 are carried by one
 * collective, -1: alone; factor: of the sums; n_dims and dims: of the output of all_gather,
 * dispatch_rows and return_rows. */
typedef struct dsi_comm_attrs {
    int64_t n_ranks, axes, stride, bucket;
    double factor;
    int64_t n_dims, dims[DS_MAX_DIMS];
} dsi_comm_attrs;
extern const ds_op dsi_op_take_slice, dsi_op_take_term, dsi_op_reduce_scatter, dsi_op_all_reduce,
    dsi_op_all_gather, dsi_op_all_to_all, dsi_op_shift, dsi_op_dispatch_rows, dsi_op_return_rows,
    dsi_op_gather_store;
/* What the communicator is asked for by an operator of class COMM; DS_COMM_OP_COUNT: nothing, as
 * by any other. */
ds_comm_op dsi_op_collective(const ds_op *op);

#endif
