/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 and fp16 conversions, one element at a time: round to nearest even, NaN stays NaN. The plain
 * reference that vector kernels are compared with. */
#ifndef DSI_BASE_HALF_H
#define DSI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float dsi_bits_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t dsi_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float dsi_bf16_to_f32(uint16_t h)
{
    return dsi_bits_f32((uint32_t)h << 16);
}

static inline uint16_t dsi_f32_to_bf16(float value)
{
    const uint32_t bits = dsi_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u); /* quiet NaN */
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float dsi_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 31u;
    const uint32_t mantissa = h & 1023u;
    if (exponent == 31) {
        return dsi_bits_f32(sign | 0x7f800000u | mantissa << 13);
    }
    if (exponent == 0) { /* zero or subnormal: exact in fp32 */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    return dsi_bits_f32(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t dsi_f32_to_f16(float value)
{
    const uint32_t bits = dsi_f32_bits(value);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* rounds past 65504 */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* subnormal: let fp32 addition round at 2^-24 */
        const float shifted = dsi_bits_f32(magnitude) + 0.5f;
        return (uint16_t)(sign | (uint16_t)(dsi_f32_bits(shifted) - dsi_f32_bits(0.5f)));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | (uint16_t)((rounded - (112u << 23)) >> 13));
}

#endif
