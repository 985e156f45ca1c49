/* SPDX-License-Identifier: Apache-2.0 */
/* The one order of a sum over k in the matrix products of this folder, gemm_simd.c and
 * gemm_vector.c: blocks of KC elements counted from k = 0; a block is one chain of multiply-adds
 * from zero, element by element; the sums of the blocks are added in their order. It depends on k,
 * on the dtypes and on the instruction set, and on nothing else: so a row of C has the same bits
 * alone and among any others, whoever computes it (LAW 4e).
 *
 * An element is one value in fp32; for avx512_bf16 two values of bf16 side by side, the even one in
 * the low half, as the dot product takes them; behind a last odd k there is a zero.
 */
#ifndef DSI_ACCEL_CPU_GEMM_ORDER_H
#define DSI_ACCEL_CPU_GEMM_ORDER_H

#include "accel/cpu/gemm.h"
#include "accel/cpu/simd/gemm_transpose.h"

#if defined(DSI_ISA_avx512_bf16)
typedef uint32_t packed; /* an element: k and k+1 */
typedef __m512bh packed_vf;
enum { K_STEP = 2 }; /* values of k in an element */
#else
typedef float packed; /* an element: one k */
typedef vf packed_vf;
enum { K_STEP = 1 };
#endif

enum {
    KC = 256, /* elements of a block of k */
    NV = 2,   /* vectors of columns of C computed together */
    NR = NV * VF_WIDTH
};

#if defined(DSI_ISA_avx512_bf16)
DSI_INLINE packed_vf packed_load(const packed *p)
{
    return (__m512bh)_mm512_load_si512(p);
}

DSI_INLINE packed_vf packed_set(packed x)
{
    return (__m512bh)_mm512_set1_epi32((int32_t)x);
}

DSI_INLINE vf packed_fma(packed_vf a, packed_vf b, vf sum)
{
    return _mm512_dpbf16_ps(sum, a, b);
}

DSI_INLINE bool packed_supports(const dsi_gemm_params *p)
{
    return p->a_dtype == DS_DTYPE_BF16 && p->b_dtype == DS_DTYPE_BF16;
}
#else
DSI_INLINE packed_vf packed_load(const packed *p)
{
    return vf_load(p);
}

DSI_INLINE packed_vf packed_set(packed x)
{
    return vf_set(x);
}

DSI_INLINE vf packed_fma(packed_vf a, packed_vf b, vf sum)
{
    return vf_fma(a, b, sum);
}

DSI_INLINE bool packed_supports(const dsi_gemm_params *p)
{
    (void)p;
    return true;
}
#endif

DSI_INLINE int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

#endif
