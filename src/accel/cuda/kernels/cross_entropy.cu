/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy behind its logits, a block a row: log-sum-exp and loss of a row, the mean of all,
 * the gradient of the logits. The products are linear.cu's. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/cross_entropy.h"

DSC_INLINE void ce_row(const dsc_ce_args *a, int64_t row, float parts[32])
{
    const float *z = a->z + row * a->v;
    const int64_t target = a->targets[a->first + row];
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < a->v; i += blockDim.x) {
        top = z[i] > top ? z[i] : top;
    }
    top = dsc_block_max(top, parts);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < a->v; i += blockDim.x) {
        sum += expf(z[i] - top);
    }
    const float lse = top + logf(dsc_block_sum(sum, parts));
    if (threadIdx.x == 0) {
        const bool counts = target != a->ignore;
        const bool fits = target >= 0 && target < a->v;
        if (counts && !fits) {
            dsc_report(a->fault, a->call, a->first + row, target, a->v);
        }
        a->lse[a->first + row] = lse;
        a->losses[a->first + row] = counts && fits ? lse - z[target] : 0.0f;
    }
}

DSC_INLINE void ce_rows_all(const dsc_ce_args *a)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        ce_row(a, row, parts);
    }
}

/* One block. */
DSC_INLINE void ce_loss_all(const dsc_ce_args *a)
{
    __shared__ float parts[32];
    float sum = 0.0f;
    float count = 0.0f; /* whole numbers: exact up to 2^24 rows */
    for (int64_t row = threadIdx.x; row < a->all; row += blockDim.x) {
        sum += a->losses[row];
        count += a->targets[row] != a->ignore ? 1.0f : 0.0f;
    }
    sum = dsc_block_sum(sum, parts);
    count = dsc_block_sum(count, parts);
    if (threadIdx.x == 0) {
        const float rows = a->count_given != NULL ? *a->count_given : count;
        *a->loss = rows > 0.0f ? sum / rows : 0.0f;
        *a->count = rows;
    }
}

DSC_INLINE void ce_dlogits_body(const dsc_ce_args *a, int act)
{
    const float rows = *a->count;
    const float scale = rows > 0.0f ? *a->dloss / rows : 0.0f;
    for (int64_t at = dsc_index(); at < a->rows * a->v; at += dsc_stride()) {
        const int64_t row = a->first + at / a->v;
        const int64_t target = a->targets[row];
        const float p = expf(a->z[at] - a->lse[row]);
        const float d = (at % a->v == target ? p - 1.0f : p) * scale;
        dsc_set(a->dz, act, at, target == a->ignore ? 0.0f : d);
    }
}

DSC_KERNEL(ce_rows, dsc_ce_args, ce_rows_all(a))
DSC_KERNEL(ce_loss, dsc_ce_args, ce_loss_all(a))
DSC_KERNEL_ACT(ce_dlogits, dsc_ce_args)
