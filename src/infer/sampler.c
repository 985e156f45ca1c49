/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy, temperature, top-k, top-p (nucleus: Holtzman et al., "The curious case of neural text
 * degeneration", 2020) and min-p (Nguyen et al., arXiv 2407.01082), in the order of Hugging Face's
 * warpers: temperature, then k, then p, then min-p. */
#include "infer/sampler.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { SITE = 0x53414d50 };

static int64_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* Whether id a stands before id b: larger logit, then lower id. */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift(const float *logits, uint32_t *heap, int64_t n, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && before(logits, heap[child + 1], heap[child])) {
            ++child;
        }
        if (!before(logits, heap[child], heap[at])) {
            return;
        }
        const uint32_t id = heap[at];
        heap[at] = heap[child];
        heap[child] = id;
        at = child;
    }
}

static uint32_t pop(const float *logits, uint32_t *heap, int64_t *n)
{
    const uint32_t top = heap[0];
    heap[0] = heap[--*n];
    sift(logits, heap, *n, 0);
    return top;
}

/* The first that is not finite; n: none. */
static int64_t find_nonfinite(const float *logits, int64_t n)
{
    int64_t i = 0;
    while (i < n && isfinite(logits[i])) {
        ++i;
    }
    return i;
}

/* Of the n_kept largest, which stand at the end of `order`, keeps those of at least min_p, the
 * largest being 1; the sum of what is kept. */
static double least_likely(const float *weight, const uint32_t *order, int64_t n, double min_p,
                           double sum, int64_t *n_kept)
{
    while (*n_kept > 1 && weight[order[n - *n_kept]] < min_p) {
        sum -= weight[order[n - *n_kept]];
        *n_kept -= 1;
    }
    return sum;
}

ds_status dsi_sample(ds_ctx *ctx, const float *logits, int64_t n, const ds_sampling *sampling,
                     uint64_t position, uint32_t *order, float *weight, uint32_t *id_out)
{
    const int64_t spoiled = find_nonfinite(logits, n);
    if (spoiled < n) {
        return ds_fail(ctx, DS_ERR_NUMERIC,
                       "the model's logits are not finite: that of token %lld is %g at position "
                       "%llu; its weights are spoiled, or too large for the dtype",
                       (long long)spoiled, (double)logits[spoiled], (unsigned long long)position);
    }
    const int64_t best = largest(logits, n);
    if (sampling->temperature <= 0.0) {
        *id_out = (uint32_t)best;
        return DS_OK;
    }
    const bool all = sampling->top_k <= 0 && (sampling->top_p <= 0.0 || sampling->top_p >= 1.0);
    double total = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        order[i] = (uint32_t)i;
        weight[i] = (float)exp((double)(logits[i] - logits[best]) / sampling->temperature);
        if (all && weight[i] < sampling->min_p) {
            weight[i] = 0.0f;
        }
        total += weight[i];
    }
    const double unit = ((double)dsi_rng_u32(sampling->seed, SITE, 0, position) + 0.5) * 0x1p-32;
    if (all) {
        double left = unit * total;
        int64_t i = 0;
        while (i + 1 < n && left >= weight[i]) {
            left -= weight[i++];
        }
        *id_out = (uint32_t)i;
        return DS_OK;
    }
    for (int64_t i = n / 2; i-- > 0;) {
        sift(logits, order, n, i);
    }
    const int64_t k = sampling->top_k > 0 && sampling->top_k < n ? sampling->top_k : n;
    const double p = sampling->top_p > 0.0 && sampling->top_p < 1.0 ? sampling->top_p : 1.0;
    /* The k largest move to the end of `order`, largest last; top-p is of what top-k left. */
    int64_t rest = n;
    double kept = 0.0;
    for (int64_t i = 0; i < k; ++i) {
        const uint32_t id = pop(logits, order, &rest);
        order[rest] = id;
        kept += weight[id];
        if (sampling->top_k <= 0 && kept >= p * total) {
            break;
        }
    }
    double reach = 0.0;
    int64_t n_kept = 0;
    for (int64_t i = n - 1; i >= rest && reach < p * (sampling->top_k > 0 ? kept : total); --i) {
        reach += weight[order[i]];
        ++n_kept;
    }
    reach = least_likely(weight, order, n, sampling->min_p, reach, &n_kept);
    double left = unit * reach;
    int64_t i = n - 1;
    while (i > n - n_kept && left >= weight[order[i]]) {
        left -= weight[order[i--]];
    }
    *id_out = order[i];
    return DS_OK;
}
