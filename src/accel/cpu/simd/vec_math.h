/* SPDX-License-Identifier: Apache-2.0 */
/* exp, log, tanh, erf, sigmoid and the activations on vectors of fp32.
 *
 * Used by every kernel of this folder that needs them. Polynomials are minimax fits of our own
 * (weighted least squares until the error is even); argument reduction after Cody and Waite,
 * "Software Manual for the Elementary Functions", 1980. The errors stated are the largest found
 * over all fp32 arguments (test_simd_math). Results below the normal range may be flushed to zero.
 * NaN in gives NaN out.
 */
#ifndef DSI_ACCEL_CPU_VEC_MATH_H
#define DSI_ACCEL_CPU_VEC_MATH_H

#include "accel/cpu/simd/simd.h"

/* e^x, error below 1 ulp; infinity above 88.72, 0 below -104. */
DSI_INLINE vf vf_exp(vf x)
{
    x = vf_max(vf_set(-104.0f),
               vf_min(vf_set(89.0f), x)); /* NaN passes: it is the second operand */
    const vf n = vf_round(vf_mul(x, vf_set(0x1.715476p+0f)));
    vf r = vf_fma(n, vf_set(-0x1.62e400p-1f), x); /* exact: 13 bits of ln 2 */
    r = vf_fma(n, vf_set(-0x1.7f7d1cp-20f), r);
    vf q = vf_set(0x1.6a2350p-10f);
    q = vf_fma(q, r, vf_set(0x1.123a6cp-7f));
    q = vf_fma(q, r, vf_set(0x1.5558f4p-5f));
    q = vf_fma(q, r, vf_set(0x1.555490p-3f));
    q = vf_fma(q, r, vf_set(0x1.fffffcp-2f));
    const vf p = vf_add(vf_fma(vf_mul(r, r), q, r), vf_set(1.0f));
    return vf_scale2(p, n);
}

/* ln x, error below 1 ulp; -infinity for 0, NaN below. Subnormal arguments count as 0. */
DSI_INLINE vf vf_log(vf x)
{
    const vi bits = vf_bits(x);
    const vi shifted = vi_sub(bits, vi_set(0x3f3504f3)); /* so that m is in [√½,√2) */
    const vf e = vf_from_int(vi_sar(shifted, 23));
    const vi mantissa = vi_add(vi_and(shifted, vi_set(0x007fffff)), vi_set(0x3f3504f3));
    const vf f = vf_sub(vf_from_bits(mantissa), vf_set(1.0f));
    vf q = vf_set(-0x1.38b57ep-4f);
    q = vf_fma(q, f, vf_set(0x1.055b6ap-3f));
    q = vf_fma(q, f, vf_set(-0x1.0d8542p-3f));
    q = vf_fma(q, f, vf_set(0x1.22da1ep-3f));
    q = vf_fma(q, f, vf_set(-0x1.547244p-3f));
    q = vf_fma(q, f, vf_set(0x1.99a008p-3f));
    q = vf_fma(q, f, vf_set(-0x1.000226p-2f));
    q = vf_fma(q, f, vf_set(0x1.555554p-2f));
    const vf f2 = vf_mul(f, f);
    vf tail = vf_mul(vf_mul(f2, f), q);
    tail = vf_fma(e, vf_set(0x1.7f7d1cp-20f), tail);
    tail = vf_fma(f2, vf_set(-0.5f), tail);
    const vf y = vf_fma(e, vf_set(0x1.62e400p-1f), vf_add(f, tail));
    const vf infinity = vf_from_bits(vi_set(0x7f800000));
    const vf finite = vf_select(vf_eq(x, infinity), infinity, y);
    const vf at_zero = vf_select(vf_lt(vf_abs(x), vf_set(0x1p-126f)), vf_neg(infinity), finite);
    const vm bad = vm_or(vf_unord(x, x), vf_ge(vf_set(-0x1p-126f), x));
    return vf_select(bad, vf_from_bits(vi_set(0x7fc00000)), at_zero);
}

/* tanh x, error below 2 ulp. */
DSI_INLINE vf vf_tanh(vf x)
{
    const vf a = vf_abs(x);
    const vf z = vf_mul(x, x);
    vf q = vf_set(-0x1.75e1a8p-8f);
    q = vf_fma(q, z, vf_set(0x1.522692p-6f));
    q = vf_fma(q, z, vf_set(-0x1.b83c58p-5f));
    q = vf_fma(q, z, vf_set(0x1.110726p-3f));
    q = vf_fma(q, z, vf_set(-0x1.555532p-2f));
    const vf small = vf_fma(vf_mul(x, z), q, x);
    const vf grown = vf_add(vf_exp(vf_add(a, a)), vf_set(1.0f));
    const vf large = vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), grown));
    return vf_copysign(vf_select(vf_lt(a, vf_set(0.625f)), small, large), x);
}

