/* SPDX-License-Identifier: Apache-2.0 */
/* What the matrix product's files share: the table of implementations, element access. */
#ifndef DSI_ACCEL_CPU_GEMM_IMPL_H
#define DSI_ACCEL_CPU_GEMM_IMPL_H

#include "accel/cpu/gemm.h"
#include "base/half.h"

/* One way to compute. gemm.c takes the first in its list whose needs are allowed and which
 * supports the case. */
typedef struct dsi_gemm_impl {
    const char *name;
    ds_isa needs;
    bool (*supports)(const dsi_gemm_params *p);
    size_t (*work_bytes)(const dsi_gemm_params *p); /* NULL: 0 */
    void (*run)(dsi_pool *pool, const dsi_gemm_params *p, void *work);
    size_t (*pack_bytes)(const dsi_gemm_params *p); /* NULL: no packed form */
    void (*pack)(dsi_pool *pool, const dsi_gemm_params *p, void *packed);
} dsi_gemm_impl;

/* The implementation that dsi_gemm() takes. For tests and reports. */
const dsi_gemm_impl *dsi_gemm_choose(const dsi_gemm_params *p);

extern const dsi_gemm_impl dsi_gemm_ref, dsi_gemm_vector_avx2, dsi_gemm_simd_avx2,
    dsi_gemm_vector_avx512, dsi_gemm_simd_avx512, dsi_gemm_vector_avx512_bf16,
    dsi_gemm_simd_avx512_bf16, dsi_gemm_amx;

static inline float dsi_gemm_load(const void *data, ds_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        return dsi_bf16_to_f32(((const uint16_t *)data)[i]);
    case DS_DTYPE_F16:
        return dsi_f16_to_f32(((const uint16_t *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

static inline void dsi_gemm_store(void *data, ds_dtype dtype, int64_t i, float value)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        ((uint16_t *)data)[i] = dsi_f32_to_bf16(value);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)data)[i] = dsi_f32_to_f16(value);
        break;
    default:
        ((float *)data)[i] = value;
        break;
    }
}

#endif
