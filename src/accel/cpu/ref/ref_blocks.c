/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of quantized blocks. Items are blocks, so that no two threads write one; what a
 * block becomes depends on its numbers alone. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

enum { LEVELS = 32, CHUNK = 64, INFINITE = 0x7f800000, MAGNITUDE = 0x7fffffff };

/* Where a block of a row is, in the row and in bytes. */
typedef struct block_at {
    int64_t first, n; /* elements of the row */
    int64_t scale;    /* byte of the row */
    int64_t numbers;  /* likewise */
} block_at;

static block_at find_block(const dsi_blocks_attrs *a, int64_t b)
{
    const int64_t first = b * a->block;
    const int64_t rest = a->width - first;
    const int64_t scales = dsi_blocks_count(a) * (int64_t)sizeof(float);
    return (block_at){.first = first,
                      .n = rest < a->block ? rest : a->block,
                      .scale = b * (int64_t)sizeof(float),
                      .numbers = scales + first * a->bits / 8};
}

/* ---- to blocks ------------------------------------------------------------------------------- */

/* n elements of x, 0 behind its end. */
static void load(const ds_tensor *x, int64_t at, int64_t n, float *out)
{
    const int64_t left = ds_shape_count(x->meta.shape) - at;
    const int64_t there = left < 0 ? 0 : left < n ? left : n;
    for (int64_t i = 0; i < there; ++i) {
        out[i] = ref_get(x, at + i);
    }
    for (int64_t i = there; i < n; ++i) {
        out[i] = 0.0f;
    }
}

/* The bits of the largest magnitude: as whole numbers they are ordered like it, NaN above all. */
static uint32_t largest_bits(const float *x, int64_t n)
{
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t bits = dsi_f32_bits(x[i]) & (uint32_t)MAGNITUDE;
        top = bits > top ? bits : top;
    }
    return top;
}

/* x·scale to the nearest whole number, ties to even, cut off at the ends: those are whole, so it is
 * the same before the rounding as behind it. */
static void round_all(const float *x, int64_t n, float scale, float low, float high, int8_t *out)
{
    const float shift = 0x1.8p23f;
    for (int64_t i = 0; i < n; ++i) {
        float y = x[i] * scale;
        y = y < low ? low : y;
        y = y > high ? high : y;
        out[i] = (int8_t)((y + shift) - shift);
    }
}

static void pack(int64_t bits, const int8_t *q, int64_t n, uint8_t *out)
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

static void quantize(int64_t bits, const float *x, int64_t n, int8_t *q, float *scale_out)
{
    const uint32_t top = largest_bits(x, n);
    const float most = dsi_bits_f32(top);
    const float levels = bits == 8 ? 256.0f : 16.0f;
    if (top >= (uint32_t)INFINITE || most < 0x1p-110f) {
        memset(q, 0, (size_t)n);
        *scale_out = top >= (uint32_t)INFINITE ? NAN : 1.0f;
        return;
    }
    const float scale = levels * 0.5f / most;
    round_all(x, n, scale, -levels * 0.5f, levels * 0.5f - 1.0f, q);
    *scale_out = 1.0f / scale;
}

/* A block as it is sent. The last of a row is followed by zeros: nothing undefined is sent. */
static void put_block(const dsi_blocks_attrs *a, const block_at *at, const int8_t *q, float scale,
                      uint8_t *row)
{
    memcpy(row + at->scale, &scale, sizeof scale);
    pack(a->bits, q, at->n, row + at->numbers);
    if (at->first + at->n == a->width) {
        const int64_t used = at->numbers + (at->n * a->bits + 7) / 8;
        memset(row + used, 0, (size_t)(dsi_blocks_row_bytes(a) - used));
    }
}

static void quantize_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const int64_t n_blocks = dsi_blocks_count(a);
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float x[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = find_block(a, i % n_blocks);
        uint8_t *row = (uint8_t *)call->out[0].data + r * row_bytes;
        float scale = 0.0f;
        load(&call->in[0], r * a->width + at.first, at.n, x);
        quantize(a->bits, x, at.n, q, &scale);
        put_block(a, &at, q, scale, row);
    }
}

static ds_status quantize_blocks_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), quantize_range);
    return DS_OK;
}

/* ---- and back -------------------------------------------------------------------------------- */

/* n numbers of a block from its i-th on; i is even. */
static void unpack(const dsi_blocks_attrs *a, const uint8_t *row, const block_at *at, int64_t i,
                   int64_t n, float *out)
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
    for (int64_t k = 0; k < n; ++k) {
        const int half = numbers[k / 2] >> (k % 2 * 4) & 15;
        out[k] = (float)((half ^ 8) - 8) * scale;
    }
}

