/* SPDX-License-Identifier: Apache-2.0 */
/* Packing for the products of bf16 pairs of gemm_simd.c, which alone includes this, in place of
 * gemm_panels.h: the same panels, but an element is two values of k side by side, as the dot
 * product takes them, the even one in the low half. Nothing is converted. Values beyond the edges
 * of A and B are zero, the second of a last odd k too.
 *
 *   panel of B   NR columns:  out[k·NR + column]        k counts pairs
 *   panel of A   MR rows:     out[row·A_ROW + k·A_K] from A stored (m,k),
 *                             out[row + k·A_COLUMN_K] from A stored (k,m)
 */
#ifndef DSI_ACCEL_CPU_GEMM_PAIRS_H
#define DSI_ACCEL_CPU_GEMM_PAIRS_H

#include "accel/cpu/simd/gemm_order.h"

enum {
    MR = 14,         /* 28 accumulators, 2 of B; A is broadcast from memory */
    A_ROW = KC + 16, /* rows start in different sets of the cache */
    A_K = 1,
    A_COLUMN_K = VF_WIDTH,
    A_FLOATS = KC * VF_WIDTH, /* elements of a panel */
    FETCH_PAIRS = 16,         /* pairs of rows of B that packing asks for ahead */
};

/* 32 values at `at`, those beyond n zero. */
DSI_INLINE __m512i pair_get(const void *base, int64_t at, int64_t n)
{
    return _mm512_maskz_loadu_epi16(gemm_first(n), (const uint16_t *)base + at);
}

/* Past the end of an array it is harmless. */
DSI_INLINE void pair_fetch(const void *base, int64_t at)
{
    _mm_prefetch((const char *)base + 2 * at, _MM_HINT_T0);
}

/* A panel of B: columns n0.., elements k0..k0+kc of k. */
static void pack_b(const dsi_gemm_params *p, int64_t k0, int64_t kc, int64_t n0, packed *out)
{
    if (!p->b_transposed) { /* stored (k,n): pairs of rows made rows of pairs */
        for (int64_t k = 2 * k0; k < 2 * (k0 + kc); k += 2, out += NR) {
            const int64_t at = k * p->ldb + n0;
            pair_fetch(p->b, at + 2 * FETCH_PAIRS * p->ldb);
            pair_fetch(p->b, at + (2 * FETCH_PAIRS + 1) * p->ldb);
            const __m512i even = pair_get(p->b, at, p->n - n0);
            const __m512i odd = pair_get(p->b, at + p->ldb, k + 1 < p->k ? p->n - n0 : 0);
            __m512i low;
            __m512i high;
            gemm_interleave(even, odd, &low, &high);
            _mm512_store_si512(out, low);
            _mm512_store_si512(out + VF_WIDTH, high);
        }
        return;
    }
    for (int v = 0; v < NV; ++v) { /* stored (n,k): squares of pairs transposed */
        const int64_t n = n0 + v * VF_WIDTH;
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            const int64_t at = 2 * (k0 + k);
            __m512i r[VF_WIDTH];
            for (int i = 0; i < VF_WIDTH; ++i) {
                pair_fetch(p->b, (n + i + VF_WIDTH) * p->ldb + at);
                r[i] = pair_get(p->b, (n + i) * p->ldb + at, n + i < p->n ? p->k - at : 0);
            }
            gemm_transpose(r);
            for (int i = 0; i < VF_WIDTH && k + i < kc; ++i) {
                _mm512_store_si512(out + (k + i) * NR + v * VF_WIDTH, r[i]);
            }
        }
    }
}

/* A stored (m,k), one panel: rows copied as they are. */
DSI_INLINE void pack_a_rows(const dsi_gemm_params *p, int64_t m0, int64_t k0, int64_t kc,
                            packed *out)
{
    for (int64_t i = 0; i < MR; ++i) {
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            const int64_t at = 2 * (k0 + k);
            _mm512_store_si512(out + i * A_ROW + k, pair_get(p->a, (m0 + i) * p->lda + at,
                                                             m0 + i < p->m ? p->k - at : 0));
        }
    }
}

/* A stored (k,m): the panels of rows m0..m1, pair by pair of stored rows. */
DSI_INLINE void pack_a_columns(const dsi_gemm_params *p, int64_t m0, int64_t m1, int64_t k0,
                               int64_t kc, packed *out)
{
    for (int64_t k = 0; k < kc; ++k) {
        const int64_t even = 2 * (k0 + k) * p->lda;
        const bool both = 2 * (k0 + k) + 1 < p->k;
        packed *to = out + k * A_COLUMN_K;
        for (int64_t m = m0; m < m1; m += MR, to += A_FLOATS) {
            const __mmask16 rows = (__mmask16)gemm_first(min_i64(MR, p->m - m));
            const uint16_t *from = (const uint16_t *)p->a + even + m;
            const __m256i low = _mm256_maskz_loadu_epi16(rows, from);
            const __m256i high = _mm256_maskz_loadu_epi16(both ? rows : 0, from + p->lda);
            _mm512_store_si512(to,
                               _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                                               _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
        }
    }
}

/* The panels of A's rows m0..m1, A_FLOATS apart. */
static void pack_a(const dsi_gemm_params *p, int64_t m0, int64_t m1, int64_t k0, int64_t kc,
                   packed *out)
{
    if (p->a_transposed) {
        pack_a_columns(p, m0, m1, k0, kc, out);
        return;
    }
    for (int64_t m = m0; m < m1; m += MR, out += A_FLOATS) {
        pack_a_rows(p, m, k0, kc, out);
    }
}

#endif
