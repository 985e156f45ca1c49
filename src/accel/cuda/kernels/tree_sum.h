/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of tree_sum.cu: contributions of ranks to a slice, and what they make (comm/reduce.h).
 */
#ifndef DSC_TREE_SUM_H
#define DSC_TREE_SUM_H

#include <stdint.h>

typedef struct dsc_tree_args {
    const void *others; /* of rank r at others + r·stride elements; not of the own rank */
    const void *own;
    void *out; /* may be own's place */
    int64_t count, stride;
    int64_t n_out; /* elements of out; behind count they are zero */
    uint32_t n_ranks, rank;
    int32_t is_max, dtype; /* dtype: of integers, as ds_dtype has it */
    float factor;
} dsc_tree_args;

enum { DSC_TREE_LEVELS = 17 };

#endif
