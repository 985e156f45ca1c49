/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of lamb.cu. Operands as in op/ops.h, lamb.c; lamb_moments has those of optimizer.h,
 * exp_avg being its `param`. */
#ifndef DSC_LAMB_H
#define DSC_LAMB_H

#include "accel/cuda/kernels/bin_layout.h"
#include "accel/cuda/kernels/optimizer.h"

typedef struct dsc_lamb_args {
    dsc_optimizer_args update; /* of lamb_sums: the weight is `param`, the hyper, eps */
    const void *m, *v;
    double *parts; /* lamb_sums: (blocks, 2, DSC_WIDE) */
    double *sums;  /* (2, DSC_WIDE): of the weight, of the update */
    int64_t n_parts;
    double max_coeff, min_coeff;
    int32_t m_dtype, v_dtype;
} dsc_lamb_args;

#endif
