/* SPDX-License-Identifier: Apache-2.0 */
/* attention_part and its gradient: attention.cu's way where ranks have parts of a sequence. Which
 * of all positions a query and a key are says their number, so that a lane asks of its key whether
 * it is seen. What the parts before gave is merged by its log-sum-exp. */
#include "accel/cuda/kernels/attention_rows.h"

/* One query of a head, or one key: what it is, and which others it meets. */
typedef struct place {
    int64_t b, h, i;     /* sample, head of queries, query */
    int64_t first, last; /* keys of its part */
    float slope;
} place;

DSC_INLINE bool is_seen(const dsc_attention_args *a, int64_t b, int64_t i, int64_t j)
{
    const int64_t row = a->rows[i];
    const int64_t key = a->keys[j];
    const int64_t at = b * a->n_queries + i;
    return (a->causal == 0 || key <= row) &&
           (a->window == 0 || (key > row - a->window && key < row + a->window)) &&
           (a->first == NULL || key >= a->first[at]) && (a->end == NULL || key < a->end[at]);
}

/* The score of query i and key j by their product; turn_out: its derivative. */
DSC_INLINE float score_at(const dsc_attention_args *a, int64_t b, int64_t i, int64_t j, float slope,
                          float product, float *turn_out)
{
    bend s = {a->scale, a->cap, slope, a->alibi_rounded, a->rows[i]};
    if (a->alibi_rounded != 0) {
        s.origin = a->first != NULL ? a->first[b * a->n_queries + i] : 0;
    }
    return bend_score(&s, product, a->keys[j], turn_out);
}

DSC_INLINE float kept(const dsc_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return dropout_at(a, b, h, a->rows[i], a->all_keys, a->keys[j], a->all_keys);
}

DSC_INLINE place query_of(const dsc_attention_part_args *p, int64_t item)
{
    const dsc_attention_args *a = &p->at;
    place q = {item / a->n_heads / a->n_queries,
               item % a->n_heads,
               item / a->n_heads % a->n_queries,
               0,
               0,
               0.0f};
    q.first = q.i / p->part * p->key_part;
    q.last = q.first + p->key_part;
    q.slope = head_slope(a, q.h);
    return q;
}

/* ---- forward ------------------------------------------------------------------------------ */

/* What the query has of its part, with what the parts before gave. sees: whether it sees a key. */
DSC_INLINE void merge(const dsc_attention_part_args *p, const place *q, float sums[CHANNELS],
                      const softmax *soft, bool sees)
{
    const dsc_attention_args *a = &p->at;
    const uint32_t lane = threadIdx.x % 32;
    const int64_t at = y_at(a, q->b, q->i, q->h);
    const int64_t stat = lse_at(a, q->b, q->h, q->i);
    const float before = p->lse_in != NULL ? p->lse_in[stat] : -INFINITY;
    const float own = log_sum_exp(soft->top, soft->sum, sees);
    const float most = before > own ? before : own;
    float w = 1.0f;
    float w_own = 0.0f;
    float lse = before;
    if (sees) {
        w = expf(before - most);
        w_own = expf(own - most);
        lse = most + logf(w + w_own);
        const float both = w + w_own;
        w = w / both;
        w_own = w_own / both / soft->sum;
    }
    for (int m = 0; m < CHANNELS; ++m) {
        const int64_t c = lane + 32 * m;
        if (c < a->head_dim) {
            const float y = p->y_in != NULL ? p->y_in[at + c] : 0.0f;
            dsc_set(a->y, p->q_dtype_out, at + c, w * y + w_own * sums[m]);
        }
    }
    if (lane == 0) {
        a->lse[stat] = lse;
    }
}

