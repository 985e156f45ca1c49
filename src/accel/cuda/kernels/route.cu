/* SPDX-License-Identifier: Apache-2.0 */
/* route and its gradient: a warp a token, a lane the experts lane, lane + 32, … */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/route.h"

enum { SCORE_SOFTMAX, SCORE_SIGMOID }; /* as op/ops.h has them */
enum { GROUP_MAX, GROUP_TOP2 };

/* Of one token, in shared memory. */
typedef struct choice {
    float score[DSC_MOST_EXPERTS];
    float chance[DSC_MOST_EXPERTS]; /* what is chosen by */
    float left[DSC_MOST_EXPERTS];   /* 1: may be chosen */
    float group[DSC_MOST_GROUPS];
} choice;

DSC_INLINE void scores_of(const dsc_route_args *a, int act, int64_t at, float *out)
{
    const uint32_t lane = threadIdx.x % 32;
    float top = -INFINITY;
    float sum = 0.0f;
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        const float x = dsc_get(a->logits, act, at + e);
        out[e] = a->score == SCORE_SOFTMAX ? x : 1.0f / (1.0f + expf(-x));
        top = x > top ? x : top;
    }
    if (a->score == SCORE_SOFTMAX) {
        top = dsc_warp_max(top);
        for (int64_t e = lane; e < a->n_experts; e += 32) {
            out[e] = expf(out[e] - top);
            sum += out[e];
        }
        sum = dsc_warp_sum(sum);
        for (int64_t e = lane; e < a->n_experts; e += 32) {
            out[e] = out[e] / sum;
        }
    }
}

/* The largest of value[begin,end) that is left, but for `but`; the first of equal ones. */
DSC_INLINE int64_t largest_of(const choice *c, int64_t begin, int64_t end, int64_t but)
{
    int64_t best = -1;
    for (int64_t e = begin; e < end; ++e) {
        if (e != but && c->left[e] != 0.0f && (best < 0 || c->chance[e] > c->chance[best])) {
            best = e;
        }
    }
    return best;
}

/* The same over all experts, by all lanes, which get it; 0 where none is left. */
DSC_INLINE int64_t largest_left(const choice *c, int64_t n)
{
    float value = -INFINITY;
    float best = -1.0f;
    for (int64_t e = threadIdx.x % 32; e < n; e += 32) {
        if (c->left[e] != 0.0f && (best < 0.0f || c->chance[e] > value)) {
            best = (float)e;
            value = c->chance[e];
        }
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const float other = dsc_shfl_xor_f32(0xffffffffu, value, lanes);
        const float where = dsc_shfl_xor_f32(0xffffffffu, best, lanes);
        const bool is_first = !(value > other) && where < best;
        if (where >= 0.0f && (best < 0.0f || other > value || is_first)) {
            value = other;
            best = where;
        }
    }
    return best < 0.0f ? 0 : (int64_t)best;
}

/* Leaves the experts of the best groups. */
DSC_INLINE void keep_groups(const dsc_route_args *a, choice *c)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t each = a->n_experts / a->n_groups;
    for (int64_t g = lane; g < a->n_groups; g += 32) {
        const int64_t first = largest_of(c, g * each, (g + 1) * each, -1);
        const bool two = a->group_by != GROUP_MAX && each > 1;
        c->group[g] =
            two ? c->chance[first] + c->chance[largest_of(c, g * each, (g + 1) * each, first)]
                : c->chance[first];
    }
    __syncwarp();
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        const int64_t own = e / each;
        int64_t before = 0;
        for (int64_t g = 0; g < a->n_groups; ++g) {
            const bool is_before =
                c->group[g] > c->group[own] || (c->group[g] == c->group[own] && g < own);
            before += g != own && is_before ? 1 : 0;
        }
        c->left[e] = before < a->top_groups ? 1.0f : 0.0f; /* the lane's own, as in largest_left */
    }
}

DSC_INLINE void choose_from(const dsc_route_args *a, int act, int64_t token, choice *c)
{
    const uint32_t lane = threadIdx.x % 32;
    /* softmax keeps the order, but rounds unequal logits to equal scores */
    const bool plain = a->bias == NULL && a->score == SCORE_SOFTMAX && a->n_groups <= 1;
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        c->chance[e] = plain             ? dsc_get(a->logits, act, token * a->n_experts + e)
                       : a->bias != NULL ? c->score[e] + a->bias[e]
                                         : c->score[e];
        c->left[e] = 1.0f;
    }
    __syncwarp();
    if (a->n_groups > 1) {
        keep_groups(a, c);
    }
}

