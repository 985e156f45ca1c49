/* SPDX-License-Identifier: Apache-2.0 */
/* The vector parts of attention: masks, 2^x, dropout. Lanes are queries, VF_WIDTH of them; a row of
 * scores is one key against all lanes, so maxima and sums over keys need no horizontal step.
 *
 * Used by simd_attention*.c and by the AMX kernels.
 */
#ifndef DSI_ACCEL_CPU_ATTN_VEC_H
#define DSI_ACCEL_CPU_ATTN_VEC_H

#include "accel/cpu/attn_shape.h"
#include "accel/cpu/simd/vec_math.h"

#include <math.h>

#define ATTN_LOG2E 1.4426950408889634
#define ATTN_LN2   0.6931471805599453
/* Start of a running maximum: below every score, and finite, so that 2^(-inf - it) is 0. */
#define ATTN_LOWEST (-1e30f)

/* ---- 2^x ------------------------------------------------------------------------------------ */
/* Error below 2 ulp for results in the normal range, 0 for -infinity; x at most 120. NaN passes.
 * The polynomials are minimax fits of our own with 1 as their constant. */
#if defined(DSI_ISA_avx2)
DSI_INLINE vf attn_exp2(vf x)
{
    x = vf_max(vf_set(-200.0f), x); /* NaN passes: it is the second operand */
    const vf n = vf_round(x);
    const vf r = vf_sub(x, n);
    vf q = vf_set(0x1.41fbbcp-13f);
    q = vf_fma(q, r, vf_set(0x1.5f3e52p-10f));
    q = vf_fma(q, r, vf_set(0x1.3b2d4cp-7f));
    q = vf_fma(q, r, vf_set(0x1.c6aee8p-5f));
    q = vf_fma(q, r, vf_set(0x1.ebfbdcp-3f));
    q = vf_fma(q, r, vf_set(0x1.62e430p-1f));
    return vf_scale2(vf_fma(q, r, vf_set(1.0f)), n);
}
#else
DSI_INLINE vf attn_exp2(vf x)
{
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); /* x - floor x */
    vf q = vf_set(0x1.c54174p-13f);
    q = vf_fma(q, r, vf_set(0x1.46d64ep-10f));
    q = vf_fma(q, r, vf_set(0x1.3d0b92p-7f));
    q = vf_fma(q, r, vf_set(0x1.c68912p-5f));
    q = vf_fma(q, r, vf_set(0x1.ebfd58p-3f));
    q = vf_fma(q, r, vf_set(0x1.62e42cp-1f));
    return _mm512_scalef_ps(vf_fma(q, r, vf_set(1.0f)), x); /* times 2^floor x */
}

/* Relative error 3e-6, for results that are rounded to bf16 next: its half step is 2e-3. */
DSI_INLINE vf attn_exp2_short(vf x)
{
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf q = vf_set(0x1.b7f732p-7f);
    q = vf_fma(q, r, vf_set(0x1.abf868p-5f));
    q = vf_fma(q, r, vf_set(0x1.ee2450p-3f));
    q = vf_fma(q, r, vf_set(0x1.62d6c6p-1f));
    return _mm512_scalef_ps(vf_fma(q, r, vf_set(1.0f)), x);
}
#endif

/* ---- caps and biases ------------------------------------------------------------------------ */
typedef struct attn_bend {
    vf scale, inverse, cap, slope; /* inverse: 1/cap */
    bool caps, leans, rounds;
} attn_bend;

static inline attn_bend attn_bend_with(double scale, double cap, double slope, bool rounds)
{
    return (attn_bend){.scale = vf_set((float)scale),
                       .inverse = vf_set(cap > 0.0 ? 1.0f / (float)cap : 0.0f),
                       .cap = vf_set((float)cap),
                       .slope = vf_set(rounds ? dsi_alibi_bf16(slope) : (float)slope),
                       .caps = cap > 0.0,
                       .leans = slope > 0.0,
                       .rounds = rounds};
}

static inline attn_bend attn_bend_of(const attn_shape *s, const attn_data *x, int64_t h)
{
    return attn_bend_with(s->a->scale, s->a->cap, (double)attn_slope(s, x, h),
                          s->a->alibi_rounded != 0);
}

