/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_device.h for nvcc: the host layer's names by the device's own instructions. */
#ifndef DSC_DEVICE_CUDA_H
#define DSC_DEVICE_CUDA_H

#include <cuda_fp16.h>
#include <stdint.h>

#define DSC_ALIGN(bytes) __align__(bytes)
#define DSC_UNROLL       _Pragma("unroll")
#define DSC_INLINE       static __device__ __forceinline__

#define DSC_KERNEL(name, args_type, call) DSC_BOUND_KERNEL(name, args_type, , call)
/* bounds: DSC_BOUNDS, or nothing. */
#define DSC_BOUND_KERNEL(name, args_type, bounds, call)                                            \
    extern "C" __global__ void bounds name(const args_type own)                                    \
    {                                                                                              \
        const args_type *a = &own;                                                                 \
        call;                                                                                      \
    }
/* Registers for so many blocks of so many threads on a multiprocessor. */
#define DSC_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)

DSC_INLINE uint32_t dsc_float_bits(float value)
{
    return __float_as_uint(value);
}

DSC_INLINE float dsc_bits_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

/* sum + Σ of the products of four signed bytes. */
DSC_INLINE int32_t dsc_dot_bytes(uint32_t a, uint32_t b, int32_t sum)
{
    return __dp4a((int32_t)a, (int32_t)b, sum);
}

DSC_INLINE float dsc_from_bf16(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}

DSC_INLINE float dsc_from_f16(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}

/* To nearest even; NaN stays NaN. */
DSC_INLINE uint16_t dsc_to_bf16(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

DSC_INLINE uint16_t dsc_to_f16(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

DSC_INLINE float dsc_shfl_xor_f32(uint32_t mask, float value, int lanes)
{
    return __shfl_xor_sync(mask, value, lanes);
}

DSC_INLINE float dsc_shfl_f32(uint32_t mask, float value, int lane)
{
    return __shfl_sync(mask, value, lane);
}

DSC_INLINE uint32_t dsc_ballot(uint32_t mask, bool says)
{
    return __ballot_sync(mask, says);
}

DSC_INLINE void dsc_copy_async(void *shared, const void *global, uint32_t n)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(n)
                 : "memory");
}

DSC_INLINE void dsc_copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Puts value where 0 stands; whether it did. */
DSC_INLINE bool dsc_is_first(uint64_t *at, uint64_t value)
{
    return atomicCAS((unsigned long long *)at, 0ull, (unsigned long long)value) == 0ull;
}

/* n is a constant. */
#define dsc_copy_wait(n) asm volatile("cp.async.wait_group %0;\n" ::"n"(n) : "memory")

#define DSC_MMA(name, type)                                                                        \
    DSC_INLINE void name(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4])   \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 "                \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};\n"                 \
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),           \
                       "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));                                \
    }
DSC_MMA(dsc_mma_bf16, "bf16")
DSC_MMA(dsc_mma_f16, "f16")
#undef DSC_MMA

#endif
