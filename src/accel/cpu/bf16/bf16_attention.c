/* SPDX-License-Identifier: Apache-2.0 */
/* attention in bf16, on tiles of AMX or dot products of AVX-512.
 *
 * A task is one kv head of one sample and a chunk of its queries. It packs the keys and values that
 * the chunk sees, then for each block of 32 queries walks over blocks of 128 keys: scores (keys ×
 * queries) = K·Qᵀ, running maximum and sum by query, probabilities rounded to bf16, output (d ×
 * queries) += Vᵀ·P. Blocks that no query sees are skipped.
 *
 * Invariant: each query's sums run over blocks of keys counted from key 0, and a block that it does
 * not see changes nothing, so neither the queries beside it nor chunks and threads change results.
 */
#include "accel/cpu/bf16/bf16_attention.h"

enum { QUERIES = 32, KEYS = 128, Q_TILES = 2 };

typedef struct forward_work {
    float *scores; /* [KEYS/16][Q_TILES] tiles */
    uint16_t *p;   /* [KEYS/32][Q_TILES] tiles */
    float *y;      /* [d tiles][Q_TILES] tiles */
    uint16_t *q, *k, *v;
    float *top, *sum; /* a query */
    int32_t *first, *last;
} forward_work;

typedef struct forward_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    attn_dropout drop;
    attn_split split;
} forward_job;

static size_t carve(forward_work *w, const attn_shape *s, void *base)
{
    const size_t width = (size_t)attn_steps(s->d) * 32;
    const size_t keys = (size_t)attn_round_up(s->n_keys, 32);
    attn_carver c = {base, 0};
    w->scores = attn_carve(&c, (size_t)KEYS * QUERIES * sizeof(float));
    w->p = attn_carve(&c, (size_t)KEYS * QUERIES * sizeof(uint16_t));
    w->y = attn_carve(&c, width * QUERIES * sizeof(float));
    w->q = attn_carve(&c, width * QUERIES * sizeof(uint16_t));
    w->k = attn_carve(&c, width * keys * sizeof(uint16_t));
    w->v = attn_carve(&c, width * keys * sizeof(uint16_t));
    w->top = attn_carve(&c, QUERIES * sizeof(float));
    w->sum = attn_carve(&c, QUERIES * sizeof(float));
    w->first = attn_carve(&c, QUERIES * sizeof(int32_t));
    w->last = attn_carve(&c, QUERIES * sizeof(int32_t));
    return c.bytes;
}

/* One block of queries of one head. */
typedef struct block {
    const forward_job *job;
    const forward_work *w;
    int64_t b, h, i, n; /* queries [i,i+n) */
    int64_t n_tiles;    /* of queries: 1 or 2 */
    int64_t key_base;   /* first packed key */
    attn_reach reach;
} block;

/* Hides what lane's queries do not see, among keys [k0,k0+n). */
static void mask_scores(const block *q, int64_t t, int64_t k0, int64_t n)
{
    const vi first = vi_load(q->w->first + t * 16);
    const vi last = vi_load(q->w->last + t * 16);
    for (int64_t j = 0; j < n; ++j) {
        float *row = q->w->scores + (j / 16 * Q_TILES + t) * 256 + j % 16 * 16;
        vf_store(row, attn_masked(vf_load(row), k0 + j, first, last));
    }
}

static vf highest(const float *tile, int64_t n, vf top)
{
    vf a = top;
    vf b = top;
    for (int64_t j = 0; j < n; j += 16) {
        for (int r = 0; r < 16; r += 2) {
            a = vf_max(a, vf_load(tile + r * 16));
            b = vf_max(b, vf_load(tile + r * 16 + 16));
        }
        tile += 256 * Q_TILES;
    }
    return vf_max(a, b);
}

