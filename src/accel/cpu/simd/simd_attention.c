/* SPDX-License-Identifier: Apache-2.0 */
/* attention in fp32 vectors, for f32, bf16 and f16 operands.
 *
 * A task is one kv head of one sample and a chunk of its queries. Keys and values become dense fp32
 * rows; then for each block of queries, which are the lanes, it walks over blocks of keys: scores
 * (keys × queries), running maximum and sum by query, output (d × queries) += Vᵀ·P. Blocks that no
 * query sees are skipped. A step of generation goes to simd_attention_decode.c.
 */
#include "accel/cpu/simd/simd_attention.h"

typedef struct forward_work {
    float *scores; /* [ATTN_KEYS][ATTN_QUERIES] */
    float *y;      /* [d][ATTN_QUERIES] */
    float *q;      /* [d][ATTN_QUERIES] */
    float *rows;   /* [ATTN_QUERIES][width]: queries in, results out */
    float *k, *v;  /* [key][width] */
    float *top, *sum;
    int32_t *first, *last;
} forward_work;

typedef struct forward_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    attn_dropout drop;
    attn_split split;
    int64_t width;
} forward_job;

static size_t carve(forward_work *w, const attn_shape *s, void *base)
{
    enum { LANES = ATTN_QUERIES };
    const size_t width = (size_t)attn_width(s->d);
    attn_carver c = {base, 0};
    w->scores = attn_carve(&c, (size_t)ATTN_KEYS * LANES * sizeof(float));
    w->y = attn_carve(&c, width * LANES * sizeof(float));
    w->q = attn_carve(&c, width * LANES * sizeof(float));
    w->rows = attn_carve(&c, width * LANES * sizeof(float));
    w->k = attn_carve(&c, width * (size_t)s->n_keys * sizeof(float));
    w->v = attn_carve(&c, width * (size_t)s->n_keys * sizeof(float));
    w->top = attn_carve(&c, LANES * sizeof(float));
    w->sum = attn_carve(&c, LANES * sizeof(float));
    w->first = attn_carve(&c, LANES * sizeof(int32_t));
    w->last = attn_carve(&c, LANES * sizeof(int32_t));
    return c.bytes;
}

typedef struct block {
    const forward_job *job;
    const forward_work *w;
    int64_t b, h, i, n; /* queries [i,i+n) */
    int64_t vectors;
    int64_t key_base; /* first key in k and v */
    attn_reach reach;
} block;

static void mask_scores(const block *q, int64_t lane, int64_t k0, int64_t n)
{
    const vi first = vi_load(q->w->first + lane);
    const vi last = vi_load(q->w->last + lane);
    for (int64_t j = 0; j < n; ++j) {
        float *row = q->w->scores + j * ATTN_QUERIES + lane;
        vf_store(row, attn_masked(vf_load(row), k0 + j, first, last));
    }
}

/* Capped and biased scores, of lanes that are queries one behind the other. */
static void bend_scores(const block *q, int64_t lane, int64_t k0, int64_t n)
{
    const attn_bend bend = attn_bend_of(&q->job->s, &q->job->x, q->h);
    const vf origins = attn_origins(&q->job->s, &q->job->x, q->b, q->i + lane);
    for (int64_t j = 0; j < n; ++j) {
        float *row = q->w->scores + j * ATTN_QUERIES + lane;
        const vf distance = vf_sub(vf_set((float)(k0 + j)), origins);
        vf_store(row, attn_bent(&bend, vf_load(row), distance, NULL));
    }
}

/* Four rows of probabilities from key j on times their dropout factors. */
static void drop_four(const block *q, attn_elements base, int64_t j, int64_t n, float *rows)
{
    vf keep[4];
    attn_keep_four(&q->job->drop, base, j, keep);
    for (int64_t r = 0; r < n; ++r) {
        vf_store(rows + r * ATTN_QUERIES, vf_mul(vf_load(rows + r * ATTN_QUERIES), keep[r]));
    }
}

static void drop_scores(const block *q, int64_t lane, int64_t k0, int64_t n)
{
    const attn_elements base = attn_elements_of(&q->job->drop, q->b, q->h, q->i + lane);
    for (int64_t j = 0; j < n; j += 4) {
        drop_four(q, base, k0 + j, attn_min(4, n - j), q->w->scores + j * ATTN_QUERIES + lane);
    }
}

