/* SPDX-License-Identifier: Apache-2.0 */
/* dropout and noise: a thread an element, the processor's words. */
#include "accel/cuda/kernels/device_random.h"
#include "accel/cuda/kernels/embedding.h"

enum { NOISE_FACTOR, NOISE_GUMBEL }; /* as op/ops.h has them; another kind is u itself */

/* Element i's number among those of all samples, rows and columns. */
DSC_INLINE int64_t element_of(const dsc_dropout_args *a, int64_t i)
{
    const int64_t at = i % a->sample;
    int64_t all = a->sample;
    int64_t within = at;
    if (a->n_rows > 0) {
        all = a->n_rows * a->row;
        within = a->rows[at / a->row] * a->row + at % a->row;
    }
    if (a->columns != NULL) {
        all = all / a->width * a->n_columns;
        within = within / a->width * a->n_columns + a->columns[within % a->width];
    }
    return (a->rng[2] + i / a->sample) * all + within;
}

DSC_INLINE uint32_t word_of(const dsc_dropout_args *a, int64_t i)
{
    return dsc_random_word((uint64_t)a->rng[0], (uint32_t)a->site, (uint32_t)a->rng[1],
                           (uint64_t)element_of(a, i));
}

DSC_INLINE void dropout_body(const dsc_dropout_args *a, int act)
{
    const float factor = 1.0f / (1.0f - a->p);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float unit = (float)(word_of(a, i) >> 8) * 0x1p-24f;
        dsc_set(a->y, act, i, unit >= a->p ? dsc_get(a->x, act, i) * factor : 0.0f);
    }
}

DSC_INLINE void noise_body(const dsc_dropout_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float u = ((float)(word_of(a, i) >> 9) + 0.5f) * 0x1p-23f;
        const float x = dsc_get(a->x, act, i);
        dsc_set(a->y, act, i,
                a->kind == NOISE_FACTOR   ? x * (1.0f + a->p * (2.0f * u - 1.0f))
                : a->kind == NOISE_GUMBEL ? x - logf(-logf(u))
                                          : u);
    }
}

DSC_KERNEL_ACT(dropout, dsc_dropout_args)
DSC_KERNEL_ACT(noise, dsc_dropout_args)
