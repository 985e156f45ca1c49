/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of the contributions of ranks, with the bits of comm/comm_reduce.c: the aligned
 * binary tree over ranks in fp32, times the factor, rounded once. A thread an element. */
#include "accel/cuda/kernels/rank_tree.h"
#include "accel/cuda/kernels/tree_sum.h"

enum { I8 = 5, U8 = 6, I32 = 7, I64 = 8 }; /* as ds_dtype */

DSC_INLINE float contribution(const dsc_tree_args *a, int act, uint32_t r, int64_t i)
{
    return r == a->rank ? dsc_get(a->own, act, i)
                        : dsc_get(a->others, act, (int64_t)r * a->stride + i);
}

DSC_INLINE float sum_of(const dsc_tree_args *a, int act, int64_t i)
{
    float parts[DSC_TREE_LEVELS];
    uint32_t n = 0;
    for (uint32_t r = 0; r < a->n_ranks; ++r) {
        dsc_tree_add(parts, &n, r, contribution(a, act, r, i));
    }
    return dsc_tree_total(parts, n) * a->factor;
}

/* Of equal ones that of the lowest rank; NaN when any is. */
DSC_INLINE float max_of_ranks(const dsc_tree_args *a, int act, int64_t i)
{
    float most = contribution(a, act, 0, i);
    for (uint32_t r = 1; r < a->n_ranks; ++r) {
        const float value = contribution(a, act, r, i);
        most = value > most || value != value ? value : most;
    }
    return most;
}

DSC_INLINE void tree_sum_body(const dsc_tree_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n_out; i += dsc_stride()) {
        float value = 0.0f;
        if (i < a->count) {
            value = a->is_max ? max_of_ranks(a, act, i) : sum_of(a, act, i);
        }
        if (value != value) {
            value = dsc_from_bf16(0x7fc0u); /* one NaN for all */
        }
        dsc_set(a->out, act, i, value);
    }
}

DSC_INLINE int64_t whole(const void *t, int dtype, int64_t i)
{
    return dtype == I8    ? (int64_t)((const int8_t *)t)[i]
           : dtype == U8  ? (int64_t)((const uint8_t *)t)[i]
           : dtype == I32 ? (int64_t)((const int32_t *)t)[i]
                          : ((const int64_t *)t)[i];
}

/* Integers wrap, so that their order does not matter. */
DSC_INLINE void tree_sum_whole_all(const dsc_tree_args *a)
{
    for (int64_t i = dsc_index(); i < a->n_out; i += dsc_stride()) {
        int64_t value = i < a->count ? whole(a->own, a->dtype, i) : 0;
        for (uint32_t r = 0; r < a->n_ranks && i < a->count; ++r) {
            if (r == a->rank) {
                continue;
            }
            const int64_t other = whole(a->others, a->dtype, (int64_t)r * a->stride + i);
            value = !a->is_max      ? (int64_t)((uint64_t)value + (uint64_t)other)
                    : other > value ? other
                                    : value;
        }
        if (a->dtype == I64) {
            ((int64_t *)a->out)[i] = value;
        } else if (a->dtype == I32) {
            ((int32_t *)a->out)[i] = (int32_t)value;
        } else {
            ((uint8_t *)a->out)[i] = (uint8_t)value;
        }
    }
}

DSC_KERNEL_ACT(tree_sum, dsc_tree_args)
DSC_KERNEL(tree_sum_whole, dsc_tree_args, tree_sum_whole_all(a))
