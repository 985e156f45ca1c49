/* SPDX-License-Identifier: Apache-2.0 */
/* simd.h on AVX2 with FMA and F16C. Included by simd.h only. */
#ifndef DSI_ACCEL_CPU_SIMD_AVX2_H
#define DSI_ACCEL_CPU_SIMD_AVX2_H

typedef __m256 vf;  /* 8 fp32 */
typedef __m256i vi; /* 8 i32 */
typedef __m256 vm;  /* 8 booleans: all bits of a lane */

enum { VF_WIDTH = 8 };

/* ---- masks --------------------------------------------------------------------------------- */
DSI_INLINE __m256i vm_first_bits(size_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), lane);
}

DSI_INLINE vm vm_first(size_t n)
{
    return _mm256_castsi256_ps(vm_first_bits(n));
}

DSI_INLINE vm vm_and(vm a, vm b)
{
    return _mm256_and_ps(a, b);
}

DSI_INLINE vm vm_or(vm a, vm b)
{
    return _mm256_or_ps(a, b);
}

DSI_INLINE int vm_any(vm a)
{
    return _mm256_movemask_ps(a) != 0;
}

/* ---- integers ------------------------------------------------------------------------------ */
DSI_INLINE vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}

DSI_INLINE vi vi_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

DSI_INLINE vi vi_load_n(const int32_t *p, size_t n)
{
    return _mm256_maskload_epi32(p, vm_first_bits(n));
}

DSI_INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

DSI_INLINE vi vi_load_i8(const int8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

DSI_INLINE void vi_store(int32_t *p, vi v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

DSI_INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

DSI_INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}

DSI_INLINE vi vi_mul(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}

DSI_INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

DSI_INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

DSI_INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}

DSI_INLINE vi vi_max(vi a, vi b) /* signed */
{
    return _mm256_max_epi32(a, b);
}

DSI_INLINE vi vi_shl(vi a, unsigned n)
{
    return _mm256_slli_epi32(a, (int)n);
}

DSI_INLINE vi vi_shr(vi a, unsigned n) /* logical */
{
    return _mm256_srli_epi32(a, (int)n);
}

DSI_INLINE vi vi_sar(vi a, unsigned n) /* arithmetic */
{
    return _mm256_srai_epi32(a, (int)n);
}

DSI_INLINE vm vi_gt(vi a, vi b) /* signed */
{
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b));
}

DSI_INLINE vi vi_select(vm m, vi yes, vi no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
}

/* Each lane: acc plus the products of its four unsigned bytes of a with the signed ones of b. */
DSI_INLINE vi vi_dot4(vi acc, vi a, vi b)
{
    const vi even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                      _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const vi odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}

/* ---- 64-bit lanes of the same registers ---------------------------------------------------------
 */
enum { VL_WIDTH = 4 };

DSI_INLINE vi vl_set(uint64_t x)
{
    return _mm256_set1_epi64x((int64_t)x);
}

DSI_INLINE vi vl_count_from(uint64_t x) /* x, x+1, … */
{
    return _mm256_add_epi64(_mm256_set1_epi64x((int64_t)x), _mm256_setr_epi64x(0, 1, 2, 3));
}

DSI_INLINE vi vl_mul_low(vi a, vi b) /* product of the low 32 bits */
{
    return _mm256_mul_epu32(a, b);
}

DSI_INLINE vi vl_shr(vi a, unsigned n)
{
    return _mm256_srli_epi64(a, (int)n);
}

/* out[4·lane + k] = low 32 bits of lane of x[k] */
DSI_INLINE void vl_store_quads(uint32_t *out, const vi x[4])
{
    const vi low = _mm256_set1_epi64x(0xffffffff);
    const vi a = _mm256_or_si256(_mm256_and_si256(x[0], low), _mm256_slli_epi64(x[1], 32));
    const vi b = _mm256_or_si256(_mm256_and_si256(x[2], low), _mm256_slli_epi64(x[3], 32));
    const vi even = _mm256_unpacklo_epi64(a, b); /* lanes 0 and 2 */
    const vi odd = _mm256_unpackhi_epi64(a, b);
    vi *to = (vi *)(void *)out;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

/* ---- fp32 ---------------------------------------------------------------------------------- */
DSI_INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}

