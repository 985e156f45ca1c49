/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm, rms_norm and their gradients: a block a row, which its threads walk in strides; for
 * the weights' gradients 32 columns a block, whose eight warps take rows in turns. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/norm.h"

/* What normed element i is multiplied by; without w 1. */
DSC_INLINE float weight_at(const void *w, int dtype, float shift, int64_t i)
{
    return w != NULL ? dsc_get(w, dtype, i) + shift : 1.0f;
}

DSC_INLINE void norm_row(const dsc_norm_args *a, int act, bool centred, int64_t row,
                         float parts[32])
{
    const int64_t at = row * a->columns;
    float mean = 0.0f;
    if (centred) {
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            sum += dsc_get(a->x, act, at + i);
        }
        mean = dsc_block_sum(sum, parts) / (float)a->columns;
    }
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        const float d = dsc_get(a->x, act, at + i) - mean;
        squares += d * d;
    }
    const float rstd = 1.0f / sqrtf(dsc_block_sum(squares, parts) / (float)a->columns + a->eps);
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        const float normed = (dsc_get(a->x, act, at + i) - mean) * rstd;
        const float y = normed * weight_at(a->w, a->w_dtype, a->shift, i);
        dsc_set(a->y, act, at + i, a->b != NULL ? y + dsc_get(a->b, a->b_dtype, i) : y);
    }
    if (threadIdx.x == 0) {
        if (centred) {
            a->mean[row] = mean;
        }
        a->rstd[row] = rstd;
    }
}

DSC_INLINE void layer_norm_body(const dsc_norm_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        norm_row(a, act, true, row, parts);
    }
}

DSC_INLINE void rms_norm_body(const dsc_norm_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        norm_row(a, act, false, row, parts);
    }
}

DSC_INLINE float normed_at(const dsc_norm_backward_args *a, int act, bool centred, int64_t row,
                           int64_t i)
{
    const float x = dsc_get(a->x, act, row * a->columns + i);
    return (centred ? x - a->mean[row] : x) * a->rstd[row];
}

DSC_INLINE void dx_row(const dsc_norm_backward_args *a, int act, bool centred, int64_t row,
                       float parts[32])
{
    const int64_t at = row * a->columns;
    float sum = 0.0f;
    float sum_normed = 0.0f;
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        const float d = dsc_get(a->dy, act, at + i) * weight_at(a->w, a->w_dtype, a->shift, i);
        sum += d;
        sum_normed += d * normed_at(a, act, centred, row, i);
    }
    const float mean_d = centred ? dsc_block_sum(sum, parts) / (float)a->columns : 0.0f;
    const float mean_normed = dsc_block_sum(sum_normed, parts) / (float)a->columns;
    const float rstd = a->rstd[row];
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        float d = dsc_get(a->dy, act, at + i) * weight_at(a->w, a->w_dtype, a->shift, i) - mean_d;
        d = (d - normed_at(a, act, centred, row, i) * mean_normed) * rstd;
        dsc_set(a->dx, act, at + i, a->dres != NULL ? d + dsc_get(a->dres, act, at + i) : d);
    }
}

DSC_INLINE void layer_norm_dx_body(const dsc_norm_backward_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        dx_row(a, act, true, row, parts);
    }
}

DSC_INLINE void rms_norm_dx_body(const dsc_norm_backward_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        dx_row(a, act, false, row, parts);
    }
}

/* Columns 32·c and on: lane l of each warp has one of them, warp w the rows w, w+8, … */
DSC_INLINE void dw_columns(const dsc_norm_backward_args *a, int act, bool centred, int64_t c,
                           float sums_w[8][33], float sums_b[8][33])
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t column = c * 32 + lane;
    float sum_w = 0.0f;
    float sum_b = 0.0f;
    for (int64_t row = warp; row < a->rows && column < a->columns; row += 8) {
        const float dy = dsc_get(a->dy, act, row * a->columns + column);
        sum_w += dy * normed_at(a, act, centred, row, column);
        sum_b += dy;
    }
    sums_w[warp][lane] = sum_w;
    sums_b[warp][lane] = sum_b;
    __syncthreads();
    if (warp == 0 && column < a->columns) {
        for (uint32_t w = 1; w < 8; ++w) {
            sum_w += sums_w[w][lane];
            sum_b += sums_b[w][lane];
        }
        a->dw[column] = sum_w;
        if (a->db != NULL) {
            a->db[column] = sum_b;
        }
    }
    __syncthreads();
}

DSC_INLINE void layer_norm_dw_body(const dsc_norm_backward_args *a, int act)
{
    __shared__ float sums_w[8][33];
    __shared__ float sums_b[8][33];
    for (int64_t c = blockIdx.x; c * 32 < a->columns; c += gridDim.x) {
        dw_columns(a, act, true, c, sums_w, sums_b);
    }
}

DSC_INLINE void rms_norm_dw_body(const dsc_norm_backward_args *a, int act)
{
    __shared__ float sums_w[8][33];
    __shared__ float sums_b[8][33];
    for (int64_t c = blockIdx.x; c * 32 < a->columns; c += gridDim.x) {
        dw_columns(a, act, false, c, sums_w, sums_b);
    }
}

DSC_KERNEL_ACT(layer_norm, dsc_norm_args)
DSC_KERNEL_ACT(rms_norm, dsc_norm_args)
DSC_KERNEL_ACT(layer_norm_dx, dsc_norm_backward_args)
DSC_KERNEL_ACT(rms_norm_dx, dsc_norm_backward_args)
DSC_KERNEL_ACT(layer_norm_dw, dsc_norm_backward_args)
DSC_KERNEL_ACT(rms_norm_dw, dsc_norm_backward_args)
