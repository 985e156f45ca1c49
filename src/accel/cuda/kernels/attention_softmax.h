/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax over keys that come 32 at a time, a lane having one: of attention.cu, attention_part.cu
 * and paged_attention.cu. Where a query sees keys and none has a score above -inf, y and its
 * log-sum-exp are NaN. */
#ifndef DSC_ATTENTION_SOFTMAX_H
#define DSC_ATTENTION_SOFTMAX_H

#include "accel/cuda/cuda_device.h"

/* Of a warp's query, over the keys so far: the largest score, and the sum of exp(score - top). */
typedef struct softmax {
    float top, sum;
} softmax;

/* 32 keys more. score: the lane's, -inf where it has no key. Returns its probability over exp(top);
 * what n sums of the keys before were over shrinks to the same. */
DSC_INLINE float soften(softmax *s, float score, int n, float *sums)
{
    const float most = dsc_warp_max(score);
    const float top = most > s->top ? most : s->top;
    const float base = top > -INFINITY ? top : 0.0f; /* no score above -inf so far */
    const float shrink = expf(s->top - base);
    const float p = expf(score - base);
    s->sum = s->sum * shrink + dsc_warp_sum(p);
    s->top = top;
    for (int m = 0; m < n; ++m) {
        sums[m] *= shrink;
    }
    return p;
}

/* sees: whether the query sees a key. */
DSC_INLINE float log_sum_exp(float top, float sum, bool sees)
{
    return !sees ? -INFINITY : sum > 0.0f ? top + logf(sum) : NAN;
}

/* What sums over `sum` are multiplied with. */
DSC_INLINE float sum_factor(float sum, bool sees)
{
    return !sees ? 0.0f : sum > 0.0f ? 1.0f / sum : NAN;
}

#endif
