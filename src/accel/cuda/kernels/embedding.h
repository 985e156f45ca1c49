/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of embedding.cu and dropout.cu. Operands as in op/ops.h; absent ones are NULL. */
#ifndef DSC_EMBEDDING_H
#define DSC_EMBEDDING_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

typedef struct dsc_embedding_args {
    const void *table, *places; /* of embedding */
    const int32_t *ids, *positions;
    void *y;
    const int32_t *first; /* of a part of the table: the number of its first row; or NULL */
    const void *dy;       /* of embedding_dw */
    const float *dtable_in;
    float *dtable;
    dsc_fault *fault;
    uint64_t call;
    int64_t n, columns, n_rows, n_places;
    int64_t all_rows; /* of the whole table, of which an id is one */
    int64_t part;     /* rows of dtable that blockIdx.y has */
} dsc_embedding_args;

typedef struct dsc_dropout_args {
    const void *x;
    const int64_t *rng;
    const int32_t *rows;    /* of each sample a part: their numbers */
    const int32_t *columns; /* likewise; or NULL */
    void *y;
    int64_t n, sample, row, n_rows, width, n_columns, site;
    float p;      /* of noise: the amount */
    int32_t kind; /* of noise: DSI_NOISE_* */
} dsc_dropout_args;

#endif
