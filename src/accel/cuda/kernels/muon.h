/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of muon.cu. Operands as in op/ops.h, onebit.c and muon.c; `muon` has those of
 * optimizer.h, the direction being its `grad`. */
#ifndef DSC_MUON_H
#define DSC_MUON_H

#include "accel/cuda/kernels/bin_layout.h"
#include "accel/cuda/kernels/optimizer.h"

typedef struct dsc_moment_args {
    const void *moment, *grad;
    const float *hyper, *factor, *scaling; /* the last two: or NULL */
    float *out;
    int64_t n;
    int32_t moment_dtype, grad_dtype;
} dsc_moment_args;

/* Matrices of `size` elements, each summed in n_parts parts. */
typedef struct dsc_unit_args {
    const void *x;
    void *out;
    double *parts;  /* (n_matrices, n_parts, DSC_WIDE) */
    float *divisor; /* (n_matrices) */
    int64_t n_matrices, size, n_parts;
    int32_t x_dtype, out_dtype;
} dsc_unit_args;

#endif
