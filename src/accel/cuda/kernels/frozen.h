/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of frozen.cu. Operands as in op/ops.h, onebit.c, zero_one.c, onebit_lamb.c and
 * schedule_free.c; what is written is one pointer. */
#ifndef DSC_FROZEN_H
#define DSC_FROZEN_H

#include "accel/cuda/kernels/optimizer.h"

/* update: param, master, hyper, factor, states (exp_avg, exp_avg_sq); grad: the gradient, a moment
 * or a mean of updates. */
typedef struct dsc_frozen_args {
    dsc_optimizer_args update;
    float *local, *lrs, *weight;
    const float *ratio;   /* of frozen_lamb */
    int32_t square_dtype; /* of exp_avg_sq; state_dtype is exp_avg's */
} dsc_frozen_args;

/* Numbers of 1-bit LAMB. */
typedef struct dsc_freeze_args {
    float *to, *second;
    const float *ratio, *united, *own;
    const double *sums;
    void *moment, *fresh; /* of frozen_lamb_moments: written; of its factor: read */
    const void *given, *square, *weight;
    const float *hyper, *scaling;
    double *parts;
    int64_t n, count;
    double coeff_beta, max_coeff, min_coeff, factor_max, factor_min, factor_threshold;
    uint32_t n_parts;
    int32_t moment_dtype, square_dtype, fresh_dtype, weight_dtype, given_dtype;
    float eps;
} dsc_freeze_args;

typedef struct dsc_average_args {
    float *average, *z;
    void *squares;
    const void *grad;
    const float *hyper, *factor;
    float *point; /* of schedule_free_point */
    int64_t n;
    int32_t grad_dtype, squares_dtype, is_average;
    float eps;
} dsc_average_args;

#endif
