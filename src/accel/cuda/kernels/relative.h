/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of relative.cu. Operands as in op/ops.h, relative_bias.c; absent ones are NULL. */
#ifndef DSC_RELATIVE_H
#define DSC_RELATIVE_H

#include <stdint.h>

enum { DSC_RANGES = 256 }; /* of distances in one direction, at most */

/* Range r of distances begins at starts[r]: the processor's, whose logarithm says where. */
typedef struct dsc_relative_args {
    const void *table, *dy;
    const int32_t *first, *end, *offset;
    void *y;
    float *dtable;
    int64_t n_batch, n_queries, n_keys, heads;
    int32_t n_ranges, both, dtable_dtype;
    int32_t starts[DSC_RANGES];
} dsc_relative_args;

#endif
