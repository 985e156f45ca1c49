/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels made of matrix products: each for the vector set that the file is compiled for, and with
 * AVX-512 once more with products of pairs of bf16, and once with products on AMX tiles.
 */
#ifndef DSI_ACCEL_CPU_GEMM_KERNELS_H
#define DSI_ACCEL_CPU_GEMM_KERNELS_H

#include "accel/cpu/gemm.h"
#include "accel/cpu/simd/simd_kernel.h"
#include "base/context.h"

/* Operators of this group, in the form of DSI_SIMD_KERNELS. */
#define DSI_GEMM_KERNELS(X)                                                                        \
    X(linear)                                                                                      \
    X(linear_dw)                                                                                   \
    X(linear_packed)                                                                               \
    X(bmm)                                                                                         \
    X(grouped_linear)                                                                              \
    X(grouped_linear_dw)                                                                           \
    X(linear_cross_entropy)                                                                        \
    X(linear_cross_entropy_backward)                                                               \
    X(linear_cross_entropy_dx)                                                                     \
    X(linear_cross_entropy_part)                                                                   \
    X(linear_cross_entropy_part_backward)                                                          \
    X(linear_cross_entropy_dw)                                                                     \
    X(linear_logprob)                                                                              \
    X(linear_logprob_backward)

/* supports(sig), work(sig, isa) and run(call, isa) of an operator become its kernels. */
#define DSI_GEMM_KERNEL_AT(op_name, suffix, text, level)                                           \
    static size_t op_name##_work_##suffix(const ds_kernel_sig *sig)                                \
    {                                                                                              \
        return op_name##_work(sig, level);                                                         \
    }                                                                                              \
    static ds_status op_name##_run_##suffix(const ds_kernel_call *call)                            \
    {                                                                                              \
        return op_name##_run(call, level);                                                         \
    }                                                                                              \
    extern const ds_kernel dsi_gemm_##op_name##_##suffix;                                          \
    const ds_kernel dsi_gemm_##op_name##_##suffix = {                                              \
        DS_OP_VERSION,         text, #op_name, level, op_name##_supports, op_name##_work_##suffix, \
        op_name##_run_##suffix};

#if defined(DSI_ISA_avx512)
#define DSI_GEMM_KERNEL(op_name)                                                                   \
    DSI_GEMM_KERNEL_AT(op_name, amx, "amx", DSI_NEEDS_AMX)                                         \
    DSI_GEMM_KERNEL_AT(op_name, avx512_bf16, "avx512_bf16", DSI_NEEDS_AVX512_BF16)                 \
    DSI_GEMM_KERNEL_AT(op_name, avx512, "avx512", DSI_NEEDS_AVX512)
#else
#define DSI_GEMM_KERNEL(op_name) DSI_GEMM_KERNEL_AT(op_name, avx2, "avx2", DSI_NEEDS_AVX2)
#endif

DSI_INLINE bool gemm_dtype(ds_dtype type)
{
    return type == DS_DTYPE_F32 || type == DS_DTYPE_BF16 || type == DS_DTYPE_F16;
}

DSI_INLINE size_t round64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

#endif
