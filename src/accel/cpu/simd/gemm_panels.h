/* SPDX-License-Identifier: Apache-2.0 */
/* Packing for the matrix products of gemm_simd.c, which alone includes this: what a tile of MR × NR
 * of C reads lies in one piece, widened to fp32. Elements beyond the edges of A and B are zero.
 *
 *   panel of B   NR columns:  out[k·NR + column]
 *   panel of A   MR rows:     out[row·A_ROW + k·A_K] from A stored (m,k),
 *                             out[row + k·A_COLUMN_K] from A stored (k,m)
 *
 * On AVX2 both panels of A lie k by k, so that the 6 broadcasts of a step are of one line of the
 * cache and a panel streams through; on AVX-512 rows are copied as they are.
 */
#ifndef DSI_ACCEL_CPU_GEMM_PANELS_H
#define DSI_ACCEL_CPU_GEMM_PANELS_H

#include "accel/cpu/simd/gemm_order.h"

enum {
#if defined(__AVX512F__)
    MR = 14,         /* 28 accumulators, 2 of B; A is broadcast from memory */
    A_ROW = KC + 16, /* rows start in different sets of the cache */
    A_K = 1,
    A_COLUMN_K = VF_WIDTH,
    A_FLOATS = KC * VF_WIDTH, /* of a panel */
    FETCH_ROWS = 0,
#else
    MR = 6, /* 12 accumulators, 2 of B, 2 of A */
    A_ROW = 1,
    A_K = MR,
    A_COLUMN_K = MR,
    A_FLOATS = KC * MR + 16, /* stores of whole vectors end beyond the last k */
    FETCH_ROWS = 16,         /* rows that packing asks for ahead; 0: none */
#endif
};

_Static_assert(A_FLOATS >= A_ROW * (MR - 1) + KC && A_FLOATS >= A_COLUMN_K * (KC - 1) + VF_WIDTH &&
                   A_FLOATS >= A_K * (KC - 1) + VF_WIDTH,
               "a panel of A holds all that is stored to it");

DSI_INLINE vf get_some(const void *base, ds_dtype type, int64_t i, int64_t n)
{
    return n >= VF_WIDTH ? vf_get(base, type, (size_t)i)
           : n > 0       ? vf_get_n(base, type, (size_t)i, (size_t)n)
                         : vf_zero();
}

/* Asks for the line of element i. Past the end of an array it is harmless. */
DSI_INLINE void fetch(const void *base, ds_dtype type, int64_t i)
{
    if (FETCH_ROWS > 0) {
        _mm_prefetch((const char *)base + i * (type == DS_DTYPE_F32 ? 4 : 2), _MM_HINT_T0);
    }
}

/* Once a line while a row is read in order, k from a multiple of VF_WIDTH. */
DSI_INLINE void fetch_along(const void *base, ds_dtype type, int64_t i, int64_t k)
{
    if (k % (type == DS_DTYPE_F32 ? 16 : 32) == 0) {
        fetch(base, type, i + k);
    }
}

/* B stored (k,n): rows copied. One panel. */
DSI_INLINE void pack_b_rows(const dsi_gemm_params *p, ds_dtype type, int64_t k0, int64_t kc,
                            int64_t n0, float *out)
{
    for (int64_t k = 0; k < kc; ++k) {
        const int64_t at = (k0 + k) * p->ldb + n0;
        fetch(p->b, type, at + FETCH_ROWS * p->ldb);
        for (int v = 0; v < NV; ++v) {
            const int64_t left = p->n - n0 - v * VF_WIDTH;
            vf_store(out + k * NR + v * VF_WIDTH, get_some(p->b, type, at + v * VF_WIDTH, left));
        }
    }
}

/* B stored (n,k): squares transposed. One panel. */
DSI_INLINE void pack_b_columns(const dsi_gemm_params *p, ds_dtype type, int64_t k0, int64_t kc,
                               int64_t n0, float *out)
{
    for (int v = 0; v < NV; ++v) {
        const int64_t n = n0 + v * VF_WIDTH;
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            vf r[VF_WIDTH];
            for (int i = 0; i < VF_WIDTH; ++i) {
                fetch_along(p->b, type, (n + i + VF_WIDTH) * p->ldb + k0, k);
                r[i] = n + i < p->n ? get_some(p->b, type, (n + i) * p->ldb + k0 + k, kc - k)
                                    : vf_zero();
            }
            vf_transpose(r);
            for (int i = 0; i < VF_WIDTH && k + i < kc; ++i) {
                vf_store(out + (k + i) * NR + v * VF_WIDTH, r[i]);
            }
        }
    }
}

