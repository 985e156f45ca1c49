/* SPDX-License-Identifier: Apache-2.0 */
/* attention for a step of generation: a few queries against all the keys of a cell, with the bits
 * that simd_attention.c gives the same query among many.
 *
 * Reading keys and values once is the whole cost. A task is one kv head of one sample with all
 * query heads of the group (or one of them, where there are few kv heads). It walks over the same
 * blocks of keys: keys are turned so that lanes are keys and a score is one chain over d; maximum,
 * powers and sum go key by key in order; lanes of the output are d, one chain over keys. Called by
 * simd_attention.c.
 */
#include "accel/cpu/simd/gemm_turn.h"
#include "accel/cpu/simd/simd_attention.h"

enum {
    MOST_QUERIES = 4, /* of an operator that counts as generation */
    FEW_HEADS = 4,    /* kv heads of all samples: below, a task has one query head */
    AHEAD = 12,       /* keys between a prefetch and its use */
    TILES = ATTN_KEYS / VF_WIDTH,
    Y_VECTORS = 8
};

typedef struct decode_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    int64_t width, heads_each; /* floats of a row; query heads of a task */
    float *turned;             /* a thread's: [d][ATTN_KEYS] */
    float *scores;             /* [ATTN_KEYS] */
    float *q, *y;              /* [row][width], rows: heads of a task × queries */
    float *top, *sum;          /* [row] */
} decode_job;

bool DSI_NAME(dsi_attn_decodes)(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *a = sig->attrs;
    return sig->in[0].shape.dims[1] <= MOST_QUERIES && a->packed == 0 && a->dropout == 0.0;
}

static size_t carve(decode_job *job, void *base)
{
    const attn_shape *s = &job->s;
    job->width = attn_width(s->d);
    job->heads_each = s->n_batch * s->n_kv < FEW_HEADS ? 1 : s->group;
    const size_t rows = (size_t)(job->heads_each * s->n_queries);
    const size_t row_bytes = (size_t)job->width * sizeof(float);
    attn_carver c = {base, 0};
    job->turned = attn_carve(&c, row_bytes * ATTN_KEYS);
    job->scores = attn_carve(&c, ATTN_KEYS * sizeof(float));
    job->q = attn_carve(&c, rows * row_bytes);
    job->y = attn_carve(&c, rows * row_bytes);
    job->top = attn_carve(&c, rows * sizeof(float));
    job->sum = attn_carve(&c, rows * sizeof(float));
    return c.bytes;
}

size_t DSI_NAME(dsi_attn_decode_work)(const ds_kernel_sig *sig)
{
    decode_job job = {.s = attn_shape_of(sig, 0)};
    return carve(&job, NULL) * sig->n_threads;
}

/* Rows of a block of keys or values: elements from `at` on, `stride` apart. */
typedef struct stretch {
    const void *base;
    int64_t at, stride, n, d;
} stretch;

DSI_INLINE void fetch(const stretch *x, ds_dtype type, int64_t j)
{
    const int64_t each = type == DS_DTYPE_F32 ? 4 : 2;
    const char *row = (const char *)x->base + (x->at + j * x->stride) * each;
    for (int64_t line = 0; line < x->d * each; line += 64) {
        _mm_prefetch(row + line, _MM_HINT_T0);
    }
}

/* turned[c][key] of VF_WIDTH keys from j on. */
DSI_INLINE void turn_lines(const stretch *k, int64_t j, float *turned, ds_dtype type)
{
    const int64_t each = type == DS_DTYPE_F32 ? 4 : 2;
    const int64_t stride = k->stride * each;
    const char *row = (const char *)k->base + k->at * each + j * stride;
    for (int64_t c = 0; c < k->d; c += turn_elements(type)) {
        vi words[VF_WIDTH];
        turn_words(row + c * each, stride, words);
#pragma GCC unroll 32
        for (int64_t e = 0; e < turn_elements(type); ++e) {
            vf_store(turned + (c + e) * ATTN_KEYS + j, turn_element(words, type, e));
        }
    }
}

/* The same for any d, and for keys beyond the last: zeros. */
DSI_INLINE void turn_some(const stretch *k, int64_t j, float *turned, ds_dtype type)
{
    for (int64_t c = 0; c < k->d; c += VF_WIDTH) {
        const size_t left = (size_t)attn_min(VF_WIDTH, k->d - c);
        vf r[VF_WIDTH];
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            const size_t from = (size_t)(k->at + (j + i) * k->stride + c);
            r[i] = j + i >= k->n ? vf_zero() : vf_get_upto(k->base, type, from, left);
        }
        vf_transpose(r);
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            vf_store(turned + (c + i) * ATTN_KEYS + j, r[i]);
        }
    }
}

DSI_INLINE void turn_keys(const stretch *k, float *turned, ds_dtype type)
{
    const bool lines = k->d % turn_elements(type) == 0;
    for (int64_t j = 0; j < k->n; j += VF_WIDTH) {
        for (int64_t i = 0; i < VF_WIDTH; ++i) {
            fetch(k, type, j + i + VF_WIDTH); /* past the end it is harmless */
        }
        if (lines && j + VF_WIDTH <= k->n) {
            turn_lines(k, j, turned, type);
        } else {
            turn_some(k, j, turned, type);
        }
    }
}

