/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as signs and scales: the operations of op/signs.c one by one, so that the bits are the
 * processor's, in any split of the work. */
#include "accel/cuda/kernels/kernel_bins.h"
#include "accel/cuda/kernels/signs.h"

/* error = x + error, and the sum of its squares. */
DSC_INLINE void signs_measure_all(const dsc_signs_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double bins[DSC_WIDE];
    int64_t added = 0;
    dsc_bins_clear(bins);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float e = i < a->n_x ? dsc_get(a->x, a->x_dtype, i) + a->error[i] : a->error[i];
        a->error[i] = e;
        dsc_bins_add(bins, e);
        if (++added % DSC_BIN_BLOCK == 0) {
            dsc_bins_carry(bins);
        }
    }
    dsc_bins_carry(bins);
    dsc_bins_block(bins, all);
    dsc_bins_store(bins, a->parts + (int64_t)blockIdx.x * DSC_WIDE);
}

/* One block: the root of the mean. */
DSC_INLINE void signs_scale_all(const dsc_signs_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double bins[DSC_WIDE];
    dsc_bins_load(bins, a->parts, a->n_parts);
    dsc_bins_block(bins, all);
    if (threadIdx.x == 0) {
        *a->scales = (float)sqrt(dsc_bins_total(bins) / (double)a->n);
    }
}

/* A thread eight signs, the first in the highest bit. */
DSC_INLINE void signs_pack_all(const dsc_signs_args *a)
{
    const float scale = *a->scales;
    for (int64_t b = dsc_index(); b < a->n / 8; b += dsc_stride()) {
        uint32_t packed = 0;
        for (int64_t i = b * 8; i < (b + 1) * 8; ++i) {
            const float e = a->error[i];
            const bool plus = e >= 0.0f;
            packed = packed << 1 | (plus ? 1u : 0u);
            a->error[i] = e - (plus ? scale : -scale);
        }
        a->signs[b] = (uint8_t)packed;
    }
}

DSC_INLINE bool is_plus(const uint8_t *signs, int64_t i)
{
    return (signs[i / 8] & 0x80u >> i % 8) != 0;
}

DSC_INLINE void signs_average_all(const dsc_signs_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        double sum = 0.0;
        for (int64_t r = 0; r < a->n_scales; ++r) {
            const double scale = (double)a->scales[r];
            sum += is_plus(a->signs + r * (a->n / 8), i) ? scale : -scale;
        }
        a->y[i] = (float)(sum / (double)a->n_scales);
    }
}

DSC_INLINE void signs_expand_all(const dsc_signs_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float scale = a->scales[i / a->block];
        a->y[i] = is_plus(a->signs, i) ? scale : -scale;
    }
}

DSC_KERNEL(signs_measure, dsc_signs_args, signs_measure_all(a))
DSC_KERNEL(signs_scale, dsc_signs_args, signs_scale_all(a))
DSC_KERNEL(signs_pack, dsc_signs_args, signs_pack_all(a))
DSC_KERNEL(signs_average, dsc_signs_args, signs_average_all(a))
DSC_KERNEL(signs_expand, dsc_signs_args, signs_expand_all(a))
