/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of collective_blocks.cu. Operands and their layout as in op/ops.h, quantize_blocks.c.
 */
#ifndef DSC_COLLECTIVE_BLOCKS_H
#define DSC_COLLECTIVE_BLOCKS_H

#include <stdint.h>

enum { DSC_BLOCKS_LEVELS = 32 };

/* How blocks of so many bits lie in a row: a row's bytes, those of its scales. */
typedef struct dsc_blocks_layout {
    int64_t bits, row_bytes, scales_bytes;
} dsc_blocks_layout;

typedef struct dsc_blocks_args {
    const void *x;           /* of quantize: n_x elements */
    const uint8_t *rows_in;  /* of dequantize */
    const uint8_t *error_in; /* of quantize_with_error; else NULL */
    uint8_t *error;          /* may be error_in's place */
    const float *unit;       /* or NULL */
    uint8_t *rows_out;       /* of quantize */
    void *y;                 /* of dequantize: n_y elements */
    int64_t n_x, n_y;
    int64_t block, n_blocks; /* elements of a block; blocks of a row */
    int64_t n_rows, width;
    dsc_blocks_layout sent, kept; /* what is sent; the error */
    float factor, beta;
    int32_t dtype; /* of x, or of y */
} dsc_blocks_args;

#endif
