/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of route.cu and group.cu. Operands as in op/ops.h, route.c; absent ones are NULL. */
#ifndef DSC_ROUTE_H
#define DSC_ROUTE_H

#include "accel/cuda/kernels/fault.h"

#include <stdint.h>

/* A warp a token, whose experts are in shared memory; in at most so many groups. */
enum { DSC_MOST_EXPERTS = 512, DSC_MOST_GROUPS = 64, DSC_ROUTE_WARPS = 4 };

typedef struct dsc_route_args {
    const void *logits, *noisy;
    const float *bias;
    const float *dweights; /* of route_backward */
    float *weights;
    int32_t *experts; /* written; route_backward reads them */
    void *dlogits;
    dsc_fault *fault;
    uint64_t call;
    int64_t tokens, n_experts, n_chosen, n_groups, top_groups, noisy_from;
    int32_t score, normalise, group_by; /* DSI_SCORE_*, DSI_GROUP_* */
    float factor;
} dsc_route_args;

/* Pairs of group_rows go in chunks of so many, a block each. */
enum { DSC_GROUP_CHUNK = 256 };

/* counts[chunk][e]: pairs of expert e in the chunk, then in all chunks before it. Expert n_experts
 * stands for the pairs that are not taken. */
typedef struct dsc_group_args {
    const int32_t *experts;
    const float *scores;
    int32_t *place, *offsets;
    int32_t *taken; /* NULL: all are */
    int32_t *counts, *totals;
    dsc_fault *fault;
    uint64_t call;
    int64_t n, n_choices, n_chunks, n_experts, capacity;
    int32_t take; /* DSI_TAKE_* */
} dsc_group_args;

typedef struct dsc_kept_args {
    const float *dy; /* NULL: forward */
    const float *weights;
    const int32_t *place, *offsets;
    float *out;
    int64_t tokens, n_chosen, n_experts;
    int32_t normalise;
} dsc_kept_args;

/* Of group_sizes (n: of all offsets; each: of one list) and expert_segments (n: of a rank's
 * offsets; each: experts of a rank). */
typedef struct dsc_offsets_args {
    const int32_t *offsets;
    float *sizes;
    int32_t *segments;
    dsc_fault *fault;
    uint64_t call;
    int64_t n, each, n_ranks, n_rows;
} dsc_offsets_args;

#endif
