/* SPDX-License-Identifier: Apache-2.0 */
/* attention_backward in bf16, on tiles of AMX or dot products of AVX-512.
 *
 * A task is one kv head of one sample. It packs the operands in the forms that five products need,
 * then for each block of 64 keys and each block of 64 queries that sees some of them:
 *   scores (keys × queries) = K·Qᵀ, their gradient = V·dYᵀ; probabilities again from lse;
 *   dV += P·dY, dK += dS·Q (rows are keys), dQᵀ += Kᵀ·dS (rows are d), all accumulated in fp32.
 * P and dS are rounded to bf16; the scale is applied to dQ and dK at the end.
 *
 * Pairing keys within 128-bit lanes deals 32 queries to two tiles of dQ: column c of the first
 * holds query 8·(c/4) + c%4, and of the second the one 4 further on.
 *
 * Invariant: sums run in the order heads of the group, blocks of keys, blocks of queries.
 */
#include "accel/cpu/bf16/bf16_attention.h"

enum { KEYS = 64, QUERIES = 64, TILES = QUERIES / 16 };

typedef struct backward_work {
    float *scores, *dp;       /* [key tile][query tile], TILES a row */
    uint16_t *p, *ds;         /* keys × queries: [key tile][query/32] */
    uint16_t *ds_pairs;       /* [key/32][query tile], queries dealt as below */
    uint16_t *k, *v, *k_cols; /* rows, rows, columns: whole head */
    uint16_t *q, *dy;         /* rows_t */
    uint16_t *q_pairs, *dy_pairs;
    float *dk, *dv; /* [key tile][d tile] */
    float *dq;      /* [query tile][d tile], each tile (d, query), queries dealt */
    float *lse2, *delta;
    int32_t *first, *last;
    attn_reach *reach; /* a block of queries */
} backward_work;

typedef struct backward_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    attn_dropout drop;
    int64_t steps, d_tiles; /* of the packed forms: 32 d a step, 16 a tile */
    int64_t used_tiles;     /* of 16 d that hold data */
    int64_t queries, keys;  /* rounded up to 32 */
    const uint16_t *dy, *y;
    const float *lse, *dlse; /* dlse: or NULL */
} backward_job;

/* One head in work. */
typedef struct head {
    const backward_job *job;
    const backward_work *w;
    int64_t b, kv, h;
} head;

static size_t carve(backward_work *w, const attn_shape *s, void *base)
{
    enum { SCORES = KEYS * QUERIES };
    const size_t width = (size_t)attn_steps(s->d) * 32;
    const size_t keys = (size_t)attn_round_up(s->n_keys, 32);
    const size_t queries = (size_t)attn_round_up(s->n_queries, 32);
    attn_carver c = {base, 0};
    w->scores = attn_carve(&c, SCORES * sizeof(float));
    w->dp = attn_carve(&c, SCORES * sizeof(float));
    w->p = attn_carve(&c, SCORES * sizeof(uint16_t));
    w->ds = attn_carve(&c, SCORES * sizeof(uint16_t));
    w->ds_pairs = attn_carve(&c, SCORES * sizeof(uint16_t));
    w->k = attn_carve(&c, keys * width * sizeof(uint16_t));
    w->v = attn_carve(&c, keys * width * sizeof(uint16_t));
    w->k_cols = attn_carve(&c, keys * width * sizeof(uint16_t));
    w->q = attn_carve(&c, queries * width * sizeof(uint16_t));
    w->dy = attn_carve(&c, queries * width * sizeof(uint16_t));
    w->q_pairs = attn_carve(&c, queries * width * sizeof(uint16_t));
    w->dy_pairs = attn_carve(&c, queries * width * sizeof(uint16_t));
    w->dk = attn_carve(&c, keys * width * sizeof(float));
    w->dv = attn_carve(&c, keys * width * sizeof(float));
    w->dq = attn_carve(&c, queries * width * sizeof(float));
    w->lse2 = attn_carve(&c, queries * sizeof(float));
    w->delta = attn_carve(&c, queries * sizeof(float));
    w->first = attn_carve(&c, queries * sizeof(int32_t));
    w->last = attn_carve(&c, queries * sizeof(int32_t));
    w->reach = attn_carve(&c, (queries / QUERIES + 1) * sizeof(attn_reach));
    return c.bytes;
}