DSC_INLINE void attend_part(const dsc_attention_part_args *p, int act, int64_t item, float *row)
{
    const dsc_attention_args *a = &p->at;
    const uint32_t lane = threadIdx.x % 32;
    const place q = query_of(p, item);
    const int64_t kv = q.h / (a->n_heads / a->n_kv_heads);
    float sums[CHANNELS] = {0.0f};
    softmax soft = {-INFINITY, 0.0f};
    bool sees = false;
    load_row(row, a->q, act, query_at(a, q.b, q.i, q.h), a->head_dim);
    __syncwarp();
    for (int64_t j0 = q.first; j0 < q.last; j0 += 32) {
        const int64_t j = j0 + lane;
        const bool seen = j < q.last && is_seen(a, q.b, q.i, j);
        const uint32_t lanes = dsc_ballot(0xffffffffu, seen);
        if (lanes == 0) {
            continue;
        }
        sees = true;
        float score = -INFINITY;
        if (seen) {
            float turn;
            score = score_at(a, q.b, q.i, j, q.slope,
                             dot(act, row, a->k, key_at(a, q.b, j, kv), a->head_dim), &turn);
        }
        const float probability = soften(&soft, score, CHANNELS, sums);
        const float used = seen ? probability * kept(a, q.b, q.h, q.i, j) : 0.0f;
        add_rows(act, used, lanes, a->v, key_at(a, q.b, j0, kv), a->kv_stride, a->head_dim, sums);
    }
    merge(p, &q, sums, &soft, sees);
    __syncwarp();
}

DSC_INLINE void attention_part_body(const dsc_attention_part_args *p, int act)
{
    __shared__ float q[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const dsc_attention_args *a = &p->at;
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_queries * a->n_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        attend_part(p, act, i, q[warp]);
    }
}

DSC_KERNEL_ACT(attention_part, dsc_attention_part_args)

/* ---- backward ----------------------------------------------------------------------------- */

DSC_INLINE pair pair_at(const dsc_attention_args *a, int64_t b, int64_t h, int64_t i, int64_t j,
                        float slope, float product, float dp, float delta)
{
    float turn;
    const float score = score_at(a, b, i, j, slope, product, &turn);
    return pair_of(a, lse_at(a, b, h, i), score, turn, kept(a, b, h, i, j), dp, delta);
}

/* sums, and what was added up before, in dtype. */
DSC_INLINE void add_and_store(void *t, int dtype, const float *before, int64_t at, int64_t head_dim,
                              const float sums[CHANNELS])
{
    const uint32_t lane = threadIdx.x % 32;
    for (int m = 0; m < CHANNELS; ++m) {
        const int64_t c = lane + 32 * m;
        if (c < head_dim) {
            dsc_set(t, dtype, at + c, before != NULL ? before[at + c] + sums[m] : sums[m]);
        }
    }
}

DSC_INLINE void part_dq_of(const dsc_attention_part_args *p, int act, int64_t item, float *row,
                           float *dy)
{
    const dsc_attention_args *a = &p->at;
    const uint32_t lane = threadIdx.x % 32;
    const place q = query_of(p, item);
    const int64_t kv = q.h / (a->n_heads / a->n_kv_heads);
    const int64_t q_at = query_at(a, q.b, q.i, q.h);
    float sums[CHANNELS] = {0.0f};
    load_row(row, a->q, act, q_at, a->head_dim);
    load_row(dy, a->dy, act, y_at(a, q.b, q.i, q.h), a->head_dim);
    __syncwarp();
    const float delta = dot(act, dy, a->y, y_at(a, q.b, q.i, q.h), a->head_dim);
    for (int64_t j0 = q.first; j0 < q.last; j0 += 32) {
        const int64_t j = j0 + lane;
        const int64_t at = key_at(a, q.b, j, kv);
        const bool seen = j < q.last && is_seen(a, q.b, q.i, j);
        pair both = {0.0f, 0.0f};
        if (seen) {
            both = pair_at(a, q.b, q.h, q.i, j, q.slope, dot(act, row, a->k, at, a->head_dim),
                           dot(act, dy, a->v, at, a->head_dim), delta);
        }
        add_rows(act, both.dscore, dsc_ballot(0xffffffffu, seen), a->k, key_at(a, q.b, j0, kv),
                 a->kv_stride, a->head_dim, sums);
    }
    add_and_store(a->dq, p->q_dtype_out, p->dq_in, q_at, a->head_dim, sums);
    __syncwarp();
}

