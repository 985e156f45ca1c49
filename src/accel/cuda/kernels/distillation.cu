/* SPDX-License-Identifier: Apache-2.0 */
/* distillation and its gradient, a block a row; the mean over rows is ce_loss's. The formulas:
 * deepspeed/distillation.h. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/distillation.h"

/* log p of the teacher and log q of the model, at the temperature, of one token. */
typedef struct chances {
    float lp, lq;
} chances;

DSC_INLINE chances chances_at(const dsc_distillation_args *a, int act, int64_t at,
                              float teacher_lse, float hot_lse)
{
    const chances c = {a->teacher[at] / a->temperature - teacher_lse,
                       dsc_get(a->ce.z, act, at) / a->temperature - hot_lse};
    return c;
}

/* log of m = b p + (1-b) q. */
DSC_INLINE float log_mixture(chances c, float mix)
{
    const float a = logf(mix) + c.lp;
    const float b = logf(1.0f - mix) + c.lq;
    const float top = a > b ? a : b;
    return top + logf(expf(a - top) + expf(b - top));
}

/* log q - log m, m being p where mix is 1; 0 where it is 0. */
DSC_INLINE float against(chances c, float mix)
{
    return mix == 0.0f ? 0.0f : c.lq - (mix == 1.0f ? c.lp : log_mixture(c, mix));
}

/* What a token adds to the divergence. */
DSC_INLINE float divergence(chances c, float mix)
{
    if (mix == 0.0f) {
        return expf(c.lp) * (c.lp - c.lq);
    }
    if (mix == 1.0f) {
        return expf(c.lq) * (c.lq - c.lp);
    }
    const float lm = log_mixture(c, mix);
    return mix * expf(c.lp) * (c.lp - lm) + (1.0f - mix) * expf(c.lq) * (c.lq - lm);
}

/* Log-sum-exp of a row divided by `by`, by the block; every thread gets it. */
DSC_INLINE float log_sum_exp_of(const void *z, int dtype, int64_t at, int64_t v, float by,
                                float parts[32])
{
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < v; i += blockDim.x) {
        const float x = dsc_get(z, dtype, at + i) / by;
        top = x > top ? x : top;
    }
    top = dsc_block_max(top, parts);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < v; i += blockDim.x) {
        sum += expf(dsc_get(z, dtype, at + i) / by - top);
    }
    return top + logf(dsc_block_sum(sum, parts));
}

DSC_INLINE void distil_row(const dsc_distillation_args *a, int act, int64_t row, float parts[32])
{
    const int64_t v = a->ce.v;
    const int64_t at = row * v;
    const int64_t target = a->ce.targets[row];
    const bool counts = target != a->ce.ignore;
    const bool fits = target >= 0 && target < v;
    const float lse = log_sum_exp_of(a->ce.z, act, at, v, 1.0f, parts);
    const float hot = log_sum_exp_of(a->ce.z, act, at, v, a->temperature, parts);
    const float teacher = log_sum_exp_of(a->teacher, DSC_F32, at, v, a->temperature, parts);
    float sum = 0.0f;
    float inner = 0.0f;
    for (int64_t i = threadIdx.x; i < v && counts && fits; i += blockDim.x) {
        const chances c = chances_at(a, act, at + i, teacher, hot);
        sum += divergence(c, a->mix);
        inner += a->mix == 0.0f ? 0.0f : expf(c.lq) * against(c, a->mix);
    }
    sum = dsc_block_sum(sum, parts);
    inner = dsc_block_sum(inner, parts);
    if (threadIdx.x == 0) {
        if (counts && !fits) {
            dsc_report(a->ce.fault, a->ce.call, row, target, v);
        }
        const float soft = a->weight * a->temperature * a->temperature * sum;
        a->ce.losses[row] =
            counts && fits ? (1.0f - a->weight) * (lse - dsc_get(a->ce.z, act, at + target)) + soft
                           : 0.0f;
        a->ce.lse[row] = lse;
        a->hot_lse[row] = hot;
        a->teacher_lse[row] = teacher;
        a->inner[row] = inner;
    }
}

DSC_INLINE void distillation_body(const dsc_distillation_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t row = blockIdx.x; row < a->ce.rows; row += gridDim.x) {
        distil_row(a, act, row, parts);
    }
}

/* dD/dz, times the temperature. */
DSC_INLINE float slope(chances c, float mix, float inner)
{
    if (mix == 0.0f) {
        return expf(c.lq) - expf(c.lp);
    }
    const float share = mix == 1.0f ? 1.0f : 1.0f - mix;
    return share * expf(c.lq) * (against(c, mix) - inner);
}

/* A thread a logit. */
DSC_INLINE void distillation_backward_body(const dsc_distillation_args *a, int act)
{
    const float rows = *a->ce.count;
    const float scale = rows > 0.0f ? *a->ce.dloss / rows : 0.0f;
    for (int64_t at = dsc_index(); at < a->ce.rows * a->ce.v; at += dsc_stride()) {
        const int64_t row = at / a->ce.v;
        const int64_t target = a->ce.targets[row];
        float d = 0.0f;
        if (target != a->ce.ignore) {
            const float p = expf(dsc_get(a->ce.z, act, at) - a->ce.lse[row]);
            const float hard = at % a->ce.v == target ? p - 1.0f : p;
            const chances c = chances_at(a, act, at, a->teacher_lse[row], a->hot_lse[row]);
            const float soft = slope(c, a->mix, a->inner[row]);
            d = ((1.0f - a->weight) * hard + a->weight * a->temperature * soft) * scale;
        }
        dsc_set(a->ce.dz, act, at, d);
    }
}

DSC_KERNEL_ACT(distillation, dsc_distillation_args)
DSC_KERNEL_ACT(distillation_backward, dsc_distillation_args)
