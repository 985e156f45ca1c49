/* SPDX-License-Identifier: Apache-2.0 */
/* first_moment, unit_matrix and muon: the operations of docs/internals/optim.md one by one, so that
 * the bits are the processor's. Muon's products are those of linear.cu. */
#include "accel/cuda/kernels/kernel_bins.h"
#include "accel/cuda/kernels/muon.h"
#include "accel/cuda/kernels/update.h"

/* A thread an element. */
DSC_INLINE void first_moment_all(const dsc_moment_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float factor = a->factor != NULL ? *a->factor : 1.0f;
    const float c1 = 1.0f - b1;
    const float scaling = a->scaling != NULL ? *a->scaling : 1.0f;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float g = dsc_get(a->grad, a->grad_dtype, i) * factor;
        a->out[i] = fmaf(b1, dsc_get(a->moment, a->moment_dtype, i), c1 * g) * scaling;
    }
}

/* Element i, as out_dtype has it. */
DSC_INLINE float rounded_at(const dsc_unit_args *a, int64_t i)
{
    return dsc_round(a->out_dtype, dsc_get(a->x, a->x_dtype, i));
}

/* A block a part of a matrix. */
DSC_INLINE void unit_sums_all(const dsc_unit_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    for (int64_t part = blockIdx.x; part < a->n_matrices * a->n_parts; part += gridDim.x) {
        const int64_t first = part / a->n_parts * a->size;
        const int64_t from = part % a->n_parts * blockDim.x + threadIdx.x;
        double bins[DSC_WIDE];
        int64_t added = 0;
        dsc_bins_clear(bins);
        for (int64_t i = from; i < a->size; i += a->n_parts * blockDim.x) {
            dsc_bins_add(bins, rounded_at(a, first + i));
            if (++added % DSC_BIN_BLOCK == 0) {
                dsc_bins_carry(bins);
            }
        }
        dsc_bins_carry(bins);
        dsc_bins_block(bins, all);
        dsc_bins_store(bins, a->parts + part * DSC_WIDE);
        __syncthreads();
    }
}

/* A block a matrix. */
DSC_INLINE void unit_norms_all(const dsc_unit_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    for (int64_t m = blockIdx.x; m < a->n_matrices; m += gridDim.x) {
        double bins[DSC_WIDE];
        dsc_bins_load(bins, a->parts + m * a->n_parts * DSC_WIDE, a->n_parts);
        dsc_bins_block(bins, all);
        if (threadIdx.x == 0) {
            const float norm = dsc_round(a->out_dtype, (float)sqrt(dsc_bins_total(bins)));
            a->divisor[m] = dsc_round(a->out_dtype, norm + 1e-7f);
        }
        __syncthreads();
    }
}

/* A thread an element. */
DSC_INLINE void unit_matrix_all(const dsc_unit_args *a)
{
    for (int64_t i = dsc_index(); i < a->n_matrices * a->size; i += dsc_stride()) {
        dsc_set(a->out, a->out_dtype, i, rounded_at(a, i) / a->divisor[i / a->size]);
    }
}

DSC_INLINE void muon_all(const dsc_optimizer_args *a)
{
    const float lr = a->hyper[DSC_HYPER_LR];
    const float decay = dsc_decay_of(a);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float o = dsc_get(a->grad, a->grad_dtype, i);
        dsc_put_param(a, i, fmaf(-lr, o, dsc_param_at(a, i) * decay));
    }
}

DSC_KERNEL(first_moment, dsc_moment_args, first_moment_all(a))
DSC_KERNEL(unit_sums, dsc_unit_args, unit_sums_all(a))
DSC_KERNEL(unit_norms, dsc_unit_args, unit_norms_all(a))
DSC_KERNEL(unit_matrix, dsc_unit_args, unit_matrix_all(a))
DSC_KERNEL(muon, dsc_optimizer_args, muon_all(a))