/* ---- before the products ------------------------------------------------------------------------
 */
static void pack_keys(const head *x)
{
    const attn_shape *s = &x->job->s;
    const int64_t at = attn_key_at(s, x->b, 0, x->kv);
    const attn_source k = {(const uint16_t *)x->job->x.k + at, s->kv_stride, s->n_keys, s->d};
    const attn_source v = {(const uint16_t *)x->job->x.v + at, s->kv_stride, s->n_keys, s->d};
    DSI_NAME(dsi_attn_pack)
    (&k, x->job->keys, &(attn_packed){.rows = x->w->k, .columns = x->w->k_cols});
    DSI_NAME(dsi_attn_pack)(&v, x->job->keys, &(attn_packed){.rows = x->w->v});
}

static float dot_halves(const uint16_t *a, const uint16_t *b, int64_t n)
{
    vf sum = vf_zero();
    int64_t c = 0;
    for (; c + 16 <= n; c += 16) {
        sum = vf_fma(vf_load_bf16(a + c), vf_load_bf16(b + c), sum);
    }
    if (c < n) {
        const size_t left = (size_t)(n - c);
        sum = vf_fma(vf_load_bf16_n(a + c, left), vf_load_bf16_n(b + c, left), sum);
    }
    return vf_sum(sum);
}

/* lse in log2 units and delta = Σ dy·y - dlse of each query; queries past the end get zeros, whose
 * rows of Q and dY are zero too, so that they add nothing. */
static void query_sums(const head *x)
{
    const attn_shape *s = &x->job->s;
    const int64_t stat = attn_stat_at(s, x->b, x->h, 0);
    const float *lse = x->job->lse + stat;
    const float *dlse = x->job->dlse != NULL ? x->job->dlse + stat : NULL;
    for (int64_t i = 0; i < x->job->queries; ++i) {
        x->w->lse2[i] = 0.0f;
        x->w->delta[i] = 0.0f;
        if (i < s->n_queries) {
            const int64_t at = attn_query_at(s, s->y_stride, x->b, i, x->h);
            x->w->delta[i] =
                dot_halves(x->job->dy + at, x->job->y + at, s->d) - (dlse != NULL ? dlse[i] : 0.0f);
            x->w->lse2[i] = lse[i] == -INFINITY ? 0.0f : lse[i] * (float)ATTN_LOG2E;
        }
    }
}

static void pack_queries(const head *x)
{
    const attn_shape *s = &x->job->s;
    const attn_source q = {(const uint16_t *)x->job->x.q +
                               attn_query_at(s, s->q_stride, x->b, 0, x->h),
                           s->q_stride, s->n_queries, s->d};
    const attn_source dy = {x->job->dy + attn_query_at(s, s->y_stride, x->b, 0, x->h), s->y_stride,
                            s->n_queries, s->d};
    DSI_NAME(dsi_attn_pack)
    (&q, x->job->queries, &(attn_packed){.rows_t = x->w->q, .pairs = x->w->q_pairs});
    DSI_NAME(dsi_attn_pack)
    (&dy, x->job->queries, &(attn_packed){.rows_t = x->w->dy, .pairs = x->w->dy_pairs});
}

/* ---- a block of keys [k0,k0+nk) against queries [q0,q0+nq)
 * --------------------------------------- */
typedef struct block {
    int64_t k0, nk, q0, nq;
    bool masked;
    bool opens_dq, opens_dk; /* the sums of dQ, of dK and dV, begin with this block */
} block;

