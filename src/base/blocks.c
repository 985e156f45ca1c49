/* SPDX-License-Identifier: Apache-2.0 */
/* See blocks.h. */
#include "base/blocks.h"

#include "base/blocks_k.h"
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

/* Four or five bits: the halves of bytes are values i and i + 16, the fifth bits a word of their
 * own. */
static void put_bits(ds_dtype dtype, const int *q, uint8_t *block)
{
    uint8_t *fifth = block + dsi_block_head(dtype);
    uint8_t *halves = block + dsi_block_values(dtype);
    for (int i = 0; i < DSI_BLOCK / 2; ++i) {
        halves[i] = (uint8_t)((q[i] & 15) | (q[i + DSI_BLOCK / 2] & 15) << 4);
    }
    for (int i = 0; i < DSI_BLOCK && dsi_block_has_fifth(dtype); ++i) {
        fifth[i / 8] = (uint8_t)((i % 8 == 0 ? 0 : fifth[i / 8]) | q[i] >> 4 << i % 8);
    }
}

static int limited(float x, int most)
{
    const int q = (int)x;
    return q > most ? most : q < 0 ? 0 : q;
}

/* Q4_0, Q5_0: the value of the largest magnitude becomes the lowest number. */
static void quantize_even(ds_dtype dtype, const float *x, uint8_t *block)
{
    const int offset = dsi_block_offset(dtype);
    const float d = largest(x) / (float)-offset;
    const float inverse = d != 0.0f && isfinite(d) ? 1.0f / d : 0.0f;
    int q[DSI_BLOCK];
    put_scale(block, d);
    for (int i = 0; i < DSI_BLOCK; ++i) {
        const float scaled = (isfinite(d) ? x[i] : 0.0f) * inverse;
        q[i] = limited(scaled + ((float)offset + 0.5f), 2 * offset - 1);
    }
    put_bits(dtype, q, block);
}

