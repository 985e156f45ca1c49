/* SPDX-License-Identifier: Apache-2.0 */
/* attention_backward in fp32 vectors, for f32, bf16 and f16 operands.
 *
 * A task is one kv head of one sample. For each block of keys and each block of queries, which are
 * lanes, that sees some of them: scores and their gradient (keys × queries), probabilities again
 * from lse; dV += P·dY, dK += dS·Q (lanes are d), dQᵀ += Kᵀ·dS (lanes are queries), all in fp32.
 *
 * Invariant: sums run in the order heads of the group, blocks of keys, blocks of queries.
 */
#include "accel/cpu/simd/simd_attention.h"

typedef struct backward_work {
    float *scores, *dp;        /* [ATTN_KEYS][ATTN_QUERIES] */
    float *k, *v, *dk, *dv;    /* [key][width] */
    float *q_rows, *dy_rows;   /* [query][width] */
    float *q_lanes, *dy_lanes; /* [block of queries][d][ATTN_QUERIES] */
    float *dq;                 /* likewise */
    float *lse2, *delta;       /* a query */
    int32_t *first, *last;
} backward_work;

typedef struct backward_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    attn_dropout drop;
    int64_t width, queries; /* queries rounded up to blocks */
} backward_job;

typedef struct head {
    const backward_job *job;
    const backward_work *w;
    int64_t b, kv, h;
} head;

static size_t carve(backward_work *w, const attn_shape *s, void *base)
{
    const size_t width = (size_t)attn_width(s->d);
    const size_t keys = (size_t)s->n_keys;
    const size_t queries = (size_t)attn_round_up(s->n_queries, ATTN_QUERIES);
    attn_carver c = {base, 0};
    w->scores = attn_carve(&c, (size_t)ATTN_KEYS * (size_t)ATTN_QUERIES * sizeof(float));
    w->dp = attn_carve(&c, (size_t)ATTN_KEYS * (size_t)ATTN_QUERIES * sizeof(float));
    w->k = attn_carve(&c, keys * width * sizeof(float));
    w->v = attn_carve(&c, keys * width * sizeof(float));
    w->dk = attn_carve(&c, keys * width * sizeof(float));
    w->dv = attn_carve(&c, keys * width * sizeof(float));
    w->q_rows = attn_carve(&c, queries * width * sizeof(float));
    w->dy_rows = attn_carve(&c, queries * width * sizeof(float));
    w->q_lanes = attn_carve(&c, queries * width * sizeof(float));
    w->dy_lanes = attn_carve(&c, queries * width * sizeof(float));
    w->dq = attn_carve(&c, queries * width * sizeof(float));
    w->lse2 = attn_carve(&c, queries * sizeof(float));
    w->delta = attn_carve(&c, queries * sizeof(float));
    w->first = attn_carve(&c, queries * sizeof(int32_t));
    w->last = attn_carve(&c, queries * sizeof(int32_t));
    return c.bytes;
}

static void clear(float *p, int64_t n)
{
    memset(p, 0, (size_t)n * sizeof *p);
}

/* Σ dy·y of one query, less what comes to its lse. */
static float delta_of(const head *x, int64_t i)
{
    const attn_shape *s = &x->job->s;
    const size_t at = (size_t)attn_query_at(s, s->y_stride, x->b, i, x->h);
    const void *dy = x->job->call->in[0].data;
    const void *y = x->job->call->in[4].data;
    vf sum = vf_zero();
    for (int64_t c = 0; c < s->d; c += VF_WIDTH) {
        const size_t left = (size_t)attn_min(VF_WIDTH, s->d - c);
        sum = vf_fma(vf_get_n(dy, s->type, at + (size_t)c, left),
                     vf_get_n(y, s->type, at + (size_t)c, left), sum);
    }
    const float *dlse =
        x->job->call->sig->n_in > 12 ? (const float *)x->job->call->in[12].data : NULL;
    return vf_sum(sum) - (dlse != NULL ? dlse[attn_stat_at(s, x->b, x->h, i)] : 0.0f);
}

