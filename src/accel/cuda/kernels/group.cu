/* SPDX-License-Identifier: Apache-2.0 */
/* group_rows, a stable counting sort of pairs by expert: counts of each chunk of pairs, their sums,
 * places; and what is computed from places and offsets. All of it is exact. An expert that there is
 * not is reported, and its pair is row 0. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/route.h"

enum { TAKE_TOKENS, TAKE_CHOICES, TAKE_SCORES }; /* as op/ops.h has them */

DSC_INLINE bool is_expert(const dsc_group_args *a, int64_t e)
{
    return e >= 0 && e < a->n_experts;
}

/* ---- with a capacity: which pairs are taken ------------------------------------------------ */

/* Whether pair j comes before pair i where an expert takes the first so many. */
DSC_INLINE bool comes_first(const dsc_group_args *a, int64_t j, float score_j, int64_t i,
                            float score_i)
{
    if (a->take == TAKE_CHOICES && j % a->n_choices != i % a->n_choices) {
        return j % a->n_choices < i % a->n_choices;
    }
    if (a->take == TAKE_SCORES) {
        return score_j > score_i || (score_j == score_i && j < i);
    }
    return j < i;
}

/* A thread a pair, which counts those of its expert that come before it. */
DSC_INLINE void take_pairs(const dsc_group_args *a)
{
    __shared__ int32_t experts[DSC_GROUP_CHUNK];
    __shared__ float scores[DSC_GROUP_CHUNK];
    for (int64_t chunk = blockIdx.x; chunk < a->n_chunks; chunk += gridDim.x) {
        const int64_t i = chunk * DSC_GROUP_CHUNK + threadIdx.x;
        const int32_t own = i < a->n ? a->experts[i] : -1;
        const float own_score = i < a->n && a->scores != NULL ? a->scores[i] : 0.0f;
        int64_t before = 0;
        for (int64_t j0 = 0; j0 < a->n; j0 += DSC_GROUP_CHUNK) {
            const int64_t load = j0 + threadIdx.x;
            experts[threadIdx.x] = load < a->n ? a->experts[load] : -1;
            scores[threadIdx.x] = load < a->n && a->scores != NULL ? a->scores[load] : 0.0f;
            __syncthreads();
            for (int64_t j = 0; j < DSC_GROUP_CHUNK && own >= 0; ++j) {
                before += experts[j] == own && comes_first(a, j0 + j, scores[j], i, own_score);
            }
            __syncthreads();
        }
        if (i < a->n) {
            a->taken[i] = before < a->capacity ? 1 : 0;
        }
    }
}

/* ---- the sort ------------------------------------------------------------------------------ */

/* A pair's place is here how many pairs of the same expert stand before it in its chunk. */
DSC_INLINE void count_pairs(const dsc_group_args *a)
{
    __shared__ int32_t keys[DSC_GROUP_CHUNK];
    for (int64_t chunk = blockIdx.x; chunk < a->n_chunks; chunk += gridDim.x) {
        const int64_t i = chunk * DSC_GROUP_CHUNK + threadIdx.x;
        int32_t *counts = a->counts + chunk * (a->n_experts + 1);
        int32_t key = -1;
        if (i < a->n) {
            const int32_t e = a->experts[i];
            key = !is_expert(a, e)                       ? -1
                  : a->taken != NULL && a->taken[i] == 0 ? (int32_t)a->n_experts
                                                         : e;
            if (!is_expert(a, e)) {
                dsc_report(a->fault, a->call, i, e, a->n_experts);
            }
        }
        keys[threadIdx.x] = key;
        for (int64_t e = threadIdx.x; e <= a->n_experts; e += DSC_GROUP_CHUNK) {
            counts[e] = 0;
        }
        __syncthreads();
        int32_t before = 0;
        int32_t behind = 0;
        for (uint32_t j = 0; j < DSC_GROUP_CHUNK; ++j) {
            before += keys[j] == key && j < threadIdx.x;
            behind += keys[j] == key && j > threadIdx.x;
        }
        if (key >= 0) {
            a->place[i] = before;
        }
        if (key >= 0 && behind == 0) {
            counts[key] = before + 1;
        }
        __syncthreads();
    }
}

