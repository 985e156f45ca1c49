/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of fake_quant.cu. Operands as in op/ops.h, fake_quant.c. */
#ifndef DSC_FAKE_QUANT_H
#define DSC_FAKE_QUANT_H

#include <stdint.h>

/* As base/quantize.h and op/ops.h have them, which cuda_fake_quant.c compares. */
enum { DSC_QUANT_BLOCK = 4096, DSC_QUANT_LANES = 8, DSC_QUANT_THREADS = 128 };
enum { DSC_QUANT_ON, DSC_QUANT_BITS, DSC_QUANT_MIX };

/* What a block of numbers, or a lane of one, is measured to be. */
typedef struct dsc_quant_part {
    float low, high;
    double sum, kept, n_kept;
} dsc_quant_part;

typedef struct dsc_quant_scale {
    int32_t bits;
    float step, zero, low, high, threshold, level;
} dsc_quant_scale;

typedef struct dsc_quant_args {
    const void *x;
    void *y;
    const float *control; /* or, of rows, whether they are quantized */
    const int64_t *draw;
    dsc_quant_part *parts;    /* a block of each group's */
    dsc_quant_scale *scales;  /* a group's */
    int64_t groups, in_group; /* groups, elements of one */
    int64_t each;             /* blocks of a group */
    int64_t n, outs, ins;     /* elements; of w (O,I) */
    int64_t rows, columns;    /* of fake_quant_rows */
    uint32_t site;
    int32_t dtype, transposed, asymmetric, stochastic;
    int32_t kept; /* whether magnitudes above the threshold are measured */
    int32_t bits; /* of fake_quant_rows */
} dsc_quant_args;

#endif
