/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_device.h for the processor. */
#ifndef DSC_DEVICE_HOST_H
#define DSC_DEVICE_HOST_H

#include "accel/cuda/host/host_layer.h"
#include "base/half.h"

#define DSC_ALIGN(bytes) _Alignas(bytes)
#define DSC_UNROLL       /* unrolled for devices, where registers have no index */
#define DSC_INLINE       static inline __attribute__((always_inline, unused))

#define DSC_BOUND_KERNEL(name, args_type, bounds, call) DSC_KERNEL(name, args_type, call)

/* `name` as the launch knows it: a function of its struct. */
#define DSC_KERNEL(name, args_type, call)                                                          \
    void dsc_kernel_##name(const void *memory);                                                    \
    void dsc_kernel_##name(const void *memory)                                                     \
    {                                                                                              \
        const args_type own = *(const args_type *)memory;                                          \
        const args_type *a = &own;                                                                 \
        call;                                                                                      \
    }

DSC_INLINE bool dsc_is_first(uint64_t *at, uint64_t value)
{
    uint64_t none = 0;
    return __atomic_compare_exchange_n(at, &none, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

DSC_INLINE uint32_t dsc_float_bits(float value)
{
    return dsi_f32_bits(value);
}

DSC_INLINE float dsc_bits_float(uint32_t bits)
{
    return dsi_bits_f32(bits);
}

/* sum + Σ of the products of four signed bytes. */
DSC_INLINE int32_t dsc_dot_bytes(uint32_t a, uint32_t b, int32_t sum)
{
    for (int i = 0; i < 32; i += 8) {
        sum += (int32_t)(int8_t)(uint8_t)(a >> i) * (int32_t)(int8_t)(uint8_t)(b >> i);
    }
    return sum;
}

DSC_INLINE float dsc_from_bf16(uint16_t bits)
{
    return dsi_bf16_to_f32(bits);
}

DSC_INLINE float dsc_from_f16(uint16_t bits)
{
    return dsi_f16_to_f32(bits);
}

DSC_INLINE uint16_t dsc_to_bf16(float value)
{
    return dsi_f32_to_bf16(value);
}

DSC_INLINE uint16_t dsc_to_f16(float value)
{
    return dsi_f32_to_f16(value);
}

#endif
