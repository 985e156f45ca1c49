/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for kernels that reduce along rows: widened vectors of weights, loops over the vectors of
 * a row with the masked tail last, sums in a fixed order.
 */
#ifndef DSI_ACCEL_CPU_SIMD_ROWS_H
#define DSI_ACCEL_CPU_SIMD_ROWS_H

#include "accel/cpu/simd/simd_kernel.h"

/* Four running sums, so that additions overlap; added as (0+1)+(2+3), then vf_sum. */
typedef struct row_sum {
    vf part[4];
} row_sum;

DSI_INLINE row_sum row_sum_zero(void)
{
    return (row_sum){{vf_zero(), vf_zero(), vf_zero(), vf_zero()}};
}

DSI_INLINE float row_sum_total(row_sum s)
{
    return vf_sum(vf_add(vf_add(s.part[0], s.part[1]), vf_add(s.part[2], s.part[3])));
}

/* Runs FULL(i) for every whole vector of a row of C elements, four at a time with slot U = 0..3,
 * then TAIL(i, n) with slot 0 for the rest. */
#define FOR_ROW(C, FULL, TAIL)                                                                     \
    do {                                                                                           \
        size_t i_ = 0;                                                                             \
        for (; i_ + 4 * VF_WIDTH <= (C); i_ += 4 * VF_WIDTH) {                                     \
            FULL(i_, 0);                                                                           \
            FULL(i_ + VF_WIDTH, 1);                                                                \
            FULL(i_ + 2 * VF_WIDTH, 2);                                                            \
            FULL(i_ + 3 * VF_WIDTH, 3);                                                            \
        }                                                                                          \
        for (; i_ + VF_WIDTH <= (C); i_ += VF_WIDTH) {                                             \
            FULL(i_, 0);                                                                           \
        }                                                                                          \
        if (i_ < (C)) {                                                                            \
            TAIL(i_, (C)-i_);                                                                      \
        }                                                                                          \
    } while (0)

/* to[0..n) = from as fp32 */
static inline void widen(float *to, const ds_tensor *from, size_t n)
{
    size_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        vf_store(to + i, vf_get(from->data, from->meta.dtype, i));
    }
    if (i < n) {
        vf_store_n(to + i, vf_get_n(from->data, from->meta.dtype, i, n - i), n - i);
    }
}

/* The weight of a norm as fp32, with what is added to it; NULL: ones. */
static inline void widen_weight(float *to, const ds_tensor *from, size_t n, double shift)
{
    if (from != NULL) {
        widen(to, from, n);
    }
    for (size_t i = 0; i < n && (from == NULL || shift != 0.0); ++i) {
        to[i] = from == NULL ? 1.0f : to[i] + (float)shift;
    }
}

/* Adds n_blocks rows of partial sums, `stride` floats apart, in their order: a range loop over
 * columns. */
typedef struct block_sum_job {
    const float *partial;
    size_t n_blocks, stride;
    float *out;
} block_sum_job;

static inline void block_sum_range(const void *opaque, size_t begin, size_t end)
{
    const block_sum_job *job = opaque;
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        vf sum = vf_load_n(job->partial + i, n);
        for (size_t b = 1; b < job->n_blocks; ++b) {
            sum = vf_add(sum, vf_load_n(job->partial + b * job->stride + i, n));
        }
        vf_store_n(job->out + i, sum, n);
    }
}

#endif
