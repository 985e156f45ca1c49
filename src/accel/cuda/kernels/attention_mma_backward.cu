/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of attention_mma.cu. attention_mma_dq: tiles and warps as there, and Σ dy·y of each
 * row for attention_mma_dkv. That: a block has 64 keys, a warp 16 of them, and goes over rows of q
 * in ascending order; nothing is added by atomics. Probabilities and gradients of scores are
 * rounded to the dtype for their products; the scale comes behind the sums, so that small ones stay
 * in fp16's range. What is not finite reaches what it reaches in attention.cu. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/attention_walk.h"

/* ---- dq ----------------------------------------------------------------------------------- */

/* Of a lane's two rows, 8 apart. */
typedef struct row_state {
    reach own[2];
    float lse[2], delta[2];
} row_state;

/* Σ over channels of dy·y of the lane's two rows. dy: as load_left left it. */
DSC_INLINE void sum_deltas(const dsc_attention_args *a, const part *p, int act, int32_t row0,
                           int dim, uint32_t dy[MOST_K][4], float delta[2])
{
    const view v = outputs_of(a, p, a->y);
    delta[0] = 0.0f;
    delta[1] = 0.0f;
    DSC_UNROLL
    for (int k = 0; k < dim / 16; ++k) {
        DSC_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int32_t row = fragment_row(row0, i);
            const uint32_t y = row < p->n_rows ? pair_of_row(a, v.at + element_of(a, &v, row),
                                                             fragment_column(k, i))
                                               : 0;
            const uint16_t pairs[4] = {(uint16_t)dy[k][i], (uint16_t)(dy[k][i] >> 16), (uint16_t)y,
                                       (uint16_t)(y >> 16)};
            delta[i % 2] = fmaf(dsc_get(pairs, act, 0), dsc_get(pairs, act, 2), delta[i % 2]);
            delta[i % 2] = fmaf(dsc_get(pairs, act, 1), dsc_get(pairs, act, 3), delta[i % 2]);
        }
    }
    for (int half = 0; half < 2; ++half) {
        const int32_t row = fragment_row(row0, half);
        delta[half] = quad_sum(delta[half]);
        if (threadIdx.x % 4 == 0 && row < p->n_rows) {
            a->delta[stat_at(a, p, row)] = delta[half];
        }
    }
}

/* Scores become their gradients, over the scale. dp: dy·vᵀ. */
DSC_INLINE void score_gradients(const dsc_attention_args *a, const part *p, int32_t row0,
                                int32_t key0, int dim, const row_state *state,
                                float scores[MOST_STEP / 8][4], float dp[MOST_STEP / 8][4])
{
    DSC_UNROLL
    for (int i = 0; i < TILE_STEP(dim) / 2; ++i) {
        const int half = i % 4 / 2;
        const int32_t key = key0 + 8 * (i / 4) + (int32_t)(threadIdx.x % 4 * 2) + i % 2;
        const bool is_seen = key >= state->own[half].first && key < state->own[half].last;
        const float score = scores[i / 4][i % 4] * a->scale;
        const float keep = is_seen ? row_dropout(a, p, fragment_row(row0, half), key) : 0.0f;
        scores[i / 4][i % 4] = is_seen ? expf(score - state->lse[half]) *
                                             (dp[i / 4][i % 4] * keep - state->delta[half])
                                       : 0.0f;
    }
}

/* The walk over all tiles. finite: keys that are not count as 0 in what is added. */
DSC_INLINE void add_dq_tiles(const dsc_attention_args *a, const part *p, int act, int dim, walk *w,
                             const reach *reaches, bool finite, uint32_t q[MOST_K][4],
                             uint32_t dy[MOST_K][4], const row_state *state, float sums[MOST_N][4])
{
    const int32_t own = (int32_t)(threadIdx.x / 32 * 16);
    clear_sums(dim, sums);
    begin_walk(a, w, reaches, own, dim);
    while (has_tile(a, w, dim)) {
        if (is_met_by_warp(w, dim)) {
            const uint16_t *tile = w->keys + w->now * TILE_SIZE(dim);
            float scores[MOST_STEP / 8][4];
            float dp[MOST_STEP / 8][4];
            multiply_rows(act, dim, TILE_STEP(dim) / 8, q, tile, scores);
            multiply_rows(act, dim, TILE_STEP(dim) / 8, dy, w->values + w->now * TILE_SIZE(dim),
                          dp);
            score_gradients(a, p, p->row0 + own, w->key0, dim, state, scores, dp);
            add_products(act, dim, TILE_STEP(dim) / 16, scores, tile, finite, sums);
        }
        leave_tile(w, dim);
    }
}

