/* SPDX-License-Identifier: Apache-2.0 */
/* One small vector abstraction for kernels: a vector of fp32, 16 wide on AVX-512 and 8 wide on
 * AVX2.
 *
 * Files of this folder are compiled once for each instruction set with DSI_ISA (avx2, avx512) and
 * DSI_ISA_<name> defined; DSI_NAME(x) makes the symbols distinct. Everything is static inline.
 *
 * Invariants:
 *  1. + - * / sqrt and fma are the IEEE operations: a kernel made of them alone gives the same bits
 *     on every width. Nothing here reassociates except vf_sum and vf_hmax, whose order is fixed.
 *  2. The _n forms touch exactly n elements, n in [0,VF_WIDTH]; the other lanes load as zero.
 *  3. Conversions to bf16 and fp16 give the bits of base/half.h.
 */
#ifndef DSI_ACCEL_CPU_SIMD_H
#define DSI_ACCEL_CPU_SIMD_H

#include "accel/cpu/cpu_features.h"

#include <deepspeed/tensor.h>
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DSI_NAME_2(x, isa) x##_##isa
#define DSI_NAME_1(x, isa) DSI_NAME_2(x, isa)
#define DSI_NAME(x)        DSI_NAME_1(x, DSI_ISA)

#define DSI_TEXT_1(isa) #isa
#define DSI_TEXT(isa)   DSI_TEXT_1(isa)
#define DSI_ISA_TEXT    DSI_TEXT(DSI_ISA) /* "avx2" */

/* Force-inlined: a dtype passed as a constant makes the function a specialised one. */
#define DSI_INLINE static inline __attribute__((always_inline, unused))

#if defined(DSI_ISA_avx512)
#include "accel/cpu/simd/simd_avx512.h"
#define DSI_SIMD_ISA DSI_NEEDS_AVX512
#elif defined(DSI_ISA_avx512_vnni)
#include "accel/cpu/simd/simd_avx512.h"
#define DSI_SIMD_ISA DSI_NEEDS_AVX512_VNNI
#elif defined(DSI_ISA_avx512_bf16)
#include "accel/cpu/simd/simd_avx512.h"
#define DSI_SIMD_ISA DSI_NEEDS_AVX512_BF16
#elif defined(DSI_ISA_amx)
#include "accel/cpu/simd/simd_avx512.h"
#define DSI_SIMD_ISA DSI_NEEDS_AMX
#elif defined(DSI_ISA_avx2)
#include "accel/cpu/simd/simd_avx2.h"
#define DSI_SIMD_ISA DSI_NEEDS_AVX2
#else
#error "compile with DSI_ISA_ of avx2, avx512, avx512_vnni, avx512_bf16 or amx"
#endif

/* Elements i.. of an array of f32, bf16 or f16 as fp32. */
DSI_INLINE vf vf_get(const void *base, ds_dtype type, size_t i)
{
    switch (type) {
    case DS_DTYPE_BF16:
        return vf_load_bf16((const uint16_t *)base + i);
    case DS_DTYPE_F16:
        return vf_load_f16((const uint16_t *)base + i);
    default:
        return vf_load((const float *)base + i);
    }
}

DSI_INLINE vf vf_get_n(const void *base, ds_dtype type, size_t i, size_t n)
{
    switch (type) {
    case DS_DTYPE_BF16:
        return vf_load_bf16_n((const uint16_t *)base + i, n);
    case DS_DTYPE_F16:
        return vf_load_f16_n((const uint16_t *)base + i, n);
    default:
        return vf_load_n((const float *)base + i, n);
    }
}

/* Whole or partial by n: for loops whose body is long enough for the branch. */
DSI_INLINE vf vf_get_upto(const void *base, ds_dtype type, size_t i, size_t n)
{
    return n == VF_WIDTH ? vf_get(base, type, i) : vf_get_n(base, type, i, n);
}

/* Asks for the line FETCH_AHEAD bytes behind element i of a stream that is read or written in
 * order. Past the end of an array it is harmless. Streams from memory are several times faster with
 * it. */
enum { FETCH_AHEAD = 2048 };

DSI_INLINE void vf_fetch(const void *base, ds_dtype type, size_t i)
{
    const size_t bytes = type == DS_DTYPE_F32 ? 4 : 2;
    _mm_prefetch((const char *)base + i * bytes + FETCH_AHEAD, _MM_HINT_T0);
}

/* Rounds to nearest even and stores at elements i... */
DSI_INLINE void vf_put(void *base, ds_dtype type, size_t i, vf v)
{
    switch (type) {
    case DS_DTYPE_BF16:
        vf_store_bf16((uint16_t *)base + i, v);
        break;
    case DS_DTYPE_F16:
        vf_store_f16((uint16_t *)base + i, v);
        break;
    default:
        vf_store((float *)base + i, v);
    }
}

DSI_INLINE void vf_put_pair(void *base, ds_dtype type, size_t i, const vf v[2])
{
    if (type == DS_DTYPE_BF16) {
        vf_store_bf16_pair((uint16_t *)base + i, v[0], v[1]);
    } else {
        vf_put(base, type, i, v[0]);
        vf_put(base, type, i + VF_WIDTH, v[1]);
    }
}

DSI_INLINE void vf_put_n(void *base, ds_dtype type, size_t i, vf v, size_t n)
{
    switch (type) {
    case DS_DTYPE_BF16:
        vf_store_bf16_n((uint16_t *)base + i, v, n);
        break;
    case DS_DTYPE_F16:
        vf_store_f16_n((uint16_t *)base + i, v, n);
        break;
    default:
        vf_store_n((float *)base + i, v, n);
    }
}

DSI_INLINE void vf_put_upto(void *base, ds_dtype type, size_t i, vf v, size_t n)
{
    if (n == VF_WIDTH) {
        vf_put(base, type, i, v);
    } else {
        vf_put_n(base, type, i, v, n);
    }
}

/* v rounded to the type's grid, still fp32. */
DSI_INLINE vf vf_rounded(vf v, ds_dtype type)
{
    switch (type) {
    case DS_DTYPE_BF16:
        return vf_round_bf16(v);
    case DS_DTYPE_F16:
        return vf_round_f16(v);
    default:
        return v;
    }
}

/* c - a·b with one rounding. */
DSI_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return vf_fma(vf_neg(a), b, c);
}

#endif
