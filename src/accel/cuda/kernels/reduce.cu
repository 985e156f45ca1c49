/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of rows, columns or all elements, and their way back: a block a row, or 32
 * columns whose eight warps take rows in turns; all elements are one block's. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/reduce_args.h"

/* Over n elements from `at`, by the block; every thread gets it. */
DSC_INLINE float sum_from(const void *x, int act, int64_t at, int64_t n, float parts[32])
{
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        sum += dsc_get(x, act, at + i);
    }
    return dsc_block_sum(sum, parts);
}

DSC_INLINE void sum_last_body(const dsc_reduce_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        const float sum = sum_from(a->x, act, row * a->columns, a->columns, parts);
        if (threadIdx.x == 0) {
            dsc_set(a->y, a->y_dtype, row, sum / a->divisor);
        }
    }
}

DSC_INLINE void sum_rows_body(const dsc_reduce_args *a, int act)
{
    __shared__ float sums[8][33];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    for (int64_t c = blockIdx.x; c * 32 < a->columns; c += gridDim.x) {
        const int64_t column = c * 32 + lane;
        float sum = 0.0f;
        for (int64_t row = warp; row < a->rows && column < a->columns; row += 8) {
            sum += dsc_get(a->x, act, row * a->columns + column);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < a->columns) {
            for (uint32_t w = 1; w < 8; ++w) {
                sum += sums[w][lane];
            }
            dsc_set(a->y, a->y_dtype, column, sum);
        }
        __syncthreads();
    }
}

/* NaN where one is, and 0 in place of -0. */
DSC_INLINE void max_last_body(const dsc_reduce_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        float top = -INFINITY;
        float odd = 0.0f;
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            const float x = dsc_get(a->x, act, row * a->columns + i);
            top = x > top ? x : top;
            odd = x != x ? 1.0f : odd;
        }
        top = dsc_block_max(top, parts);
        odd = dsc_block_max(odd, parts);
        if (threadIdx.x == 0) {
            dsc_set(a->y, act, row, odd > 0.0f ? dsc_from_bf16(0x7fc0u) : top + 0.0f);
        }
    }
}

/* Equal ones share the gradient. */
DSC_INLINE void max_last_backward_body(const dsc_reduce_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        const int64_t at = row * a->columns;
        const float y = dsc_get(a->y_saved, act, row);
        float count = 0.0f;
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            count += dsc_get(a->x, act, at + i) == y ? 1.0f : 0.0f;
        }
        const float part = dsc_get(a->dy, act, row) / dsc_block_sum(count, parts);
        const float rest = y != y ? dsc_from_bf16(0x7fc0u) : 0.0f;
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            dsc_set(a->y, act, at + i, dsc_get(a->x, act, at + i) == y ? part : rest);
        }
    }
}

DSC_INLINE void expand_all(const dsc_expand_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t from = a->kind == DSC_EXPAND_ONE    ? 0
                             : a->kind == DSC_EXPAND_LAST ? i / a->columns
                                                          : i % a->columns;
        dsc_set(a->y, a->y_dtype, i, dsc_get(a->x, a->x_dtype, from));
    }
}

DSC_KERNEL_ACT(sum_last, dsc_reduce_args)
DSC_KERNEL_ACT(sum_rows, dsc_reduce_args)
DSC_KERNEL_ACT(max_last, dsc_reduce_args)
DSC_KERNEL_ACT(max_last_backward, dsc_reduce_args)
DSC_KERNEL(expand, dsc_expand_args, expand_all(a))
