/* SPDX-License-Identifier: Apache-2.0 */
/* One query against a block of keys, for attention in steps of generation and over paged keys.
 *
 * Keys are turned so that lanes are keys and a score is one chain over d; maximum, powers and sum
 * go key by key in order; lanes of the output are d, one chain over keys. So a query's result
 * depends on the query and its keys alone. Called by simd_attention_decode.c and simd_paged.c.
 */
#ifndef DSI_ACCEL_CPU_SIMD_ATTN_KEYS_H
#define DSI_ACCEL_CPU_SIMD_ATTN_KEYS_H

#include "accel/cpu/simd/gemm_turn.h"
#include "accel/cpu/simd/simd_attention.h"

enum {
    AHEAD = 12, /* keys between a prefetch and its use */
    TILES = ATTN_KEYS / VF_WIDTH,
    Y_VECTORS = 8
};

/* Rows of a block of keys or values: elements from `at` on, `stride` apart. */
typedef struct stretch {
    const void *base;
    int64_t at, stride, n, d;
} stretch;

DSI_INLINE void fetch(const stretch *x, ds_dtype type, int64_t j)
{
    const int64_t each = type == DS_DTYPE_F32 ? 4 : 2;
    const char *row = (const char *)x->base + (x->at + j * x->stride) * each;
    for (int64_t line = 0; line < x->d * each; line += 64) {
        _mm_prefetch(row + line, _MM_HINT_T0);
    }
}

/* turned[c][key] of VF_WIDTH keys from j on. */
DSI_INLINE void turn_lines(const stretch *k, int64_t j, float *turned, ds_dtype type)
{
    const int64_t each = type == DS_DTYPE_F32 ? 4 : 2;
    const int64_t stride = k->stride * each;
    const char *row = (const char *)k->base + k->at * each + j * stride;
    for (int64_t c = 0; c < k->d; c += turn_elements(type)) {
        vi words[VF_WIDTH];
        turn_words(row + c * each, stride, words);
#pragma GCC unroll 32
        for (int64_t e = 0; e < turn_elements(type); ++e) {
            vf_store(turned + (c + e) * ATTN_KEYS + j, turn_element(words, type, e));
        }
    }
}

/* The same for any d, and for keys beyond the last: zeros. */
DSI_INLINE void turn_some(const stretch *k, int64_t j, float *turned, ds_dtype type)
{
    for (int64_t c = 0; c < k->d; c += VF_WIDTH) {
        const size_t left = (size_t)attn_min(VF_WIDTH, k->d - c);
        vf r[VF_WIDTH];
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            const size_t from = (size_t)(k->at + (j + i) * k->stride + c);
            r[i] = j + i >= k->n ? vf_zero() : vf_get_upto(k->base, type, from, left);
        }
        vf_transpose(r);
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            vf_store(turned + (c + i) * ATTN_KEYS + j, r[i]);
        }
    }
}

DSI_INLINE void turn_keys(const stretch *k, float *turned, ds_dtype type)
{
    const bool lines = k->d % turn_elements(type) == 0;
    for (int64_t j = 0; j < k->n; j += VF_WIDTH) {
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            fetch(k, type, j + i + VF_WIDTH); /* past the end it is harmless */
        }
        if (lines && j + VF_WIDTH <= k->n) {
            turn_lines(k, j, turned, type);
        } else {
            turn_some(k, j, turned, type);
        }
    }
}

