/* SPDX-License-Identifier: Apache-2.0 */
/* The families of kernels made of matrix products; registry.c lists them. */
#include "accel/cpu/simd/gemm_kernels.h"

#if defined(DSI_ISA_avx512)
#define X(name)                                                                                    \
    extern const ds_kernel dsi_gemm_##name##_amx;                                                  \
    extern const ds_kernel dsi_gemm_##name##_avx512_bf16;                                          \
    extern const ds_kernel dsi_gemm_##name##_avx512;
#else
#define X(name) extern const ds_kernel dsi_gemm_##name##_avx2;
#endif
DSI_GEMM_KERNELS(X)
#undef X

extern const ds_kernel *const DSI_NAME(dsi_gemm_family)[];
const ds_kernel *const DSI_NAME(dsi_gemm_family)[] = {
#if defined(DSI_ISA_avx512)
#define X(name) &dsi_gemm_##name##_amx, &dsi_gemm_##name##_avx512_bf16, &dsi_gemm_##name##_avx512,
#else
#define X(name) &dsi_gemm_##name##_avx2,
#endif
    DSI_GEMM_KERNELS(X)
#undef X
        NULL,
};
