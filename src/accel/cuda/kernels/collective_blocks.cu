/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers with a scale a block, which quantized collectives send, and back: the operations of
 * accel/cpu/block_row.h one by one, so that the bits are the processor's. To blocks: a block of
 * threads a block of numbers, a thread two of them in turns; back: a thread an element. */
#include "accel/cuda/kernels/collective_blocks.h"
#include "accel/cuda/kernels/rank_tree.h"

/* A block of a row. */
typedef struct numbers_at {
    int64_t row, first, n; /* first: element of the row; n of them */
    int64_t index;         /* block of the row */
} numbers_at;

DSC_INLINE numbers_at block_at(const dsc_blocks_args *a, int64_t item)
{
    numbers_at b;
    b.row = item / a->n_blocks;
    b.index = item % a->n_blocks;
    b.first = b.index * a->block;
    b.n = a->width - b.first < a->block ? a->width - b.first : a->block;
    return b;
}

DSC_INLINE float *scale_at(uint8_t *rows, const dsc_blocks_layout *l, int64_t row, int64_t index)
{
    return (float *)(void *)(rows + row * l->row_bytes) + index;
}

/* Number k of a row, as it stands there. */
DSC_INLINE int number_in(const uint8_t *rows, const dsc_blocks_layout *l, int64_t row, int64_t k)
{
    const uint8_t *numbers = rows + row * l->row_bytes + l->scales_bytes;
    if (l->bits == 8) {
        return (int)(int8_t)numbers[k];
    }
    const int half = k % 2 == 0 ? numbers[k / 2] & 15 : numbers[k / 2] >> 4;
    return (half ^ 8) - 8;
}

DSC_INLINE float value_in(const uint8_t *rows, const dsc_blocks_layout *l, int64_t block,
                          int64_t row, int64_t k)
{
    const float *scales = (const float *)(const void *)(rows + row * l->row_bytes);
    return (float)number_in(rows, l, row, k) * scales[k / block];
}

/* What the numbers of a block are made with, of its largest magnitude: an infinite one stands for
 * what is not finite, too. */
typedef struct rounding {
    float factor; /* 0: every number is 0 */
    float scale;  /* what is sent */
    float levels;
} rounding;

DSC_INLINE rounding rounding_of(int64_t bits, float most)
{
    rounding r;
    r.levels = bits == 8 ? 256.0f : 16.0f;
    const bool is_finite = most <= 3.4028234663852886e38f;
    if (!is_finite || most < 7.7037197775489434e-34f) { /* 2^-110 */
        r.factor = 0.0f;
        r.scale = is_finite ? 1.0f : dsc_from_bf16(0x7fc0u);
        return r;
    }
    r.factor = r.levels * 0.5f / most;
    r.scale = 1.0f / r.factor;
    return r;
}

/* To the nearest whole number, ties to even. */
DSC_INLINE int rounded(const rounding *r, float x)
{
    const float low = -r->levels * 0.5f;
    const float high = r->levels * 0.5f - 1.0f;
    float y = x * r->factor;
    if (r->factor == 0.0f) {
        return 0;
    }
    y = y < low ? low : y;
    y = y > high ? high : y;
    return (int)((y + 12582912.0f) - 12582912.0f); /* 1.5·2^23 */
}

DSC_INLINE float magnitude_of(float x)
{
    const uint32_t bits = dsc_float_bits(x) & 0x7fffffffu;
    return bits >= 0x7f800000u ? dsc_bits_float(0x7f800000u) : dsc_bits_float(bits);
}

/* Element k of a block, 0 behind the end of x. */
DSC_INLINE float element_of(const dsc_blocks_args *a, const numbers_at *b, int64_t k)
{
    const int64_t at = b->row * a->width + b->first + k;
    return at < a->n_x ? dsc_get(a->x, a->dtype, at) : 0.0f;
}

/* Stores numbers k and k + 1 of a block of n; k is even. */
DSC_INLINE void put_two(uint8_t *rows, const dsc_blocks_layout *l, const numbers_at *b, int64_t k,
                        int first, int second)
{
    uint8_t *numbers = rows + b->row * l->row_bytes + l->scales_bytes;
    if (l->bits == 4) {
        const uint32_t above = k + 1 < b->n ? (uint32_t)second & 15u : 0u;
        numbers[(b->first + k) / 2] = (uint8_t)(((uint32_t)first & 15u) | above << 4);
        return;
    }
    numbers[b->first + k] = (uint8_t)first;
    if (k + 1 < b->n) {
        numbers[b->first + k + 1] = (uint8_t)second;
    }
}

/* By one thread: a block's scale, and zeros behind the last block of a row. */
DSC_INLINE void put_scale(uint8_t *rows, const dsc_blocks_layout *l, const dsc_blocks_args *a,
                          const numbers_at *b, float scale)
{
    *scale_at(rows, l, b->row, b->index) = scale;
    if (b->first + b->n == a->width) {
        uint8_t *row = rows + b->row * l->row_bytes;
        for (int64_t i = l->scales_bytes + (a->width * l->bits + 7) / 8; i < l->row_bytes; ++i) {
            row[i] = 0;
        }
    }
}

