/* SPDX-License-Identifier: Apache-2.0 */
/* A panel of 16 rows in blocks of 32 values, as base/blocks.h describes it. type is a constant
 * where it matters. Bytes of four values stand in a word, the first in the lowest. */
#ifndef DSC_BLOCK_PANEL_H
#define DSC_BLOCK_PANEL_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/block_linear_args.h"

enum { PANEL_ROWS = 16, BLOCK_VALUES = 32, BLOCK_WORDS = 8, BLOCKS_OF_K = 8 };

DSC_INLINE bool is_k(int type)
{
    return type >= DSC_Q4_K;
}

DSC_INLINE bool has_minimum(int type)
{
    return type == DSC_Q4_1 || type == DSC_Q5_1 || type == DSC_Q4_K || type == DSC_Q5_K;
}

DSC_INLINE bool has_fifth(int type)
{
    return type == DSC_Q5_0 || type == DSC_Q5_1 || type == DSC_Q5_K;
}

/* Halves of a block have scales of their own. */
DSC_INLINE int n_parts(int type)
{
    return type == DSC_Q6_K ? 2 : 1;
}

/* What a stored value is above its number; Q8_0's is a byte less 128. */
DSC_INLINE int32_t offset_of(int type)
{
    return type == DSC_Q4_0 ? 8 : type == DSC_Q5_0 ? 16 : type == DSC_Q6_K ? 32 : 0;
}

/* Bytes of one row: scales and minima; those and the high bits; all. */
DSC_INLINE int64_t head_bytes(int type)
{
    return has_minimum(type) && !is_k(type) ? 4 : 2;
}

DSC_INLINE int64_t values_at(int type)
{
    return head_bytes(type) + (has_fifth(type) ? 4 : type == DSC_Q6_K ? 8 : 0);
}

DSC_INLINE int64_t block_bytes(int type)
{
    return values_at(type) + (type == DSC_Q8_0 ? 32 : 16);
}

/* In front of eight blocks. */
DSC_INLINE int64_t front_bytes(int type)
{
    return !is_k(type) ? 0 : type == DSC_Q6_K ? 2 : 4;
}

DSC_INLINE const uint8_t *block_at(int type, const uint8_t *panel, int64_t b)
{
    return panel + (b * block_bytes(type) + (b / BLOCKS_OF_K + 1) * front_bytes(type)) * PANEL_ROWS;
}

DSC_INLINE const uint8_t *front_at(int type, const uint8_t *panel, int64_t b)
{
    return panel +
           b / BLOCKS_OF_K * (BLOCKS_OF_K * block_bytes(type) + front_bytes(type)) * PANEL_ROWS;
}

DSC_INLINE float half_of_row(const uint8_t *at, int64_t r)
{
    return dsc_from_f16(((const uint16_t *)at)[r]);
}

DSC_INLINE float scale_of(int type, const uint8_t *panel, int64_t b, int64_t r, int part)
{
    const uint8_t *block = block_at(type, panel, b);
    if (!is_k(type)) {
        return half_of_row(block, r);
    }
    const uint8_t number = block[part * PANEL_ROWS + r];
    return half_of_row(front_at(type, panel, b), r) *
           (float)(type == DSC_Q6_K ? (int32_t)(int8_t)number : (int32_t)number);
}

DSC_INLINE float minimum_of(int type, const uint8_t *panel, int64_t b, int64_t r)
{
    const uint8_t *block = block_at(type, panel, b);
    if (!has_minimum(type)) {
        return 0.0f;
    }
    if (!is_k(type)) {
        return half_of_row(block + 2 * PANEL_ROWS, r);
    }
    return half_of_row(front_at(type, panel, b) + 2 * PANEL_ROWS, r) *
           -(float)block[PANEL_ROWS + r];
}

/* Values 4·step to 4·step + 3 as they are stored, in signed bytes. */
DSC_INLINE uint32_t word_of(int type, const uint8_t *block, int64_t r, int step)
{
    const uint32_t *words = (const uint32_t *)(block + values_at(type) * PANEL_ROWS) + r;
    if (type == DSC_Q8_0) {
        return words[step * PANEL_ROWS] ^ 0x80808080u;
    }
    uint32_t word = (words[step / 2 * PANEL_ROWS] >> (4 * (step % 2))) & 0x0f0f0f0fu;
    const uint32_t *high = (const uint32_t *)(block + head_bytes(type) * PANEL_ROWS) + r;
    if (has_fifth(type)) {
        word |= ((high[0] >> step) & 0x01010101u) << 4;
    } else if (type == DSC_Q6_K) {
        word |= ((high[step / 4 * PANEL_ROWS] >> (2 * (step % 4))) & 0x03030303u) << 4;
    }
    return word;
}

#endif