/* Operands of the head's queries; those past the end have zero rows, so that they add nothing. */
static void load_queries(const head *x)
{
    const backward_job *job = x->job;
    const backward_work *w = x->w;
    const attn_shape *s = &job->s;
    const int64_t width = job->width;
    const float *lse = (const float *)job->call->in[5].data + attn_stat_at(s, x->b, x->h, 0);
    clear(w->q_rows, job->queries * width);
    clear(w->dy_rows, job->queries * width);
    attn_widen_rows(job->x.q, s->type, attn_query_at(s, s->q_stride, x->b, 0, x->h), s->q_stride,
                    s->n_queries, s->d, w->q_rows, width);
    attn_widen_rows(job->call->in[0].data, s->type, attn_query_at(s, s->y_stride, x->b, 0, x->h),
                    s->y_stride, s->n_queries, s->d, w->dy_rows, width);
    for (int64_t i = 0; i < job->queries; i += ATTN_QUERIES) {
        attn_to_lanes(w->q_rows + i * width, width, ATTN_QUERIES, s->d, w->q_lanes + i * width);
        attn_to_lanes(w->dy_rows + i * width, width, ATTN_QUERIES, s->d, w->dy_lanes + i * width);
    }
    for (int64_t i = 0; i < job->queries; ++i) {
        const bool real = i < s->n_queries;
        w->delta[i] = real ? delta_of(x, i) : 0.0f;
        w->lse2[i] = real && lse[i] != -INFINITY ? lse[i] * (float)ATTN_LOG2E : 0.0f;
    }
    clear(w->dq, job->queries * width);
    (void)attn_spans(s, &job->x, x->b, 0, s->n_queries, job->queries, w->first, w->last);
}

/* ---- a block of keys [k0,k0+n) against queries [q0,q0+ATTN_QUERIES)
 * ------------------------------ */
typedef struct block {
    int64_t k0, n, q0, vectors;
    bool masked;
} block;

static void score_products(const head *x, const block *at)
{
    const int64_t width = x->job->width;
    attn_matrices m = {.a = x->w->k + at->k0 * width,
                       .a_row = width,
                       .a_step = 1,
                       .b = x->w->q_lanes + at->q0 * width,
                       .b_step = ATTN_QUERIES,
                       .c = x->w->scores,
                       .c_row = ATTN_QUERIES,
                       .n = x->job->s.d};
    attn_product_all(m, at->n, at->vectors, false);
    m.a = x->w->v + at->k0 * width;
    m.b = x->w->dy_lanes + at->q0 * width;
    m.c = x->w->dp;
    attn_product_all(m, at->n, at->vectors, false);
}

/* Scores of one vector of queries to the probabilities as used, dp to the scores' gradients. */
static void gradients(const head *x, const block *at, int64_t lane)
{
    const backward_job *job = x->job;
    const backward_work *w = x->w;
    const vf factor = vf_set((float)(job->s.factor * ATTN_LOG2E));
    const attn_bend bend = attn_bend_of(&job->s, &job->x, x->h);
    const vf origins =
        job->s.bends ? attn_origins(&job->s, &job->x, x->b, at->q0 + lane) : vf_zero();
    const vf down = vf_neg(vf_load(w->lse2 + at->q0 + lane));
    const vf delta = vf_load(w->delta + at->q0 + lane);
    const vi first = vi_load(w->first + at->q0 + lane);
    const vi last = vi_load(w->last + at->q0 + lane);
    const bool drops = job->x.rng != NULL;
    const attn_elements base = drops ? attn_elements_of(&job->drop, x->b, x->h, at->q0 + lane)
                                     : (attn_elements){vi_set(0), vi_set(0)};
    vf keep[4] = {vf_set(1.0f), vf_set(1.0f), vf_set(1.0f), vf_set(1.0f)};
    for (int64_t j = 0; j < at->n; ++j) {
        float *score = w->scores + j * ATTN_QUERIES + lane;
        float *dp = w->dp + j * ATTN_QUERIES + lane;
        if (drops && j % 4 == 0) {
            attn_keep_four(&job->drop, base, at->k0 + j, keep);
        }
        vf s = vf_load(score);
        vf turn = vf_set(1.0f);
        if (job->s.bends) {
            const vf distance = vf_sub(vf_set((float)(at->k0 + j)), origins);
            s = attn_bent(&bend, s, distance, &turn);
        }
        if (at->masked) {
            s = attn_masked(s, at->k0 + j, first, last);
        }
        const vf p = attn_exp2(vf_fma(s, factor, down));
        const vf d = vf_mul(vf_load(dp), keep[j % 4]);
        vf_store(score, vf_mul(p, keep[j % 4]));
        vf_store(dp, vf_mul(vf_mul(p, turn), vf_sub(d, delta)));
    }
}

static void gradient_products(const head *x, const block *at)
{
    const backward_work *w = x->w;
    const int64_t width = x->job->width;
    const int64_t n_queries = attn_min(ATTN_QUERIES, x->job->s.n_queries - at->q0);
    attn_matrices m = {.a = w->scores,
                       .a_row = ATTN_QUERIES,
                       .a_step = 1,
                       .b = w->dy_rows + at->q0 * width,
                       .b_step = width,
                       .c = w->dv + at->k0 * width,
                       .c_row = width,
                       .n = n_queries};
    attn_product_all(m, at->n, width / VF_WIDTH, true);
    m.a = w->dp;
    m.b = w->q_rows + at->q0 * width;
    m.c = w->dk + at->k0 * width;
    attn_product_all(m, at->n, width / VF_WIDTH, true);
    const attn_matrices dq = {.a = w->k + at->k0 * width,
                              .a_row = 1,
                              .a_step = width,
                              .b = w->dp,
                              .b_step = ATTN_QUERIES,
                              .c = w->dq + at->q0 * width,
                              .c_row = ATTN_QUERIES,
                              .n = at->n};
    attn_product_all(dq, x->job->s.d, at->vectors, true);
}

