/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the oracles, forward and backward, in plain loops.
 *
 * Called by ref/gpt2.c and ref/llama.c only. Everything is fp32, row-major, and computed exactly in
 * the order that docs/internals/reference_numerics.md states: sums run from 0 over the first to the
 * last index, products are rounded before they are added. Never optimised. Outputs are overwritten,
 * not accumulated; a dx may be its dy.
 *
 * Shapes: N rows (tokens of all samples), B samples of T tokens, C channels, K inner, O output.
 */
#ifndef REF_OPS_H
#define REF_OPS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- linear: y = x·wᵀ + bias ------------------------------------------------------------------
 */
typedef struct ref_weight {
    const float *w;    /* (O,K), or (K,O) when transposed */
    const float *bias; /* (O) or NULL */
    int64_t n_in, n_out;
    bool transposed;
} ref_weight;
void ref_linear(float *y, const float *x, const ref_weight *w, int64_t n);
/* dx = dy·w */
void ref_linear_dx(float *dx, const float *dy, const ref_weight *w, int64_t n);
/* dw like w; dbias (O) or NULL. Sums over rows in order. */
void ref_linear_dw(float *dw, float *dbias, const float *dy, const float *x, const ref_weight *w,
                   int64_t n);

/* ---- elementwise ------------------------------------------------------------------------------
 */
/* out = a + b; out may be a or b. */
void ref_add(float *out, const float *a, const float *b, int64_t count);

typedef enum ref_act { REF_GELU_TANH, REF_SILU, REF_GELU_ERF } ref_act;
void ref_activation(float *y, const float *x, ref_act act, int64_t count);
/* dx = dy·act'(x) */
void ref_activation_backward(float *dx, const float *dy, const float *x, ref_act act,
                             int64_t count);
/* y = act(gate)·up */
void ref_glu(float *y, const float *gate, const float *up, ref_act act, int64_t count);
void ref_glu_backward(float *dgate, float *dup, const float *dy, const float *gate, const float *up,
                      ref_act act, int64_t count);

/* ---- embedding --------------------------------------------------------------------------------
 */
/* y[n] = table[ids[n]] (+ place_table[places[n]] when not NULL) */
void ref_embedding(float *y, const float *table, const int32_t *ids, const float *place_table,
                   const int32_t *places, int64_t n, int64_t c);
/* dtable (V,C): the rows of dy added in token order */
void ref_embedding_dw(float *dtable, int64_t v, const int32_t *ids, const float *dy, int64_t n,
                      int64_t c);

/* ---- norms: statistics are saved for the backward pass ------------------------------------------
 */
void ref_layer_norm(float *y, float *mean, float *rstd, const float *x, const float *w,
                    const float *b, float eps, int64_t n, int64_t c);
void ref_layer_norm_backward(float *dx, float *dw, float *db, const float *dy, const float *x,
                             const float *w, const float *mean, const float *rstd, int64_t n,
                             int64_t c);
void ref_rms_norm(float *y, float *rstd, const float *x, const float *w, float eps, int64_t n,
                  int64_t c);
void ref_rms_norm_backward(float *dx, float *dw, const float *dy, const float *x, const float *w,
                           const float *rstd, int64_t n, int64_t c);

/* ---- rotary positions -------------------------------------------------------------------------
 */
typedef enum ref_rope_kind {
    REF_ROPE_DEFAULT,
    REF_ROPE_LINEAR,
    REF_ROPE_DYNAMIC,
    REF_ROPE_YARN,
    REF_ROPE_LLAMA3
} ref_rope_kind;
/* Names as in Hugging Face's rope_parameters. */
typedef struct ref_rope {
    ref_rope_kind kind;
    int64_t head_dim;
    double theta, factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    int64_t original_max_positions;           /* llama3, yarn; dynamic: the model's longest */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; negative: computed from the others */
    double mscale, mscale_all_dim;            /* yarn; 0: absent */
    bool truncate;                            /* yarn: whole channels bound the ramp */
} ref_rope;
/* cosines and sines (N, D/2); dynamic scaling is by the length of each document */
void ref_rope_table(float *cosines, float *sines, const int32_t *positions, const ref_rope *rope,
                    int64_t n);
/* y (N,H,D): each head's (x[i], x[i+D/2]) turned by the row's angles; y may be x. inverse: turned
 * back, which is the gradient. */
void ref_rotate(float *y, const float *x, const float *cosines, const float *sines, int64_t n,
                int64_t h, int64_t d, bool inverse);

/* ---- attention --------------------------------------------------------------------------------
 */
typedef struct ref_attention_shape {
    int64_t b, t, h, kv, d;      /* h a multiple of kv: that many query heads share a key head */
    int64_t q_stride, kv_stride; /* floats from one token to the next in q, and in k and v */
    int64_t window;              /* key j is visible from i when i - j < window; 0: no window */
    float scale;
    const int32_t *first; /* (B,T): lowest visible key of each query, NULL: 0 */
} ref_attention_shape;
/* q, k, v → y (B,T,H·D), lse (B,H,T). Causal. */
void ref_attention(float *y, float *lse, const float *q, const float *k, const float *v,
                   const ref_attention_shape *s);
/* dq with q's stride; dk, dv with k's. */
void ref_attention_backward(float *dq, float *dk, float *dv, const float *dy, const float *q,
                            const float *k, const float *v, const float *y, const float *lse,
                            const ref_attention_shape *s);

/* ---- cross entropy ----------------------------------------------------------------------------
 */
enum { REF_IGNORE = -100 };
/* Mean over the rows whose target is not REF_IGNORE; 0 when there are none. lse (N). */
float ref_cross_entropy(float *lse, const float *logits, const int32_t *targets, int64_t n,
                        int64_t v);
void ref_cross_entropy_backward(float *dlogits, const float *logits, const int32_t *targets,
                                const float *lse, int64_t n, int64_t v);

#endif
