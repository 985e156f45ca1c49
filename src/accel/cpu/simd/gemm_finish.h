/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a matrix product on one vector: what gemm.h promises, in that order. Included by
 * the files that compute products on vectors or tiles. */
#ifndef DSI_ACCEL_CPU_GEMM_FINISH_H
#define DSI_ACCEL_CPU_GEMM_FINISH_H

#include "accel/cpu/gemm.h"
#include "accel/cpu/simd/vec_math.h"

DSI_INLINE vf gemm_get(const void *base, ds_dtype type, int64_t i, size_t n)
{
    return n == VF_WIDTH ? vf_get(base, type, (size_t)i) : vf_get_n(base, type, (size_t)i, n);
}

DSI_INLINE void gemm_put(void *base, ds_dtype type, int64_t i, vf v, size_t n)
{
    if (n == VF_WIDTH) {
        vf_put(base, type, (size_t)i, v);
    } else {
        vf_put_n(base, type, (size_t)i, v, n);
    }
}

/* Everything before the rounding to C. sum: Σ a·b of C[i, j..j+n). */
DSI_INLINE vf gemm_value(const dsi_gemm_params *p, ds_dtype c_dtype, vf sum, int64_t i, int64_t j,
                         size_t n)
{
    vf v = vf_mul(sum, vf_set(p->alpha));
    if (p->accumulate) {
        const void *addend = p->addend != NULL ? (const void *)p->addend : p->c;
        v = vf_add(v, gemm_get(addend, DS_DTYPE_F32, i * p->ldc + j, n));
    }
    if (p->bias != NULL) {
        v = vf_add(v, gemm_get(p->bias, p->bias_dtype, j, n));
    }
    if (p->pre != NULL) {
        v = vf_rounded(v, c_dtype);
        gemm_put(p->pre, c_dtype, i * p->ldpre + j, v, n);
    }
    if (p->activation == DSI_GEMM_ACT_GELU_TANH) {
        v = vf_gelu_tanh(v);
    }
    if (p->residual != NULL) {
        v = vf_add(v, gemm_get(p->residual, c_dtype, i * p->ldres + j, n));
    }
    return v;
}

/* Finishes C[i, j..j+n), 1 <= n <= VF_WIDTH. */
DSI_INLINE void gemm_finish(const dsi_gemm_params *p, vf sum, int64_t i, int64_t j, size_t n)
{
    switch (p->c_dtype) {
    case DS_DTYPE_BF16:
        gemm_put(p->c, DS_DTYPE_BF16, i * p->ldc + j, gemm_value(p, DS_DTYPE_BF16, sum, i, j, n),
                 n);
        break;
    case DS_DTYPE_F16:
        gemm_put(p->c, DS_DTYPE_F16, i * p->ldc + j, gemm_value(p, DS_DTYPE_F16, sum, i, j, n), n);
        break;
    default:
        gemm_put(p->c, DS_DTYPE_F32, i * p->ldc + j, gemm_value(p, DS_DTYPE_F32, sum, i, j, n), n);
        break;
    }
}

#endif
