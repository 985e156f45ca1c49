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
    const float *dlogp;               /* a gradient for each row, of its log-probability; or NULL */
    float *logp;                      /* in place of losses; or NULL */
    const int32_t *first_row;         /* of a part: the number of w's first row; or NULL */
    float *terms;                     /* of parts: (..,2), lse and the target's logit or -0 */
    float *loss, *count;
    dsc_fault *fault;
    uint64_t call;
    int64_t first, rows, all, v, ignore;
    int64_t n_all;   /* rows of the whole w, of which a target is one */
    int64_t n_parts; /* of cross_entropy_join */
} dsc_ce_args;

#endif
