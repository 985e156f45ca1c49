/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of cross_entropy.cu. */
#ifndef DSC_CROSS_ENTROPY_H
#define DSC_CROSS_ENTROPY_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

/* Rows from `first` on, `rows` of them, of `all`; z has these rows alone. */
typedef struct dsc_ce_args {
    const void *z; /* logits (rows,v): f32, or of the kernel's dtype where they were given */
    const int32_t *targets;
    float *lse, *losses;
    void *dz;                         /* gradient of z, rounded */
    const float *dloss, *count_given; /* count_given: or NULL */
    float *loss, *count;
    dsc_fault *fault;
    uint64_t call;
    int64_t first, rows, all, v, ignore;
} dsc_ce_args;

#endif
