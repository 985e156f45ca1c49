/* SPDX-License-Identifier: Apache-2.0 */
/* What a score is beside scale·q·k: a cap, or a bias by positions whose slopes op/alibi.h states.
 */
#ifndef DSC_ATTENTION_BEND_H
#define DSC_ATTENTION_BEND_H

#include "accel/cuda/cuda_device.h"

/* Of one head and query. */
typedef struct bend {
    float scale, cap, slope;
    int32_t rounded;
    int64_t origin; /* from where positions count: the query's own, rounded ones the document's */
} bend;

/* Head `head` of n. */
DSC_INLINE double slope_of(double most, int64_t n, int64_t head)
{
    int64_t p = 1;
    while (p * 2 <= n) {
        p *= 2;
    }
    return head < p ? exp2(-most * (double)(head + 1) / (double)p)
                    : exp2(-most * (double)(2 * (head - p) + 1) / (double)(2 * p));
}

DSC_INLINE float round_to_bf16(double x)
{
    return dsc_from_bf16(dsc_to_bf16((float)x));
}

DSC_INLINE float bias_of(const bend *b, int64_t key)
{
    if (b->rounded != 0) {
        const double bias = (double)round_to_bf16((double)b->slope) *
                            (double)round_to_bf16((double)(key - b->origin));
        return b->scale * round_to_bf16(bias);
    }
    return b->slope * (float)(key - b->origin);
}

/* turn_out: the score's derivative by scale·q·k. */
DSC_INLINE float bend_score(const bend *b, float product, int64_t key, float *turn_out)
{
    float score = product * b->scale;
    *turn_out = 1.0f;
    if (b->cap > 0.0f) {
        const float t = tanhf(score / b->cap);
        score = b->cap * t;
        *turn_out = 1.0f - t * t;
    }
    return b->slope != 0.0f ? score + bias_of(b, key) : score;
}

#endif
