/* SPDX-License-Identifier: Apache-2.0 */
/* A block of a row of op/quantize_blocks.c: where it is, what it becomes, and back. In plain loops
 * over fp32 that the compiler turns into vector code; ref/ref_blocks.c and simd/simd_blocks.c,
 * which convert and split the work, share them. Each element is one stated sequence of IEEE
 * operations. */
#ifndef DSI_ACCEL_CPU_BLOCK_ROW_H
#define DSI_ACCEL_CPU_BLOCK_ROW_H

#include "base/half.h"
#include "op/ops.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK_LEVELS = 32, BLOCK_CHUNK = 64 };

/* Where a block of a row is, in the row and in bytes. */
typedef struct block_at {
    int64_t first, n; /* elements of the row */
    int64_t scale;    /* byte of the row */
    int64_t numbers;  /* likewise */
} block_at;

static inline block_at block_find(const dsi_blocks_attrs *a, int64_t b)
{
    const int64_t first = b * a->block;
    const int64_t rest = a->width - first;
    const int64_t scales = dsi_blocks_count(a) * (int64_t)sizeof(float);
    return (block_at){.first = first,
                      .n = rest < a->block ? rest : a->block,
                      .scale = b * (int64_t)sizeof(float),
                      .numbers = scales + first * a->bits / 8};
}

/* The bits of the largest magnitude: as whole numbers they are ordered like it, NaN above all. */
static inline uint32_t block_top(const float *x, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = dsi_f32_bits(x[i]) & 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    return top;
}

/* x·scale to the nearest whole number, ties to even, cut off at the ends: those are whole, so it is
 * the same before the rounding as behind it. */
static inline void block_round(const float *x, int64_t n, float scale, float low, float high,
                               int8_t *out)
{
    const float shift = 0x1.8p23f;
    for (int64_t i = 0; i < n; ++i) {
        float y = x[i] * scale;
        y = y < low ? low : y;
        y = y > high ? high : y;
        out[i] = (int8_t)((y + shift) - shift);
    }
}

static inline void block_pack(int64_t bits, const int8_t *q, int64_t n, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, q, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i += 2) {
        const int8_t next = i + 1 < n ? q[i + 1] : 0;
        out[i / 2] = (uint8_t)(((uint8_t)q[i] & 15u) | ((uint8_t)next & 15u) << 4);
    }
}

static inline void block_quantize(int64_t bits, const float *x, int64_t n, int8_t *q,
                                  float *scale_out)
{
    const uint32_t top = block_top(x, n);
    const float most = dsi_bits_f32(top);
    const float levels = bits == 8 ? 256.0f : 16.0f;
    if (top >= 0x7f800000u || most < 0x1p-110f) {
        memset(q, 0, (size_t)n);
        *scale_out = top >= 0x7f800000u ? NAN : 1.0f;
        return;
    }
    const float scale = levels * 0.5f / most;
    block_round(x, n, scale, -levels * 0.5f, levels * 0.5f - 1.0f, q);
    *scale_out = 1.0f / scale;
}

/* A block as it is sent. The last of a row is followed by zeros: nothing undefined is sent. */
static inline void block_put(const dsi_blocks_attrs *a, const block_at *at, const int8_t *q,
                             float scale, uint8_t *row)
{
    memcpy(row + at->scale, &scale, sizeof scale);
    block_pack(a->bits, q, at->n, row + at->numbers);
    if (at->first + at->n == a->width) {
        const int64_t used = at->numbers + (at->n * a->bits + 7) / 8;
        memset(row + used, 0, (size_t)(dsi_blocks_row_bytes(a) - used));
    }
}

/* n numbers of a block from its i-th on; i is even. */
static inline void block_unpack(const dsi_blocks_attrs *a, const uint8_t *row, const block_at *at,
                                int64_t i, int64_t n, float *out)
{
    const uint8_t *numbers = row + at->numbers + i * a->bits / 8;
    float scale;
    memcpy(&scale, row + at->scale, sizeof scale);
    if (a->bits == 8) {
        for (int64_t k = 0; k < n; ++k) {
            out[k] = (float)(int8_t)numbers[k] * scale;
        }
        return;
    }
    for (int64_t k = 0; k < n / 2; ++k) {
        const int low = numbers[k] & 15;
        const int high = numbers[k] >> 4;
        out[2 * k] = (float)((low ^ 8) - 8) * scale;
        out[2 * k + 1] = (float)((high ^ 8) - 8) * scale;
    }
    if (n % 2 != 0) {
        out[n - 1] = (float)(((numbers[n / 2] & 15) ^ 8) - 8) * scale;
    }
}

/* y: x and the error before; e: that error. What is lost of y goes into e. */
static inline void block_lose(const dsi_blocks_attrs *a, const float *y, const int8_t *q, int64_t n,
                              float scale, float *e)
{
    const float beta = (float)a->beta;
    const float rest = 1.0f - beta;
    for (int64_t i = 0; i < n; ++i) {
        const float lost = y[i] - (float)q[i] * scale;
        e[i] = isnan(scale) ? 0.0f : beta * e[i] + rest * lost;
    }
}

static inline void block_add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        y[i] = x[i] + y[i];
    }
}

/* The aligned tree over rows, ((0+1)+(2+3))+…: of so many rows as were added, level l has the sum
 * of an aligned 2^l of them, where that bit of their number is set. The result is in
 * level[BLOCK_LEVELS].
 */
static inline void block_add_rows(const dsi_blocks_attrs *a, const uint8_t *rows,
                                  const block_at *at, int64_t i, int64_t n,
                                  float level[BLOCK_LEVELS + 1][BLOCK_CHUNK])
{
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float *sum = level[BLOCK_LEVELS];
    bool begun = false;
    for (int64_t r = 0; r < a->n_rows; ++r) {
        uint32_t l = 0;
        block_unpack(a, rows + r * row_bytes, at, i, n, sum);
        for (; (r >> l & 1) != 0; ++l) {
            block_add(level[l], sum, n);
        }
        memcpy(level[l], sum, (size_t)n * sizeof *sum);
    }
    for (uint32_t l = 0; l < BLOCK_LEVELS; ++l) {
        if ((a->n_rows >> l & 1) != 0) {
            if (begun) {
                block_add(level[l], sum, n);
            } else {
                memcpy(sum, level[l], (size_t)n * sizeof *sum);
            }
            begun = true;
        }
    }
}

#endif
