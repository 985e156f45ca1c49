/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of attention in bf16: packing rows into them, and products over packed blocks. Files of
 * this folder are compiled once for AMX and once for AVX-512's dot products of pairs of bf16, which
 * take the same layout: only bf16_attn_amx.h and bf16_attn_dots.h differ.
 *
 * A tile is 1 KB: 16 rows of 64 bytes. Packed matrices are arrays of whole tiles, zero-padded, so
 * that every load is 16 consecutive cache lines whatever the stride of the operands. For a matrix X
 * of rows (tokens) by d (head dim):
 *   rows    [token/16][d/32]    16 tokens × 32 d: left operand, sum over d
 *   rows_t  [d/32][token/16]    16 pairs of d × 16 tokens: right operand, sum over d
 *   pairs   [token/32][d/16]    16 pairs of tokens × 16 d: right operand, sum over tokens
 *   columns [token/32][d/16]    16 d × 32 tokens: left operand, sum over tokens
 *
 * Used by bf16_attention*.c.
 */
#ifndef DSI_ACCEL_CPU_BF16_ATTN_TILE_H
#define DSI_ACCEL_CPU_BF16_ATTN_TILE_H

#include "accel/cpu/simd/attn_vec.h"

enum {
    TILE_TOKENS = 16,
    TILE_PAIRED = 32, /* tokens, or d, in a row of bf16 */
    TILE_HALVES = 512 /* bf16 in a tile; 256 fp32 */
};

/* ---- registers of 16 × 16 words ---------------------------------------------------------------
 */
/* r[i] word j ↔ r[j] word i */
DSI_INLINE void attn_transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; ++i) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; ++i) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

/* a = word of each pair's first, b = its second: 16 pairs of bf16 from two rows of 16. */
DSI_INLINE __m512i attn_pair_rows(__m256i a, __m256i b)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(a),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

/* Two rows of fp32 rounded to bf16, paired lane by lane. */
DSI_INLINE __m512i attn_pair_floats(vf a, vf b)
{
    static const _Alignas(64)
        uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(order), (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* ---- packing -----------------------------------------------------------------------------------
 */
/* A matrix of n_tokens rows by d columns in the operand; tokens past n_tokens count as zero rows.
 */
typedef struct attn_source {
    const uint16_t *at; /* token 0, element 0 */
    int64_t stride;     /* elements between tokens */
    int64_t n_tokens, d;
} attn_source;

/* Tiles along d, when d runs in rows of 32 and in rows of 16. */
DSI_INLINE int64_t attn_steps(int64_t d)
{
    return (d + 31) / 32;
}

/* Packs tokens [0,count), count a multiple of 32, in any of the four forms; NULL: not wanted. */
typedef struct attn_packed {
    uint16_t *rows, *rows_t, *pairs, *columns;
} attn_packed;

void DSI_NAME(dsi_attn_pack)(const attn_source *x, int64_t count, const attn_packed *to);

/* Writes 16 tokens × 16 d from a tile of fp32 holding (d, token), times scale (a factor for each
 * token), as bf16. n_tokens and n_d of them; stride in elements. */
void DSI_NAME(dsi_attn_store_columns)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                      int64_t n_tokens, int64_t n_d);
/* Likewise, where column c of the tile is token 8·(c/4) + c%4. */
void DSI_NAME(dsi_attn_store_dealt)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                    int64_t n_tokens, int64_t n_d);
/* Likewise from a tile holding (token, d); scale has a factor for each d. */
void DSI_NAME(dsi_attn_store_rows)(const float *tile, vf scale, uint16_t *to, int64_t stride,
                                   int64_t n_tokens, int64_t n_d);

/* ---- products ----------------------------------------------------------------------------------
 */
/* C[2 × 2 tiles] (+)= Σ over steps of A[2]·B[2]. Tiles of A, B, C in halves or floats apart. */
typedef struct attn_product {
    const uint16_t *a, *b;
    int64_t a_row, a_step; /* halves between A's two row tiles, and between steps */
    int64_t b_col, b_step;
    float *c;
    int64_t c_row, c_col; /* floats between C's tiles */
    int64_t n_steps;
} attn_product;

#if defined(DSI_ISA_amx)
#include "accel/cpu/bf16/bf16_attn_amx.h"
#else
#include "accel/cpu/bf16/bf16_attn_dots.h"
#endif

/* The whole of C[rows × cols tiles], blocks of 2 × 2. x describes the first block. */
DSI_INLINE void attn_multiply_all(attn_product x, int64_t rows, int64_t cols, bool add)
{
    const attn_product origin = x;
    for (int64_t r = 0; r < rows; r += 2) {
        for (int64_t c = 0; c < cols; c += 2) {
            x.a = origin.a + r * origin.a_row;
            x.b = origin.b + c * origin.b_col;
            x.c = origin.c + r * origin.c_row + c * origin.c_col;
            if (r + 1 < rows && c + 1 < cols) {
                attn_multiply(&x, true, true, add);
            } else if (r + 1 < rows) {
                attn_multiply(&x, true, false, add);
            } else if (c + 1 < cols) {
                attn_multiply(&x, false, true, add);
            } else {
                attn_multiply(&x, false, false, add);
            }
        }
    }
}

#endif