/* Scores of query tile t to probabilities; returns their sum by query. top2: top in log2 units. */
DSI_INLINE vf probabilities(const block *q, int64_t t, int64_t k0, int64_t n, vf factor, vf top2,
                            bool drops)
{
    const attn_dropout *drop = &q->job->drop;
    const attn_elements base =
        drops ? attn_elements_of(drop, q->b, q->h, q->i + t * 16) : (attn_elements){0};
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t j = 0; j < n; j += 4) {
        const float *rows = q->w->scores + (j / 16 * Q_TILES + t) * 256 + j % 16 * 16;
        uint16_t *to = q->w->p + (j / 32 * Q_TILES + t) * TILE_HALVES + j % 32 * 16;
        vf p[4];
        for (int r = 0; r < 4; ++r) {
            p[r] = attn_exp2_short(_mm512_fmsub_ps(vf_load(rows + r * 16), factor, top2));
            sum[r] = vf_add(sum[r], p[r]);
        }
        if (drops) {
            vf keep[4];
            attn_keep_four(drop, base, k0 + j, keep);
            for (int r = 0; r < 4; ++r) {
                p[r] = vf_mul(p[r], keep[r]);
            }
        }
        _mm512_store_si512(to, attn_pair_floats(p[0], p[1]));
        _mm512_store_si512(to + 32, attn_pair_floats(p[2], p[3]));
    }
    return vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]));
}

/* y of query tile t times alpha; nothing when all factors are 1. */
static void rescale(const block *q, int64_t t, vf alpha)
{
    if (_mm512_cmp_ps_mask(alpha, vf_set(1.0f), _CMP_NEQ_UQ) == 0) {
        return;
    }
    const int64_t rows = (q->job->s.d + 15) / 16 * 16;
    for (int64_t c = 0; c < rows; ++c) {
        float *row = q->w->y + (c / 16 * Q_TILES + t) * 256 + c % 16 * 16;
        vf_store(row, vf_mul(vf_load(row), alpha));
    }
}

static void soften(const block *q, int64_t t, int64_t k0, int64_t n, bool begins)
{
    const vf factor = vf_set((float)(q->job->s.a->scale * ATTN_LOG2E));
    if (!attn_unmasked(&q->reach, k0, k0 + n)) {
        mask_scores(q, t, k0, n);
    }
    const vf before = vf_load(q->w->top + t * 16);
    const vf top = highest(q->w->scores + t * 256, n, before);
    const vf top2 = vf_mul(top, factor);
    vf sum = vf_load(q->w->sum + t * 16);
    if (!begins) {
        const vf alpha = attn_exp2(vf_mul(vf_sub(before, top), factor)); /* 1 when top stays */
        rescale(q, t, alpha);
        sum = vf_mul(sum, alpha);
    }
    const vf part = q->job->x.rng != NULL ? probabilities(q, t, k0, n, factor, top2, true)
                                          : probabilities(q, t, k0, n, factor, top2, false);
    vf_store(q->w->sum + t * 16, vf_add(sum, part));
    vf_store(q->w->top + t * 16, top);
}

/* Keys [k0,k0+n), n a multiple of 32 up to KEYS. */
static void attend_keys(const block *q, int64_t k0, int64_t n, bool begins)
{
    const forward_work *w = q->w;
    const int64_t steps = attn_steps(q->job->s.d);
    const int64_t at = (k0 - q->key_base) / 16;
    const attn_product scores = {.a = w->k + at * steps * TILE_HALVES,
                                 .b = w->q,
                                 .a_row = steps * TILE_HALVES,
                                 .a_step = TILE_HALVES,
                                 .b_col = TILE_HALVES,
                                 .b_step = Q_TILES * TILE_HALVES,
                                 .c = w->scores,
                                 .c_row = Q_TILES * 256,
                                 .c_col = 256,
                                 .n_steps = steps};
    attn_multiply_all(scores, n / 16, q->n_tiles, false);
    for (int64_t t = 0; t < q->n_tiles; ++t) {
        soften(q, t, k0, n, begins);
    }
    const attn_product output = {.a = w->v + at * steps * TILE_HALVES,
                                 .b = w->p,
                                 .a_row = TILE_HALVES,
                                 .a_step = 2 * steps * TILE_HALVES,
                                 .b_col = TILE_HALVES,
                                 .b_step = Q_TILES * TILE_HALVES,
                                 .c = w->y,
                                 .c_row = Q_TILES * 256,
                                 .c_col = 256,
                                 .n_steps = n / 32};
    attn_multiply_all(output, (q->job->s.d + 15) / 16, q->n_tiles, !begins);
}

