/* SPDX-License-Identifier: Apache-2.0 */
/* Of attention.cu and attention_part.cu: a warp has a row of q or of k; a lane has one of 32
 * others, whose product it computes, then channels lane, lane + 32, … of the sum. */
#ifndef DSC_ATTENTION_ROWS_H
#define DSC_ATTENTION_ROWS_H

#include "accel/cuda/kernels/attention_bend.h"
#include "accel/cuda/kernels/attention_softmax.h"
#include "accel/cuda/kernels/attention_span.h"

enum { CHANNELS = DSC_MOST_HEAD_DIM / 32 };

DSC_INLINE float dot(int act, const float *row, const void *t, int64_t at, int64_t n)
{
    float sum = 0.0f;
    for (int64_t c = 0; c < n; ++c) {
        sum = fmaf(row[c], dsc_get(t, act, at + c), sum);
    }
    return sum;
}

/* n numbers of a tensor into a warp's row of shared memory. */
DSC_INLINE void load_row(float *row, const void *t, int act, int64_t at, int64_t n)
{
    for (int64_t c = threadIdx.x % 32; c < n; c += 32) {
        row[c] = dsc_get(t, act, at + c);
    }
}

/* sums[m] of this lane's channels += the weight of each of `lanes` times row at + lane·step of t:
 * rows of the others are not read, and may be anything. */
DSC_INLINE void add_rows(int act, float weight, uint32_t lanes, const void *t, int64_t at,
                         int64_t step, int64_t head_dim, float sums[CHANNELS])
{
    const uint32_t lane = threadIdx.x % 32;
    for (int l = 0; l < 32; ++l) {
        const float w = dsc_shfl_f32(0xffffffffu, weight, l);
        if ((lanes >> l & 1) != 0) {
            for (int m = 0; m < CHANNELS; ++m) {
                const int64_t c = lane + 32 * m;
                if (c < head_dim) {
                    sums[m] = fmaf(w, dsc_get(t, act, at + l * step + c), sums[m]);
                }
            }
        }
    }
}

DSC_INLINE void store_row(void *t, int act, int64_t at, int64_t head_dim,
                          const float sums[CHANNELS], float factor)
{
    const uint32_t lane = threadIdx.x % 32;
    for (int m = 0; m < CHANNELS; ++m) {
        const int64_t c = lane + 32 * m;
        if (c < head_dim) {
            dsc_set(t, act, at + c, sums[m] * factor);
        }
    }
}

/* Of a pair (query, key): the probability as it was used, and the gradient of the score, times the
 * scale. */
typedef struct pair {
    float used, dscore;
} pair;

/* at: the query's in lse; turn: the score's derivative by scale·q·k; keep: what dropout makes of
 * the probability; dp: the product of dy and v. */
DSC_INLINE pair pair_of(const dsc_attention_args *a, int64_t at, float score, float turn,
                        float keep, float dp, float delta)
{
    const float p = expf(score - a->lse[at]);
    const float less = a->dlse != NULL ? delta - a->dlse[at] : delta;
    const pair both = {p * keep, p * (dp * keep - less) * turn * a->scale};
    return both;
}

DSC_INLINE int64_t lse_at(const dsc_attention_args *a, int64_t b, int64_t h, int64_t i)
{
    return (b * a->n_heads + h) * a->n_queries + i;
}

DSC_INLINE float head_slope(const dsc_attention_args *a, int64_t h)
{
    const int64_t head0 = a->heads != NULL ? a->heads[0] : 0;
    const int64_t n_heads = a->heads != NULL ? a->all_heads : a->n_heads;
    return a->alibi > 0.0 ? (float)slope_of(a->alibi, n_heads, head0 + h) : 0.0f;
}

/* Σ over c of dy·y of a query: what its dscores are less. */
DSC_INLINE float delta_of(const dsc_attention_args *a, int act, int64_t at)
{
    float sum = 0.0f;
    for (int64_t c = 0; c < a->head_dim; ++c) {
        sum = fmaf(dsc_get(a->dy, act, at + c), dsc_get(a->y, act, at + c), sum);
    }
    return sum;
}

#endif