/* 0, 1, 2 … */
DSI_INLINE vf attn_lanes(void)
{
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vf_from_int(vi_load(count));
}

/* attn_origin of the lanes' queries, from query i on; lanes past the last repeat it. */
static inline vf attn_origins(const attn_shape *s, const attn_data *x, int64_t b, int64_t i)
{
    int32_t origins[VF_WIDTH];
    for (int64_t lane = 0; lane < VF_WIDTH; ++lane) {
        origins[lane] =
            (int32_t)attn_origin(s, x, b, i + lane < s->n_queries ? i + lane : s->n_queries - 1);
    }
    return vf_from_int(vi_load(origins));
}

/* q·k to the score; distance: the key's position less the query's, or of biases that are rounded
 * less its document's first. turn_out, if not NULL: the score's derivative by scale·q·k. */
DSI_INLINE vf attn_bent(const attn_bend *b, vf product, vf distance, vf *turn_out)
{
    vf score = vf_mul(product, b->scale);
    vf turn = vf_set(1.0f);
    if (b->caps) {
        const vf t = vf_tanh(vf_mul(score, b->inverse));
        score = vf_mul(t, b->cap);
        turn = vf_fnma(t, t, turn);
    }
    if (turn_out != NULL) {
        *turn_out = turn;
    }
    if (b->rounds && b->leans) {
        const vf bias = vf_round_bf16(vf_mul(b->slope, vf_round_bf16(distance)));
        return vf_fma(b->scale, bias, score);
    }
    return b->leans ? vf_fma(b->slope, distance, score) : score;
}

/* ---- masks ---------------------------------------------------------------------------------- */
/* Row of scores of key j with the lanes that do not see it at -infinity. */
DSI_INLINE vf attn_masked(vf score, int64_t j, vi first, vi last)
{
    const vi key = vi_set((int32_t)j);
    const vm seen = vm_and(vi_gt(last, key), vi_gt(vi_set((int32_t)j + 1), first));
    return vf_select(seen, score, vf_set(-INFINITY));
}

/* ---- dropout --------------------------------------------------------------------------------- */
typedef struct attn_dropout {
    uint64_t seed;
    uint32_t site, step;
    float p, factor;             /* factor = 1/(1-p) */
    int64_t n_keys;              /* all keys: elements a query */
    bool by_four;                /* n_keys is a multiple of 4, and so is the first key's number */
    int64_t sample, head0, row0; /* numbers of the first sample, head and query among all */
    int64_t key0;                /* and of the first key */
    int64_t all_heads, all_rows;
} attn_dropout;

static inline attn_dropout attn_dropout_of(const attn_shape *s, const attn_data *x)
{
    if (x->rng == NULL) {
        return (attn_dropout){0};
    }
    return (attn_dropout){.seed = (uint64_t)x->rng[0],
                          .site = (uint32_t)s->a->site,
                          .step = (uint32_t)x->rng[1],
                          .p = (float)s->a->dropout,
                          .factor = 1.0f / (1.0f - (float)s->a->dropout),
                          .n_keys = x->all_keys,
                          .by_four = x->all_keys % 4 == 0 && x->key0 % 4 == 0,
                          .sample = x->rng[2],
                          .head0 = x->head0,
                          .row0 = x->row0,
                          .key0 = x->key0,
                          .all_heads = x->all_heads,
                          .all_rows = x->all_rows};
}

/* Elements (64 bits as two words) of key 0 for the lanes' queries. */
typedef struct attn_elements {
    vi low, high;
} attn_elements;

static inline attn_elements attn_elements_of(const attn_dropout *drop, int64_t b, int64_t h,
                                             int64_t i)
{
    int32_t low[VF_WIDTH];
    int32_t high[VF_WIDTH];
    const int64_t head = (drop->sample + b) * drop->all_heads + drop->head0 + h;
    const int64_t row = head * drop->all_rows + drop->row0 + i;
    for (int64_t lane = 0; lane < VF_WIDTH; ++lane) {
        const uint64_t element = (uint64_t)((row + lane) * drop->n_keys + drop->key0);
        low[lane] = (int32_t)(uint32_t)element;
        high[lane] = (int32_t)(uint32_t)(element >> 32);
    }
    return (attn_elements){vi_load(low), vi_load(high)};
}

