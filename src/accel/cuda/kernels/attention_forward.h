/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a block of attention_mma.cu and paged_mma.cu, a warp 16 of them: scores, sums and the
 * running maximum in fp32, probabilities rounded to the dtype for their product with v. */
#ifndef DSC_ATTENTION_FORWARD_H
#define DSC_ATTENTION_FORWARD_H

#include "accel/cuda/kernels/attention_softmax.h"
#include "accel/cuda/kernels/attention_walk.h"

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
        const bool sees = state->own[half].first < state->own[half].last;
        factor[half] = sum_factor(sum, sees);
        if (threadIdx.x % 4 == 0 && row < p->n_rows) {
            a->lse[stat_at(a, p, row)] = log_sum_exp(state->top[half], sum, sees);
        }
    }
    store_sums(a, act, outputs_of(a, p, a->y), row0, p->n_rows, dim, sums, factor);
}

/* The walk over all tiles. finite: values that are not count as 0. */
DSC_INLINE void add_tiles(const dsc_attention_args *a, const part *p, int act, int dim, walk *w,
                          const reach *reaches, bool finite, uint32_t q[MOST_K][4],
                          softmax_state *state, float sums[MOST_N][4])
{
    const int32_t own = (int32_t)(threadIdx.x / 32 * 16);
    const uint32_t lane_row = threadIdx.x % 32 / 4;
    const softmax_state empty = {{reaches[own + lane_row], reaches[own + lane_row + 8]},
                                 {-INFINITY, -INFINITY},
                                 {0.0f, 0.0f}};
    *state = empty;
    clear_sums(dim, sums);
    begin_walk(a, w, reaches, own, dim);
    while (has_tile(a, w, dim)) {
        if (is_met_by_warp(w, dim)) {
            const uint32_t at = w->now * TILE_SIZE(dim);
            float scores[MOST_STEP / 8][4];
            multiply_rows(act, dim, TILE_STEP(dim) / 8, q, w->keys + at, scores);
            rescale(a, p, p->row0 + own, w->key0, dim, state, scores, sums);
            add_products(act, dim, TILE_STEP(dim) / 16, scores, w->values + at, finite, sums);
        }
        leave_tile(w, dim);
    }
}

/* w: its views and tiles are set; reaches: of the block's rows, set by its threads; parts: shared.
 * A value that is not finite reaches the rows that see its key: what a probability above 0 makes of
 * it. */
DSC_INLINE void attend(const dsc_attention_args *a, const part *p, int act, int dim, walk *w,
                       const reach *reaches, float parts[32])
{
    const int32_t row0 = p->row0 + (int32_t)(threadIdx.x / 32 * 16);
    uint32_t q[MOST_K][4];
    float sums[MOST_N][4];
    softmax_state state;
    load_left(a, queries_of(a, p, a->q), row0, p->n_rows, dim, q);
    __syncthreads();
    bool finite = false;
    for (;;) {
        add_tiles(a, p, act, dim, w, reaches, finite, q, &state, sums);
        if (finite || !is_odd_block(has_odd_sum(dim, sums), parts)) {
            break;
        }
        finite = true;
    }
    if (finite) {
        add_odd(a, p, act, row0, dim, w, &w->v, state.own, true, sums);
    }
    store_rows(a, p, act, row0, dim, &state, sums);
}

#endif
