/* SPDX-License-Identifier: Apache-2.0 */
/* The products of linear.cu and of whatever must have their bits (grouped_linear.cu): a block makes
 * a tile of y. In fp32 (and as the plain way for any dtype) 16×16 elements, over tiles in shared
 * memory; in bf16 and fp16 64×64 by mma, with asynchronous copies ahead. The sum of an element runs
 * over k in ascending order, whatever the other sizes are, so that a row has the same bits in any
 * number of rows. packed: what w is when it is a packed matrix, else NULL; its elements are rounded
 * to x's dtype, and the products are those of a matrix of them. */
#ifndef DSC_LINEAR_TILE_H
#define DSC_LINEAR_TILE_H

#include "accel/cuda/kernels/linear_finish.h"
#include "accel/cuda/kernels/packed_value.h"

DSC_INLINE int64_t w_at(const dsc_linear_args *a, int64_t k, int64_t column)
{
    return a->transposed != 0 ? k * a->n_out + column : column * a->n_in + k;
}

DSC_INLINE float weight_of(const dsc_linear_args *a, int act, const dsc_packed *packed, int64_t k,
                           int64_t column)
{
    if (packed != NULL) {
        return dsc_round(
            act, packed_value(packed, a->w, a->transposed != 0 ? k : column, w_at(a, k, column)));
    }
    return dsc_get(a->w, act, w_at(a, k, column));
}

/* Elements of a 16×16 tile of y, one a thread. */
DSC_INLINE void plain_tile_of(const dsc_linear_args *a, int act, const dsc_packed *packed,
                              int64_t first_row, int64_t first_column, plain_tile xs, plain_tile ws)
{
    const uint32_t tx = threadIdx.x % DSC_PLAIN_TILE;
    const uint32_t ty = threadIdx.x / DSC_PLAIN_TILE;
    const int64_t row = first_row + ty;
    const int64_t column = first_column + tx;
    const int64_t w_column = first_column + ty; /* that this thread loads */
    float sum = 0.0f;
    for (int64_t k0 = 0; k0 < a->n_in; k0 += DSC_PLAIN_TILE) {
        const int64_t k = k0 + tx;
        const bool in = k < a->n_in;
        xs[ty][tx] = in && row < a->rows ? dsc_get(a->x, act, row * a->n_in + k) : 0.0f;
        ws[ty][tx] = in && w_column < a->n_out ? weight_of(a, act, packed, k, w_column) : 0.0f;
        __syncthreads();
        for (uint32_t i = 0; i < DSC_PLAIN_TILE; ++i) {
            sum = fmaf(xs[ty][i], ws[tx][i], sum);
        }
        __syncthreads();
    }
    if (row < a->rows && column < a->n_out) {
        finish(a, row, column, sum);
    }
}

/* ---- mma ---------------------------------------------------------------------------------- */

enum { K_STEP = 32, PITCH = K_STEP + 8 }; /* 80 bytes a row: its banks differ over eight rows */

typedef uint16_t mma_tile[DSC_MMA_TILE][PITCH];

/* Rows `from` and on of a row-major (n,n_in), 64 of them, k0 to k0 + 32, zeros outside. */
DSC_INLINE void load_rows(const dsc_linear_args *a, const void *t, int64_t n, int64_t from,
                          int64_t k0, mma_tile to)
{
    for (uint32_t i = threadIdx.x; i < DSC_MMA_TILE * K_STEP; i += DSC_MMA_THREADS) {
        const int64_t row = from + i / K_STEP;
        const int64_t k = k0 + i % K_STEP;
        to[i / K_STEP][i % K_STEP] =
            row < n && k < a->n_in ? ((const uint16_t *)t)[row * a->n_in + k] : (uint16_t)0;
    }
}

/* The same of (n_in,n_out): columns `from` and on. */
DSC_INLINE void load_columns(const dsc_linear_args *a, int64_t from, int64_t k0, mma_tile to)
{
    for (uint32_t i = threadIdx.x; i < DSC_MMA_TILE * K_STEP; i += DSC_MMA_THREADS) {
        const uint32_t c = i % DSC_MMA_TILE;
        const uint32_t r = i / DSC_MMA_TILE;
        const bool in = from + c < a->n_out && k0 + r < a->n_in;
        to[c][r] = in ? ((const uint16_t *)a->w)[(k0 + r) * a->n_out + from + c] : (uint16_t)0;
    }
}

/* Either of a packed matrix. */
DSC_INLINE void unpack_weights(const dsc_linear_args *a, int act, const dsc_packed *packed,
                               int64_t from, int64_t k0, mma_tile to)
{
    for (uint32_t i = threadIdx.x; i < DSC_MMA_TILE * K_STEP; i += DSC_MMA_THREADS) {
        const uint32_t c = a->transposed != 0 ? i % DSC_MMA_TILE : i / K_STEP;
        const uint32_t r = a->transposed != 0 ? i / DSC_MMA_TILE : i % K_STEP;
        const bool in = from + c < a->n_out && k0 + r < a->n_in;
        dsc_set(to[c], act, r, in ? weight_of(a, act, packed, k0 + r, from + c) : 0.0f);
    }
}

