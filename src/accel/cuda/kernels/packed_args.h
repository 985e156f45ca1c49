/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of linear_packed.cu. */
#ifndef DSC_PACKED_ARGS_H
#define DSC_PACKED_ARGS_H

#include "accel/cuda/kernels/linear.h"

enum { DSC_NF4 = 1, DSC_NF4_DOUBLE, DSC_INT8, DSC_FP8 }; /* as ds_packing has them */

typedef struct dsc_packed {
    int64_t rows, columns;
    int32_t format; /* ds_packing */
    float nf4[16];  /* what a code stands for */
    float map[256]; /* what a code of a magnitude does: of nf4_double */
} dsc_packed;

typedef struct dsc_linear_packed_args {
    dsc_linear_args linear;
    dsc_packed packed;
} dsc_linear_packed_args;

#endif