static void score_products(const head *x, const block *at)
{
    const backward_job *job = x->job;
    attn_product m = {.a = x->w->k + at->k0 / 16 * job->steps * TILE_HALVES,
                      .b = x->w->q + at->q0 / 16 * TILE_HALVES,
                      .a_row = job->steps * TILE_HALVES,
                      .a_step = TILE_HALVES,
                      .b_col = TILE_HALVES,
                      .b_step = job->queries / 16 * TILE_HALVES,
                      .c = x->w->scores,
                      .c_row = TILES * 256,
                      .c_col = 256,
                      .n_steps = job->steps};
    attn_multiply_all(m, at->nk / 16, at->nq / 16, false);
    m.a = x->w->v + at->k0 / 16 * job->steps * TILE_HALVES;
    m.b = x->w->dy + at->q0 / 16 * TILE_HALVES;
    m.c = x->w->dp;
    attn_multiply_all(m, at->nk / 16, at->nq / 16, false);
}

/* What a tile of 16 queries needs, in registers. */
typedef struct lanes {
    vf lse2, delta;
    vi first, last;
    attn_elements base;
} lanes;

DSI_INLINE lanes lanes_of(const head *x, int64_t q, bool drops)
{
    lanes l = {.lse2 = vf_load(x->w->lse2 + q),
               .delta = vf_load(x->w->delta + q),
               .first = vi_load(x->w->first + q),
               .last = vi_load(x->w->last + q)};
    if (drops) {
        l.base = attn_elements_of(&x->job->drop, x->b, x->h, q);
    }
    return l;
}

/* Four keys from j against one tile of queries: probabilities as used, and gradients of scores. */
DSI_INLINE void four_keys(const head *x, const float *scores, const float *dp, const lanes *lane,
                          int64_t j, bool masked, bool drops, vf p_out[4], vf ds_out[4])
{
    const vf factor = vf_set((float)(x->job->s.a->scale * ATTN_LOG2E));
    vf keep[4];
    if (drops) {
        attn_keep_four(&x->job->drop, lane->base, j, keep);
    }
    for (int r = 0; r < 4; ++r) {
        vf score = vf_load(scores + r * 16);
        if (masked) {
            score = attn_masked(score, j + r, lane->first, lane->last);
        }
        const vf p = attn_exp2_short(_mm512_fmsub_ps(score, factor, lane->lse2));
        vf d = vf_load(dp + r * 16);
        p_out[r] = p;
        if (drops) {
            d = vf_mul(d, keep[r]);
            p_out[r] = vf_mul(p, keep[r]);
        }
        ds_out[r] = vf_mul(p, vf_sub(d, lane->delta));
    }
}

/* Two tiles of queries side by side: P and dS by keys, dS by pairs of keys. */
DSI_INLINE void score_gradients(const head *x, const block *at, bool masked, bool drops)
{
    const backward_work *w = x->w;
    for (int64_t t = 0; t < at->nq / 16; t += 2) {
        const lanes left = lanes_of(x, at->q0 + t * 16, drops);
        const lanes right = lanes_of(x, at->q0 + t * 16 + 16, drops);
        for (int64_t j = 0; j < at->nk; j += 4) {
            const int64_t tile = (j / 16 * TILES + t) * 256 + j % 16 * 16;
            const int64_t row = (j / 16 * (TILES / 2) + t / 2) * TILE_HALVES + j % 16 * 32;
            const int64_t pair = (j / 32 * TILES + t) * TILE_HALVES + j % 32 * 16;
            vf p[8];
            vf ds[8];
            four_keys(x, w->scores + tile, w->dp + tile, &left, at->k0 + j, masked, drops, p, ds);
            four_keys(x, w->scores + tile + 256, w->dp + tile + 256, &right, at->k0 + j, masked,
                      drops, p + 4, ds + 4);
            __m512i rows[4]; /* of dS: 32 queries each */
            for (int r = 0; r < 4; ++r) {
                rows[r] = (__m512i)_mm512_cvtne2ps_pbh(ds[4 + r], ds[r]);
                _mm512_store_si512(w->p + row + r * 32,
                                   (__m512i)_mm512_cvtne2ps_pbh(p[4 + r], p[r]));
                _mm512_store_si512(w->ds + row + r * 32, rows[r]);
            }
            for (int r = 0; r < 2; ++r) {
                _mm512_store_si512(w->ds_pairs + pair + r * 32,
                                   _mm512_unpacklo_epi16(rows[2 * r], rows[2 * r + 1]));
                _mm512_store_si512(w->ds_pairs + pair + TILE_HALVES + r * 32,
                                   _mm512_unpackhi_epi16(rows[2 * r], rows[2 * r + 1]));
            }
        }
    }
}

