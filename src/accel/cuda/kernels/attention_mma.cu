/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in bf16 and fp16 by mma, of heads up to 128 wide (Dao, "FlashAttention-2", arXiv
 * 2307.08691): scores, sums and the running maximum in fp32, probabilities rounded to the dtype for
 * their product with v.
 *
 * A block has 64 rows of the heads that share keys, a warp 16 of them. Tiles of keys begin at
 * multiples of their size whatever the block's rows see, and a tile that a row does not see changes
 * nothing of it: a row has the same bits beside any others. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/attention_tile.h"

/* Of a lane's two rows, 8 apart. */
typedef struct softmax_state {
    reach own[2];
    float top[2], sum[2]; /* sum: of this lane's keys */
} softmax_state;

/* Scores become probabilities over exp(top), and what stands for older tiles shrinks to the same.
 */
DSC_INLINE void rescale(const dsc_attention_args *a, const part *p, int32_t row0, int32_t key0,
                        int dim, softmax_state *state, float scores[MOST_STEP / 8][4],
                        float sums[MOST_N][4])
{
    const int n = TILE_STEP(dim) / 2; /* elements a lane */
    float next[2] = {state->top[0], state->top[1]};
    DSC_UNROLL
    for (int i = 0; i < n; ++i) {
        const int half = i % 4 / 2;
        const int32_t key = key0 + 8 * (i / 4) + (int32_t)(threadIdx.x % 4 * 2) + i % 2;
        const bool is_seen = key >= state->own[half].first && key < state->own[half].last;
        const float score = is_seen ? scores[i / 4][i % 4] * a->scale : -INFINITY;
        scores[i / 4][i % 4] = score;
        next[half] = score > next[half] ? score : next[half];
    }
    float base[2];
    float shrink[2];
    for (int half = 0; half < 2; ++half) {
        next[half] = quad_max(next[half]);
        base[half] = next[half] > -INFINITY ? next[half] : 0.0f; /* nothing seen so far */
        shrink[half] = expf(state->top[half] - base[half]);
        state->top[half] = next[half];
        state->sum[half] *= shrink[half];
    }
    DSC_UNROLL
    for (int i = 0; i < dim / 2; ++i) {
        sums[i / 4][i % 4] *= shrink[i % 4 / 2];
    }
    DSC_UNROLL
    for (int i = 0; i < n; ++i) {
        const int half = i % 4 / 2;
        const int32_t key = key0 + 8 * (i / 4) + (int32_t)(threadIdx.x % 4 * 2) + i % 2;
        const float probability = expf(scores[i / 4][i % 4] - base[half]);
        state->sum[half] += probability;
        scores[i / 4][i % 4] = probability * row_dropout(a, p, fragment_row(row0, half), key);
    }
}

DSC_INLINE void store_rows(const dsc_attention_args *a, const part *p, int act, int32_t row0,
                           int dim, const softmax_state *state, float sums[MOST_N][4])
{
    float factor[2];
    for (int half = 0; half < 2; ++half) {
        const float sum = quad_sum(state->sum[half]);
        const int32_t row = fragment_row(row0, half);
        factor[half] = sum > 0.0f ? 1.0f / sum : 0.0f;
        if (threadIdx.x % 4 == 0 && row < p->n_rows) {
            a->lse[stat_at(a, p, row)] = sum > 0.0f ? state->top[half] + logf(sum) : -INFINITY;
        }
    }
    store_sums(a, act, outputs_of(a, p, a->y), row0, p->n_rows, dim, sums, factor);
}

/* keys, values: two tiles each; reaches: of the block's rows. */
DSC_INLINE void attend(const dsc_attention_args *a, int act, int dim, uint16_t *keys,
                       uint16_t *values, reach *reaches)
{
    const part p = part_of(a, (int64_t)a->n_queries * (a->n_heads / a->n_kv_heads));
    const int32_t own = (int32_t)(threadIdx.x / 32 * 16);
    const int32_t row0 = p.row0 + own;
    const view k = keys_of(a, &p, a->k);
    const view v = keys_of(a, &p, a->v);
    uint32_t q[MOST_K][4];
    float sums[MOST_N][4];
    if (threadIdx.x < DSC_ATTENTION_ROWS) {
        reaches[threadIdx.x] = reach_of(a, &p, p.row0 + (int32_t)threadIdx.x);
    }
    load_left(a, queries_of(a, &p, a->q), row0, p.n_rows, dim, q);
    clear_sums(dim, sums);
    __syncthreads();
    const reach all = join_reaches(reaches, DSC_ATTENTION_ROWS);
    const reach warp = join_reaches(reaches + own, 16);
    const uint32_t lane_row = threadIdx.x % 32 / 4;
    softmax_state state = {{reaches[own + lane_row], reaches[own + lane_row + 8]},
                           {-INFINITY, -INFINITY},
                           {0.0f, 0.0f}};
    const int32_t step = TILE_STEP(dim);
    const int32_t begin = all.first / step * step;
    if (begin < all.last) {
        load_tile(a, k, begin, all, dim, keys);
        load_tile(a, v, begin, all, dim, values);
    }
    dsc_copy_commit();
    uint32_t now = 0;
    for (int32_t key0 = begin; key0 < all.last; key0 += step) {
        const uint32_t other = (1 - now) * TILE_SIZE(dim);
        if (key0 + step < all.last) {
            load_tile(a, k, key0 + step, all, dim, keys + other);
            load_tile(a, v, key0 + step, all, dim, values + other);
        }
        dsc_copy_commit();
        dsc_copy_wait(1);
        __syncthreads();
        if (key0 < warp.last && key0 + step > warp.first) {
            float scores[MOST_STEP / 8][4];
            multiply_rows(act, dim, step / 8, q, keys + now * TILE_SIZE(dim), scores);
            rescale(a, &p, row0, key0, dim, &state, scores, sums);
            add_products(act, dim, step / 16, scores, values + now * TILE_SIZE(dim), sums);
        }
        __syncthreads();
        now = 1 - now;
    }
    store_rows(a, &p, act, row0, dim, &state, sums);
}

#define ATTENTION_MMA(dim, name, act)                                                              \
    DSC_INLINE void body_##dim##_##name(const dsc_attention_args *a)                               \
    {                                                                                              \
        __shared__ DSC_ALIGN(16) uint16_t keys[2 * TILE_SIZE(dim)];                                \
        __shared__ DSC_ALIGN(16) uint16_t values[2 * TILE_SIZE(dim)];                              \
        __shared__ reach reaches[DSC_ATTENTION_ROWS];                                              \
        attend(a, act, dim, keys, values, reaches);                                                \
    }                                                                                              \
    DSC_KERNEL(attention_mma_##dim##_##name, dsc_attention_args, body_##dim##_##name(a))

ATTENTION_MMA(64, bf16, DSC_BF16)
ATTENTION_MMA(64, f16, DSC_F16)
ATTENTION_MMA(128, bf16, DSC_BF16)
ATTENTION_MMA(128, f16, DSC_F16)