DSI_INLINE vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

DSI_INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

DSI_INLINE vf vf_load_n(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, vm_first_bits(n));
}

DSI_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

DSI_INLINE void vf_store_n(float *p, vf v, size_t n)
{
    _mm256_maskstore_ps(p, vm_first_bits(n), v);
}

DSI_INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

DSI_INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

DSI_INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

DSI_INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

DSI_INLINE vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

DSI_INLINE vf vf_fma(vf a, vf b, vf c) /* a·b + c, one rounding */
{
    return _mm256_fmadd_ps(a, b, c);
}

DSI_INLINE vf vf_max(vf a, vf b) /* a > b ? a : b, so b when either is NaN */
{
    return _mm256_max_ps(a, b);
}

DSI_INLINE vf vf_min(vf a, vf b) /* a < b ? a : b, so b when either is NaN */
{
    return _mm256_min_ps(a, b);
}

DSI_INLINE vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

DSI_INLINE vf vf_neg(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}

/* Elements 2i and 2i+1 change places. */
DSI_INLINE vf vf_swap_neighbours(vf a)
{
    return _mm256_permute_ps(a, 0xb1);
}

DSI_INLINE vf vf_copysign(vf magnitude, vf sign)
{
    const vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}

DSI_INLINE vf vf_round(vf a) /* to the nearest integer, ties to even */
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

DSI_INLINE vf vf_scale2(vf a, vf n) /* a·2^n, n integral in [-250,250] */
{
    const vi k = _mm256_cvtps_epi32(n);
    const vi half = _mm256_srai_epi32(k, 1);
    const vi one = _mm256_set1_epi32(127);
    const vi p = _mm256_slli_epi32(_mm256_add_epi32(half, one), 23);
    const vi q = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), one), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(p)), _mm256_castsi256_ps(q));
}

DSI_INLINE vf vf_scale2_normal(vf a, vf n) /* likewise where the result is a normal number */
{
    const vi k = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), k));
}

DSI_INLINE vf vf_rcp(vf a) /* 1/a within 2 ulp for normal results; NaN for 0 and infinity */
{
    const vf r = _mm256_rcp_ps(a);
    const vf e = _mm256_fnmadd_ps(a, r, _mm256_set1_ps(1.0f));
    return _mm256_fmadd_ps(r, _mm256_fmadd_ps(e, e, e), r);
}

/* Comparisons: false when either is NaN, except vf_unord. */
DSI_INLINE vm vf_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

DSI_INLINE vm vf_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}

DSI_INLINE vm vf_ge(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GE_OQ);
}

DSI_INLINE vm vf_eq(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}

DSI_INLINE vm vf_unord(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_UNORD_Q);
}

DSI_INLINE vf vf_select(vm m, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, m);
}

DSI_INLINE vi vf_bits(vf a)
{
    return _mm256_castps_si256(a);
}

DSI_INLINE vf vf_from_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}

DSI_INLINE vi vf_to_int(vf a) /* to nearest, ties to even */
{
    return _mm256_cvtps_epi32(a);
}

DSI_INLINE vf vf_from_int(vi a)
{
    return _mm256_cvtepi32_ps(a);
}

DSI_INLINE vf vf_gather(const float *base, vi index)
{
    return _mm256_i32gather_ps(base, index, 4);
}

DSI_INLINE float vf_sum(vf a) /* halves added until one is left */
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

DSI_INLINE float vf_hmax(vf a)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* ---- fp64 ----------------------------------------------------------------------------------- */
typedef __m256d vd; /* 4 fp64: half a vf */

