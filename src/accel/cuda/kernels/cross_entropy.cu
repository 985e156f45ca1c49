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
        const float loss = counts && fits ? lse - dsc_get(a->z, act, row * a->v + target) : 0.0f;
        if (a->logp != NULL) {
            a->logp[a->first + row] = counts && fits ? -loss : 0.0f;
        } else {
            a->losses[a->first + row] = loss;
        }
    }
}

DSC_INLINE void ce_rows_body(const dsc_ce_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        ce_row(a, act, row, parts);
    }
}

/* Rows of a part that are of the vocabulary: behind them it is padded. */
DSC_INLINE int64_t real_rows(const dsc_ce_args *a)
{
    const int64_t rest = a->first_row != NULL ? a->n_all - *a->first_row : a->v;
    return rest < a->v ? rest : a->v;
}

/* Of a part: what cross_entropy_join needs of each row. */
DSC_INLINE void ce_part_rows_all(const dsc_ce_args *a)
{
    __shared__ float parts[32];
    const int64_t v = real_rows(a);
    for (int64_t row = blockIdx.x; row < a->rows; row += gridDim.x) {
        const int64_t target = a->targets[a->first + row];
        const int64_t here = target - *a->first_row;
        const float lse = log_sum_exp(a->z, DSC_F32, row * a->v, v, parts);
        if (threadIdx.x == 0) {
            if (target != a->ignore && (target < 0 || target >= a->n_all)) {
                dsc_report(a->fault, a->call, a->first + row, target, a->n_all);
            }
            float *term = a->terms + 2 * (a->first + row);
            term[0] = lse;
            term[1] = here >= 0 && here < v ? ((const float *)a->z)[row * a->v + here] : -0.0f;
        }
    }
}

/* A thread a row: its parts in their order. */
DSC_INLINE void ce_join_all(const dsc_ce_args *a)
{
    for (int64_t row = dsc_index(); row < a->all; row += dsc_stride()) {
        float top = -INFINITY;
        float sum = 0.0f;
        float hit = 0.0f;
        for (int64_t k = 0; k < a->n_parts; ++k) {
            const float lse = a->terms[2 * (a->all * k + row)];
            top = lse > top || lse != lse ? lse : top;
        }
        for (int64_t k = 0; k < a->n_parts; ++k) {
            const float *term = a->terms + 2 * (a->all * k + row);
            sum += expf(term[0] - top);
            hit += term[1];
        }
        const float lse = top + logf(sum);
        a->lse[row] = lse;
        a->losses[row] = a->targets[row] != a->ignore ? lse - hit : 0.0f;
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
    const float rows = a->dlogp == NULL ? *a->count : 0.0f;
    const float mean = rows > 0.0f ? *a->dloss / rows : 0.0f;
    const int64_t first_row = a->first_row != NULL ? *a->first_row : 0;
    const int64_t v = real_rows(a);
    for (int64_t at = dsc_index(); at < a->rows * a->v; at += dsc_stride()) {
        const int64_t row = a->first + at / a->v;
        const int64_t target = a->targets[row];
        const float scale = a->dlogp != NULL ? -a->dlogp[row] : mean;
        const float p = expf(dsc_get(a->z, z_dtype, at) - a->lse[row]);
        const float d = (at % a->v == target - first_row ? p - 1.0f : p) * scale;
        dsc_set(a->dz, act, at, target == a->ignore || at % a->v >= v ? 0.0f : d);
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
DSC_KERNEL(ce_part_rows, dsc_ce_args, ce_part_rows_all(a))
DSC_KERNEL(ce_join, dsc_ce_args, ce_join_all(a))
DSC_KERNEL(ce_loss, dsc_ce_args, ce_loss_all(a))
DSC_KERNEL_ACT(ce_dlogits, dsc_ce_args)
DSC_KERNEL_ACT(ce_given_dlogits, dsc_ce_args)