DSC_INLINE void quantize_blocks_all(const dsc_blocks_args *a)
{
    __shared__ float parts[32];
    for (int64_t i = blockIdx.x; i < a->n_rows * a->n_blocks; i += gridDim.x) {
        const numbers_at b = block_at(a, i);
        float most = 0.0f;
        for (int64_t k = threadIdx.x; k < b.n; k += blockDim.x) {
            const float m = magnitude_of(element_of(a, &b, k));
            most = m > most ? m : most;
        }
        const rounding r = rounding_of(a->sent.bits, dsc_block_max(most, parts));
        for (int64_t k = 2 * threadIdx.x; k < b.n; k += 2 * blockDim.x) {
            const float second = k + 1 < b.n ? element_of(a, &b, k + 1) : 0.0f;
            put_two(a->rows_out, &a->sent, &b, k, rounded(&r, element_of(a, &b, k)),
                    rounded(&r, second));
        }
        if (threadIdx.x == 0) {
            put_scale(a->rows_out, &a->sent, a, &b, r.scale);
        }
    }
}

/* An element of a block with what was lost of it before, and that. */
typedef struct with_error {
    float y, e;
} with_error;

DSC_INLINE with_error error_of(const dsc_blocks_args *a, const numbers_at *b, int64_t k,
                               float scale, float unit)
{
    with_error w;
    w.e = (float)number_in(a->error_in, &a->kept, b->row, b->first + k) * scale * unit;
    w.y = element_of(a, b, k) + w.e;
    return w;
}

/* What is kept of the loss, by unit. */
DSC_INLINE float loss_of(const dsc_blocks_args *a, const with_error *w, const rounding *r,
                         float unit)
{
    const float lost = w->y - (float)rounded(r, w->y) * r->scale;
    const float e = r->scale != r->scale ? 0.0f : a->beta * w->e + (1.0f - a->beta) * lost;
    return e / unit;
}

/* A thread reads the errors that it writes; the scale of those before is read by all in front of
 * the barriers of the maxima. */
DSC_INLINE void quantize_with_error_all(const dsc_blocks_args *a)
{
    __shared__ float parts[32];
    const float unit = a->unit != NULL ? *a->unit : 1.0f;
    for (int64_t i = blockIdx.x; i < a->n_rows * a->n_blocks; i += gridDim.x) {
        const numbers_at b = block_at(a, i);
        const float *scales =
            (const float *)(const void *)(a->error_in + b.row * a->kept.row_bytes);
        const float scale = scales[b.index];
        float most = 0.0f;
        float most_lost = 0.0f;
        for (int64_t k = threadIdx.x; k < b.n; k += blockDim.x) {
            const float m = magnitude_of(error_of(a, &b, k, scale, unit).y);
            most = m > most ? m : most;
        }
        const rounding r = rounding_of(a->sent.bits, dsc_block_max(most, parts));
        for (int64_t k = threadIdx.x; k < b.n; k += blockDim.x) {
            const with_error w = error_of(a, &b, k, scale, unit);
            const float m = magnitude_of(loss_of(a, &w, &r, unit));
            most_lost = m > most_lost ? m : most_lost;
        }
        const rounding of_error = rounding_of(8, dsc_block_max(most_lost, parts));
        for (int64_t k = 2 * threadIdx.x; k < b.n; k += 2 * blockDim.x) {
            const bool both = k + 1 < b.n;
            const with_error w = error_of(a, &b, k, scale, unit);
            const with_error next = both ? error_of(a, &b, k + 1, scale, unit) : w;
            put_two(a->rows_out, &a->sent, &b, k, rounded(&r, w.y), rounded(&r, next.y));
            put_two(a->error, &a->kept, &b, k, rounded(&of_error, loss_of(a, &w, &r, unit)),
                    rounded(&of_error, loss_of(a, &next, &r, unit)));
        }
        if (threadIdx.x == 0) {
            put_scale(a->rows_out, &a->sent, a, &b, r.scale);
            put_scale(a->error, &a->kept, a, &b, of_error.scale);
        }
    }
}

DSC_INLINE void dequantize_blocks_all(const dsc_blocks_args *a)
{
    for (int64_t i = dsc_index(); i < a->n_y; i += dsc_stride()) {
        dsc_set(a->y, a->dtype, i,
                value_in(a->rows_in, &a->sent, a->block, i / a->width, i % a->width));
    }
}

DSC_INLINE void dequantize_sum_all(const dsc_blocks_args *a)
{
    for (int64_t i = dsc_index(); i < a->n_y; i += dsc_stride()) {
        float parts[DSC_BLOCKS_LEVELS];
        uint32_t n = 0;
        for (uint32_t r = 0; r < a->n_rows; ++r) {
            dsc_tree_add(parts, &n, r, value_in(a->rows_in, &a->sent, a->block, r, i));
        }
        dsc_set(a->y, a->dtype, i, dsc_tree_total(parts, n) * a->factor);
    }
}

DSC_KERNEL(quantize_blocks, dsc_blocks_args, quantize_blocks_all(a))
DSC_KERNEL(quantize_with_error, dsc_blocks_args, quantize_with_error_all(a))
DSC_KERNEL(dequantize_blocks, dsc_blocks_args, dequantize_blocks_all(a))
DSC_KERNEL(dequantize_sum, dsc_blocks_args, dequantize_sum_all(a))
