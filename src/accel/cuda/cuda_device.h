/* SPDX-License-Identifier: Apache-2.0 */
/* What every kernel source (kernels/, *.cu) includes. They are written in the part of C that CUDA
 * C++ shares, with CUDA's own names for threads, blocks and barriers, and are compiled twice: by
 * nvcc for devices, and as C over the host layer (host/host_layer.h).
 *
 * A kernel has one argument, a struct of device pointers and numbers that its glue fills
 * (cuda_*.c). DSC_KERNEL_ACT makes one for each dtype of activations: name_f32, name_bf16 and
 * name_f16 of one body, which knows its dtype while it is compiled. Every kernel has a row in
 * kernel_list.h.
 *
 * Arithmetic: fp32; products and sums are not contracted (nvcc -fmad=false) but where fmaf is
 * written; results are rounded once, to nearest even. A sum's order depends on shapes alone.
 */
#ifndef DSC_DEVICE_H
#define DSC_DEVICE_H

#include "accel/cuda/kernels/fault.h"

#ifdef __CUDACC__
#include "accel/cuda/device_cuda.h"
#else
#include "accel/cuda/device_host.h"
#endif

/* As ds_dtype has them. */
enum { DSC_F32 = 1, DSC_BF16 = 2, DSC_F16 = 3 };

#define DSC_KERNEL_ACT(name, args_type)                                                            \
    DSC_KERNEL(name##_f32, args_type, name##_body(a, DSC_F32))                                     \
    DSC_KERNEL(name##_bf16, args_type, name##_body(a, DSC_BF16))                                   \
    DSC_KERNEL(name##_f16, args_type, name##_body(a, DSC_F16))

/* Element i of a tensor, and its rounding; dtype is a constant. */
DSC_INLINE float dsc_get(const void *t, int dtype, int64_t i)
{
    return dtype == DSC_F32    ? ((const float *)t)[i]
           : dtype == DSC_BF16 ? dsc_from_bf16(((const uint16_t *)t)[i])
                               : dsc_from_f16(((const uint16_t *)t)[i]);
}

DSC_INLINE void dsc_set(void *t, int dtype, int64_t i, float value)
{
    if (dtype == DSC_F32) {
        ((float *)t)[i] = value;
    } else {
        ((uint16_t *)t)[i] = dtype == DSC_BF16 ? dsc_to_bf16(value) : dsc_to_f16(value);
    }
}

/* value as a tensor of the dtype would hold it. */
DSC_INLINE float dsc_round(int dtype, float value)
{
    return dtype == DSC_F32    ? value
           : dtype == DSC_BF16 ? dsc_from_bf16(dsc_to_bf16(value))
                               : dsc_from_f16(dsc_to_f16(value));
}

/* Over the 32 lanes of a warp; every lane gets it. */
DSC_INLINE float dsc_warp_sum(float value)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        value += dsc_shfl_xor_f32(0xffffffffu, value, lanes);
    }
    return value;
}

DSC_INLINE float dsc_warp_max(float value)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float other = dsc_shfl_xor_f32(0xffffffffu, value, lanes);
        value = other > value ? other : value;
    }
    return value;
}

/* Over a block of a multiple of 32 threads, at most 1024 in x; every thread gets it. parts: shared,
 * used by nothing else; it may be used again at once. */
DSC_INLINE float dsc_block_sum(float value, float parts[32])
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t n_warps = blockDim.x / 32;
    value = dsc_warp_sum(value);
    if (threadIdx.x % 32 == 0) {
        parts[warp] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t w = 0; w < n_warps; ++w) {
        sum += parts[w];
    }
    __syncthreads();
    return sum;
}

DSC_INLINE float dsc_block_max(float value, float parts[32])
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t n_warps = blockDim.x / 32;
    value = dsc_warp_max(value);
    if (threadIdx.x % 32 == 0) {
        parts[warp] = value;
    }
    __syncthreads();
    float most = parts[0];
    for (uint32_t w = 1; w < n_warps; ++w) {
        most = parts[w] > most ? parts[w] : most;
    }
    __syncthreads();
    return most;
}

/* A thread's word of an operand that it cannot work with: the first of them counts. */
DSC_INLINE void dsc_report(dsc_fault *fault, uint64_t call, int64_t at, int64_t value,
                           int64_t bound)
{
    if (dsc_is_first(&fault->call, call)) {
        fault->at = at;
        fault->value = value;
        fault->bound = bound;
    }
}

/* This thread's number in a grid of one dimension, and how many there are. */
DSC_INLINE int64_t dsc_index(void)
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

DSC_INLINE int64_t dsc_stride(void)
{
    return (int64_t)gridDim.x * blockDim.x;
}

#endif
