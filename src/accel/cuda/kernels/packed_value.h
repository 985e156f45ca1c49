/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of a packed matrix, by the arithmetic that base/packed.h states. */
#ifndef DSC_PACKED_VALUE_H
#define DSC_PACKED_VALUE_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/packed_args.h"

enum { PACKED_BLOCK = 64, PACKED_NESTED = 256 };

/* e4m3: sign, four bits of exponent (bias 7), three of fraction; no infinities. */
DSC_INLINE float fp8_value(uint32_t code)
{
    const uint32_t sign = (code & 128u) << 24;
    const uint32_t exponent = code >> 3 & 15u;
    const uint32_t fraction = code & 7u;
    if (exponent == 15 && fraction == 7) {
        return dsc_bits_float(sign | 0x7fc00000u);
    }
    if (exponent == 0) {
        const float small = (float)fraction * 0x1p-9f;
        return sign != 0 ? -small : small;
    }
    return dsc_bits_float(sign | (exponent + 120u) << 23 | fraction << 20);
}

DSC_INLINE float nf4_value(const dsc_packed *p, const void *data, int64_t at)
{
    const int64_t n = p->rows * p->columns;
    const int64_t blocks = (n + PACKED_BLOCK - 1) / PACKED_BLOCK;
    const int64_t block = at / PACKED_BLOCK;
    const float *front = (const float *)data;
    float scale;
    const uint8_t *codes;
    if (p->format == DSC_NF4) {
        scale = front[block];
        codes = (const uint8_t *)(front + blocks);
    } else {
        const int64_t groups = (blocks + PACKED_NESTED - 1) / PACKED_NESTED;
        const uint8_t *magnitudes = (const uint8_t *)(front + 1 + groups);
        const float product = p->map[magnitudes[block]] * front[1 + block / PACKED_NESTED];
        scale = product + front[0];
        codes = magnitudes + blocks;
    }
    const uint8_t both = codes[at / 2];
    return p->nf4[at % 2 == 0 ? both >> 4 : both & 15] * scale;
}

/* Element `at`, which is in row `row`. */
DSC_INLINE float packed_value(const dsc_packed *p, const void *data, int64_t row, int64_t at)
{
    if (p->format == DSC_NF4 || p->format == DSC_NF4_DOUBLE) {
        return nf4_value(p, data, at);
    }
    const float scale = ((const float *)data)[row];
    const uint8_t code = ((const uint8_t *)data)[4 * p->rows + at];
    return p->format == DSC_FP8 ? fp8_value(code) * scale
                                : (float)(int8_t)code * scale * 0.007874015718698502f;
}

#endif
