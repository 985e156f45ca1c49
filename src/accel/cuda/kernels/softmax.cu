/* SPDX-License-Identifier: Apache-2.0 */
/* softmax and its gradient: a block a row. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/row_args.h"

DSC_INLINE void softmax_row(const dsc_softmax_args *a, int act, int64_t row, float parts[32])
{
    const int64_t at = row * a->columns;
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        const float x = dsc_get(a->x, act, at + i);
        top = x > top ? x : top;
    }
    top = dsc_block_max(top, parts);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        sum += expf(dsc_get(a->x, act, at + i) - top);
    }
    sum = dsc_block_sum(sum, parts);
    for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
        dsc_set(a->y, act, at + i, expf(dsc_get(a->x, act, at + i) - top) / sum);
    }
}

DSC_INLINE void softmax_body(const dsc_softmax_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        softmax_row(a, act, row, parts);
    }
}

DSC_INLINE void softmax_backward_body(const dsc_softmax_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        const int64_t at = row * a->columns;
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            sum += dsc_get(a->x, act, at + i) * dsc_get(a->saved, act, at + i);
        }
        sum = dsc_block_sum(sum, parts);
        for (int64_t i = threadIdx.x; i < a->columns; i += blockDim.x) {
            const float d = dsc_get(a->x, act, at + i) - sum;
            dsc_set(a->y, act, at + i, dsc_get(a->saved, act, at + i) * d);
        }
    }
}

DSC_KERNEL_ACT(softmax, dsc_softmax_args)
DSC_KERNEL_ACT(softmax_backward, dsc_softmax_args)
