/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the sums of linear, whatever its weight is. */
#ifndef DSC_LINEAR_FINISH_H
#define DSC_LINEAR_FINISH_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/act.h"
#include "accel/cuda/kernels/linear.h"

/* Everything behind the sum, for element (row, column). */
DSC_INLINE void finish(const dsc_linear_args *a, int64_t row, int64_t column, float sum)
{
    const int64_t at = row * a->n_out + column;
    if (a->bias != NULL) {
        sum += dsc_get(a->bias, a->bias_dtype, column);
    }
    if (a->pre != NULL) {
        dsc_set(a->pre, a->y_dtype, at, sum);
        sum = dsc_round(a->y_dtype, sum);
    }
    sum = dsc_act(a->activation, sum);
    if (a->residual != NULL) {
        sum += dsc_get(a->residual, a->y_dtype, at);
    }
    dsc_set(a->y, a->y_dtype, at, sum);
}

#endif
