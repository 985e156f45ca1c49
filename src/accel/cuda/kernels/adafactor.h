/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of adafactor.cu. Operands as in op/ops.h, adafactor.c; what is written is one pointer.
 */
#ifndef DSC_ADAFACTOR_H
#define DSC_ADAFACTOR_H

#include "accel/cuda/kernels/optimizer.h"

typedef struct dsc_adafactor_args {
    dsc_optimizer_args update; /* param, master, state, grad (or direction), hyper, factor, eps */
    const float *moment_in;    /* of rows, or columns */
    float *moment;             /* what it becomes */
    const float *row_moments, *column_moments;
    float *means;     /* room: of the rows' moments of each matrix */
    float *direction; /* written */
    const double *direction_squares, *squares;
    int64_t matrices, rows, columns;
    int64_t count; /* elements of the whole tensor */
    float clip_threshold, scale_eps;
    int32_t scales, factored;
} dsc_adafactor_args;

#endif