DSI_INLINE void pack_b_of(const dsi_gemm_params *p, ds_dtype type, int64_t k0, int64_t kc,
                          int64_t n0, float *out)
{
    if (p->b_transposed) {
        pack_b_columns(p, type, k0, kc, n0, out);
    } else {
        pack_b_rows(p, type, k0, kc, n0, out);
    }
}

/* A panel of B: columns n0.., k in [k0,k0+kc). */
static void pack_b(const dsi_gemm_params *p, int64_t k0, int64_t kc, int64_t n0, float *out)
{
    switch (p->b_dtype) {
    case DS_DTYPE_BF16:
        pack_b_of(p, DS_DTYPE_BF16, k0, kc, n0, out);
        break;
    case DS_DTYPE_F16:
        pack_b_of(p, DS_DTYPE_F16, k0, kc, n0, out);
        break;
    default:
        pack_b_of(p, DS_DTYPE_F32, k0, kc, n0, out);
        break;
    }
}

/* A stored (m,k), one panel. */
#if defined(__AVX512F__)
DSI_INLINE void pack_a_rows(const dsi_gemm_params *p, ds_dtype type, int64_t m0, int64_t k0,
                            int64_t kc, float *out)
{
    for (int64_t i = 0; i < MR; ++i) {
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            const vf v = m0 + i < p->m ? get_some(p->a, type, (m0 + i) * p->lda + k0 + k, kc - k)
                                       : vf_zero();
            vf_store(out + i * A_ROW + k, v);
        }
    }
}
#else
/* Each store of a whole vector runs into the next k, which is stored next. */
DSI_INLINE void pack_a_rows(const dsi_gemm_params *p, ds_dtype type, int64_t m0, int64_t k0,
                            int64_t kc, float *out)
{
    const int64_t rows = min_i64(MR, p->m - m0);
    for (int64_t k = 0; k < kc; k += VF_WIDTH) {
        vf r[VF_WIDTH];
#pragma GCC unroll 6
        for (int i = 0; i < MR; ++i) {
            fetch_along(p->a, type, (m0 + i + MR) * p->lda + k0, k);
            r[i] = i < rows ? get_some(p->a, type, (m0 + i) * p->lda + k0 + k, kc - k) : vf_zero();
        }
        for (int i = MR; i < VF_WIDTH; ++i) {
            r[i] = vf_zero();
        }
        vf_transpose(r);
        for (int i = 0; i < VF_WIDTH && k + i < kc; ++i) {
            vf_store(out + (k + i) * A_K, r[i]);
        }
    }
}
#endif

/* A stored (k,m): the panels of rows m0..m1, row by row of what is stored. */
DSI_INLINE void pack_a_columns(const dsi_gemm_params *p, ds_dtype type, int64_t m0, int64_t m1,
                               int64_t k0, int64_t kc, float *out)
{
    for (int64_t k = 0; k < kc; ++k) {
        const int64_t at = (k0 + k) * p->lda;
        float *to = out + k * A_COLUMN_K;
        for (int64_t m = m0; m < m1; m += MR, to += A_FLOATS) {
            fetch(p->a, type, at + FETCH_ROWS * p->lda + m);
            vf_store(to, get_some(p->a, type, at + m, min_i64(MR, p->m - m)));
        }
    }
}

DSI_INLINE void pack_a_of(const dsi_gemm_params *p, ds_dtype type, int64_t m0, int64_t m1,
                          int64_t k0, int64_t kc, float *out)
{
    if (p->a_transposed) {
        pack_a_columns(p, type, m0, m1, k0, kc, out);
        return;
    }
    for (int64_t m = m0; m < m1; m += MR, out += A_FLOATS) {
        pack_a_rows(p, type, m, k0, kc, out);
    }
}

/* The panels of A's rows m0..m1, A_FLOATS apart. */
static void pack_a(const dsi_gemm_params *p, int64_t m0, int64_t m1, int64_t k0, int64_t kc,
                   float *out)
{
    switch (p->a_dtype) {
    case DS_DTYPE_BF16:
        pack_a_of(p, DS_DTYPE_BF16, m0, m1, k0, kc, out);
        break;
    case DS_DTYPE_F16:
        pack_a_of(p, DS_DTYPE_F16, m0, m1, k0, kc, out);
        break;
    default:
        pack_a_of(p, DS_DTYPE_F32, m0, m1, k0, kc, out);
        break;
    }
}

#endif
