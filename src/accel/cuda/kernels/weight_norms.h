/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of weight_norms.cu. Operands as in op/ops.h. */
#ifndef DSC_WEIGHT_NORMS_H
#define DSC_WEIGHT_NORMS_H

#include "accel/cuda/kernels/packed_args.h"

typedef struct dsc_weight_norms_args {
    const void *w, *a, *b;
    float *y;
    int64_t rows, columns, rank;
    int32_t transposed;
    float scale;
    dsc_packed packed; /* format 0: w is not packed */
} dsc_weight_norms_args;

#endif
