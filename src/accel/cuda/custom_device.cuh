/* SPDX-License-Identifier: Apache-2.0 */
/* "deepspeed_cuda.h" of custom operators' sources, which NVRTC gets with them (driver/custom_kernel.c); see
 * include/deepspeed/cuda_kernel.h. DS_F32, DS_BF16, ... come as options, by ds_dtype. NVRTC has no
 * headers of C; elsewhere (the tests' stand-in) stdint.h is there. */
#ifndef DEEPSPEED_CUDA_H
#define DEEPSPEED_CUDA_H

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#else
#include <stddef.h>
#include <stdint.h>
#endif

/* This thread's number in a grid of one dimension, and how many there are. */
static __device__ __forceinline__ int64_t ds_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t ds_stride()
{
    return (int64_t)gridDim.x * blockDim.x;
}

static __device__ __forceinline__ float ds_from_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

/* To nearest even; NaN stays NaN. */
static __device__ __forceinline__ uint16_t ds_to_bf16(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef __CUDA_ARCH__
static __device__ __forceinline__ float ds_from_f16(uint16_t bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

static __device__ __forceinline__ uint16_t ds_to_f16(float value)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

/* Element i of a tensor, and its rounding; dtype is a constant: DS_IN_0, DS_OUT_0, ... */
static __device__ __forceinline__ float ds_get(const void *t, int dtype, int64_t i)
{
    return dtype == DS_F32    ? ((const float *)t)[i]
           : dtype == DS_BF16 ? ds_from_bf16(((const uint16_t *)t)[i])
                              : ds_from_f16(((const uint16_t *)t)[i]);
}

static __device__ __forceinline__ void ds_set(void *t, int dtype, int64_t i, float value)
{
    if (dtype == DS_F32) {
        ((float *)t)[i] = value;
    } else {
        ((uint16_t *)t)[i] = dtype == DS_BF16 ? ds_to_bf16(value) : ds_to_f16(value);
    }
}

#endif