DSI_INLINE vd vd_set(double x)
{
    return _mm256_set1_pd(x);
}

DSI_INLINE vd vd_low(vf a) /* elements 0..VF_WIDTH/2-1 */
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}

DSI_INLINE vd vd_high(vf a)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}

DSI_INLINE vd vd_add(vd a, vd b)
{
    return _mm256_add_pd(a, b);
}

DSI_INLINE vd vd_sub(vd a, vd b)
{
    return _mm256_sub_pd(a, b);
}

DSI_INLINE vd vd_mul(vd a, vd b)
{
    return _mm256_mul_pd(a, b);
}

DSI_INLINE double vd_sum(vd a)
{
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* ---- bf16 and fp16 -------------------------------------------------------------------------- */
DSI_INLINE __m128i half_load_n(const uint16_t *p, size_t n)
{
    uint16_t lanes[8] = {0};
    memcpy(lanes, p, n * sizeof *p);
    return _mm_loadu_si128((const __m128i *)(const void *)lanes);
}

DSI_INLINE void half_store_n(uint16_t *p, __m128i h, size_t n)
{
    uint16_t lanes[8];
    _mm_storeu_si128((__m128i *)(void *)lanes, h);
    memcpy(p, lanes, n * sizeof *p);
}

DSI_INLINE vf vf_widen_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

DSI_INLINE vi vf_bf16_carried(vf v) /* vf_bf16_bits of what is no NaN */
{
    const vi bits = _mm256_castps_si256(v);
    const vi odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}

DSI_INLINE vi vf_bf16_bits(vf v) /* rounded to nearest even, in the high halves */
{
    const vi quiet = _mm256_or_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x400000));
    return vi_select(_mm256_cmp_ps(v, v, _CMP_UNORD_Q), quiet, vf_bf16_carried(v));
}

DSI_INLINE __m128i vf_narrow_bf16(vf v)
{
    const vi h = _mm256_srli_epi32(vf_bf16_bits(v), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

DSI_INLINE vf vf_round_bf16(vf v)
{
    return _mm256_castsi256_ps(
        _mm256_and_si256(vf_bf16_bits(v), _mm256_set1_epi32((int32_t)0xffff0000)));
}

DSI_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_widen_bf16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

DSI_INLINE vf vf_load_bf16_n(const uint16_t *p, size_t n)
{
    return vf_widen_bf16(half_load_n(p, n));
}

DSI_INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p, vf_narrow_bf16(v));
}

/* a, then b. NaN is rare: one look at both stands for a choice in each lane of either. */
DSI_INLINE void vf_store_bf16_pair(uint16_t *p, vf a, vf b)
{
    vi x;
    vi y;
    if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) == 0) {
        x = vf_bf16_carried(a);
        y = vf_bf16_carried(b);
    } else {
        x = vf_bf16_bits(a);
        y = vf_bf16_bits(b);
    }
    const vi lanes = _mm256_packus_epi32(_mm256_srli_epi32(x, 16), _mm256_srli_epi32(y, 16));
    _mm256_storeu_si256((vi *)(void *)p, _mm256_permute4x64_epi64(lanes, 0xd8));
}

DSI_INLINE void vf_store_bf16_n(uint16_t *p, vf v, size_t n)
{
    half_store_n(p, vf_narrow_bf16(v), n);
}

DSI_INLINE __m128i vf_narrow_f16(vf v)
{
    return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

DSI_INLINE vf vf_round_f16(vf v)
{
    return _mm256_cvtph_ps(vf_narrow_f16(v));
}

DSI_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

DSI_INLINE vf vf_load_f16_n(const uint16_t *p, size_t n)
{
    return _mm256_cvtph_ps(half_load_n(p, n));
}

DSI_INLINE void vf_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p, vf_narrow_f16(v));
}

DSI_INLINE void vf_store_f16_n(uint16_t *p, vf v, size_t n)
{
    half_store_n(p, vf_narrow_f16(v), n);
}

#endif
