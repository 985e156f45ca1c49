/* SPDX-License-Identifier: Apache-2.0 */
/* Rows read as columns: 4·VF_WIDTH bytes of each of VF_WIDTH rows of B, stored (n,k), become
 * vectors whose lanes are rows, one for each 32 bits of k. For gemm_vector.c, whose sums run along
 * k in order.
 *
 * Rows are merged 128 bits at a time while they are loaded, so that only squares of 4×4 within 128
 * bits are left to transpose: half the shuffles of a whole transpose. All of a row's line is loaded
 * before the next row: rows apart by a power of two share a set of the first-level cache.
 */
#ifndef DSI_ACCEL_CPU_GEMM_TURN_H
#define DSI_ACCEL_CPU_GEMM_TURN_H

#include "accel/cpu/simd/gemm_order.h"

enum { TURN_BYTES = 4 * VF_WIDTH, TURN_QUARTERS = VF_WIDTH / 4 };

DSI_INLINE __m128i turn_load(const char *at)
{
    return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* 4×4 words within each 128 bits. */
DSI_INLINE void turn_square(const vi v[4], vi out[4])
{
#if defined(__AVX512F__)
    const vi a = _mm512_unpacklo_epi32(v[0], v[1]);
    const vi b = _mm512_unpackhi_epi32(v[0], v[1]);
    const vi c = _mm512_unpacklo_epi32(v[2], v[3]);
    const vi d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
#else
    const vi a = _mm256_unpacklo_epi32(v[0], v[1]);
    const vi b = _mm256_unpackhi_epi32(v[0], v[1]);
    const vi c = _mm256_unpacklo_epi32(v[2], v[3]);
    const vi d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
#endif
}

/* TURN_BYTES of VF_WIDTH rows, merged: of v[q] turn_square makes words 4q to 4q+3 of each row, in
 * which lane i is of the row at `row + i·stride`. */
DSI_INLINE void turn_rows(const char *row, int64_t stride, vi v[TURN_QUARTERS][4])
{
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r, row += stride) {
#pragma GCC unroll 4
        for (int q = 0; q < TURN_QUARTERS; ++q) {
#if defined(__AVX512F__)
            v[q][r] = _mm512_castsi128_si512(turn_load(row + 16 * q));
#else
            v[q][r] = _mm256_castsi128_si256(turn_load(row + 16 * q));
#endif
        }
#pragma GCC unroll 4
        for (int q = 0; q < TURN_QUARTERS; ++q) {
            const char *at = row + 4 * stride + 16 * q;
#if defined(__AVX512F__)
            v[q][r] = _mm512_mask_broadcast_i32x4(v[q][r], 0x00f0, turn_load(at));
#else
            v[q][r] = _mm256_inserti128_si256(v[q][r], turn_load(at), 1);
#endif
        }
#if defined(__AVX512F__)
#pragma GCC unroll 4
        for (int q = 0; q < TURN_QUARTERS; ++q) {
            const char *at = row + 8 * stride + 16 * q;
            v[q][r] = _mm512_mask_broadcast_i32x4(v[q][r], 0x0f00, turn_load(at));
        }
#pragma GCC unroll 4
        for (int q = 0; q < TURN_QUARTERS; ++q) {
            const char *at = row + 12 * stride + 16 * q;
            v[q][r] = _mm512_mask_broadcast_i32x4(v[q][r], 0xf000, turn_load(at));
        }
#endif
    }
}

/* Word w of each row in out[w]. */
DSI_INLINE void turn_words(const char *row, int64_t stride, vi out[VF_WIDTH])
{
    vi rows[TURN_QUARTERS][4];
    turn_rows(row, stride, rows);
#pragma GCC unroll 4
    for (int q = 0; q < TURN_QUARTERS; ++q) {
        turn_square(rows[q], out + 4 * q);
    }
}

/* Elements of k in TURN_BYTES. */
DSI_INLINE int64_t turn_elements(ds_dtype type)
{
    return K_STEP == 1 && type != DS_DTYPE_F32 ? 2 * VF_WIDTH : VF_WIDTH;
}

#if defined(DSI_ISA_avx512_bf16)
/* Element e of the rows, of those in `words`. */
DSI_INLINE packed_vf turn_element(const vi *words, ds_dtype type, int64_t e)
{
    (void)type;
    return (__m512bh)words[e];
}
#else
/* The low half of each word, fp16, widened. */
DSI_INLINE vf turn_widen(vi words)
{
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words));
#else
    const vi low = _mm256_and_si256(words, _mm256_set1_epi32(0xffff));
    const vi both = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(both));
#endif
}

DSI_INLINE packed_vf turn_element(const vi *words, ds_dtype type, int64_t e)
{
    if (type == DS_DTYPE_F32) {
        return vf_from_bits(words[e]);
    }
    const vi pair = words[e / 2];
    if (type == DS_DTYPE_F16) {
        return turn_widen(e % 2 == 0 ? pair : vi_shr(pair, 16));
    }
    return vf_from_bits(e % 2 == 0 ? vi_shl(pair, 16) : vi_and(pair, vi_set(-65536)));
}
#endif

#endif
