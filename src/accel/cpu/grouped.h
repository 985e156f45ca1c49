/* SPDX-License-Identifier: Apache-2.0 */
/* Rows sorted by expert: what the reference kernels and the faster ones check and split alike. */
#ifndef DSI_ACCEL_CPU_GROUPED_H
#define DSI_ACCEL_CPU_GROUPED_H

#include <deepspeed/op.h>

/* Rows of an expert that one product of a weight gradient sums; more are added part by part, so
 * that the sums do not depend on the kernel's workspace. */
enum { DSI_GROUPED_SUM = 4096 };

static inline int64_t dsi_grouped_part_end(int64_t begin, int64_t end, int64_t most)
{
    return end - begin < most ? end : begin + most;
}

/* The canonical order of a sum of n terms (LAW 4b): those of the left half, a power of two. */
static inline int64_t dsi_grouped_left(int64_t n)
{
    int64_t half = 1;
    while (2 * half < n) {
        half *= 2;
    }
    return half;
}

/* Sums that are open at a time, when the right halves are. */
static inline int64_t dsi_grouped_depth(int64_t n)
{
    int64_t depth = 0;
    for (; n > 1; n = dsi_grouped_left(n)) {
        ++depth;
    }
    return depth;
}

static inline ds_status dsi_grouped_check_place(const ds_kernel_call *call, const ds_tensor *place,
                                                int64_t n_rows)
{
    const int32_t *at = place->data;
    const int64_t n = ds_shape_count(place->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        if (at[i] < 0 || at[i] >= n_rows) {
            return ds_fail(call->ctx, DS_ERR_ARG, "%s: place[%lld] is %d, but there are %lld rows",
                           call->sig->op->name, (long long)i, at[i], (long long)n_rows);
        }
    }
    return DS_OK;
}

static inline ds_status dsi_grouped_check_offsets(const ds_kernel_call *call,
                                                  const ds_tensor *offsets, int64_t n_rows)
{
    const int32_t *at = offsets->data;
    const int64_t n = ds_shape_count(offsets->meta.shape);
    for (int64_t i = 0; i < n; ++i) {
        const int64_t least = i == 0 ? 0 : at[i - 1];
        if (at[i] < least || at[i] > n_rows || (i == 0 && at[i] != 0)) {
            return ds_fail(call->ctx, DS_ERR_ARG,
                           "%s: offsets[%lld] is %d, expected 0 first, then %lld to %lld",
                           call->sig->op->name, (long long)i, at[i], (long long)least,
                           (long long)n_rows);
        }
    }
    return DS_OK;
}

#endif
