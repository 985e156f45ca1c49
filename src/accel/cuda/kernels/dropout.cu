/* SPDX-License-Identifier: Apache-2.0 */
/* dropout: a thread an element, the processor's words. */
#include "accel/cuda/kernels/device_random.h"
#include "accel/cuda/kernels/embedding.h"

DSC_INLINE void dropout_body(const dsc_dropout_args *a, int act)
{
    const int64_t all = a->n_rows > 0 ? a->n_rows * a->row : a->sample;
    const int64_t first = a->n_rows > 0 ? a->rows[0] * a->row : 0;
    const float factor = 1.0f / (1.0f - a->p);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t element = (a->rng[2] + i / a->sample) * all + first + i % a->sample;
        const float unit = dsc_random_unit((uint64_t)a->rng[0], (uint32_t)a->site,
                                           (uint32_t)a->rng[1], (uint64_t)element);
        dsc_set(a->y, act, i, unit >= a->p ? dsc_get(a->x, act, i) * factor : 0.0f);
    }
}

DSC_KERNEL_ACT(dropout, dsc_dropout_args)