/* Divides by the sums, writes y and lse. seen: some key was visited, so y holds something. */
static void finish(const block *q, bool seen)
{
    const attn_shape *s = &q->job->s;
    const float factor = (float)(s->a->scale * ATTN_LOG2E);
    float *lse = q->job->call->out[1].data;
    uint16_t *y = q->job->call->out[0].data;
    lse += attn_stat_at(s, q->b, q->h, q->i);
    for (int64_t lane = 0; lane < q->n; ++lane) {
        const float sum = q->w->sum[lane];
        lse[lane] =
            sum == 0.0f ? -INFINITY : q->w->top[lane] * factor * (float)ATTN_LN2 + logf(sum);
    }
    for (int64_t t = 0; t < q->n_tiles; ++t) {
        const vf sum = vf_load(q->w->sum + t * 16);
        const vm none = vf_eq(sum, vf_zero());
        const vf scale = vf_select(none, vf_zero(), vf_div(vf_set(1.0f), sum));
        for (int64_t c = 0; c < s->d; c += 16) {
            float *tile = q->w->y + (c / 16 * Q_TILES + t) * 256;
            if (!seen) {
                memset(tile, 0, 1024);
            }
            DSI_NAME(dsi_attn_store_columns)
            (tile, scale, y + attn_query_at(s, s->y_stride, q->b, q->i + t * 16, q->h) + c,
             s->y_stride, q->n - t * 16, s->d - c);
        }
    }
}

static void attend(block *q)
{
    const attn_shape *s = &q->job->s;
    const forward_work *w = q->w;
    q->n_tiles = (q->n + 15) / 16;
    q->reach = attn_spans(s, &q->job->x, q->b, q->i, q->n, QUERIES, w->first, w->last);
    const attn_source source = {(const uint16_t *)q->job->x.q +
                                    attn_query_at(s, s->q_stride, q->b, q->i, q->h),
                                s->q_stride, q->n, s->d};
    DSI_NAME(dsi_attn_pack)(&source, QUERIES, &(attn_packed){.rows_t = w->q});
    for (int64_t lane = 0; lane < QUERIES; ++lane) {
        w->top[lane] = ATTN_LOWEST;
        w->sum[lane] = 0.0f;
    }
    const int64_t begin = q->reach.any_first / 32 * 32;
    const int64_t end = attn_round_up(q->reach.any_last, 32);
    for (int64_t k0 = begin, next; k0 < end; k0 = next) {
        next = attn_min(k0 / KEYS * KEYS + KEYS, end);
        attend_keys(q, k0, next - k0, k0 == begin);
    }
    finish(q, begin < end);
}

/* Packs the keys that queries [i0,i1) see; returns the first of them. */
static int64_t pack_keys(const forward_job *job, const forward_work *w, int64_t b, int64_t kv,
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
    const int64_t base = reach.any_first / 32 * 32;
    const int64_t n = reach.any_last - base;
    const int64_t at = attn_key_at(s, b, base, kv);
    const attn_source k = {(const uint16_t *)job->x.k + at, s->kv_stride, n, s->d};
    const attn_source v = {(const uint16_t *)job->x.v + at, s->kv_stride, n, s->d};
    DSI_NAME(dsi_attn_pack)(&k, attn_round_up(n, 32), &(attn_packed){.rows = w->k});
    DSI_NAME(dsi_attn_pack)(&v, attn_round_up(n, 32), &(attn_packed){.columns = w->v});
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
    block q = {.job = job, .w = &w, .b = b, .key_base = pack_keys(job, &w, b, kv, i0, i1)};
    attn_tiles_begin();
    for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h) {
        for (int64_t i = i0; i < i1; i += QUERIES) {
            q.h = h;
            q.i = i;
            q.n = attn_min(QUERIES, i1 - i);
            attend(&q);
        }
    }
    attn_tiles_end();
}

static bool supports(const ds_kernel_sig *sig)
{
    /* A few queries only: the vector kernels read each key once, which is all there is to do. */
    return sig->in[0].dtype == DS_DTYPE_BF16 && sig->in[0].shape.dims[1] >= 8 &&
           attn_shape_fits(sig, 0) && !attn_bends(sig->attrs);
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    const attn_shape s = attn_shape_of(sig, 0);
    forward_work w;
    return carve(&w, &s, NULL) * sig->n_threads;
}

static ds_status run(const ds_kernel_call *call)
{
    DS_TRY(attn_check_threads(call));
    forward_job job = {.call = call, .s = attn_shape_of(call->sig, 0)};
    job.x = attn_data_of(call, &job.s, 0, 3, 4, 5);
    job.drop = attn_dropout_of(&job.s, &job.x);
    job.split = attn_split_of(&job.s, call->sig->n_threads, QUERIES);
    ds_parallel(call->ctx, forward_task, &job, (uint32_t)(job.split.n_heads * job.split.n_chunks));
    return DS_OK;
}

DSI_BF16_KERNEL(attention);