DSC_INLINE void route_token(const dsc_route_args *a, int act, int64_t token, choice *c)
{
    const uint32_t lane = threadIdx.x % 32;
    int32_t *experts = a->experts + token * a->n_chosen;
    float sum = a->score == SCORE_SIGMOID ? 1e-20f : 0.0f;
    scores_of(a, act, token * a->n_experts, c->score);
    choose_from(a, act, token, c);
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        if (a->noisy != NULL && j == a->noisy_from) {
            for (int64_t e = lane; e < a->n_experts; e += 32) {
                c->chance[e] = dsc_get(a->noisy, act, token * a->n_experts + e);
            }
        }
        const int64_t best = largest_left(c, a->n_experts);
        sum += c->score[best];
        __syncwarp();
        if (lane == 0) {
            experts[j] = (int32_t)best;
            c->left[best] = 0.0f;
        }
        __syncwarp();
    }
    for (int64_t j = lane; j < a->n_chosen; j += 32) {
        const float score = c->score[experts[j]];
        a->weights[token * a->n_chosen + j] = (a->normalise != 0 ? score / sum : score) * a->factor;
    }
    __syncwarp();
}

DSC_INLINE void route_body(const dsc_route_args *a, int act)
{
    __shared__ choice choices[DSC_ROUTE_WARPS];
    const uint32_t warp = threadIdx.x / 32;
    const int64_t step = (int64_t)gridDim.x * DSC_ROUTE_WARPS;
    for (int64_t t = (int64_t)blockIdx.x * DSC_ROUTE_WARPS + warp; t < a->tokens; t += step) {
        route_token(a, act, t, &choices[warp]);
    }
}

/* ---- backward ----------------------------------------------------------------------------- */

/* d: the gradient of each score, from those of the chosen weights; 0 at first. By one lane. */
DSC_INLINE void score_gradients(const dsc_route_args *a, int64_t token, const float *s, float *d)
{
    const int32_t *experts = a->experts + token * a->n_chosen;
    const float *dweights = a->dweights + token * a->n_chosen;
    float sum = a->score == SCORE_SIGMOID ? 1e-20f : 0.0f;
    float mean = 0.0f;
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        if (experts[j] < 0 || experts[j] >= a->n_experts) {
            dsc_report(a->fault, a->call, token * a->n_chosen + j, experts[j], a->n_experts);
            return;
        }
        sum += s[experts[j]];
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        mean += dweights[j] * (s[experts[j]] / sum);
    }
    for (int64_t j = 0; j < a->n_chosen; ++j) {
        const float g = dweights[j];
        d[experts[j]] = (a->normalise != 0 ? (g - mean) / sum : g) * a->factor;
    }
}

DSC_INLINE void route_backward_token(const dsc_route_args *a, int act, int64_t token, choice *c)
{
    const uint32_t lane = threadIdx.x % 32;
    const float *s = c->score;
    const float *d = c->chance;
    scores_of(a, act, token * a->n_experts, c->score);
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        c->chance[e] = 0.0f;
    }
    __syncwarp();
    if (lane == 0) {
        score_gradients(a, token, s, c->chance);
    }
    __syncwarp();
    float mean = 0.0f; /* of softmax: of d, by s */
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        mean += d[e] * s[e];
    }
    mean = dsc_warp_sum(mean);
    for (int64_t e = lane; e < a->n_experts; e += 32) {
        dsc_set(a->dlogits, act, token * a->n_experts + e,
                a->score == SCORE_SOFTMAX ? s[e] * (d[e] - mean) : s[e] * (1.0f - s[e]) * d[e]);
    }
}

DSC_INLINE void route_backward_body(const dsc_route_args *a, int act)
{
    __shared__ choice choices[DSC_ROUTE_WARPS];
    const uint32_t warp = threadIdx.x / 32;
    const int64_t step = (int64_t)gridDim.x * DSC_ROUTE_WARPS;
    for (int64_t t = (int64_t)blockIdx.x * DSC_ROUTE_WARPS + warp; t < a->tokens; t += step) {
        route_backward_token(a, act, t, &choices[warp]);
    }
}

DSC_KERNEL_ACT(route, dsc_route_args)
DSC_KERNEL_ACT(route_backward, dsc_route_args)