/* ---- a head
 * -------------------------------------------------------------------------------------- */
static void store_queries(const head *x)
{
    const attn_shape *s = &x->job->s;
    float *row = x->w->scores; /* free by now */
    for (int64_t i = 0; i < s->n_queries; ++i) {
        const float *lanes = x->w->dq + i / ATTN_QUERIES * ATTN_QUERIES * x->job->width;
        for (int64_t c = 0; c < s->d; ++c) {
            row[c] = lanes[c * ATTN_QUERIES + i % ATTN_QUERIES];
        }
        attn_narrow_row(row, (float)s->a->scale, s->d, x->job->call->out[0].data, s->type,
                        attn_query_at(s, s->q_stride, x->b, i, x->h));
    }
}

static void store_keys(const head *x, const float *rows, float scale, const ds_tensor *to,
                       int64_t at)
{
    const attn_shape *s = &x->job->s;
    for (int64_t j = 0; j < s->n_keys; ++j) {
        attn_narrow_row(rows + j * x->job->width, scale, s->d, to->data, s->type,
                        attn_key_at(s, x->b, j, x->kv) + at);
    }
}

static void backward_head(const head *x)
{
    const backward_job *job = x->job;
    const attn_shape *s = &job->s;
    load_queries(x);
    for (int64_t k0 = 0; k0 < s->n_keys; k0 += ATTN_KEYS) {
        for (int64_t q0 = 0; q0 < s->n_queries; q0 += ATTN_QUERIES) {
            const int64_t n = attn_min(ATTN_QUERIES, s->n_queries - q0);
            attn_reach reach = attn_reach_none();
            for (int64_t i = q0; i < q0 + n; ++i) {
                attn_reach_add(&reach, (attn_span){x->w->first[i], x->w->last[i]});
            }
            block at = {k0, attn_min(ATTN_KEYS, s->n_keys - k0), q0, (n + VF_WIDTH - 1) / VF_WIDTH,
                        false};
            if (reach.any_last <= k0 || reach.any_first >= k0 + at.n) {
                continue;
            }
            at.masked = !attn_unmasked(&reach, k0, k0 + at.n);
            score_products(x, &at);
            for (int64_t v = 0; v < at.vectors; ++v) {
                gradients(x, &at, v * VF_WIDTH);
            }
            gradient_products(x, &at);
        }
    }
    store_queries(x);
}

static void backward_task(void *arg, uint32_t task, uint32_t thread)
{
    const backward_job *job = arg;
    const attn_shape *s = &job->s;
    const ds_kernel_call *call = job->call;
    backward_work w;
    const size_t each = carve(&w, s, NULL);
    (void)carve(&w, s, (char *)call->work + thread * each);
    head x = {.job = job, .w = &w, .b = task / s->n_kv, .kv = task % s->n_kv};
    const int64_t at = attn_key_at(s, x.b, 0, x.kv);
    attn_widen_rows(job->x.k, s->type, at, s->kv_stride, s->n_keys, s->d, w.k, job->width);
    attn_widen_rows(job->x.v, s->type, at, s->kv_stride, s->n_keys, s->d, w.v, job->width);
    clear(w.dk, s->n_keys * job->width);
    clear(w.dv, s->n_keys * job->width);
    for (x.h = x.kv * s->group; x.h < (x.kv + 1) * s->group; ++x.h) {
        backward_head(&x);
    }
    const bool packed = s->a->packed != 0;
    store_keys(&x, w.dk, (float)s->a->scale, &call->out[packed ? 0 : 1], s->k_at);
    store_keys(&x, w.dv, 1.0f, &call->out[packed ? 0 : 2], s->v_at);
}

static bool supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[1].dtype) && attn_shape_fits(sig, 1);
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    const attn_shape s = attn_shape_of(sig, 1);
    backward_work w;
    return carve(&w, &s, NULL) * sig->n_threads;
}

static ds_status run(const ds_kernel_call *call)
{
    DS_TRY(attn_check_threads(call));
    backward_job job = {.call = call, .s = attn_shape_of(call->sig, 1)};
    job.x = attn_data_of(call, &job.s, 1, 6, 0, 7);
    job.drop = attn_dropout_of(&job.s, &job.x);
    job.width = attn_width(job.s.d);
    job.queries = attn_round_up(job.s.n_queries, ATTN_QUERIES);
    ds_parallel(call->ctx, backward_task, &job, (uint32_t)(job.s.n_batch * job.s.n_kv));
    return DS_OK;
}

DSI_SIMD_KERNEL(attention_backward, supports, work_bytes, run);
