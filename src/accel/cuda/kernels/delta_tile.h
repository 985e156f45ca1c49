/* SPDX-License-Identifier: Apache-2.0 */
/* Of delta_rule.cu and delta_rule_backward.cu: where heads are, queries and keys of length one. A
 * block has 256 threads: one a channel of a key, and as (warp, lane) elements (warp + 8·r, lane +
 * 32·m) of a state (D,V). */
#ifndef DSC_DELTA_TILE_H
#define DSC_DELTA_TILE_H

#include "accel/cuda/kernels/document.h"
#include "accel/cuda/kernels/recurrence.h"

/* Position t of sample b; head of keys. */
DSC_INLINE int64_t key_at(const dsc_delta_args *a, int64_t b, int64_t t, int64_t key_head)
{
    return ((b * a->length + t) * a->key_heads + key_head) * a->key_dim;
}

/* Of a head of values: its gate; its value is at this times value_dim. */
DSC_INLINE int64_t gate_at(const dsc_delta_args *a, int64_t b, int64_t t, int64_t head)
{
    return (b * a->length + t) * a->heads + head;
}

DSC_INLINE bool is_begin(const dsc_delta_args *a, int64_t b, int64_t t)
{
    return a->first != NULL && a->first[b * a->length + t] == t;
}

/* What the state is multiplied by ahead of position t. */
DSC_INLINE float decay_at(const dsc_delta_args *a, int64_t b, int64_t t, int64_t head)
{
    return is_begin(a, b, t) ? 0.0f : expf(a->g[gate_at(a, b, t, head)]);
}

/* D elements of x from `at`, divided by their length, times scale, into shared memory; a barrier
 * before they are read. Returns what they were divided by, as a factor without scale. */
DSC_INLINE float take_unit(const dsc_delta_args *a, const void *x, int act, int64_t at, float scale,
                           float *unit, float parts[32])
{
    const bool has = threadIdx.x < a->key_dim;
    const float own = has ? dsc_get(x, act, at + threadIdx.x) : 0.0f;
    const float factor = 1.0f / sqrtf(dsc_block_sum(own * own, parts) + a->eps);
    if (has) {
        unit[threadIdx.x] = own * factor * scale;
    }
    return factor;
}

#endif
