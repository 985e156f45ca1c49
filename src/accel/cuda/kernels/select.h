/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of select.cu and integers.cu. Operands as in op/ops.h; absent ones are NULL. */
#ifndef DSC_SELECT_H
#define DSC_SELECT_H

#include <stdint.h>

enum { DSC_SELECT_DIMS = 8, DSC_CONSTANTS = 128 };

/* dtype: of a, b and, but for compare, y. */
typedef struct dsc_select_args {
    const void *a, *b, *mask;
    void *y;
    int64_t n;
    int64_t dims[DSC_SELECT_DIMS],
        strides[DSC_SELECT_DIMS];        /* of a; the mask's, 0 where it repeats */
    int64_t rows, columns, lower, upper; /* of band */
    double value;                        /* of compare: beside a; else `other` */
    int32_t n_dims, dtype, mask_dtype, kind, inverse;
} dsc_select_args;

typedef struct dsc_integers_args {
    const int32_t *first, *ids; /* of shift_labels: ids are labels */
    int32_t *out;
    float *count;
    int64_t n, length; /* rows of `length` positions */
    int64_t start, pad;
    int64_t n_rows, n_parts, turn; /* of row_numbers */
    int32_t halves;
} dsc_integers_args;

typedef struct dsc_constants_args {
    float *out;
    int64_t n;
    float v[DSC_CONSTANTS];
} dsc_constants_args;

typedef struct dsc_rng_args {
    const int64_t *rng;
    int64_t *out;
    int64_t samples;
} dsc_rng_args;

#endif