/* scores[key] = q·k, each one chain over d. */
DSI_INLINE void score_keys(const float *turned, const float *q, int64_t d, float *scores)
{
    vf sum[TILES];
#pragma GCC unroll 8
    for (int t = 0; t < TILES; ++t) {
        sum[t] = vf_zero();
    }
    for (int64_t c = 0; c < d; ++c, turned += ATTN_KEYS) {
        const vf x = vf_set(q[c]);
#pragma GCC unroll 8
        for (int t = 0; t < TILES; ++t) {
            sum[t] = vf_fma(vf_load(turned + t * VF_WIDTH), x, sum[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TILES; ++t) {
        vf_store(scores + t * VF_WIDTH, sum[t]);
    }
}

/* Lanes j, j+1, … that lie in [first,last). */
DSI_INLINE vm lanes_in(int64_t j, int64_t first, int64_t last)
{
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vi lane = vi_add(vi_load(count), vi_set((int32_t)j));
    return vm_and(vi_gt(vi_set((int32_t)last), lane), vi_gt(lane, vi_set((int32_t)first - 1)));
}

/* Capped and biased scores of a block whose first key is `distance` from the query. */
DSI_INLINE void bend_scores(const attn_bend *bend, float *scores, int64_t distance)
{
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf lanes = vf_add(vf_set((float)(distance + j)), attn_lanes());
        vf_store(scores + j, attn_bent(bend, vf_load(scores + j), lanes, NULL));
    }
}

/* Scores of a block to probabilities, 0 but for keys [first,last); the factor for what was summed
 * before. Lane by lane what soften() of simd_attention.c does. */
DSI_INLINE float soften(float *scores, int64_t first, int64_t last, float factor, float *top,
                        float *sum)
{
    const vf before = vf_set(*top);
    vf highest = before;
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf s = vf_select(lanes_in(j, first, last), vf_load(scores + j), before);
        highest = vf_max(highest, s);
    }
    *top = vf_hmax(highest);
    const vf f = vf_set(factor);
    const vf down = vf_neg(vf_mul(vf_set(*top), f));
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf p = attn_exp2(vf_fma(vf_load(scores + j), f, down));
        vf_store(scores + j, vf_select(lanes_in(j, first, last), p, vf_zero()));
    }
    __m128 part = _mm_setzero_ps();
    for (int64_t j = 0; j < ATTN_KEYS; j += 4) {
        part = _mm_add_ps(part, _mm_loadu_ps(scores + j));
    }
    float four[4];
    float alpha[VF_WIDTH];
    _mm_storeu_ps(four, part);
    vf_store(alpha, attn_exp2(vf_mul(vf_sub(before, vf_set(*top)), f)));
    *sum = fmaf(*sum, alpha[0], (four[0] + four[1]) + (four[2] + four[3]));
    return alpha[0];
}

/* y[c..) = y·alpha + Σ p[j]·v_j[c..) for `vectors` whole vectors, or the `part` elements of one. */
DSI_INLINE void sum_values(const stretch *v, const float *p, float alpha, int64_t c, int vectors,
                           size_t part, float *y, ds_dtype type)
{
    vf sum[Y_VECTORS];
#pragma GCC unroll 8
    for (int u = 0; u < vectors; ++u) {
        sum[u] = vf_mul(vf_load(y + c + u * VF_WIDTH), vf_set(alpha));
    }
    for (int64_t j = 0; j < v->n; ++j) {
        const size_t at = (size_t)(v->at + j * v->stride + c);
        const vf weight = vf_set(p[j]);
        if (c == 0) {
            fetch(v, type, j + AHEAD);
        }
#pragma GCC unroll 8
        for (int u = 0; u < vectors; ++u) {
            const size_t from = at + (size_t)(u * VF_WIDTH);
            const vf x =
                part != 0 ? vf_get_n(v->base, type, from, part) : vf_get(v->base, type, from);
            sum[u] = vf_fma(x, weight, sum[u]);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < vectors; ++u) {
        vf_store(y + c + u * VF_WIDTH, sum[u]);
    }
}

DSI_INLINE void attend_values(const stretch *v, const float *p, float alpha, float *y,
                              ds_dtype type)
{
    int64_t c = 0;
    for (; c + Y_VECTORS * VF_WIDTH <= v->d; c += Y_VECTORS * VF_WIDTH) {
        sum_values(v, p, alpha, c, Y_VECTORS, 0, y, type);
    }
    for (; c + 4 * VF_WIDTH <= v->d; c += 4 * VF_WIDTH) {
        sum_values(v, p, alpha, c, 4, 0, y, type);
    }
    for (; c + VF_WIDTH <= v->d; c += VF_WIDTH) {
        sum_values(v, p, alpha, c, 1, 0, y, type);
    }
    if (c < v->d) {
        sum_values(v, p, alpha, c, 1, (size_t)(v->d - c), y, type);
    }
}

#endif