static void gradients(const head *x, const block *at)
{
    const bool drops = x->job->x.rng != NULL;
    if (at->masked) {
        if (drops) {
            score_gradients(x, at, true, true);
        } else {
            score_gradients(x, at, true, false);
        }
    } else if (drops) {
        score_gradients(x, at, false, true);
    } else {
        score_gradients(x, at, false, false);
    }
}

static void gradient_products(const head *x, const block *at)
{
    const backward_job *job = x->job;
    const backward_work *w = x->w;
    const int64_t wide = job->d_tiles;
    attn_product m = {.a = w->p,
                      .b = w->dy_pairs + at->q0 / 32 * wide * TILE_HALVES,
                      .a_row = TILES / 2 * TILE_HALVES,
                      .a_step = TILE_HALVES,
                      .b_col = TILE_HALVES,
                      .b_step = wide * TILE_HALVES,
                      .c = w->dv + at->k0 / 16 * wide * 256,
                      .c_row = wide * 256,
                      .c_col = 256,
                      .n_steps = at->nq / 32};
    attn_multiply_all(m, at->nk / 16, job->used_tiles, !at->opens_dk);
    m.a = w->ds;
    m.b = w->q_pairs + at->q0 / 32 * wide * TILE_HALVES;
    m.c = w->dk + at->k0 / 16 * wide * 256;
    attn_multiply_all(m, at->nk / 16, job->used_tiles, !at->opens_dk);
    const attn_product dq = {.a = w->k_cols + at->k0 / 32 * wide * TILE_HALVES,
                             .b = w->ds_pairs,
                             .a_row = TILE_HALVES,
                             .a_step = wide * TILE_HALVES,
                             .b_col = TILE_HALVES,
                             .b_step = TILES * TILE_HALVES,
                             .c = w->dq + at->q0 / 16 * wide * 256,
                             .c_row = 256,
                             .c_col = wide * 256,
                             .n_steps = at->nk / 32};
    attn_multiply_all(dq, job->used_tiles, at->nq / 16, !at->opens_dq);
}

/* ---- a head
 * -------------------------------------------------------------------------------------- */
static void store_queries(const head *x)
{
    const attn_shape *s = &x->job->s;
    uint16_t *dq = x->job->call->out[0].data;
    const vf scale = vf_set((float)s->a->scale);
    for (int64_t i = 0; i < x->job->queries; i += 16) {
        for (int64_t t = 0; t < x->job->used_tiles; ++t) {
            const float *tile = x->w->dq + (i / 16 * x->job->d_tiles + t) * 256;
            const int64_t begin = i / 32 * 32 + i % 32 / 4; /* 16: the second tile */
            if (begin >= s->n_queries) {
                continue;
            }
            DSI_NAME(dsi_attn_store_dealt)
            (tile, scale, dq + attn_query_at(s, s->q_stride, x->b, begin, x->h) + t * 16,
             s->q_stride, s->n_queries - begin, s->d - t * 16);
        }
    }
}

static void store_keys(const head *x, const float *tiles, vf scale, uint16_t *to)
{
    const attn_shape *s = &x->job->s;
    for (int64_t j = 0; j < s->n_keys; j += 16) {
        for (int64_t t = 0; t < x->job->used_tiles; ++t) {
            DSI_NAME(dsi_attn_store_rows)
            (tiles + (j / 16 * x->job->d_tiles + t) * 256, scale,
             to + attn_key_at(s, x->b, j, x->kv) + t * 16, s->kv_stride, s->n_keys - j,
             s->d - t * 16);
        }
    }
}

