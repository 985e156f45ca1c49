/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of 1-bit LAMB: the operations of docs/internals/optim.md one by one, so that the bits
 * are the processor's, in any split of the work. */
#include "accel/cuda/kernels/frozen.h"
#include "accel/cuda/kernels/kernel_bins.h"
#include "accel/cuda/kernels/update.h"

DSC_INLINE double norm_of(const double *sums)
{
    double bins[DSC_WIDE];
    for (int i = 0; i < DSC_WIDE; ++i) {
        bins[i] = sums[i];
    }
    return sqrt(dsc_bins_total(bins));
}

DSC_INLINE double clamped(double x, double least, double most)
{
    return x > most ? most : x < least ? least : x;
}

/* One thread. */
DSC_INLINE void average_ratio_all(const dsc_freeze_args *a)
{
    if (threadIdx.x != 0) {
        return;
    }
    const double p_norm = norm_of(a->sums);
    const double u_norm = norm_of(a->sums + DSC_WIDE);
    const double old = (double)*a->to;
    float ratio = 1.0f;
    if (p_norm > 0.0 && u_norm > 0.0 && isfinite(p_norm) && isfinite(u_norm)) {
        ratio = (float)clamped(p_norm / u_norm, a->min_coeff, a->max_coeff);
    }
    if (ratio != 1.0f) {
        *a->to = (float)(a->coeff_beta * old + (1.0 - a->coeff_beta) * (double)ratio);
    }
}

/* One thread. */
DSC_INLINE void root_mean_all(const dsc_freeze_args *a)
{
    if (threadIdx.x == 0) {
        *a->to = (float)(norm_of(a->sums) / sqrt((double)a->count));
    }
}

/* One thread. */
DSC_INLINE void freeze_lamb_all(const dsc_freeze_args *a)
{
    if (threadIdx.x == 0) {
        const float quotient = *a->united / *a->own;
        *a->to = isfinite(quotient) && quotient > 0.0f ? quotient : 1.0f;
        *a->second = 1.0f;
    }
}

/* A thread an element. */
DSC_INLINE void frozen_lamb_moments_all(const dsc_freeze_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float m = dsc_get(a->given, a->given_dtype, i) / *a->scaling;
        const float g = fmaf(-b1, dsc_get(a->moment, a->moment_dtype, i), m) / c1;
        const float v = fmaf(b2, dsc_get(a->fresh, a->fresh_dtype, i), c2 * (g * g));
        dsc_set(a->fresh, a->fresh_dtype, i, v);
        dsc_set(a->moment, a->moment_dtype, i, m);
    }
}

/* Of a block: both sums, and the largest quotient of the roots, in 2·WIDE + 1 numbers. */
DSC_INLINE void store_sums(double of_adam[DSC_WIDE], double of_update[DSC_WIDE], float most,
                           double all[DSC_SUM_THREADS][DSC_WIDE], double *out)
{
    dsc_bins_block(of_adam, all);
    dsc_bins_store(of_adam, out);
    __syncthreads();
    dsc_bins_block(of_update, all);
    dsc_bins_store(of_update, out + DSC_WIDE);
    __syncthreads();
    all[threadIdx.x][0] = (double)most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t t = 1; t < blockDim.x; ++t) {
            const float other = (float)all[t][0];
            most = other > most ? other : most;
        }
        out[2 * DSC_WIDE] = (double)most;
    }
}

DSC_INLINE void lamb_factor_sums_all(const dsc_freeze_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double of_adam[DSC_WIDE];
    double of_update[DSC_WIDE];
    const float wd = a->hyper[DSC_HYPER_WEIGHT_DECAY];
    float most = 0.0f;
    int64_t added = 0;
    dsc_bins_clear(of_adam);
    dsc_bins_clear(of_update);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float root = sqrtf(dsc_get(a->square, a->square_dtype, i)) + a->eps;
        const float adam = dsc_get(a->moment, a->moment_dtype, i) / root;
        const float quotient = root / (sqrtf(dsc_get(a->fresh, a->fresh_dtype, i)) + a->eps);
        most = quotient > most ? quotient : most;
        dsc_bins_add(of_adam, adam);
        dsc_bins_add(of_update, fmaf(wd, dsc_get(a->weight, a->weight_dtype, i), adam));
        if (++added % DSC_BIN_BLOCK == 0) {
            dsc_bins_carry(of_adam);
            dsc_bins_carry(of_update);
        }
    }
    dsc_bins_carry(of_adam);
    dsc_bins_carry(of_update);
    store_sums(of_adam, of_update, most, all, a->parts + blockIdx.x * (2 * DSC_WIDE + 1));
}

/* to: the factor; second: the trust ratio of the step. */
DSC_INLINE void finish_factor(const dsc_freeze_args *a, const double *sums)
{
    const double last = (double)*a->to;
    double factor = sums[2 * DSC_WIDE];
    if (a->hyper[DSC_HYPER_WEIGHT_DECAY] > 0.0f) {
        const double quotient = norm_of(sums) / norm_of(sums + DSC_WIDE);
        const double share = quotient < 1.0 ? quotient : 1.0;
        factor = factor * share + (1.0 - share);
    }
    factor = clamped(factor, a->factor_min, a->factor_max);
    factor =
        clamped(factor, last * (1.0 - a->factor_threshold), last * (1.0 + a->factor_threshold));
    *a->to = (float)factor;
    *a->second = (float)((double)*a->ratio * factor);
}

/* One block: a thread the parts of one block. */
DSC_INLINE void lamb_factor_all(const dsc_freeze_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double of_adam[DSC_WIDE];
    double of_update[DSC_WIDE];
    const double *own = a->parts + threadIdx.x * (2 * DSC_WIDE + 1);
    const bool has = threadIdx.x < a->n_parts;
    for (int i = 0; i < DSC_WIDE; ++i) {
        of_adam[i] = has ? own[i] : 0.0;
        of_update[i] = has ? own[DSC_WIDE + i] : 0.0;
    }
    const float most = has ? (float)own[2 * DSC_WIDE] : 0.0f;
    double *sums = a->parts + DSC_SUM_BLOCKS * (2 * DSC_WIDE + 1);
    store_sums(of_adam, of_update, most, all, sums);
    if (threadIdx.x == 0) {
        finish_factor(a, sums);
    }
}

DSC_KERNEL(average_ratio, dsc_freeze_args, average_ratio_all(a))
DSC_KERNEL(root_mean, dsc_freeze_args, root_mean_all(a))
DSC_KERNEL(freeze_lamb, dsc_freeze_args, freeze_lamb_all(a))
DSC_KERNEL(frozen_lamb_moments, dsc_freeze_args, frozen_lamb_moments_all(a))
DSC_KERNEL(lamb_factor_sums, dsc_freeze_args, lamb_factor_sums_all(a))
DSC_KERNEL(lamb_factor, dsc_freeze_args, lamb_factor_all(a))
