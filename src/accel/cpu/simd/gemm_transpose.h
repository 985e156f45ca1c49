/* SPDX-License-Identifier: Apache-2.0 */
/* Rearranging values held in registers, for the packing of matrix products: a square of 32-bit
 * values transposed; with AVX-512, two rows of 16-bit values made into pairs. */
#ifndef DSI_ACCEL_CPU_GEMM_TRANSPOSE_H
#define DSI_ACCEL_CPU_GEMM_TRANSPOSE_H

#include "accel/cpu/simd/simd.h"

#if defined(__AVX512F__)
/* 16×16, in place: element j of r[i] and element i of r[j] change places. */
static inline __attribute__((always_inline)) void gemm_transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 4) { /* 4×4 in each 128-bit lane */
        const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        const __m512i b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
        const __m512i d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) { /* 4×4 of lanes */
        const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x44);
        const __m512i b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xee);
        const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x44);
        const __m512i d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xee);
        r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        r[i + 4] = _mm512_shuffle_i32x4(a, c, 0xdd);
        r[i + 8] = _mm512_shuffle_i32x4(b, d, 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

/* The first n of 32 values. */
static inline __mmask32 gemm_first(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1u;
}

/* Two rows of 32 values → low: pairs of columns 0-15, high: pairs of columns 16-31. */
static inline void gemm_interleave(__m512i even, __m512i odd, __m512i *low, __m512i *high)
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i a = _mm512_unpacklo_epi16(even, odd);
    const __m512i b = _mm512_unpackhi_epi16(even, odd);
    *low = _mm512_permutex2var_epi64(a, first, b);
    *high = _mm512_permutex2var_epi64(a, second, b);
}
#else
/* 8×8, likewise. */
static inline __attribute__((always_inline)) void gemm_transpose(__m256i r[8])
{
    __m256i t[8];
    for (int i = 0; i < 8; i += 4) {
        const __m256i a = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        const __m256i b = _mm256_unpackhi_epi32(r[i], r[i + 1]);
        const __m256i c = _mm256_unpacklo_epi32(r[i + 2], r[i + 3]);
        const __m256i d = _mm256_unpackhi_epi32(r[i + 2], r[i + 3]);
        t[i] = _mm256_unpacklo_epi64(a, c);
        t[i + 1] = _mm256_unpackhi_epi64(a, c);
        t[i + 2] = _mm256_unpacklo_epi64(b, d);
        t[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(t[i], t[i + 4], 0x31);
    }
}
#endif

DSI_INLINE void vf_transpose(vf r[VF_WIDTH])
{
    vi bits[VF_WIDTH];
    for (int i = 0; i < VF_WIDTH; ++i) {
        bits[i] = vf_bits(r[i]);
    }
    gemm_transpose(bits);
    for (int i = 0; i < VF_WIDTH; ++i) {
        r[i] = vf_from_bits(bits[i]);
    }
}

#endif