/* Q4_1, Q5_1: the lowest value is 0, the highest 15 or 31. */
static void quantize_range(ds_dtype dtype, const float *x, uint8_t *block)
{
    const int most = dtype == DS_DTYPE_Q4_1 ? 15 : 31;
    float low = x[0];
    float high = x[0];
    for (int i = 1; i < DSI_BLOCK; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    /* the sum is NaN where a value is one, wherever it stands */
    const float d = isnan(largest(x)) ? NAN : (high - low) / (float)most;
    const float inverse = d != 0.0f && isfinite(d) ? 1.0f / d : 0.0f;
    int q[DSI_BLOCK];
    put_scale(block, d);
    put_scale(block + 2, low);
    for (int i = 0; i < DSI_BLOCK; ++i) {
        q[i] = isfinite(d) ? limited((x[i] - low) * inverse + 0.5f, most) : 0;
    }
    put_bits(dtype, q, block);
}

ds_dtype dsi_blocks_fitting(ds_dtype dtype, int64_t k)
{
    if (k % DSI_BLOCK != 0) {
        return DS_DTYPE_NONE;
    }
    return k % dsi_block_length(dtype) == 0 ? dtype
           : dtype == DS_DTYPE_Q4_K         ? DS_DTYPE_Q5_0
           : dtype == DS_DTYPE_Q5_K         ? DS_DTYPE_Q5_1
                                            : DS_DTYPE_Q8_0;
}

void dsi_blocks_quantize(ds_dtype dtype, const float *x, int64_t n, uint8_t *blocks)
{
    const int64_t each = dsi_block_length(dtype);
    for (int64_t i = 0; i < n; i += each, blocks += dsi_block_bytes(dtype)) {
        if (dsi_block_is_k(dtype)) {
            dsi_k_quantize(dtype, x + i, blocks);
        } else if (dtype == DS_DTYPE_Q8_0) {
            quantize_q8(x + i, blocks);
        } else if (dsi_block_has_minimum(dtype)) {
            quantize_range(dtype, x + i, blocks);
        } else {
            quantize_even(dtype, x + i, blocks);
        }
    }
}

/* The 32 values of one of ggml's blocks that begin at `first`, from 0 on. */
static void plain_values(ds_dtype dtype, const uint8_t *block, int first, uint8_t out[DSI_BLOCK])
{
    enum { HALF = DSI_BLOCK / 2 };
    if (dsi_block_is_k(dtype)) {
        dsi_k_values(dtype, block, first, out);
        return;
    }
    if (dtype == DS_DTYPE_Q8_0) {
        for (int i = 0; i < DSI_BLOCK; ++i) {
            out[i] = (uint8_t)(block[2 + i] ^ 0x80); /* + 128 */
        }
        return;
    }
    const uint8_t *both = block + dsi_block_values(dtype);
    for (int i = 0; i < HALF; ++i) {
        out[i] = both[i] & 15;
        out[HALF + i] = both[i] >> 4;
    }
    if (dsi_block_has_fifth(dtype)) {
        const uint8_t *fifth = block + dsi_block_head(dtype);
        for (int i = 0; i < DSI_BLOCK; ++i) {
            out[i] |= (uint8_t)((fifth[i / 8] >> i % 8 & 1) << 4);
        }
    }
}

/* Scales and minima of the 32 values of `from` that begin at `first`. */
static void weave_head(ds_dtype dtype, const uint8_t *from, int first, int64_t r, uint8_t *block)
{
    if (!dsi_block_is_k(dtype)) {
        memcpy(block + 2 * r, from, 2);
        if (dsi_block_has_minimum(dtype)) {
            memcpy(block + 2 * (DSI_BLOCK_ROWS + r), from + 2, 2);
        }
        return;
    }
    const int n = dsi_block_parts(dtype);
    for (int part = 0; part < n; ++part) {
        int scale;
        int minimum;
        dsi_k_part(dtype, from, first / DSI_BLOCK * n + part, &scale, &minimum);
        block[part * DSI_BLOCK_ROWS + r] = (uint8_t)scale;
        if (dsi_block_has_minimum(dtype)) {
            block[DSI_BLOCK_ROWS + r] = (uint8_t)minimum;
        }
    }
}

static void weave_block(ds_dtype dtype, const uint8_t *from, int first, int64_t r, uint8_t *block)
{
    uint8_t values[DSI_BLOCK];
    uint8_t *at = block + dsi_block_values(dtype) * DSI_BLOCK_ROWS + 4 * r;
    uint8_t *high = block + dsi_block_head(dtype) * DSI_BLOCK_ROWS + 4 * r;
    weave_head(dtype, from, first, r, block);
    plain_values(dtype, from, first, values);
    for (int i = 0; i < DSI_BLOCK && dtype == DS_DTYPE_Q8_0; i += 4) {
        memcpy(at + i / 4 * 64, values + i, 4);
    }
    for (int i = 0; i < DSI_BLOCK && dtype != DS_DTYPE_Q8_0; i += 8) {
        for (int j = 0; j < 4; ++j) {
            at[i / 8 * 64 + j] = (uint8_t)((values[i + j] & 15) | values[i + 4 + j] << 4);
        }
    }
    for (int i = 0; i < DSI_BLOCK && dsi_block_has_fifth(dtype); i += 4) {
        for (int j = 0; j < 4; ++j) {
            high[j] |= (uint8_t)(values[i + j] >> 4 << i / 4);
        }
    }
    for (int i = 0; i < DSI_BLOCK && dtype == DS_DTYPE_Q6_K; i += 4) {
        for (int j = 0; j < 4; ++j) {
            high[i / 16 * 64 + j] |= (uint8_t)(values[i + j] >> 4 << 2 * (i / 4 % 4));
        }
    }
}

void dsi_blocks_weave(ds_dtype dtype, const uint8_t *rows, int64_t n_rows, size_t row_bytes,
                      int64_t k, uint8_t *panel)
{
    const int64_t length = dsi_block_length(dtype);
    const int64_t front = dsi_block_front(dtype);
    memset(panel, 0, dsi_panel_bytes(dtype, k));
    for (int64_t b = 0; b < k / DSI_BLOCK; ++b) {
        const int64_t first = b * DSI_BLOCK % length;
        for (int64_t r = 0; r < n_rows; ++r) {
            const uint8_t *from =
                rows + (size_t)r * row_bytes + b * DSI_BLOCK / length * dsi_block_bytes(dtype);
            for (int64_t i = 0; i < front && first == 0; i += 2) {
                memcpy(panel + dsi_block_front_at(dtype, b) + i * DSI_BLOCK_ROWS + 2 * r,
                       from + dsi_k_front_at(dtype) + i, 2);
            }
            weave_block(dtype, from, (int)first, r, panel + dsi_block_at(dtype, b));
        }
    }
}

/* ---- panels, value by value ------------------------------------------------------------------ */

static float half_at(const uint8_t *at, int64_t r)
{
    return dsi_f16_to_f32((uint16_t)(at[2 * r] | at[2 * r + 1] << 8));
}

float dsi_block_scale(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r, int part)
{
    const uint8_t *block = panel + dsi_block_at(dtype, b);
    if (!dsi_block_is_k(dtype)) {
        return half_at(block, r);
    }
    const uint8_t sc = block[part * DSI_BLOCK_ROWS + r];
    return half_at(panel + dsi_block_front_at(dtype, b), r) *
           (float)(dtype == DS_DTYPE_Q6_K ? (int8_t)sc : sc);
}

float dsi_block_minimum(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r)
{
    const uint8_t *block = panel + dsi_block_at(dtype, b);
    if (!dsi_block_has_minimum(dtype)) {
        return 0.0f;
    }
    if (!dsi_block_is_k(dtype)) {
        return half_at(block + 2 * DSI_BLOCK_ROWS, r);
    }
    const float dmin = half_at(panel + dsi_block_front_at(dtype, b) + 2 * DSI_BLOCK_ROWS, r);
    return dmin * -(float)block[DSI_BLOCK_ROWS + r];
}

int dsi_block_value(ds_dtype dtype, const uint8_t *panel, int64_t b, int64_t r, int64_t i)
{
    const uint8_t *block = panel + dsi_block_at(dtype, b);
    const uint8_t *bytes = block + dsi_block_values(dtype) * DSI_BLOCK_ROWS + 4 * r + i % 4;
    const uint8_t *high = block + dsi_block_head(dtype) * DSI_BLOCK_ROWS + 4 * r;
    if (dtype == DS_DTYPE_Q8_0) {
        return bytes[i / 4 * 64] - 128;
    }
    const uint8_t both = bytes[i / 8 * 64];
    int q = i / 4 % 2 == 0 ? both & 15 : both >> 4;
    if (dsi_block_has_fifth(dtype)) {
        q |= (high[i % 4] >> (i / 4) & 1) << 4;
    } else if (dtype == DS_DTYPE_Q6_K) {
        q |= (high[i / 16 * 64 + i % 4] >> 2 * (i / 4 % 4) & 3) << 4;
    }
    return q - dsi_block_offset(dtype);
}
