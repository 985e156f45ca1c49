/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of any head up to 256 wide, any mask, any dtype, in fp32: the plain way, which faster
 * ones are compared with. Never Tq×Tk in memory (Dao et al., "FlashAttention", arXiv 2205.14135).
 *
 * A warp has a query (in the backward pass of k and v: a key); 32 keys (queries) at a time, a lane
 * one of them, whose scores it computes; then a lane has channels lane, lane + 32, … of the sum.
 */
#include "accel/cuda/kernels/attention_rows.h"

/* Of query i of sample b. */
DSC_INLINE bend bend_of(const dsc_attention_args *a, int64_t b, int64_t i, float slope)
{
    bend s = {a->scale, a->cap, slope, a->alibi_rounded, -key_number(a)};
    if (a->alibi_rounded == 0) {
        s.origin += row_number(a) + i + (a->offset != NULL ? a->offset[b] : 0);
    } else if (a->first != NULL) {
        s.origin += a->first[b * a->n_queries + i];
    }
    return s;
}

/* ---- forward ------------------------------------------------------------------------------ */

DSC_INLINE void attend(const dsc_attention_args *a, int act, int64_t item, float *q)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t h = item % a->n_heads;
    const int64_t i = item / a->n_heads % a->n_queries;
    const int64_t b = item / a->n_heads / a->n_queries;
    const int64_t kv = h / (a->n_heads / a->n_kv_heads);
    const span s = visible(a, b, i);
    const bend bent = bend_of(a, b, i, head_slope(a, h));
    float sums[CHANNELS] = {0.0f};
    softmax soft = {-INFINITY, 0.0f};
    load_row(q, a->q, act, query_at(a, b, i, h), a->head_dim);
    __syncwarp();
    for (int64_t j0 = s.first; j0 < s.last; j0 += 32) {
        const int64_t n = s.last - j0 < 32 ? s.last - j0 : 32;
        const int64_t j = j0 + lane;
        float score = -INFINITY;
        if (lane < n) {
            float turn;
            score =
                bend_score(&bent, dot(act, q, a->k, key_at(a, b, j, kv), a->head_dim), j, &turn);
        }
        const float p = soften(&soft, score, CHANNELS, sums);
        const float used = lane < n ? p * dropout_factor(a, b, h, i, j) : 0.0f;
        add_rows(act, used, dsc_ballot(0xffffffffu, lane < n), a->v, key_at(a, b, j0, kv),
                 a->kv_stride, a->head_dim, sums);
    }
    const bool sees = s.first < s.last;
    store_row(a->y, act, y_at(a, b, i, h), a->head_dim, sums, sum_factor(soft.sum, sees));
    if (lane == 0) {
        a->lse[lse_at(a, b, h, i)] = log_sum_exp(soft.top, soft.sum, sees);
    }
    __syncwarp();
}

DSC_INLINE void attention_body(const dsc_attention_args *a, int act)
{
    __shared__ float q[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_queries * a->n_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        attend(a, act, i, q[warp]);
    }
}

DSC_KERNEL_ACT(attention, dsc_attention_args)

/* ---- backward ----------------------------------------------------------------------------- */

DSC_INLINE pair pair_at(const dsc_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j,
                        float slope, float product, float dp, float delta)
{
    const bend bent = bend_of(a, b, i, slope);
    float turn;
    const float score = bend_score(&bent, product, j, &turn);
    return pair_of(a, lse_at(a, b, h, i), score, turn, dropout_factor(a, b, h, i, j), dp, delta);
}

