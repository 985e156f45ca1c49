/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy behind its logits, a block a row: log-sum-exp and loss of a row, the mean of all,
 * the gradient of the logits. The products are linear.cu's, or another operator's: those logits
 * have the dtype of activations. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/cross_entropy.h"

/* Log-sum-exp of v logits from `at` on, by the block; every thread gets it. */
DSC_INLINE float log_sum_exp(const void *z, int act, int64_t at, int64_t v, float parts[32])
{
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < v; i += blockDim.x) {
        const float x = dsc_get(z, act, at + i);
        top = x > top ? x : top;
    }
    top = dsc_block_max(top, parts);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < v; i += blockDim.x) {
        sum += expf(dsc_get(z, act, at + i) - top);
    }
    return top + logf(dsc_block_sum(sum, parts));
}

DSC_INLINE void ce_row(const dsc_ce_args *a, int act, int64_t row, float parts[32])
{
    const int64_t target = a->targets[a->first + row];
    const float lse = log_sum_exp(a->z, act, row * a->v, a->v, parts);
    if (threadIdx.x == 0) {
        const bool counts = target != a->ignore;
        const bool fits = target >= 0 && target < a->v;
        if (counts && !fits) {
            dsc_report(a->fault, a->call, a->first + row, target, a->v);
        }
        a->lse[a->first + row] = lse;
        a->losses[a->first + row] = counts && fits ? lse - dsc_get(a->z, act, row * a->v + target) : 0.0f;
    }
}

DSC_INLINE void ce_rows_body(const dsc_ce_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        ce_row(a, act, row, parts);
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

/* z_dtype: of the logits; act: of their gradient. */
DSC_INLINE void dlogits(const dsc_ce_args *a, int z_dtype, int act)
{
    const float rows = *a->count;
    const float scale = rows > 0.0f ? *a->dloss / rows : 0.0f;
    for (int64_t at = dsc_index(); at < a->rows * a->v; at += dsc_stride()) {
        const int64_t row = a->first + at / a->v;
        const int64_t target = a->targets[row];
        const float p = expf(dsc_get(a->z, z_dtype, at) - a->lse[row]);
        const float d = (at % a->v == target ? p - 1.0f : p) * scale;
        dsc_set(a->dz, act, at, target == a->ignore ? 0.0f : d);
    }
}

DSC_INLINE void ce_dlogits_body(const dsc_ce_args *a, int act)
{
    dlogits(a, DSC_F32, act);
}

DSC_INLINE void ce_given_dlogits_body(const dsc_ce_args *a, int act)
{
    dlogits(a, act, act);
}

DSC_KERNEL_ACT(ce_rows, dsc_ce_args)
DSC_KERNEL(ce_loss, dsc_ce_args, ce_loss_all(a))
DSC_KERNEL_ACT(ce_dlogits, dsc_ce_args)
DSC_KERNEL_ACT(ce_given_dlogits, dsc_ce_args)
