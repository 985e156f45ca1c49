/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h on AVX-512 (F, BW, DQ, VL). Included by simd.h only. */
#ifndef DSI_ACCEL_CPU_SIMD_AVX512_H
#define DSI_ACCEL_CPU_SIMD_AVX512_H

typedef __m512 vf;    /* 16 fp32 */
typedef __m512i vi;   /* 16 i32 */
typedef __mmask16 vm; /* 16 booleans */

enum { VF_WIDTH = 16 };

/* ---- masks --------------------------------------------------------------------------------- */
DSI_INLINE vm vm_first(size_t n)
{
    return (vm)((1u << n) - 1u);
}

DSI_INLINE vm vm_and(vm a, vm b)
{
    return (vm)(a & b);
}

DSI_INLINE vm vm_or(vm a, vm b)
{
    return (vm)(a | b);
}

DSI_INLINE int vm_any(vm a)
{
    return a != 0;
}

/* ---- integers ------------------------------------------------------------------------------ */
DSI_INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

DSI_INLINE vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

DSI_INLINE vi vi_load_n(const int32_t *p, size_t n)
{
    return _mm512_maskz_loadu_epi32(vm_first(n), p);
}

DSI_INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

DSI_INLINE vi vi_load_i8(const int8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

DSI_INLINE void vi_store(int32_t *p, vi v)
{
    _mm512_storeu_si512(p, v);
}

DSI_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

DSI_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

DSI_INLINE vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}

DSI_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

DSI_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

DSI_INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}

DSI_INLINE vi vi_max(vi a, vi b) /* signed */
{
    return _mm512_max_epi32(a, b);
}

DSI_INLINE vi vi_shl(vi a, unsigned n)
{
    return _mm512_slli_epi32(a, n);
}

DSI_INLINE vi vi_shr(vi a, unsigned n) /* logical */
{
    return _mm512_srli_epi32(a, n);
}

DSI_INLINE vi vi_sar(vi a, unsigned n) /* arithmetic */
{
    return _mm512_srai_epi32(a, n);
}

DSI_INLINE vm vi_gt(vi a, vi b) /* signed */
{
    return _mm512_cmpgt_epi32_mask(a, b);
}

DSI_INLINE vi vi_select(vm m, vi yes, vi no)
{
    return _mm512_mask_blend_epi32(m, no, yes);
}

/* Each lane: acc plus the products of its four unsigned bytes of a with the signed ones of b. */
DSI_INLINE vi vi_dot4(vi acc, vi a, vi b)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, a, b);
#else
    const vi even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)),
                                      _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    const vi odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}

/* ---- 64-bit lanes of the same registers ---------------------------------------------------------
 */
enum { VL_WIDTH = 8 };

DSI_INLINE vi vl_set(uint64_t x)
{
    return _mm512_set1_epi64((int64_t)x);
}

DSI_INLINE vi vl_count_from(uint64_t x) /* x, x+1, … */
{
    const vi lane = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_add_epi64(_mm512_set1_epi64((int64_t)x), lane);
}

DSI_INLINE vi vl_mul_low(vi a, vi b) /* product of the low 32 bits */
{
    return _mm512_mul_epu32(a, b);
}

DSI_INLINE vi vl_shr(vi a, unsigned n)
{
    return _mm512_srli_epi64(a, n);
}

/* out[4·lane + k] = low 32 bits of lane of x[k] */
DSI_INLINE void vl_store_quads(uint32_t *out, const vi x[4])
{
    const vi low = _mm512_set1_epi64(0xffffffff);
    const vi a = _mm512_or_si512(_mm512_and_si512(x[0], low), _mm512_slli_epi64(x[1], 32));
    const vi b = _mm512_or_si512(_mm512_and_si512(x[2], low), _mm512_slli_epi64(x[3], 32));
    const vi first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const vi second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(a, first, b));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(a, second, b));
}

/* ---- fp32 ---------------------------------------------------------------------------------- */
DSI_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}

DSI_INLINE vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

DSI_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

DSI_INLINE vf vf_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}

DSI_INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

DSI_INLINE void vf_store_n(float *p, vf v, size_t n)
{
    _mm512_mask_storeu_ps(p, vm_first(n), v);
}

DSI_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

DSI_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

DSI_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

DSI_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

DSI_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

DSI_INLINE vf vf_fma(vf a, vf b, vf c) /* a·b + c, one rounding */
{
    return _mm512_fmadd_ps(a, b, c);
}

DSI_INLINE vf vf_max(vf a, vf b) /* a > b ? a : b, so b when either is NaN */
{
    return _mm512_max_ps(a, b);
}

DSI_INLINE vf vf_min(vf a, vf b) /* a < b ? a : b, so b when either is NaN */
{
    return _mm512_min_ps(a, b);
}

