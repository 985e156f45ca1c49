/* SPDX-License-Identifier: Apache-2.0 */
/* The two reductions that softmax and cross entropy share: a row's largest element, and the sum of
 * exponentials below it. NaN elements are skipped by the first and come out of the second.
 */
#ifndef DSI_ACCEL_CPU_SIMD_EXP_ROWS_H
#define DSI_ACCEL_CPU_SIMD_EXP_ROWS_H

#include "accel/cpu/simd/simd_rows.h"
#include "accel/cpu/simd/vec_math.h"

#include <math.h>

DSI_INLINE float row_max(const void *x, ds_dtype type, size_t C)
{
    const vf low = vf_set(-INFINITY);
    row_sum top = {{low, low, low, low}};
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        vf_fetch(x, type, i);                                                                      \
        top.part[u] = vf_max(vf_get(x, type, i), top.part[u]);                                     \
    } while (0)
#define TAIL(i, n)                                                                                 \
    top.part[0] = vf_max(vf_select(vm_first(n), vf_get_n(x, type, i, n), low), top.part[0])
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    return vf_hmax(vf_max(vf_max(top.part[0], top.part[1]), vf_max(top.part[2], top.part[3])));
}

/* Sum of e^(x-top). */
DSI_INLINE float row_exp_sum(const void *x, ds_dtype type, size_t C, vf top)
{
    row_sum sum = row_sum_zero();
#define FULL(i, u) sum.part[u] = vf_add(sum.part[u], vf_exp(vf_sub(vf_get(x, type, i), top)))
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const vf e = vf_exp(vf_sub(vf_get_n(x, type, i, n), top));                                 \
        sum.part[0] = vf_add(sum.part[0], vf_select(vm_first(n), e, vf_zero()));                   \
    } while (0)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    return row_sum_total(sum);
}

#endif
