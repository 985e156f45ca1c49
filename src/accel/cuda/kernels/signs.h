/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of signs.cu. Operands as in op/ops.h, signs.c; what is written is one pointer. */
#ifndef DSC_SIGNS_H
#define DSC_SIGNS_H

#include <stdint.h>

typedef struct dsc_signs_args {
    const void *x;
    float *error;   /* of compress_signs: written */
    uint8_t *signs; /* compress_signs: written; else read */
    float *scales;  /* likewise; compress_signs: one */
    float *y;
    double *parts;           /* room for sums of blocks */
    int64_t n, n_x;          /* elements of error, or y; of x */
    int64_t n_scales, block; /* block: elements that a scale is of */
    uint32_t n_parts;
    int32_t x_dtype;
} dsc_signs_args;

#endif
