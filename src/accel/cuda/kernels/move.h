/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of move.cu. */
#ifndef DSC_MOVE_H
#define DSC_MOVE_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

enum { DSC_NO_INDEX, DSC_INDEX_FROM, DSC_INDEX_TO, DSC_MOST_DIMS = 8 };

/* `outer` blocks of n elements; block o lies at o·pitch + at, plus index[o]·row on one side. */
typedef struct dsc_move_args {
    const void *from; /* NULL: zeros */
    void *to;
    const int32_t *index;
    dsc_fault *fault;
    uint64_t call;
    int64_t outer, n, from_pitch, from_at, to_pitch, to_at, row, bound;
    int32_t width, indexed; /* bytes of an element; DSC_NO_INDEX … */
} dsc_move_args;

/* Element i of y, with coordinates by `dims`, is at the sum of coordinate·stride in x. */
typedef struct dsc_permute_args {
    const void *x;
    void *y;
    int64_t n;
    int64_t dims[DSC_MOST_DIMS], strides[DSC_MOST_DIMS];
    int32_t n_dims, width;
} dsc_permute_args;

#endif
