/* SPDX-License-Identifier: Apache-2.0 */
/* attention for a step of generation: a few queries against all the keys of a cell, with the bits
 * that simd_attention.c gives the same query among many.
 *
 * Reading keys and values once is the whole cost. A task is one kv head of one sample with all
 * query heads of the group (or some of them, where there are few kv heads). It walks over the same
 * blocks of keys, as simd_attn_keys.h does each. Called by simd_attention.c.
 */
#include "accel/cpu/simd/simd_attn_keys.h"

enum {
    MOST_QUERIES = 4, /* of an operator that counts as generation */
    FEW_HEADS = 4     /* kv heads of all samples: below, a task may have fewer query heads */
};

typedef struct decode_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    uint32_t n_threads;
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
    job->heads_each = s->n_batch * s->n_kv < FEW_HEADS
                          ? attn_heads_each(s->group, s->n_batch * s->n_kv, job->n_threads)
                          : s->group;
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
    decode_job job = {.s = attn_shape_of(sig, 0), .n_threads = sig->n_threads};
    return carve(&job, NULL) * sig->n_threads;
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
            bend_scores(&bend, job->scores, from - attn_origin(s, &job->x, t->b, i));
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
    decode_job job = {
        .call = call, .s = attn_shape_of(call->sig, 0), .n_threads = call->sig->n_threads};
    job.x = attn_data_of(call, &job.s, 0, 3, 4, 5);
    (void)carve(&job, NULL);
    ds_parallel(call->ctx, head_task, &job,
                (uint32_t)(job.s.n_batch * job.s.n_heads / job.heads_each));
    return DS_OK;
}
