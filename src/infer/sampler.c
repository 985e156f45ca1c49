/* SPDX-License-Identifier: Apache-2.0 */
/* Greedy, temperature, top-k, top-p (nucleus: Holtzman et al., "The curious case of neural text
 * degeneration", 2020), min-p (Nguyen et al., arXiv 2407.01082) and typical (Meister et al.,
 * "Locally typical sampling", 2023), in the order of Hugging Face's warpers: temperature, then k,
 * then p, then min-p, then typical. Or mirostat (Basu et al., arXiv 2007.14966) behind the
 * temperature alone. */
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

/* A heap of n ids, the first of them by `key` on top. */
static void heapify(const float *key, uint32_t *heap, int64_t n)
{
    for (int64_t i = n / 2; i-- > 0;) {
        sift(key, heap, n, i);
    }
}

/* Of the n_kept ids at the end of `order`, whose weights are `sum`, keeps those whose surprise is
 * closest to the mean one, as many as reach the mass, with all that are as close as the last. */
static double most_typical(const dsi_sample_room *room, int64_t n, double mass, double sum,
                           int64_t *n_kept)
{
    uint32_t *kept = room->order + n - *n_kept;
    int64_t rest = *n_kept;
    double entropy = 0.0;
    double reach = 0.0;
    for (int64_t i = 0; i < *n_kept; ++i) {
        const double p = room->weight[kept[i]] / sum;
        entropy -= p > 0.0 ? p * log(p) : 0.0;
    }
    for (int64_t i = 0; i < *n_kept; ++i) {
        const double p = room->weight[kept[i]] / sum;
        room->key[kept[i]] = p > 0.0 ? (float)-fabs(-log(p) - entropy) : -INFINITY;
    }
    heapify(room->key, kept, rest);
    float last = 0.0f;
    while (rest > 0 && room->key[kept[0]] > -INFINITY &&
           (reach < mass * sum || room->key[kept[0]] == last)) {
        const uint32_t id = pop(room->key, kept, &rest);
        kept[rest] = id;
        last = room->key[id];
        reach += room->weight[id];
    }
    *n_kept -= rest;
    return reach;
}

/* How many of the likeliest ids mirostat 1 draws from: the exponent of Zipf's law is estimated from
 * the first 100, which move to the end of `order`. */
static int64_t zipf_keeps(const dsi_sample_room *room, int64_t n, double surprise, int64_t *rest)
{
    enum { MOST = 100 };
    const int64_t m = n < MOST ? n : MOST;
    double both = 0.0;
    double squares = 0.0;
    for (int64_t i = 0; i < m; ++i) {
        const uint32_t id = pop(room->key, room->order, rest);
        room->order[*rest] = id;
        const double w = room->weight[id];
        if (i == 0) {
            continue;
        }
        const double t = log((double)(i + 1) / (double)i);
        if (w > 0.0) {
            both += t * log(room->weight[room->order[*rest + 1]] / w);
            squares += t * t;
        }
    }
    const double s = squares > 0.0 ? both / squares : 1.0;
    const double e = s - 1.0;
    const double k = pow(e * exp2(surprise) / (1.0 - pow((double)n, -e)), s > 0.0 ? 1.0 / s : 1.0);
    return k >= 1.0 && k < (double)n ? (int64_t)k : k >= (double)n ? n : 1;
}

/* The ids that mirostat draws from, at the end of `order`; their sum. */
static double mirostat_keeps(const ds_sampling *s, const dsi_sample_room *room, int64_t n,
                             double surprise, double total, int64_t *n_kept)
{
    int64_t rest = n;
    double reach = 0.0;
    int64_t kept = 0;
    heapify(room->key, room->order, n);
    const int64_t k = s->mirostat == 1 ? zipf_keeps(room, n, surprise, &rest) : n;
    while (kept < k) {
        if (kept == n - rest) {
            if (s->mirostat == 2 && kept > 0 &&
                !(log2(total / room->weight[room->order[0]]) <= surprise)) {
                break;
            }
            const uint32_t id = pop(room->key, room->order, &rest);
            room->order[rest] = id;
        }
        reach += room->weight[room->order[n - 1 - kept++]];
    }
    *n_kept = kept;
    return reach;
}

/* The id where `unit` of the weights of the kept ones ends, from the last on. */
static uint32_t draw_kept(const dsi_sample_room *room, int64_t n, int64_t n_kept, double unit,
                          double reach)
{
    double left = unit * reach;
    int64_t i = n - 1;
    while (i > n - n_kept && left >= room->weight[room->order[i]]) {
        left -= room->weight[room->order[i--]];
    }
    return room->order[i];
}

/* The k largest move to the end of `order`, largest last, and of what is left those that top-p and
 * min-p keep; their sum. */
