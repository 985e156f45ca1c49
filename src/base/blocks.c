/* SPDX-License-Identifier: Apache-2.0 */
/* See blocks.h. */
#include "base/blocks.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static void put_scale(uint8_t *at, float scale)
{
    const uint16_t half = dsi_f32_to_f16(scale);
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
}

/* The value of the largest magnitude; NaN when one is none. */
static float largest(const float *x)
{
    float top = 0.0f;
    for (int i = 0; i < DSI_BLOCK; ++i) {
        if (isnan(x[i])) {
            return NAN;
        }
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    }
    return top;
}

static void quantize_q8(const float *x, uint8_t *block)
{
    const float d = fabsf(largest(x)) / 127.0f;
    const float inverse = d != 0.0f && isfinite(d) ? 1.0f / d : 0.0f;
    put_scale(block, d);
    for (int i = 0; i < DSI_BLOCK; ++i) {
        const float q = isfinite(d) ? roundf(x[i] * inverse) : 0.0f;
        block[2 + i] = (uint8_t)(int8_t)(q > 127.0f ? 127.0f : q < -128.0f ? -128.0f : q);
    }
}

static int q4_of(float x, float inverse)
{
    const int q = (int)(x * inverse + 8.5f);
    return q > 15 ? 15 : q < 0 ? 0 : q;
}

static void quantize_q4(const float *x, uint8_t *block)
{
    const float d = largest(x) / -8.0f;
    const float inverse = d != 0.0f && isfinite(d) ? 1.0f / d : 0.0f;
    put_scale(block, d);
    for (int i = 0; i < DSI_BLOCK / 2; ++i) {
        const float low = isfinite(d) ? x[i] : 0.0f;
        const float high = isfinite(d) ? x[i + DSI_BLOCK / 2] : 0.0f;
        block[2 + i] = (uint8_t)(q4_of(low, inverse) | q4_of(high, inverse) << 4);
    }
}

void dsi_blocks_quantize(ds_dtype dtype, const float *x, int64_t n, uint8_t *blocks)
{
    for (int64_t i = 0; i < n; i += DSI_BLOCK, blocks += dsi_block_bytes(dtype)) {
        dtype == DS_DTYPE_Q8_0 ? quantize_q8(x + i, blocks) : quantize_q4(x + i, blocks);
    }
}

/* Value i of one of ggml's blocks, from 0 on. */
static unsigned plain_value(ds_dtype dtype, const uint8_t *block, int i)
{
    if (dtype == DS_DTYPE_Q8_0) {
        return (unsigned)((int8_t)block[2 + i] + 128);
    }
    const uint8_t both = block[2 + i % (DSI_BLOCK / 2)];
    return i < DSI_BLOCK / 2 ? both & 15u : both >> 4;
}

static void weave_block(ds_dtype dtype, const uint8_t *from, int64_t r, uint8_t *block)
{
    memcpy(block + 2 * r, from, 2);
    for (int i = 0; i < DSI_BLOCK; ++i) {
        const unsigned value = plain_value(dtype, from, i);
        uint8_t *at = block + DSI_BLOCK_SCALES + 4 * r + i % 4;
        if (dtype == DS_DTYPE_Q8_0) {
            at[i / 4 * 64] = (uint8_t)value;
        } else {
            at[i / 8 * 64] |= (uint8_t)(i / 4 % 2 == 0 ? value : value << 4);
        }
    }
}

void dsi_blocks_weave(ds_dtype dtype, const uint8_t *rows, int64_t n_rows, size_t row_bytes,
                      int64_t k, uint8_t *panel)
{
    const int64_t each = dsi_block_bytes(dtype);
    memset(panel, 0, dsi_panel_bytes(dtype, k));
    for (int64_t b = 0; b < k / DSI_BLOCK; ++b) {
        for (int64_t r = 0; r < n_rows; ++r) {
            weave_block(dtype, rows + (size_t)r * row_bytes + b * each, r,
                        panel + b * each * DSI_BLOCK_ROWS);
        }
    }
}