/* A key that is not finite makes NaN of the rows that see it: no score with it is finite, and its
 * probability is 0 or NaN. */
DSC_INLINE void dq_of(const dsc_attention_args *a, int act, int dim, uint16_t *keys,
                      uint16_t *values, reach *reaches, float parts[32])
{
    const part p = part_of(a, (int64_t)a->n_queries * (a->n_heads / a->n_kv_heads));
    const int32_t own = (int32_t)(threadIdx.x / 32 * 16);
    const int32_t row0 = p.row0 + own;
    uint32_t q[MOST_K][4];
    uint32_t dy[MOST_K][4];
    float sums[MOST_N][4];
    row_state state;
    walk w;
    w.k = keys_of(a, &p, a->k);
    w.v = keys_of(a, &p, a->v);
    w.keys = keys;
    w.values = values;
    set_reaches(a, &p, reaches);
    load_left(a, queries_of(a, &p, a->q), row0, p.n_rows, dim, q);
    load_left(a, outputs_of(a, &p, a->dy), row0, p.n_rows, dim, dy);
    sum_deltas(a, &p, act, row0, dim, dy, state.delta);
    __syncthreads();
    for (int half = 0; half < 2; ++half) {
        const int32_t row = fragment_row(row0, half);
        state.own[half] = reaches[row - p.row0];
        state.lse[half] = row < p.n_rows ? a->lse[stat_at(a, &p, row)] : 0.0f;
    }
    bool finite = false;
    for (;;) {
        add_dq_tiles(a, &p, act, dim, &w, reaches, finite, q, dy, &state, sums);
        if (finite || !is_odd_block(has_odd_sum(dim, sums), parts)) {
            break;
        }
        finite = true;
    }
    if (finite) {
        add_odd(a, &p, act, row0, dim, &w, &w.k, state.own, false, sums);
    }
    const float factor[2] = {a->scale, a->scale};
    store_sums(a, act, queries_of(a, &p, a->dq), row0, p.n_rows, dim, sums, factor);
}

/* ---- dk and dv ---------------------------------------------------------------------------- */

/* Of a row of a tile of q. */
typedef struct row_stats {
    reach own;
    float lse, delta;
} row_stats;

/* Rows that may see one of the keys [key0,key1); rows of the group's heads beside each other. */
DSC_INLINE reach rows_of_keys(const dsc_attention_args *a, const part *p, int64_t key0,
                              int64_t key1)
{
    const int64_t start = a->rows != NULL ? a->rows[0] : 0;
    int64_t first = a->causal != 0 ? key0 - start : 0;
    int64_t last = a->n_queries;
    if (a->window > 0) {
        first = key0 - start - a->window + 1 > first ? key0 - start - a->window + 1 : first;
        last = key1 - 1 - start + a->window < last ? key1 - 1 - start + a->window : last;
    }
    first = first > 0 ? first : 0;
    last = last > first ? last : first;
    const reach r = {(int32_t)first * p->group, (int32_t)last * p->group};
    return r;
}

/* Rows row0 and on of q and dy, with what the backward pass needs of each. */
DSC_INLINE void load_queries(const dsc_attention_args *a, const part *p, int32_t row0, reach in,
                             int dim, uint16_t *queries, uint16_t *dys, row_stats *stats)
{
    load_tile(a, queries_of(a, p, a->q), row0, in, dim, queries);
    load_tile(a, outputs_of(a, p, a->dy), row0, in, dim, dys);
    if ((int32_t)threadIdx.x < TILE_STEP(dim)) {
        const int32_t row = row0 + (int32_t)threadIdx.x;
        row_stats s = {{0, 0}, 0.0f, 0.0f};
        if (row >= in.first && row < in.last) {
            s.own = reach_of(a, p, row);
            s.lse = a->lse[stat_at(a, p, row)];
            s.delta = a->delta[stat_at(a, p, row)];
        }
        stats[threadIdx.x] = s;
    }
}