static double keep_largest(const ds_sampling *s, const dsi_sample_room *room, int64_t n,
                           double total, int64_t *n_kept)
{
    const int64_t k = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    const double p = s->top_p > 0.0 && s->top_p < 1.0 ? s->top_p : 1.0;
    const float *weight = room->weight;
    int64_t rest = n;
    double kept = 0.0;
    heapify(room->key, room->order, n);
    for (int64_t i = 0; i < k; ++i) {
        const uint32_t id = pop(room->key, room->order, &rest);
        room->order[rest] = id;
        kept += weight[id];
        if (s->top_k <= 0 && kept >= p * total) {
            break;
        }
    }
    double reach = 0.0;
    *n_kept = 0;
    for (int64_t i = n - 1; i >= rest && reach < p * (s->top_k > 0 ? kept : total); --i) {
        reach += weight[room->order[i]];
        *n_kept += 1;
    }
    return least_likely(weight, room->order, n, s->min_p, reach, n_kept);
}

/* exp((logit - largest) / temperature); their sum. */
static double weigh(const float *logits, int64_t n, float largest_logit, double temperature,
                    double least, const dsi_sample_room *room)
{
    double total = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        room->order[i] = (uint32_t)i;
        room->weight[i] = (float)exp((double)(logits[i] - largest_logit) / temperature);
        if (room->weight[i] < least) {
            room->weight[i] = 0.0f;
        }
        total += room->weight[i];
    }
    return total;
}

ds_status dsi_sampling_check(ds_ctx *ctx, const char *who, const ds_sampling *s)
{
    if (!isfinite(s->temperature) || !(s->top_p >= 0.0) || !(s->min_p >= 0.0 && s->min_p <= 1.0) ||
        s->top_k < 0 || !(s->typical_p >= 0.0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: expected a finite temperature, top_p, top_k and typical_p at least 0, "
                       "min_p 0 to 1; found temperature %g, top_p %g, top_k %lld, typical_p %g, "
                       "min_p %g",
                       who, s->temperature, s->top_p, (long long)s->top_k, s->typical_p, s->min_p);
    }
    if (s->mirostat == 0) {
        return DS_OK;
    }
    if (s->mirostat < 0 || s->mirostat > 2 || !(s->tau > 0.0 && isfinite(s->tau)) ||
        !(s->eta > 0.0 && isfinite(s->eta)) || s->temperature <= 0.0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: mirostat is %lld, tau %g, eta %g, temperature %g; expected 1 or 2, and "
                       "the others above 0",
                       who, (long long)s->mirostat, s->tau, s->eta, s->temperature);
    }
    const bool others = s->top_k > 0 || (s->top_p > 0.0 && s->top_p < 1.0) || s->min_p > 0.0 ||
                        (s->typical_p > 0.0 && s->typical_p < 1.0);
    return others ? ds_fail(ctx, DS_ERR_ARG,
                            "%s: mirostat stands in the place of top_k, top_p, min_p and "
                            "typical_p; leave them out",
                            who)
                  : DS_OK;
}

ds_status dsi_sample(ds_ctx *ctx, const float *logits, int64_t n, const ds_sampling *sampling,
                     uint64_t position, const dsi_sample_room *room, double *surprise,
                     uint32_t *id_out)
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
    const bool typical = sampling->typical_p > 0.0 && sampling->typical_p < 1.0;
    const bool sorts = sampling->mirostat == 0 &&
                       (sampling->top_k > 0 || (sampling->top_p > 0.0 && sampling->top_p < 1.0));
    const double least = sorts || sampling->mirostat != 0 ? 0.0 : sampling->min_p;
    const double total = weigh(logits, n, logits[best], sampling->temperature, least, room);
    const double unit = ((double)dsi_rng_u32(sampling->seed, SITE, 0, position) + 0.5) * 0x1p-32;
    if (!sorts && !typical && sampling->mirostat == 0) {
        double left = unit * total;
        int64_t i = 0;
        while (i + 1 < n && left >= room->weight[i]) {
            left -= room->weight[i++];
        }
        *id_out = (uint32_t)i;
        return DS_OK;
    }
    memcpy(room->key, logits, (size_t)n * sizeof *logits);
    int64_t n_kept = n;
    double reach = total;
    if (sampling->mirostat != 0) {
        reach = mirostat_keeps(sampling, room, n, *surprise, total, &n_kept);
    } else if (sorts) {
        reach = keep_largest(sampling, room, n, total, &n_kept);
    }
    if (typical && sampling->mirostat == 0) {
        reach = most_typical(room, n, sampling->typical_p, reach, &n_kept);
    }
    *id_out = draw_kept(room, n, n_kept, unit, reach);
    if (sampling->mirostat != 0) {
        *surprise -= sampling->eta * (log2(reach / room->weight[*id_out]) - sampling->tau);
    }
    return DS_OK;
}