static void clear(float *p, int64_t n)
{
    memset(p, 0, (size_t)n * sizeof *p);
}

/* What each block of queries sees; a block that sees nothing has no gradient. */
static void reach_of_blocks(const head *x)
{
    const backward_job *job = x->job;
    const backward_work *w = x->w;
    (void)attn_spans(&job->s, &job->x, x->b, 0, job->s.n_queries, job->queries, w->first, w->last);
    for (int64_t q0 = 0; q0 < job->queries; q0 += QUERIES) {
        const int64_t n = attn_min(QUERIES, job->queries - q0);
        attn_reach reach = attn_reach_none();
        for (int64_t i = q0; i < q0 + n; ++i) {
            attn_reach_add(&reach, (attn_span){w->first[i], w->last[i]});
        }
        w->reach[q0 / QUERIES] = reach;
        if (reach.any_first >= reach.any_last) {
            clear(w->dq + q0 * job->d_tiles * 16, n * job->d_tiles * 16);
        }
    }
}

/* All blocks of queries against keys from k0 on. */
static void backward_keys(const head *x, int64_t k0)
{
    const backward_job *job = x->job;
    block at = {
        .k0 = k0, .nk = attn_min(KEYS, job->keys - k0), .opens_dk = x->h == x->kv * job->s.group};
    for (int64_t q0 = 0; q0 < job->queries; q0 += QUERIES) {
        const attn_reach *reach = &x->w->reach[q0 / QUERIES];
        if (reach->any_last <= k0 || reach->any_first >= k0 + at.nk) {
            continue;
        }
        at.q0 = q0;
        at.nq = attn_min(QUERIES, job->queries - q0);
        at.masked = !attn_unmasked(reach, k0, k0 + at.nk);
        at.opens_dq = reach->any_first >= k0;
        score_products(x, &at);
        gradients(x, &at);
        gradient_products(x, &at);
        at.opens_dk = false;
    }
    if (at.opens_dk) {
        clear(x->w->dk + k0 * job->d_tiles * 16, at.nk * job->d_tiles * 16);
        clear(x->w->dv + k0 * job->d_tiles * 16, at.nk * job->d_tiles * 16);
    }
}

static void backward_head(const head *x)
{
    pack_queries(x);
    query_sums(x);
    reach_of_blocks(x);
    for (int64_t k0 = 0; k0 < x->job->keys; k0 += KEYS) {
        backward_keys(x, k0);
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
    attn_tiles_begin();
    pack_keys(&x);
    for (x.h = x.kv * s->group; x.h < (x.kv + 1) * s->group; ++x.h) {
        backward_head(&x);
    }
    const bool packed = s->a->packed != 0;
    store_keys(&x, w.dk, vf_set((float)s->a->scale),
               (uint16_t *)call->out[packed ? 0 : 1].data + s->k_at);
    store_keys(&x, w.dv, vf_set(1.0f), (uint16_t *)call->out[packed ? 0 : 2].data + s->v_at);
    attn_tiles_end();
}

static bool supports(const ds_kernel_sig *sig)
{
    return sig->in[1].dtype == DS_DTYPE_BF16 && attn_shape_fits(sig, 1) && !attn_bends(sig->attrs);
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
    job.steps = attn_steps(job.s.d);
    job.d_tiles = 2 * job.steps;
    job.used_tiles = (job.s.d + 15) / 16;
    job.queries = attn_round_up(job.s.n_queries, 32);
    job.keys = attn_round_up(job.s.n_keys, 32);
    job.dy = call->in[0].data;
    job.y = call->in[4].data;
    job.lse = call->in[5].data;
    job.dlse = call->sig->n_in > 12 ? call->in[12].data : NULL;
    ds_parallel(call->ctx, backward_task, &job, (uint32_t)(job.s.n_batch * job.s.n_kv));
    return DS_OK;
}

DSI_BF16_KERNEL(attention_backward);