/* scores[key] = q·k, each one chain over d. */
DSI_INLINE void score_keys(const float *turned, const float *q, int64_t d, float *scores)
{
    vf sum[TILES];
#pragma GCC unroll 8
    for (int t = 0; t < TILES; ++t) {
        sum[t] = vf_zero();
    }
    for (int64_t c = 0; c < d; ++c, turned += ATTN_KEYS) {
        const vf x = vf_set(q[c]);
#pragma GCC unroll 8
        for (int t = 0; t < TILES; ++t) {
            sum[t] = vf_fma(vf_load(turned + t * VF_WIDTH), x, sum[t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TILES; ++t) {
        vf_store(scores + t * VF_WIDTH, sum[t]);
    }
}

/* Lanes j, j+1, … that lie in [first,last). */
DSI_INLINE vm lanes_in(int64_t j, int64_t first, int64_t last)
{
    static const int32_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vi lane = vi_add(vi_load(count), vi_set((int32_t)j));
    return vm_and(vi_gt(vi_set((int32_t)last), lane), vi_gt(lane, vi_set((int32_t)first - 1)));
}

/* Capped and biased scores of a block whose first key is `distance` from the query. */
static void bend_scores(const attn_bend *bend, float *scores, int64_t distance)
{
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf lanes = vf_add(vf_set((float)(distance + j)), attn_lanes());
        vf_store(scores + j, attn_bent(bend, vf_load(scores + j), lanes, NULL));
    }
}

/* Scores of a block to probabilities, 0 but for keys [first,last); the factor for what was summed
 * before. Lane by lane what soften() of simd_attention.c does. */
DSI_INLINE float soften(float *scores, int64_t first, int64_t last, float factor, float *top,
                        float *sum)
{
    const vf before = vf_set(*top);
    vf highest = before;
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf s = vf_select(lanes_in(j, first, last), vf_load(scores + j), before);
        highest = vf_max(highest, s);
    }
    *top = vf_hmax(highest);
    const vf f = vf_set(factor);
    const vf down = vf_neg(vf_mul(vf_set(*top), f));
    for (int64_t j = 0; j < ATTN_KEYS; j += VF_WIDTH) {
        const vf p = attn_exp2(vf_fma(vf_load(scores + j), f, down));
        vf_store(scores + j, vf_select(lanes_in(j, first, last), p, vf_zero()));
    }
    __m128 part = _mm_setzero_ps();
    for (int64_t j = 0; j < ATTN_KEYS; j += 4) {
        part = _mm_add_ps(part, _mm_loadu_ps(scores + j));
    }
    float four[4];
    float alpha[VF_WIDTH];
    _mm_storeu_ps(four, part);
    vf_store(alpha, attn_exp2(vf_mul(vf_sub(before, vf_set(*top)), f)));
    *sum = fmaf(*sum, alpha[0], (four[0] + four[1]) + (four[2] + four[3]));
    return alpha[0];
}

/* y[c..) = y·alpha + Σ p[j]·v_j[c..) for `vectors` whole vectors, or the `part` elements of one. */
DSI_INLINE void sum_values(const stretch *v, const float *p, float alpha, int64_t c, int vectors,
                           size_t part, float *y, ds_dtype type)
{
    vf sum[Y_VECTORS];
#pragma GCC unroll 8
    for (int u = 0; u < vectors; ++u) {
        sum[u] = vf_mul(vf_load(y + c + u * VF_WIDTH), vf_set(alpha));
    }
    for (int64_t j = 0; j < v->n; ++j) {
        const size_t at = (size_t)(v->at + j * v->stride + c);
        const vf weight = vf_set(p[j]);
        if (c == 0) {
            fetch(v, type, j + AHEAD);
        }
#pragma GCC unroll 8
        for (int u = 0; u < vectors; ++u) {
            const size_t from = at + (size_t)(u * VF_WIDTH);
            const vf x =
                part != 0 ? vf_get_n(v->base, type, from, part) : vf_get(v->base, type, from);
            sum[u] = vf_fma(x, weight, sum[u]);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < vectors; ++u) {
        vf_store(y + c + u * VF_WIDTH, sum[u]);
    }
}

DSI_INLINE void attend_values(const stretch *v, const float *p, float alpha, float *y,
                              ds_dtype type)
{
    int64_t c = 0;
    for (; c + Y_VECTORS * VF_WIDTH <= v->d; c += Y_VECTORS * VF_WIDTH) {
        sum_values(v, p, alpha, c, Y_VECTORS, 0, y, type);
    }
    for (; c + 4 * VF_WIDTH <= v->d; c += 4 * VF_WIDTH) {
        sum_values(v, p, alpha, c, 4, 0, y, type);
    }
    for (; c + VF_WIDTH <= v->d; c += VF_WIDTH) {
        sum_values(v, p, alpha, c, 1, 0, y, type);
    }
    if (c < v->d) {
        sum_values(v, p, alpha, c, 1, (size_t)(v->d - c), y, type);
    }
}

/* Row `row` of the task: head h and query i of sample b. */
typedef struct decode_task {
    const decode_job *job; /* its pointers are this thread's */
    int64_t b, kv, h0;
} decode_task;

static attn_span seen_by(const decode_task *t, int64_t row)
{
    return attn_visible(&t->job->s, &t->job->x, t->b, row % t->job->s.n_queries);
}

/* Keys of the block at k0 that some row sees: [first,last). */
DSI_INLINE void attend_block(const decode_task *t, int64_t k0, attn_span any, ds_dtype type)
{
    const decode_job *job = t->job;
    const attn_shape *s = &job->s;
    const int64_t from = any.first > k0 ? any.first / 4 * 4 : k0; /* sums go by four keys */
    const int64_t n = attn_min(any.last, k0 + ATTN_KEYS) - from;
    const float factor = (float)(s->factor * ATTN_LOG2E);
    const stretch k = {job->x.k, attn_key_at(s, t->b, from, t->kv), s->kv_stride, n, s->d};
    turn_keys(&k, job->turned, type);
    for (int64_t row = 0; row < job->heads_each * s->n_queries; ++row) {
        const attn_span seen = seen_by(t, row);
        const int64_t first = seen.first > from ? seen.first - from : 0;
        const int64_t last = attn_min(seen.last - from, n);
        if (first >= last) {
            continue;
        }
        float *y = job->y + row * job->width;
        score_keys(job->turned, job->q + row * job->width, s->d, job->scores);
        if (s->bends) {
            const int64_t i = row % s->n_queries;
            const attn_bend bend = attn_bend_of(s, &job->x, t->h0 + row / s->n_queries);
            bend_scores(&bend, job->scores, from - attn_position(&job->x, t->b, i));
        }
        const float alpha =
            soften(job->scores, first, last, factor, &job->top[row], &job->sum[row]);
        const stretch v = {job->x.v, attn_key_at(s, t->b, from + first, t->kv), s->kv_stride,
                           last - first, s->d};
        attend_values(&v, job->scores + first, alpha, y, type);
    }
}

static void finish_row(const decode_task *t, int64_t row)
{
    const decode_job *job = t->job;
    const attn_shape *s = &job->s;
    const int64_t h = t->h0 + row / s->n_queries;
    const int64_t i = row % s->n_queries;
    const float factor = (float)(s->factor * ATTN_LOG2E);
    const float sum = job->sum[row];
    float *lse = job->call->out[1].data;
    lse[attn_stat_at(s, t->b, h, i)] =
        sum == 0.0f ? -INFINITY : job->top[row] * factor * (float)ATTN_LN2 + logf(sum);
    attn_narrow_row(job->y + row * job->width, sum == 0.0f ? 0.0f : 1.0f / sum, s->d,
                    job->call->out[0].data, s->type, attn_query_at(s, s->y_stride, t->b, i, h));
}

static void head_task(void *arg, uint32_t task, uint32_t thread)
{
    decode_job job = *(const decode_job *)arg;
    const attn_shape *s = &job.s;
    const size_t each = carve(&job, NULL);
    (void)carve(&job, (char *)job.call->work + thread * each);
    const int64_t h = (int64_t)task * job.heads_each; /* among the heads of all samples */
    const decode_task t = {&job, h / s->n_heads, h % s->n_heads / s->group, h % s->n_heads};
    attn_span any = {s->n_keys, 0};
    for (int64_t row = 0; row < job.heads_each * s->n_queries; ++row) {
        const int64_t at =
            attn_query_at(s, s->q_stride, t.b, row % s->n_queries, t.h0 + row / s->n_queries);
        const attn_span seen = seen_by(&t, row);
        if (seen.first < seen.last) {
            any.first = attn_min(any.first, seen.first);
            any.last = seen.last > any.last ? seen.last : any.last;
        }
        attn_widen_rows(job.x.q, s->type, at, s->q_stride, 1, s->d, job.q + row * job.width,
                        job.width);
        memset(job.y + row * job.width, 0, (size_t)job.width * sizeof(float));
        job.top[row] = ATTN_LOWEST;
        job.sum[row] = 0.0f;
    }
    for (int64_t k0 = any.first / ATTN_KEYS * ATTN_KEYS; k0 < any.last; k0 += ATTN_KEYS) {
        DSI_BY_TYPE(s->type, attend_block(&t, k0, any, T))
    }
    for (int64_t row = 0; row < job.heads_each * s->n_queries; ++row) {
        finish_row(&t, row);
    }
}

ds_status DSI_NAME(dsi_attn_decode)(const ds_kernel_call *call)
{
    decode_job job = {.call = call, .s = attn_shape_of(call->sig, 0)};
    job.x = attn_data_of(call, &job.s, 0, 3, 4, 5);
    (void)carve(&job, NULL);
    ds_parallel(call->ctx, head_task, &job,
                (uint32_t)(job.s.n_batch * job.s.n_heads / job.heads_each));
    return DS_OK;
}