static void rescale(const block *q, int64_t lane, vf alpha)
{
    for (int64_t c = 0; c < q->job->s.d; ++c) {
        float *row = q->w->y + c * ATTN_QUERIES + lane;
        vf_store(row, vf_mul(vf_load(row), alpha));
    }
}

/* 2^(score·factor + down) of n keys, in place; their sum, of four by key. */
DSI_INLINE vf soften_rows(float *scores, int64_t n, vf factor, vf down)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t j = 0; j < n; j += 4) {
#pragma GCC unroll 4
        for (int64_t r = 0; r < 4; ++r) {
            if (j + r < n) {
                float *row = scores + (j + r) * ATTN_QUERIES;
                const vf p = attn_exp2(vf_fma(vf_load(row), factor, down));
                vf_store(row, p);
                sum[r] = vf_add(sum[r], p);
            }
        }
    }
    return vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
}

/* Scores of one vector of queries to probabilities. */
static void soften(const block *q, int64_t lane, int64_t k0, int64_t n, bool begins)
{
    const vf factor = vf_set((float)(q->job->s.factor * ATTN_LOG2E));
    if (q->job->s.bends) {
        bend_scores(q, lane, k0, n);
    }
    if (!attn_unmasked(&q->reach, k0, k0 + n)) {
        mask_scores(q, lane, k0, n);
    }
    float *scores = q->w->scores + lane;
    const vf before = vf_load(q->w->top + lane);
    vf top = before;
    for (int64_t j = 0; j < n; ++j) {
        top = vf_max(top, vf_load(scores + j * ATTN_QUERIES));
    }
    const vf down = vf_neg(vf_mul(top, factor));
    vf sum = soften_rows(scores, n, factor, down);
    if (!begins) {
        const vf alpha = attn_exp2(vf_mul(vf_sub(before, top), factor)); /* 1 when top stays */
        rescale(q, lane, alpha);
        sum = vf_fma(vf_load(q->w->sum + lane), alpha, sum);
    }
    vf_store(q->w->sum + lane, sum);
    vf_store(q->w->top + lane, top);
    if (q->job->x.rng != NULL) {
        drop_scores(q, lane, k0, n);
    }
}

static void attend_keys(const block *q, int64_t k0, int64_t n, bool begins)
{
    const forward_work *w = q->w;
    const int64_t width = q->job->width;
    const int64_t at = (k0 - q->key_base) * width;
    const attn_matrices scores = {.a = w->k + at,
                                  .a_row = width,
                                  .a_step = 1,
                                  .b = w->q,
                                  .b_step = ATTN_QUERIES,
                                  .c = w->scores,
                                  .c_row = ATTN_QUERIES,
                                  .n = q->job->s.d};
    attn_product_all(scores, n, q->vectors, false);
    for (int64_t v = 0; v < q->vectors; ++v) {
        soften(q, v * VF_WIDTH, k0, n, begins);
    }
    const attn_matrices output = {.a = w->v + at,
                                  .a_row = 1,
                                  .a_step = width,
                                  .b = w->scores,
                                  .b_step = ATTN_QUERIES,
                                  .c = w->y,
                                  .c_row = ATTN_QUERIES,
                                  .n = n};
    attn_product_all(output, q->job->s.d, q->vectors, !begins);
}

static void finish(const block *q, bool seen)
{
    const attn_shape *s = &q->job->s;
    const float factor = (float)(s->factor * ATTN_LOG2E);
    float *lse = (float *)q->job->call->out[1].data + attn_stat_at(s, q->b, q->h, q->i);
    float *row = q->w->rows;
    for (int64_t lane = 0; lane < q->n; ++lane) {
        const float sum = q->w->sum[lane];
        lse[lane] =
            sum == 0.0f ? -INFINITY : q->w->top[lane] * factor * (float)ATTN_LN2 + logf(sum);
        for (int64_t c = 0; c < s->d; ++c) {
            row[c] = seen ? q->w->y[c * ATTN_QUERIES + lane] : 0.0f;
        }
        attn_narrow_row(row, sum == 0.0f ? 0.0f : 1.0f / sum, s->d, q->job->call->out[0].data,
                        s->type, attn_query_at(s, s->y_stride, q->b, q->i + lane, q->h));
    }
}