/* a·m in 64 bits, lane by lane. */
DSI_INLINE void attn_mul_wide(vi a, uint32_t m, vi *low_out, vi *high_out)
{
#if defined(DSI_ISA_avx2)
    const vi by = _mm256_set1_epi64x((int64_t)m);
    const vi even = _mm256_mul_epu32(a, by);
    const vi odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
    *low_out = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high_out = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    const vi by = _mm512_set1_epi64((int64_t)m);
    const vi even = _mm512_mul_epu32(a, by);
    const vi odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), by);
    *low_out = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high_out = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#endif
}

/* base/rng.h's Philox for one counter a lane. */
static inline void attn_philox(const attn_dropout *drop, vi counter0, vi counter1, vi words[4])
{
    uint32_t k0 = (uint32_t)drop->seed;
    uint32_t k1 = (uint32_t)(drop->seed >> 32);
    vi x0 = counter0;
    vi x1 = counter1;
    vi x2 = vi_set((int32_t)drop->site);
    vi x3 = vi_set((int32_t)drop->step);
    for (int round = 0; round < 10; ++round) {
        vi p0;
        vi h0;
        vi p1;
        vi h1;
        attn_mul_wide(x0, 0xD2511F53u, &p0, &h0);
        attn_mul_wide(x2, 0xCD9E8D57u, &p1, &h1);
        x0 = vi_xor(vi_xor(h1, x1), vi_set((int32_t)k0));
        x1 = p1;
        x2 = vi_xor(vi_xor(h0, x3), vi_set((int32_t)k1));
        x3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = x0;
    words[1] = x1;
    words[2] = x2;
    words[3] = x3;
}

/* element + j. */
DSI_INLINE attn_elements attn_element_add(attn_elements e, int64_t j)
{
    const vi top = vi_set(INT32_MIN); /* turns an unsigned comparison into a signed one */
    const vi low = vi_add(e.low, vi_set((int32_t)j));
    const vm carry = vi_gt(vi_xor(e.low, top), vi_xor(low, top));
    return (attn_elements){low, vi_select(carry, vi_add(e.high, vi_set(1)), e.high)};
}

/* The probability's factor, 0 or 1/(1-p), for a word. */
DSI_INLINE vf attn_keep_of(const attn_dropout *drop, vi word)
{
    const vf unit = vf_mul(vf_from_int(vi_shr(word, 8)), vf_set(0x1p-24f));
    return vf_select(vf_ge(unit, vf_set(drop->p)), vf_set(drop->factor), vf_zero());
}

DSI_INLINE vf attn_keep_one(const attn_dropout *drop, attn_elements base, int64_t j)
{
    const attn_elements e = attn_element_add(base, j);
    vi words[4];
    attn_philox(drop, vi_or(vi_shr(e.low, 2), vi_shl(e.high, 30)), vi_shr(e.high, 2), words);
    const vi which = vi_and(e.low, vi_set(3));
    vi word = words[0];
    for (int32_t w = 1; w < 4; ++w) {
        word = vi_select(vi_gt(which, vi_set(w - 1)), words[w], word);
    }
    return attn_keep_of(drop, word);
}

/* Factors of keys j..j+3, j a multiple of 4: one Philox call where the four share a counter. */
static inline void attn_keep_four(const attn_dropout *drop, attn_elements base, int64_t j,
                                  vf keep[4])
{
    if (!drop->by_four) {
        for (int64_t r = 0; r < 4; ++r) {
            keep[r] = attn_keep_one(drop, base, j + r);
        }
        return;
    }
    const attn_elements e = attn_element_add(base, j);
    vi words[4];
    attn_philox(drop, vi_or(vi_shr(e.low, 2), vi_shl(e.high, 30)), vi_shr(e.high, 2), words);
    for (int r = 0; r < 4; ++r) {
        keep[r] = attn_keep_of(drop, words[r]);
    }
}

#endif