DSI_INLINE vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

DSI_INLINE vf vf_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

/* Elements 2i and 2i+1 change places. */
DSI_INLINE vf vf_swap_neighbours(vf a)
{
    return _mm512_permute_ps(a, 0xb1);
}

DSI_INLINE vf vf_copysign(vf magnitude, vf sign)
{
    const vf bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}

DSI_INLINE vf vf_round(vf a) /* to the nearest integer, ties to even */
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

DSI_INLINE vf vf_scale2(vf a, vf n) /* a·2^n, n integral in [-250,250] */
{
    return _mm512_scalef_ps(a, n);
}

DSI_INLINE vf vf_scale2_normal(vf a, vf n) /* likewise where the result is a normal number */
{
    return _mm512_scalef_ps(a, n);
}

DSI_INLINE vf vf_rcp(vf a) /* 1/a within 2 ulp for normal results; NaN for 0 and infinity */
{
    const vf r = _mm512_rcp14_ps(a);
    const vf e = _mm512_fnmadd_ps(a, r, _mm512_set1_ps(1.0f));
    return _mm512_fmadd_ps(r, e, r);
}

/* Comparisons: false when either is NaN, except vf_unord. */
DSI_INLINE vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

DSI_INLINE vm vf_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

DSI_INLINE vm vf_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

DSI_INLINE vm vf_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

DSI_INLINE vm vf_unord(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}

DSI_INLINE vf vf_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

DSI_INLINE vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}

DSI_INLINE vf vf_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

DSI_INLINE vi vf_to_int(vf a) /* to nearest, ties to even */
{
    return _mm512_cvtps_epi32(a);
}

DSI_INLINE vf vf_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

DSI_INLINE vf vf_gather(const float *base, vi index)
{
    return _mm512_i32gather_ps(index, base, 4);
}

DSI_INLINE float vf_sum(vf a) /* halves added until one is left */
{
    return _mm512_reduce_add_ps(a);
}

DSI_INLINE float vf_hmax(vf a)
{
    return _mm512_reduce_max_ps(a);
}

/* ---- fp64 ----------------------------------------------------------------------------------- */
typedef __m512d vd; /* 8 fp64: half a vf */

DSI_INLINE vd vd_set(double x)
{
    return _mm512_set1_pd(x);
}

DSI_INLINE vd vd_low(vf a) /* elements 0..VF_WIDTH/2-1 */
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}

DSI_INLINE vd vd_high(vf a)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}

DSI_INLINE vd vd_add(vd a, vd b)
{
    return _mm512_add_pd(a, b);
}

DSI_INLINE vd vd_sub(vd a, vd b)
{
    return _mm512_sub_pd(a, b);
}

DSI_INLINE vd vd_mul(vd a, vd b)
{
    return _mm512_mul_pd(a, b);
}

DSI_INLINE double vd_sum(vd a)
{
    return _mm512_reduce_add_pd(a);
}

/* ---- bf16 and fp16 -------------------------------------------------------------------------- */
DSI_INLINE vf vf_widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

DSI_INLINE vi vf_bf16_bits(vf v) /* rounded to nearest even, in the high halves */
{
    const vi bits = _mm512_castps_si512(v);
    const vi odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const vi up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const vm nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
}

DSI_INLINE __m256i vf_narrow_bf16(vf v)
{
    const vi odd_words = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29,
                                          27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(odd_words, vf_bf16_bits(v)));
}

DSI_INLINE vf vf_round_bf16(vf v)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(vf_bf16_bits(v), _mm512_set1_epi32((int32_t)0xffff0000)));
}

DSI_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

DSI_INLINE vf vf_load_bf16_n(const uint16_t *p, size_t n)
{
    return vf_widen_bf16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

DSI_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, vf_narrow_bf16(v));
}

DSI_INLINE void vf_store_bf16_pair(uint16_t *p, vf a, vf b) /* a, then b */
{
    vf_store_bf16(p, a);
    vf_store_bf16(p + VF_WIDTH, b);
}

DSI_INLINE void vf_store_bf16_n(uint16_t *p, vf v, size_t n)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_narrow_bf16(v));
}

DSI_INLINE __m256i vf_narrow_f16(vf v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

DSI_INLINE vf vf_round_f16(vf v)
{
    return _mm512_cvtph_ps(vf_narrow_f16(v));
}

DSI_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

DSI_INLINE vf vf_load_f16_n(const uint16_t *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

DSI_INLINE void vf_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, vf_narrow_f16(v));
}

DSI_INLINE void vf_store_f16_n(uint16_t *p, vf v, size_t n)
{
    _mm256_mask_storeu_epi16(p, vm_first(n), vf_narrow_f16(v));
}

#endif