/* One block. */
DSC_INLINE void sum_counts(const dsc_group_args *a)
{
    const int64_t n = a->n_experts + 1;
    for (int64_t e = threadIdx.x; e < n; e += blockDim.x) {
        int32_t sum = 0;
        for (int64_t chunk = 0; chunk < a->n_chunks; ++chunk) {
            const int32_t here = a->counts[chunk * n + e];
            a->counts[chunk * n + e] = sum;
            sum += here;
        }
        a->totals[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t sum = 0;
        for (int64_t e = 0; e < n; ++e) {
            a->offsets[e] = sum;
            sum += a->totals[e];
        }
    }
}

DSC_INLINE void place_pairs(const dsc_group_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int32_t e = a->experts[i];
        const int64_t key = a->taken != NULL && a->taken[i] == 0 ? a->n_experts : e;
        const int64_t chunk = i / DSC_GROUP_CHUNK;
        a->place[i] = !is_expert(a, e) ? 0
                                       : a->place[i] + a->offsets[key] +
                                             a->counts[chunk * (a->n_experts + 1) + key];
    }
}

DSC_KERNEL(group_take, dsc_group_args, take_pairs(a))
DSC_KERNEL(group_count, dsc_group_args, count_pairs(a))
DSC_KERNEL(group_sum, dsc_group_args, sum_counts(a))
DSC_KERNEL(group_place, dsc_group_args, place_pairs(a))

/* ---- what is made of them ------------------------------------------------------------------ */

DSC_INLINE void keep_token(const dsc_kept_args *a, int64_t token)
{
    const int64_t at = token * a->n_chosen;
    const int32_t end = a->offsets[a->n_experts];
    float sum = 0.0f;
    float mean = 0.0f; /* of dy, by the weights */
    for (int64_t j = at; j < at + a->n_chosen; ++j) {
        const float w = a->place[j] < end ? a->weights[j] : 0.0f;
        sum += w;
        mean += a->dy != NULL ? a->dy[j] * w : 0.0f;
    }
    const bool divides = a->normalise != 0 && sum > 0.0f;
    for (int64_t j = at; j < at + a->n_chosen; ++j) {
        const float d = a->dy != NULL ? a->dy[j] - (divides ? mean / sum : 0.0f) : a->weights[j];
        a->out[j] = a->place[j] >= end ? 0.0f : divides ? d / sum : d;
    }
}

DSC_INLINE void kept_all(const dsc_kept_args *a)
{
    for (int64_t token = dsc_index(); token < a->tokens; token += dsc_stride()) {
        keep_token(a, token);
    }
}

DSC_INLINE void sizes_all(const dsc_offsets_args *a)
{
    for (int64_t e = dsc_index(); e < a->each - 1; e += dsc_stride()) {
        int64_t size = 0;
        for (int64_t at = e; at < a->n; at += a->each) {
            size += (int64_t)a->offsets[at + 1] - a->offsets[at];
        }
        a->sizes[e] = (float)size;
    }
}

/* Of one rank. Its own row of the table is checked, and that there is room for what it gets. */
DSC_INLINE void segments_of(const dsc_offsets_args *a, int64_t rank)
{
    const int32_t *own = a->offsets + rank * a->n;
    int32_t *to = a->segments + rank * a->n;
    for (int64_t i = 0; i < a->n; ++i) {
        const int64_t least = i == 0 ? 0 : own[i - 1];
        if (own[i] < least || (i == 0 && own[i] != 0)) {
            dsc_report(a->fault, a->call, rank * a->n + i, own[i], i == 0 ? 1 : INT32_MAX);
        }
    }
    to[0] = 0;
    for (int64_t g = 0; g < a->n - 1; ++g) {
        const int32_t *from = a->offsets + g / a->each * a->n + rank * a->each + g % a->each;
        to[g + 1] = to[g] + from[1] - from[0];
    }
    if (to[a->n - 1] > a->n_rows) {
        dsc_report(a->fault, a->call, rank * a->n, to[a->n - 1], a->n_rows + 1);
    }
}

DSC_INLINE void segments_all(const dsc_offsets_args *a)
{
    for (int64_t rank = dsc_index(); rank < a->n_ranks; rank += dsc_stride()) {
        segments_of(a, rank);
    }
}

DSC_KERNEL(kept_weights, dsc_kept_args, kept_all(a))
DSC_KERNEL(group_sizes, dsc_offsets_args, sizes_all(a))
DSC_KERNEL(expert_segments, dsc_offsets_args, segments_all(a))