static void dequantize_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const int64_t n_blocks = dsi_blocks_count(a);
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float x[DSI_BLOCKS_MOST];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = find_block(a, i % n_blocks);
        const int64_t first = r * a->width + at.first;
        unpack(a, (const uint8_t *)call->in[0].data + r * row_bytes, &at, 0, at.n, x);
        for (int64_t k = 0; k < at.n && first + k < a->count; ++k) {
            ref_set(&call->out[0], first + k, x[k]);
        }
    }
}

static ds_status dequantize_blocks_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), dequantize_range);
    return DS_OK;
}

/* ---- with an error --------------------------------------------------------------------------- */

/* y: x and the error before; e: that error. What is lost of y goes into e. */
static void lose(const dsi_blocks_attrs *a, const float *y, const int8_t *q, int64_t n, float scale,
                 float *e)
{
    const float beta = (float)a->beta;
    const float rest = 1.0f - beta;
    for (int64_t i = 0; i < n; ++i) {
        const float lost = y[i] - (float)q[i] * scale;
        e[i] = isnan(scale) ? 0.0f : beta * e[i] + rest * lost;
    }
}

static void with_error_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const ds_tensor *unit_is = ref_in(call, 2);
    const float unit = unit_is != NULL ? *(const float *)unit_is->data : 1.0f;
    const int64_t n_blocks = dsi_blocks_count(a);
    dsi_blocks_attrs kept = *a;
    float y[DSI_BLOCKS_MOST];
    float e[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    kept.bits = 8;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t r = i / n_blocks;
        const block_at at = find_block(a, i % n_blocks);
        const block_at error_at = find_block(&kept, i % n_blocks);
        const int64_t error_row = r * dsi_blocks_row_bytes(&kept);
        float scale = 0.0f;
        load(&call->in[0], r * a->width + at.first, at.n, y);
        unpack(&kept, (const uint8_t *)call->in[1].data + error_row, &error_at, 0, at.n, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] *= unit;
            y[k] += e[k];
        }
        quantize(a->bits, y, at.n, q, &scale);
        put_block(a, &at, q, scale, (uint8_t *)call->out[0].data + r * dsi_blocks_row_bytes(a));
        lose(a, y, q, at.n, scale, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] /= unit;
        }
        quantize(kept.bits, e, at.n, q, &scale);
        put_block(&kept, &error_at, q, scale, (uint8_t *)call->out[1].data + error_row);
    }
}

static ds_status quantize_with_error_run(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    dsi_ref_for(call, a->n_rows * dsi_blocks_count(a), with_error_range);
    return DS_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void add(const float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        y[i] = x[i] + y[i];
    }
}

/* The aligned tree over rows, ((0+1)+(2+3))+…: of so many rows as were added, level l has the sum
 * of an aligned 2^l of them, where that bit of their number is set. The result is in level[LEVELS].
 */
static void add_rows(const ds_kernel_call *call, const block_at *at, int64_t i, int64_t n,
                     float level[LEVELS + 1][CHUNK])
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const int64_t row_bytes = dsi_blocks_row_bytes(a);
    float *sum = level[LEVELS];
    bool begun = false;
    for (int64_t r = 0; r < a->n_rows; ++r) {
        uint32_t l = 0;
        unpack(a, (const uint8_t *)call->in[0].data + r * row_bytes, at, i, n, sum);
        for (; (r >> l & 1) != 0; ++l) {
            add(level[l], sum, n);
        }
        memcpy(level[l], sum, (size_t)n * sizeof *sum);
    }
    for (uint32_t l = 0; l < LEVELS; ++l) {
        if ((a->n_rows >> l & 1) != 0) {
            if (begun) {
                add(level[l], sum, n);
            } else {
                memcpy(sum, level[l], (size_t)n * sizeof *sum);
            }
            begun = true;
        }
    }
}

static void sum_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    const float factor = (float)a->factor;
    float level[LEVELS + 1][CHUNK];
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        const block_at at = find_block(a, b);
        for (int64_t i = 0; i < at.n; i += CHUNK) {
            const int64_t n = at.n - i < CHUNK ? at.n - i : CHUNK;
            add_rows(call, &at, i, n, level);
            for (int64_t k = 0; k < n; ++k) {
                ref_set(&call->out[0], at.first + i + k, level[LEVELS][k] * factor);
            }
        }
    }
}

static ds_status dequantize_sum_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, dsi_blocks_count(call->sig->attrs), sum_range);
    return DS_OK;
}

#define BLOCKS_KERNEL(op_name)                                                                     \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

BLOCKS_KERNEL(quantize_blocks);
BLOCKS_KERNEL(quantize_with_error);
BLOCKS_KERNEL(dequantize_blocks);
BLOCKS_KERNEL(dequantize_sum);

const ds_kernel *const DSI_REF(blocks)[] = {&quantize_blocks_kernel, &quantize_with_error_kernel,
                                            &dequantize_blocks_kernel, &dequantize_sum_kernel,
                                            NULL};