DSC_INLINE void attention_part_dq_body(const dsc_attention_part_args *p, int act)
{
    __shared__ float q[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    __shared__ float dy[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const dsc_attention_args *a = &p->at;
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_queries * a->n_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        part_dq_of(p, act, i, q[warp], dy[warp]);
    }
}

/* Gradients of key j of head kv of sample b by 32 queries of head h, of its part. */
DSC_INLINE void add_queries(const dsc_attention_part_args *p, int act, const place *key, int64_t i0,
                            int64_t end, const float *k, const float *v, float dk[CHANNELS],
                            float dv[CHANNELS])
{
    const dsc_attention_args *a = &p->at;
    const int64_t i = i0 + threadIdx.x % 32;
    const bool seen = i < end && is_seen(a, key->b, i, key->i);
    const uint32_t lanes = dsc_ballot(0xffffffffu, seen);
    pair both = {0.0f, 0.0f};
    if (seen) {
        const int64_t at = y_at(a, key->b, i, key->h);
        both = pair_at(a, key->b, key->h, i, key->i, key->slope,
                       dot(act, k, a->q, query_at(a, key->b, i, key->h), a->head_dim),
                       dot(act, v, a->dy, at, a->head_dim), delta_of(a, act, at));
    }
    add_rows(act, both.used, lanes, a->dy, y_at(a, key->b, i0, key->h), a->n_heads * a->head_dim,
             a->head_dim, dv);
    add_rows(act, both.dscore, lanes, a->q, query_at(a, key->b, i0, key->h), a->q_stride,
             a->head_dim, dk);
}

/* All heads of a group and all queries of the part, in order. */
DSC_INLINE void part_dkv_of(const dsc_attention_part_args *p, int act, int64_t item, float *k,
                            float *v)
{
    const dsc_attention_args *a = &p->at;
    const int64_t kv = item % a->n_kv_heads;
    const int64_t group = a->n_heads / a->n_kv_heads;
    place key = {item / a->n_kv_heads / a->n_keys, 0, item / a->n_kv_heads % a->n_keys, 0, 0, 0.0f};
    const int64_t at = key_at(a, key.b, key.i, kv);
    float dk[CHANNELS] = {0.0f};
    float dv[CHANNELS] = {0.0f};
    key.first = key.i / p->key_part * p->part; /* of queries here */
    key.last = key.first + p->part;
    load_row(k, a->k, act, at, a->head_dim);
    load_row(v, a->v, act, at, a->head_dim);
    __syncwarp();
    for (key.h = kv * group; key.h < (kv + 1) * group; ++key.h) {
        key.slope = head_slope(a, key.h);
        for (int64_t i0 = key.first; i0 < key.last; i0 += 32) {
            add_queries(p, act, &key, i0, key.last, k, v, dk, dv);
        }
    }
    add_and_store(a->dk, DSC_F32, p->dk_in, at, a->head_dim, dk);
    add_and_store(a->dv, DSC_F32, p->dv_in, at, a->head_dim, dv);
    __syncwarp();
}

DSC_INLINE void attention_part_dkv_body(const dsc_attention_part_args *p, int act)
{
    __shared__ float k[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    __shared__ float v[DSC_ATTENTION_WARPS][DSC_MOST_HEAD_DIM];
    const dsc_attention_args *a = &p->at;
    const uint32_t warp = threadIdx.x / 32;
    const int64_t n = a->n_batch * a->n_keys * a->n_kv_heads;
    const int64_t step = (int64_t)gridDim.x * DSC_ATTENTION_WARPS;
    for (int64_t i = (int64_t)blockIdx.x * DSC_ATTENTION_WARPS + warp; i < n; i += step) {
        part_dkv_of(p, act, i, k[warp], v[warp]);
    }
}

DSC_KERNEL_ACT(attention_part_dq, dsc_attention_part_args)
DSC_KERNEL_ACT(attention_part_dkv, dsc_attention_part_args)
