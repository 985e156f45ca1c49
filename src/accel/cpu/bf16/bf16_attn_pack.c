/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of attention's operands into tiles, and results out of them. See bf16_attn_tile.h. */
#include "accel/cpu/bf16/bf16_attn_tile.h"

static __mmask32 first_halves(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1u;
}

static __mmask16 first_words(int64_t n)
{
    return (__mmask16)(first_halves(n) & 0xffffu);
}

/* Rows ahead of their use: a head's rows are far apart, which hardware does not foresee. */
enum { AHEAD = 32 };

DSI_INLINE void fetch(const attn_source *x, int64_t token)
{
    const uint16_t *row = x->at + (token + AHEAD) * x->stride;
    for (int64_t c = 0; token + AHEAD < x->n_tokens && c < x->d; c += 32) {
        _mm_prefetch((const char *)(row + c), _MM_HINT_T0);
    }
}

/* 32 d of 16 tokens, zero past the edges. whole: there are no edges. */
DSI_INLINE void load_wide(const attn_source *x, int64_t token, int64_t d, bool whole, __m512i r[16])
{
    const uint16_t *from = x->at + token * x->stride + d;
    const __mmask32 mask = first_halves(x->d - d);
    for (int i = 0; i < 16; ++i, from += x->stride) {
        if (whole) {
            r[i] = _mm512_loadu_si512(from);
        } else {
            r[i] = token + i < x->n_tokens ? _mm512_maskz_loadu_epi16(mask, from)
                                           : _mm512_setzero_si512();
        }
    }
}

/* 16 d of 32 tokens as 16 rows of pairs. */
DSI_INLINE void load_pairs(const attn_source *x, int64_t token, int64_t d, bool whole,
                           __m512i r[16])
{
    const uint16_t *from = x->at + token * x->stride + d;
    const __mmask16 mask = first_words(x->d - d);
    for (int i = 0; i < 16; ++i, from += 2 * x->stride) {
        __m256i a = _mm256_setzero_si256();
        __m256i b = a;
        if (whole) {
            a = _mm256_loadu_si256((const __m256i *)(const void *)from);
            b = _mm256_loadu_si256((const __m256i *)(const void *)(from + x->stride));
        } else {
            if (token + 2 * i < x->n_tokens) {
                a = _mm256_maskz_loadu_epi16(mask, from);
            }
            if (token + 2 * i + 1 < x->n_tokens) {
                b = _mm256_maskz_loadu_epi16(mask, from + x->stride);
            }
        }
        r[i] = attn_pair_rows(a, b);
    }
}

static void store_tile(uint16_t *tile, const __m512i r[16])
{
    for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(tile + i * 32, r[i]);
    }
}

/* rows and rows_t of 16 tokens. */
static void pack_tokens(const attn_source *x, int64_t token, int64_t count, const attn_packed *to)
{
    const int64_t steps = attn_steps(x->d);
    for (int64_t i = 0; i < 16; ++i) {
        fetch(x, token + i);
    }
    for (int64_t s = 0; s < steps; ++s) {
        __m512i r[16];
        if (token + 16 <= x->n_tokens && s * 32 + 32 <= x->d) {
            load_wide(x, token, s * 32, true, r);
        } else {
            load_wide(x, token, s * 32, false, r);
        }
        if (to->rows != NULL) {
            store_tile(to->rows + (token / 16 * steps + s) * TILE_HALVES, r);
        }
        if (to->rows_t != NULL) {
            attn_transpose(r);
            store_tile(to->rows_t + (s * (count / 16) + token / 16) * TILE_HALVES, r);
        }
    }
}

/* pairs and columns of 32 tokens. */
static void pack_pairs(const attn_source *x, int64_t token, const attn_packed *to)
{
    const int64_t tiles = 2 * attn_steps(x->d);
    for (int64_t i = 0; i < 32; ++i) {
        fetch(x, token + i);
    }
    for (int64_t t = 0; t < tiles; ++t) {
        __m512i r[16];
        if (token + 32 <= x->n_tokens && t * 16 + 16 <= x->d) {
            load_pairs(x, token, t * 16, true, r);
        } else {
            load_pairs(x, token, t * 16, false, r);
        }
        const int64_t at = (token / 32 * tiles + t) * TILE_HALVES;
        if (to->pairs != NULL) {
            store_tile(to->pairs + at, r);
        }
        if (to->columns != NULL) {
            attn_transpose(r);
            store_tile(to->columns + at, r);
        }
    }
}

void DSI_NAME(dsi_attn_pack)(const attn_source *x, int64_t count, const attn_packed *to)
{
    for (int64_t token = 0; token < count; token += 32) {
        if (to->rows != NULL || to->rows_t != NULL) {
            pack_tokens(x, token, count, to);
            pack_tokens(x, token + 16, count, to);
        }
        if (to->pairs != NULL || to->columns != NULL) {
            pack_pairs(x, token, to);
        }
    }
}

DSI_INLINE void store_token(uint16_t *to, vf v, __mmask16 mask)
{
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

/* Rows of tokens from a tile of (d, token). */
DSI_INLINE void turn_tile(const float *tile, vf scale, __m512i r[16])
{
    for (int i = 0; i < 16; ++i) {
        /* plus zero: the sign of a zero depends on keys that the query does not see */
        r[i] = vf_bits(vf_fma(vf_load(tile + i * 16), scale, vf_zero()));
    }
    attn_transpose(r);
}

void DSI_NAME(dsi_attn_store_columns)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                      int64_t n_tokens, int64_t n_d)
{
    __m512i r[16];
    turn_tile(tile, scale, r);
    for (int64_t i = 0; i < 16 && i < n_tokens; ++i) {
        store_token(to + i * stride, vf_from_bits(r[i]), first_words(n_d));
    }
}

void DSI_NAME(dsi_attn_store_dealt)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                    int64_t n_tokens, int64_t n_d)
{
    __m512i r[16];
    turn_tile(tile, scale, r);
    for (int64_t i = 0; i < 16; ++i) {
        const int64_t token = i / 4 * 8 + i % 4;
        if (token < n_tokens) {
            store_token(to + token * stride, vf_from_bits(r[i]), first_words(n_d));
        }
    }
}

void DSI_NAME(dsi_attn_store_rows)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                   int64_t n_tokens, int64_t n_d)
{
    for (int64_t i = 0; i < 16 && i < n_tokens; ++i) {
        store_token(to + i * stride, vf_mul(vf_load(tile + i * 16), scale), first_words(n_d));
    }
}
