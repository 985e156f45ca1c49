/* SPDX-License-Identifier: Apache-2.0 */
/* LAMB's three steps: the operations of docs/internals/optim.md one by one, so that the bits are
 * the processor's, in any split of the work. */
#include "accel/cuda/kernels/kernel_bins.h"
#include "accel/cuda/kernels/lamb.h"
#include "accel/cuda/kernels/update.h"

#include <float.h>

/* A thread an element. */
DSC_INLINE void lamb_moments_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float g = dsc_grad_at(a, i);
        const float m = fmaf(b1, dsc_get(a->param, a->param_dtype, i), c1 * g);
        const float v = fmaf(b2, dsc_get(a->state[1], a->state_dtype, i), c2 * (g * g));
        dsc_set(a->param, a->param_dtype, i, m);
        dsc_set(a->state[1], a->state_dtype, i, v);
    }
}

/* The update before the trust ratio, of the stored moments; 0 of the zeros that fill a slice. */
DSC_INLINE float direction(const dsc_lamb_args *a, int64_t i, float p)
{
    const float m = dsc_get(a->m, a->m_dtype, i);
    const float root = sqrtf(dsc_get(a->v, a->v_dtype, i)) + a->update.eps;
    return fmaf(a->update.hyper[DSC_HYPER_WEIGHT_DECAY], p, m / (root < FLT_MIN ? FLT_MIN : root));
}

/* Both sums of a block, by its thread 0. */
DSC_INLINE void store_both(double of_p[DSC_WIDE], double of_u[DSC_WIDE],
                           double all[DSC_SUM_THREADS][DSC_WIDE], double *out)
{
    dsc_bins_block(of_p, all);
    dsc_bins_store(of_p, out);
    __syncthreads();
    dsc_bins_block(of_u, all);
    dsc_bins_store(of_u, out + DSC_WIDE);
}

DSC_INLINE void lamb_sums_all(const dsc_lamb_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double of_p[DSC_WIDE];
    double of_u[DSC_WIDE];
    int64_t added = 0;
    dsc_bins_clear(of_p);
    dsc_bins_clear(of_u);
    for (int64_t i = dsc_index(); i < a->update.n; i += dsc_stride()) {
        const float p = dsc_param_at(&a->update, i);
        dsc_bins_add(of_p, p);
        dsc_bins_add(of_u, direction(a, i, p));
        if (++added % DSC_BIN_BLOCK == 0) {
            dsc_bins_carry(of_p);
            dsc_bins_carry(of_u);
        }
    }
    dsc_bins_carry(of_p);
    dsc_bins_carry(of_u);
    store_both(of_p, of_u, all, a->parts + (int64_t)blockIdx.x * 2 * DSC_WIDE);
}

/* One block: a thread the parts of one block. */
DSC_INLINE void lamb_sums_join_all(const dsc_lamb_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double of_p[DSC_WIDE];
    double of_u[DSC_WIDE];
    const double *own = a->parts + (int64_t)threadIdx.x * 2 * DSC_WIDE;
    const bool has = threadIdx.x < a->n_parts;
    for (int i = 0; i < DSC_WIDE; ++i) {
        of_p[i] = has ? own[i] : 0.0;
        of_u[i] = has ? own[DSC_WIDE + i] : 0.0;
    }
    store_both(of_p, of_u, all, a->sums);
}

DSC_INLINE double norm_of(const double *sums)
{
    double bins[DSC_WIDE];
    for (int i = 0; i < DSC_WIDE; ++i) {
        bins[i] = sums[i];
    }
    return sqrt(dsc_bins_total(bins));
}

DSC_INLINE float ratio_of(const dsc_lamb_args *a)
{
    const double p_norm = norm_of(a->sums);
    const double u_norm = norm_of(a->sums + DSC_WIDE);
    if (!(p_norm > 0.0) || !(u_norm > 0.0) || !isfinite(p_norm) || !isfinite(u_norm)) {
        return 1.0f;
    }
    const double ratio = p_norm / u_norm;
    return (float)(ratio > a->max_coeff   ? a->max_coeff
                   : ratio < a->min_coeff ? a->min_coeff
                                          : ratio);
}

/* A thread an element; the trust ratio is found once a block. */
DSC_INLINE void lamb_all(const dsc_lamb_args *a)
{
    __shared__ float ratio;
    const dsc_optimizer_args *u = &a->update;
    const float scaled =
        (u->hyper[DSC_HYPER_LR] * u->hyper[DSC_HYPER_BIAS2]) / u->hyper[DSC_HYPER_BIAS1];
    if (threadIdx.x == 0) {
        ratio = ratio_of(a);
    }
    __syncthreads();
    const float step = -scaled * ratio;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float p = dsc_param_at(u, i);
        dsc_put_param(u, i, fmaf(step, direction(a, i, p), p));
    }
}

DSC_KERNEL(lamb_moments, dsc_optimizer_args, lamb_moments_all(a))
DSC_KERNEL(lamb_sums, dsc_lamb_args, lamb_sums_all(a))
DSC_KERNEL(lamb_sums_join, dsc_lamb_args, lamb_sums_join_all(a))
DSC_KERNEL(lamb, dsc_lamb_args, lamb_all(a))