/* erf x, error below 2 ulp. */
DSI_INLINE vf vf_erf(vf x)
{
    const vf a = vf_abs(x);
    const vf z = vf_mul(x, x);
    vf q = vf_set(0x1.496a20p-14f);
    q = vf_fma(q, z, vf_set(-0x1.a3f6f8p-11f));
    q = vf_fma(q, z, vf_set(0x1.5405b0p-8f));
    q = vf_fma(q, z, vf_set(-0x1.b7f90cp-6f));
    q = vf_fma(q, z, vf_set(0x1.ce2cf8p-4f));
    q = vf_fma(q, z, vf_set(-0x1.81273ep-2f));
    q = vf_fma(q, z, vf_set(0x1.06eba8p-3f));
    const vf small = vf_fma(x, q, x);
    const vf t = vf_min(vf_set(4.0f), a); /* ln erfc t, t in [1,4] */
    vf g = vf_set(-0x1.6c0648p-16f);
    g = vf_fma(g, t, vf_set(0x1.ceeab6p-12f));
    g = vf_fma(g, t, vf_set(-0x1.1398e8p-8f));
    g = vf_fma(g, t, vf_set(0x1.9d0bc8p-6f));
    g = vf_fma(g, t, vf_set(-0x1.bc18cap-4f));
    g = vf_fma(g, t, vf_set(-0x1.4434f2p-1f));
    g = vf_fma(g, t, vf_set(-0x1.212c2cp+0f));
    g = vf_fma(g, t, vf_set(0x1.8b3ddcp-13f));
    const vf large = vf_sub(vf_set(1.0f), vf_exp(g));
    return vf_select(vf_lt(a, vf_set(1.0f)), small, vf_copysign(large, x));
}

/* 1/(1+e^-x), error below 3 ulp, exactly 0 and 1 at the ends. */
DSI_INLINE vf vf_sigmoid(vf x)
{
    const vf e = vf_exp(vf_neg(vf_max(vf_set(-87.0f), x))); /* finite, as vf_rcp needs */
    const vf y = vf_rcp(vf_add(vf_set(1.0f), e));
    return vf_select(vf_lt(x, vf_set(-87.0f)), vf_zero(), y);
}

/* 1/(1+2^t) with an absolute error below 2^-22, for the activations; 0 from t = 126 on. *rest_out
 * is the rest to 1, without cancellation. */
DSI_INLINE vf vf_gate(vf t, vf *rest_out)
{
    const vf x = vf_max(vf_set(-125.0f), vf_min(vf_set(126.0f), t)); /* NaN passes */
    const vf n = vf_round(x);
    const vf f = vf_sub(x, n);
    vf p = vf_set(0x1.5bb9dcp-10f); /* 2^f, |f| <= 1/2, within 1e-7 */
    p = vf_fma(p, f, vf_set(0x1.3ceab6p-7f));
    p = vf_fma(p, f, vf_set(0x1.c6b754p-5f));
    p = vf_fma(p, f, vf_set(0x1.ebf9bcp-3f));
    p = vf_fma(p, f, vf_set(0x1.62e42ap-1f));
    p = vf_fma(p, f, vf_set(1.0f));
    const vf e = vf_scale2_normal(p, n);
    const vf y = vf_rcp(vf_add(vf_set(1.0f), e));
    *rest_out = vf_mul(e, y);
    return vf_select(vf_ge(t, vf_set(126.0f)), vf_zero(), y);
}

#define VF_LOG2_E 1.4426950408889634

/* x·sigmoid(x) and its derivative. */
DSI_INLINE vf vf_silu(vf x)
{
    vf rest;
    return vf_mul(x, vf_gate(vf_mul(x, vf_set((float)-VF_LOG2_E)), &rest));
}

DSI_INLINE vf vf_silu_slope(vf x)
{
    vf rest;
    const vf s = vf_gate(vf_mul(x, vf_set((float)-VF_LOG2_E)), &rest);
    return vf_fma(vf_mul(x, s), rest, s);
}

/* gelu(x) = x·(1+tanh u)/2 = x·sigmoid(2u) with 2u = a·x + b·x³, a = 2·√(2/π), b = 0.044715·a.
 * This is the gate of 2u. */
DSI_INLINE vf vf_gelu_tanh_gate(vf x, vf *rest_out)
{
    const vf b = vf_set((float)(-0.0713548162726009 * VF_LOG2_E));
    const vf a = vf_set((float)(-1.5957691216057308 * VF_LOG2_E));
    return vf_gate(vf_mul(x, vf_fma(vf_mul(x, x), b, a)), rest_out);
}

DSI_INLINE vf vf_gelu_tanh(vf x)
{
    vf rest;
    return vf_mul(x, vf_gelu_tanh_gate(x, &rest));
}

DSI_INLINE vf vf_gelu_tanh_slope(vf x)
{
    vf rest;
    const vf s = vf_gelu_tanh_gate(x, &rest);
    const vf du = vf_fma(vf_mul(x, x), vf_set(0.2140644488178f), vf_set(1.5957691216057f));
    return vf_fma(vf_mul(vf_mul(x, du), s), rest, s);
}

/* x·(1+erf(x/√2))/2 and its derivative Φ(x) + x·φ(x). */
DSI_INLINE vf vf_gelu_erf(vf x)
{
    const vf e = vf_erf(vf_mul(x, vf_set(0x1.6a09e6p-1f)));
    return vf_mul(vf_mul(vf_set(0.5f), x), vf_add(vf_set(1.0f), e));
}

DSI_INLINE vf vf_gelu_erf_slope(vf x)
{
    const vf e = vf_erf(vf_mul(x, vf_set(0x1.6a09e6p-1f)));
    const vf cdf = vf_fma(vf_set(0.5f), e, vf_set(0.5f));
    const vf bell = vf_exp(vf_mul(vf_mul(x, x), vf_set(-0.5f)));
    return vf_fma(vf_mul(x, vf_set(0x1.988454p-2f)), bell, cdf);
}

#endif