/* 16 keys, 16 rows: scores become probabilities as they were used, dp the gradients of scores. */
DSC_INLINE void pair_gradients(const dsc_attention_args *a, const part *p, int32_t row0,
                               int32_t key0, const row_stats *stats, float scores[MOST_STEP / 8][4],
                               float dp[MOST_STEP / 8][4])
{
    DSC_UNROLL
    for (int i = 0; i < 8; ++i) {
        const int32_t key = fragment_row(key0, i % 4 / 2);
        const int32_t at = 8 * (i / 4) + (int32_t)(threadIdx.x % 4 * 2) + i % 2;
        const row_stats s = stats[at];
        const bool is_seen = key >= s.own.first && key < s.own.last;
        const float keep = is_seen ? row_dropout(a, p, row0 + at, key) : 0.0f;
        const float probability = is_seen ? expf(scores[i / 4][i % 4] * a->scale - s.lse) : 0.0f;
        scores[i / 4][i % 4] = probability * keep;
        dp[i / 4][i % 4] = is_seen ? probability * (dp[i / 4][i % 4] * keep - s.delta) : 0.0f;
    }
}

/* Whether one of 16 rows sees one of the warp's keys; all lanes agree. */
DSC_INLINE bool is_met(const row_stats *stats, int32_t key0)
{
    const reach r = stats[threadIdx.x % 16].own;
    return dsc_warp_max(r.first < r.last && r.first < key0 + 16 && r.last > key0 ? 1.0f : 0.0f) >
           0.0f;
}

/* Rows of dy that are not finite, to the keys that they see: what a probability above 0 makes of
 * them. */
DSC_INLINE void add_odd_dys(const dsc_attention_args *a, const part *p, int act, int32_t key0,
                            int dim, reach rows, float dv[MOST_N][4])
{
    const view v = outputs_of(a, p, a->dy);
    for (int32_t r = rows.first; r < rows.last; ++r) {
        const reach own = reach_of(a, p, r);
        const uint16_t *row = v.at + element_of(a, &v, r);
        DSC_UNROLL
        for (int half = 0; half < 2; ++half) {
            const int32_t key = fragment_row(key0, half);
            const bool is_seen = key >= own.first && key < own.last;
            const float keep = is_seen ? row_dropout(a, p, r, key) : 0.0f;
            DSC_UNROLL
            for (int i = 0; i < dim / 4; ++i) {
                const int64_t c = 8 * (i / 2) + threadIdx.x % 4 * 2 + i % 2;
                if (is_seen && c < a->head_dim && is_odd(act, row[c])) {
                    dv[i / 2][i % 2 + 2 * half] += keep * dsc_get(row, act, c);
                }
            }
        }
    }
}

/* What a block of dkv_of works on. queries, dys, stats: two tiles each. */
typedef struct row_tiles {
    uint16_t *queries, *dys;
    row_stats *stats;
    reach all; /* rows that may see one of the block's keys */
} row_tiles;

/* All rows. finite: queries and gradients of y that are not count as 0; such a row's statistics are
 * not finite either, so that its pairs are not. */
DSC_INLINE void add_row_tiles(const dsc_attention_args *a, const part *p, int act, int dim,
                              const row_tiles *t, int32_t key0, bool finite, uint32_t k[MOST_K][4],
                              uint32_t v[MOST_K][4], float dk[MOST_N][4], float dv[MOST_N][4])
{
    const int32_t step = TILE_STEP(dim);
    const int32_t begin = t->all.first / step * step;
    clear_sums(dim, dk);
    clear_sums(dim, dv);
    if (begin < t->all.last) {
        load_queries(a, p, begin, t->all, dim, t->queries, t->dys, t->stats);
    }
    dsc_copy_commit();
    uint32_t now = 0;
    for (int32_t row0 = begin; row0 < t->all.last; row0 += step) {
        const uint32_t here = now * TILE_SIZE(dim);
        const uint32_t other = (1 - now) * TILE_SIZE(dim);
        if (row0 + step < t->all.last) {
            load_queries(a, p, row0 + step, t->all, dim, t->queries + other, t->dys + other,
                         t->stats + (1 - now) * MOST_STEP);
        }
        dsc_copy_commit();
        dsc_copy_wait(1);
        if (finite) {
            clear_odd(a, act, dim, t->queries + here);
            clear_odd(a, act, dim, t->dys + here);
        }
        __syncthreads();
        for (int32_t i = 0; i < step; i += 16) {
            const uint32_t at = here + i * TILE_PITCH(dim);
            const row_stats *rows = t->stats + now * MOST_STEP + i;
            if (is_met(rows, key0)) {
                float scores[MOST_STEP / 8][4];
                float dp[MOST_STEP / 8][4];
                multiply_rows(act, dim, 2, k, t->queries + at, scores);
                multiply_rows(act, dim, 2, v, t->dys + at, dp);
                pair_gradients(a, p, row0 + i, key0, rows, scores, dp);
                add_products(act, dim, 1, scores, t->dys + at, false, dv);
                add_products(act, dim, 1, dp, t->queries + at, false, dk);
            }
        }
        __syncthreads();
        now = 1 - now;
    }
}

