/* SPDX-License-Identifier: Apache-2.0 */
/* linear with a weight in blocks, by the arithmetic of accel/cpu/block_linear.h, which is the same
 * for any number of rows: x is rounded to bytes, the sums of a block's products are whole numbers,
 * blocks are added in order. Warps make the sums of eight blocks at a time, and then go on with a
 * row each. embedding_blocks: a thread an element. */
#include "accel/cuda/kernels/block_panel.h"
#include "accel/cuda/kernels/linear_finish.h"

/* A warp a block of x, a lane a value. */
DSC_INLINE void block_round_body(const dsc_block_linear_args *a, int act)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t n = a->linear.rows * a->n_blocks;
    for (int64_t b = dsc_index() / 32; b < n; b += dsc_stride() / 32) {
        const float x = dsc_get(a->linear.x, act, b * BLOCK_VALUES + lane);
        const float size = fabsf(x);
        const bool finite = dsc_warp_max(size < INFINITY ? 0.0f : 1.0f) == 0.0f;
        const float top = dsc_warp_max(size < INFINITY ? size : 0.0f);
        const float inverse = finite && top >= 0x1p-119f ? 127.0f / top : 0.0f;
        const int32_t q = finite ? (int32_t)rintf(x * inverse) : 0;
        float sum = (float)q;
        for (int lanes = 8; lanes > 0; lanes /= 2) {
            sum += dsc_shfl_xor_f32(0xffffffffu, sum, lanes);
        }
        a->q[b * BLOCK_VALUES + lane] = (int8_t)q;
        if (lane % 16 == 0) {
            a->sums[2 * b + lane / 16] = (int32_t)sum;
        }
        if (lane == 0) {
            a->scale[b] = finite ? top / 127.0f : dsc_from_bf16(0x7fc0u);
        }
    }
}

DSC_KERNEL_ACT(block_round, dsc_block_linear_args)

/* Of eight blocks: what is added to y, in shared memory. Lanes are columns. */
typedef struct eight_blocks {
    float sum[DSC_BLOCK_WARPS][2][DSC_BLOCK_WARPS][32]; /* block, part, row, column */
    float scale[DSC_BLOCK_WARPS][2][32];
    float minimum[DSC_BLOCK_WARPS][32];
} eight_blocks;

/* Block b of the warp's columns with rows row0 and on. */
DSC_INLINE void sum_block(const dsc_block_linear_args *a, int type, int64_t b, int64_t row0,
                          const uint8_t *panel, eight_blocks *s)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t r = lane % PANEL_ROWS;
    const uint8_t *block = block_at(type, panel, b);
    const int each = BLOCK_WORDS / n_parts(type);
    uint32_t w[BLOCK_WORDS];
    DSC_UNROLL
    for (int step = 0; step < BLOCK_WORDS; ++step) {
        w[step] = word_of(type, block, r, step);
    }
    for (int part = 0; part < n_parts(type); ++part) {
        s->scale[warp][part][lane] = scale_of(type, panel, b, r, part);
    }
    s->minimum[warp][lane] = minimum_of(type, panel, b, r);
    for (int64_t i = 0; i < DSC_BLOCK_WARPS && row0 + i < a->linear.rows; ++i) {
        const int64_t at = (row0 + i) * a->n_blocks + b;
        const uint32_t *x = (const uint32_t *)(a->q + at * BLOCK_VALUES);
        const int32_t *sums = a->sums + 2 * at;
        DSC_UNROLL
        for (int part = 0; part < n_parts(type); ++part) {
            const int32_t of_x = n_parts(type) == 2 ? sums[part] : sums[0] + sums[1];
            int32_t sum = -offset_of(type) * of_x;
            DSC_UNROLL
            for (int step = part * each; step < (part + 1) * each; ++step) {
                sum = dsc_dot_bytes(w[step], x[step], sum);
            }
            s->sum[warp][part][i][lane] = (float)sum;
        }
    }
}