static void attend(block *q)
{
    const attn_shape *s = &q->job->s;
    const forward_work *w = q->w;
    q->vectors = (q->n + VF_WIDTH - 1) / VF_WIDTH;
    q->reach = attn_spans(s, &q->job->x, q->b, q->i, q->n, ATTN_QUERIES, w->first, w->last);
    attn_widen_rows(q->job->x.q, s->type, attn_query_at(s, s->q_stride, q->b, q->i, q->h),
                    s->q_stride, q->n, s->d, w->rows, q->job->width);
    attn_to_lanes(w->rows, q->job->width, q->n, s->d, w->q);
    for (int64_t lane = 0; lane < ATTN_QUERIES; ++lane) {
        w->top[lane] = ATTN_LOWEST;
        w->sum[lane] = 0.0f;
    }
    const int64_t begin = q->reach.any_first / 4 * 4; /* dropout goes by four keys */
    const int64_t end = q->reach.any_last;
    for (int64_t k0 = begin, next; k0 < end; k0 = next) {
        next = attn_min(k0 / ATTN_KEYS * ATTN_KEYS + ATTN_KEYS, end);
        attend_keys(q, k0, next - k0, k0 == begin);
    }
    finish(q, begin < end);
}

/* Widens the keys that queries [i0,i1) see; returns the first of them. */
static int64_t widen_keys(const forward_job *job, const forward_work *w, int64_t b, int64_t kv,
                          int64_t i0, int64_t i1)
{
    const attn_shape *s = &job->s;
    attn_reach reach = attn_reach_none();
    for (int64_t i = i0; i < i1; ++i) {
        attn_reach_add(&reach, attn_visible(s, &job->x, b, i));
    }
    if (reach.any_first >= reach.any_last) {
        return 0;
    }
    const int64_t base = reach.any_first / 4 * 4;
    const int64_t at = attn_key_at(s, b, base, kv);
    const int64_t n = reach.any_last - base;
    attn_widen_rows(job->x.k, s->type, at, s->kv_stride, n, s->d, w->k, job->width);
    attn_widen_rows(job->x.v, s->type, at, s->kv_stride, n, s->d, w->v, job->width);
    return base;
}

static void forward_task(void *arg, uint32_t task, uint32_t thread)
{
    const forward_job *job = arg;
    const attn_shape *s = &job->s;
    forward_work w;
    const size_t each = carve(&w, s, NULL);
    (void)carve(&w, s, (char *)job->call->work + thread * each);
    int64_t head;
    int64_t i0;
    int64_t i1;
    attn_range(&job->split, s->n_queries, task, &head, &i0, &i1);
    const int64_t b = head / s->n_kv;
    const int64_t kv = head % s->n_kv;
    block q = {.job = job, .w = &w, .b = b, .key_base = widen_keys(job, &w, b, kv, i0, i1)};
    for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h) {
        for (int64_t i = i0; i < i1; i += ATTN_QUERIES) {
            q.h = h;
            q.i = i;
            q.n = attn_min(ATTN_QUERIES, i1 - i);
            attend(&q);
        }
    }
}

static bool supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype) && attn_shape_fits(sig, 0);
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    if (DSI_NAME(dsi_attn_decodes)(sig)) {
        return DSI_NAME(dsi_attn_decode_work)(sig);
    }
    const attn_shape s = attn_shape_of(sig, 0);
    forward_work w;
    return carve(&w, &s, NULL) * sig->n_threads;
}

static ds_status run(const ds_kernel_call *call)
{
    DS_TRY(attn_check_threads(call));
    if (DSI_NAME(dsi_attn_decodes)(call->sig)) {
        return DSI_NAME(dsi_attn_decode)(call);
    }
    forward_job job = {.call = call, .s = attn_shape_of(call->sig, 0)};
    job.x = attn_data_of(call, &job.s, 0, 3, 4, 5);
    job.drop = attn_dropout_of(&job.s, &job.x);
    job.split = attn_split_of(&job.s, call->sig->n_threads, ATTN_QUERIES);
    job.width = attn_width(job.s.d);
    ds_parallel(call->ctx, forward_task, &job, (uint32_t)(job.split.n_heads * job.split.n_chunks));
    return DS_OK;
}

DSI_SIMD_KERNEL(attention, supports, work_bytes, run);