DSC_INLINE void dq_of(const dsc_attention_args *a, int act, int64_t item, float *q, float *dy)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t h = item % a->n_heads;
    const int64_t i = item / a->n_heads % a->n_queries;
    const int64_t b = item / a->n_heads / a->n_queries;
    const int64_t kv = h / (a->n_heads / a->n_kv_heads);
    const span s = visible(a, b, i);
    float sums[CHANNELS] = {0.0f};
    load_row(q, a->q, act, query_at(a, b, i, h), a->head_dim);
    load_row(dy, a->dy, act, y_at(a, b, i, h), a->head_dim);
    __syncwarp();
    const float delta = dot(act, dy, a->y, y_at(a, b, i, h), a->head_dim);
    const float slope = head_slope(a, h);
    for (int64_t j0 = s.first; j0 < s.last; j0 += 32) {
        const int64_t n = s.last - j0 < 32 ? s.last - j0 : 32;
        const int64_t at = key_at(a, b, j0 + lane, kv);
        pair both = {0.0f, 0.0f};
        if (lane < n) {
            both = pair_at(a, b, h, i, j0 + lane, slope, dot(act, q, a->k, at, a->head_dim),
                           dot(act, dy, a->v, at, a->head_dim), delta);
        }
        add_rows(act, both.dscore, dsc_ballot(0xffffffffu, lane < n), a->k, key_at(a, b, j0, kv),
                 a->kv_stride, a->head_dim, sums);
    }
    store_row(a->dq, act, query_at(a, b, i, h), a->head_dim, sums, 1.0f);
    __syncwarp();
}

DSC_INLINE void attention_dq_body(const dsc_attention_args *a, int act)
{
    __shared__ float q[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    __shared__ float dy[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_queries * a->n_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        dq_of(a, act, i, q[warp], dy[warp]);
    }
}

/* All heads of a group and all queries, in order. */
DSC_INLINE void dkv_of(const dsc_attention_args *a, int act, int64_t item, float *k, float *v)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t kv = item % a->n_kv_heads;
    const int64_t j = item / a->n_kv_heads % a->n_keys;
    const int64_t b = item / a->n_kv_heads / a->n_keys;
    const int64_t group = a->n_heads / a->n_kv_heads;
    float dk[CHANNELS] = {0.0f};
    float dv[CHANNELS] = {0.0f};
    load_row(k, a->k, act, key_at(a, b, j, kv), a->head_dim);
    load_row(v, a->v, act, key_at(a, b, j, kv), a->head_dim);
    __syncwarp();
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const float slope = head_slope(a, h);
        for (int64_t i0 = 0; i0 < a->n_queries; i0 += 32) {
            const int64_t i = i0 + lane;
            pair both = {0.0f, 0.0f};
            bool sees = false;
            if (i < a->n_queries) {
                const span s = visible(a, b, i);
                sees = j >= s.first && j < s.last;
            }
            if (sees) {
                const int64_t at = y_at(a, b, i, h);
                both = pair_at(a, b, h, i, j, slope,
                               dot(act, k, a->q, query_at(a, b, i, h), a->head_dim),
                               dot(act, v, a->dy, at, a->head_dim), delta_of(a, act, at));
            }
            const uint32_t lanes = dsc_ballot(0xffffffffu, sees);
            add_rows(act, both.used, lanes, a->dy, y_at(a, b, i0, h), a->n_heads * a->head_dim,
                     a->head_dim, dv);
            add_rows(act, both.dscore, lanes, a->q, query_at(a, b, i0, h), a->q_stride, a->head_dim,
                     dk);
        }
    }
    store_row(a->dk, act, key_at(a, b, j, kv), a->head_dim, dk, 1.0f);
    store_row(a->dv, act, key_at(a, b, j, kv), a->head_dim, dv, 1.0f);
    __syncwarp();
}

DSC_INLINE void attention_dkv_body(const dsc_attention_args *a, int act)
{
    __shared__ float k[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    __shared__ float v[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_keys * a->n_kv_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        dkv_of(a, act, i, k[warp], v[warp]);
    }
}

DSC_KERNEL_ACT(attention_dq, dsc_attention_args)
DSC_KERNEL_ACT(attention_dkv, dsc_attention_args)