DSC_INLINE void dkv_of(const dsc_attention_args *a, int act, int dim, uint16_t *queries,
                       uint16_t *dys, row_stats *stats, float parts[32])
{
    const part p = part_of(a, a->n_keys);
    const int32_t key0 = p.row0 + (int32_t)(threadIdx.x / 32 * 16);
    const int32_t n_keys = (int32_t)a->n_keys;
    const row_tiles tiles = {queries, dys, stats,
                             rows_of_keys(a, &p, p.row0, (int64_t)p.row0 + DSC_ATTENTION_ROWS)};
    uint32_t k[MOST_K][4];
    uint32_t v[MOST_K][4];
    float dk[MOST_N][4];
    float dv[MOST_N][4];
    load_left(a, keys_of(a, &p, a->k), key0, n_keys, dim, k);
    load_left(a, keys_of(a, &p, a->v), key0, n_keys, dim, v);
    bool finite = false;
    for (;;) {
        add_row_tiles(a, &p, act, dim, &tiles, key0, finite, k, v, dk, dv);
        if (finite || !is_odd_block(has_odd_sum(dim, dk) || has_odd_sum(dim, dv), parts)) {
            break;
        }
        finite = true;
    }
    if (finite) {
        add_odd_dys(a, &p, act, key0, dim, tiles.all, dv);
    }
    const float whole[2] = {1.0f, 1.0f};
    const float factor[2] = {a->scale, a->scale};
    store_sums(a, act, keys_of(a, &p, a->dv), key0, n_keys, dim, dv, whole);
    store_sums(a, act, keys_of(a, &p, a->dk), key0, n_keys, dim, dk, factor);
}

/* As many blocks as their sums leave registers for. */
#define BLOCKS(dim) DSC_BOUNDS(DSC_ATTENTION_THREADS, (dim) == 64 ? 3 : 2)
#define BACKWARD_MMA(dim, name, act)                                                               \
    DSC_INLINE void dq_body_##dim##_##name(const dsc_attention_args *a)                            \
    {                                                                                              \
        __shared__ DSC_ALIGN(16) uint16_t keys[2 * TILE_SIZE(dim)];                                \
        __shared__ DSC_ALIGN(16) uint16_t values[2 * TILE_SIZE(dim)];                              \
        __shared__ reach reaches[DSC_ATTENTION_ROWS];                                              \
        __shared__ float parts[32];                                                                \
        dq_of(a, act, dim, keys, values, reaches, parts);                                          \
    }                                                                                              \
    DSC_BOUND_KERNEL(attention_mma_dq_##dim##_##name, dsc_attention_args, BLOCKS(dim),             \
                     dq_body_##dim##_##name(a))                                                    \
    DSC_INLINE void dkv_body_##dim##_##name(const dsc_attention_args *a)                           \
    {                                                                                              \
        __shared__ DSC_ALIGN(16) uint16_t queries[2 * TILE_SIZE(dim)];                             \
        __shared__ DSC_ALIGN(16) uint16_t dys[2 * TILE_SIZE(dim)];                                 \
        __shared__ row_stats stats[2 * MOST_STEP];                                                 \
        __shared__ float parts[32];                                                                \
        dkv_of(a, act, dim, queries, dys, stats, parts);                                           \
    }                                                                                              \
    DSC_BOUND_KERNEL(attention_mma_dkv_##dim##_##name, dsc_attention_args, BLOCKS(dim),            \
                     dkv_body_##dim##_##name(a))

BACKWARD_MMA(64, bf16, DSC_BF16)
BACKWARD_MMA(64, f16, DSC_F16)
BACKWARD_MMA(128, bf16, DSC_BF16)
BACKWARD_MMA(128, f16, DSC_F16)