DSC_INLINE void block_linear_of(const dsc_block_linear_args *a, int type, eight_blocks *s)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t column = (int64_t)blockIdx.x * DSC_BLOCK_COLUMNS + lane;
    const int64_t row0 = (int64_t)blockIdx.y * DSC_BLOCK_WARPS;
    const int64_t row = row0 + warp;
    const int64_t which = column / PANEL_ROWS;
    const uint8_t *panel = (const uint8_t *)a->linear.w + which * a->panel_bytes;
    float y = 0.0f;
    for (int64_t b0 = 0; b0 < a->n_blocks; b0 += DSC_BLOCK_WARPS) {
        if (b0 + warp < a->n_blocks && which < a->n_panels) {
            sum_block(a, type, b0 + warp, row0, panel, s);
        }
        __syncthreads();
        for (int64_t i = 0; i < DSC_BLOCK_WARPS && b0 + i < a->n_blocks && row < a->linear.rows &&
                            which < a->n_panels;
             ++i) {
            const int64_t at = row * a->n_blocks + b0 + i;
            const float scale = a->scale[at];
            for (int part = 0; part < n_parts(type); ++part) {
                y = fmaf(s->scale[i][part][lane] * scale, s->sum[i][part][warp][lane], y);
            }
            if (has_minimum(type)) {
                const float of_x = (float)(a->sums[2 * at] + a->sums[2 * at + 1]);
                y = fmaf(s->minimum[i][lane] * scale, of_x, y);
            }
        }
        __syncthreads();
    }
    if (row < a->linear.rows && column < a->linear.n_out) {
        finish(&a->linear, row, column, y);
    }
}

#define BLOCK_LINEAR(name, type)                                                                   \
    DSC_INLINE void block_linear_body_##name(const dsc_block_linear_args *a)                       \
    {                                                                                              \
        __shared__ eight_blocks blocks;                                                            \
        block_linear_of(a, type, &blocks);                                                         \
    }                                                                                              \
    DSC_KERNEL(block_linear_##name, dsc_block_linear_args, block_linear_body_##name(a))

BLOCK_LINEAR(q8_0, DSC_Q8_0)
BLOCK_LINEAR(q4_0, DSC_Q4_0)
BLOCK_LINEAR(q4_1, DSC_Q4_1)
BLOCK_LINEAR(q5_0, DSC_Q5_0)
BLOCK_LINEAR(q5_1, DSC_Q5_1)
BLOCK_LINEAR(q4_k, DSC_Q4_K)
BLOCK_LINEAR(q5_k, DSC_Q5_K)
BLOCK_LINEAR(q6_k, DSC_Q6_K)

/* ---- embedding_blocks ---------------------------------------------------------------------- */

DSC_INLINE void block_rows(const dsc_embedding_blocks_args *a)
{
    for (int64_t i = dsc_index(); i < a->n * a->columns; i += dsc_stride()) {
        const int64_t token = i / a->columns;
        const int64_t c = i % a->columns;
        const int64_t id = a->ids[token];
        if (id < 0 || id >= a->n_rows) {
            if (c == 0) {
                dsc_report(a->fault, a->call, token, id, a->n_rows);
            }
            continue;
        }
        const int64_t b = c / BLOCK_VALUES;
        const int64_t r = id % PANEL_ROWS;
        const int in = (int)(c % BLOCK_VALUES);
        const uint8_t *panel = (const uint8_t *)a->table + id / PANEL_ROWS * a->panel_bytes;
        const uint32_t word = word_of(a->type, block_at(a->type, panel, b), r, in / 4);
        const int32_t q = (int32_t)(int8_t)(uint8_t)(word >> (8 * (in % 4))) - offset_of(a->type);
        const float scale = scale_of(a->type, panel, b, r, in * n_parts(a->type) / BLOCK_VALUES);
        dsc_set(a->y, a->y_dtype, i, scale * (float)q + minimum_of(a->type, panel, b, r));
    }
}

DSC_KERNEL(embedding_blocks, dsc_embedding_blocks_args, block_rows(a))