/* load_rows behind the back of the threads: of rows that begin at multiples of 16 bytes. */
DSC_INLINE void copy_rows(const dsc_linear_args *a, const void *t, int64_t n, int64_t from,
                          int64_t k0, mma_tile to)
{
    for (uint32_t i = threadIdx.x; i < DSC_MMA_TILE * K_STEP / 8; i += DSC_MMA_THREADS) {
        const int64_t row = from + i / (K_STEP / 8);
        const uint32_t c = i % (K_STEP / 8) * 8;
        const bool in = row < n && k0 + c < a->n_in;
        const uint16_t *at = (const uint16_t *)t + (in ? row * a->n_in + k0 + c : 0);
        dsc_copy_async(&to[i / (K_STEP / 8)][c], at, in ? 16 : 0);
    }
}

/* Both tiles of k0 on their way, as one group of copies; behind the last tile an empty one: who
 * waits for all groups but the newest has every tile. */
DSC_INLINE void load(const dsc_linear_args *a, int act, const dsc_packed *packed, int64_t row,
                     int64_t column, int64_t k0, mma_tile x, mma_tile w)
{
    if (k0 < a->n_in && a->copies != 0) {
        copy_rows(a, a->x, a->rows, row, k0, x);
    } else if (k0 < a->n_in) {
        load_rows(a, a->x, a->rows, row, k0, x);
    }
    if (k0 < a->n_in && packed != NULL) {
        unpack_weights(a, act, packed, column, k0, w);
    } else if (k0 < a->n_in && a->transposed != 0) {
        load_columns(a, column, k0, w);
    } else if (k0 < a->n_in && a->copies != 0) {
        copy_rows(a, a->w, a->n_out, column, k0, w);
    } else if (k0 < a->n_in) {
        load_rows(a, a->w, a->n_out, column, k0, w);
    }
    dsc_copy_commit();
}

DSC_INLINE uint32_t pair_at(const uint16_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 16;
}

/* One warp's 32×32 of the tile: two blocks of 16 rows, four of 8 columns, 16 of k at a time. */
DSC_INLINE void multiply(int act, mma_tile xs, mma_tile ws, uint32_t row0, uint32_t column0,
                         float sums[2][4][4])
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t k = 0; k < K_STEP; k += 16) {
        uint32_t x[2][4];
        for (uint32_t m = 0; m < 2; ++m) {
            for (uint32_t i = 0; i < 4; ++i) {
                const uint32_t row = row0 + 16 * m + lane / 4 + i % 2 * 8;
                x[m][i] = pair_at(&xs[row][k + lane % 4 * 2 + i / 2 * 8]);
            }
        }
        for (uint32_t n = 0; n < 4; ++n) {
            const uint16_t *column = ws[column0 + 8 * n + lane / 4];
            const uint32_t w[2] = {pair_at(column + k + lane % 4 * 2),
                                   pair_at(column + k + lane % 4 * 2 + 8)};
            for (uint32_t m = 0; m < 2; ++m) {
                if (act == DSC_BF16) {
                    dsc_mma_bf16(sums[m][n], x[m], w, sums[m][n]);
                } else {
                    dsc_mma_f16(sums[m][n], x[m], w, sums[m][n]);
                }
            }
        }
    }
}

/* 64×64 elements of y, 32×32 a warp. */
DSC_INLINE void mma_tile_of(const dsc_linear_args *a, int act, const dsc_packed *packed,
                            int64_t first_row, int64_t first_column, mma_tile xs[2], mma_tile ws[2])
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t row0 = warp / 2 * 32;
    const uint32_t column0 = warp % 2 * 32;
    float sums[2][4][4] = {{{0.0f}}};
    load(a, act, packed, first_row, first_column, 0, xs[0], ws[0]);
    for (int64_t k0 = 0; k0 < a->n_in; k0 += K_STEP) {
        const uint32_t now = (uint32_t)(k0 / K_STEP % 2);
        load(a, act, packed, first_row, first_column, k0 + K_STEP, xs[1 - now], ws[1 - now]);
        dsc_copy_wait(1);
        __syncthreads();
        multiply(act, xs[now], ws[now], row0, column0, sums);
        __syncthreads();
    }
    for (uint32_t g = 0; g < 8; ++g) { /* chosen, for registers have no index */
        float four[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        DSC_UNROLL
        for (uint32_t i = 0; i < 32; ++i) {
            four[i % 4] = g == i / 4 ? sums[i / 16][i / 4 % 4][i % 4] : four[i % 4];
        }
        DSC_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
            const int64_t row = first_row + row0 + 16 * (g / 4) + lane / 4 + i / 2 * 8;
            const int64_t column = first_column + column0 + 8 * (g % 4) + lane % 4 * 2 + i % 2;
            if (row < a->rows && column < a->n_out) {
                finish(a, row, column, four[i]);
            }
        }
    }
}

#endif
