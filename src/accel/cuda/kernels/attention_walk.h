/* SPDX-License-Identifier: Apache-2.0 */
/* Of attention_mma*.cu and paged_mma.cu: how a block of rows goes over the tiles of keys that they
 * see. Tiles begin at multiples of their size whatever the block's rows see; a tile is on its way
 * while the products of the one before it run. */
#ifndef DSC_ATTENTION_WALK_H
#define DSC_ATTENTION_WALK_H

#include "accel/cuda/kernels/attention_tile.h"

/* keys, values: two tiles each. */
typedef struct walk {
    view k, v;
    uint16_t *keys, *values;
    reach all, warp; /* what the block's rows see, and what the warp's do */
    int32_t key0;    /* of the tile that is next */
    uint32_t now;    /* which of the two has it */
} walk;

/* What the block's rows see, for all of its threads behind the next barrier. */
DSC_INLINE void set_reaches(const dsc_attention_args *a, const part *p, reach *reaches)
{
    if (threadIdx.x < DSC_ATTENTION_ROWS) {
        reaches[threadIdx.x] = reach_of(a, p, p->row0 + (int32_t)threadIdx.x);
    }
}

/* Tiles at key0, as one group of copies; behind the last tile an empty one: who waits for all
 * groups but the newest has every tile. */
DSC_INLINE void load_keys(const dsc_attention_args *a, const walk *w, int32_t key0, uint32_t to,
                          int dim)
{
    if (key0 < w->all.last) {
        load_tile(a, w->k, key0, w->all, dim, w->keys + to * TILE_SIZE(dim));
        load_tile(a, w->v, key0, w->all, dim, w->values + to * TILE_SIZE(dim));
    }
    dsc_copy_commit();
}

/* Behind a barrier since the reaches were set. own: the warp's first row of the block's. */
DSC_INLINE void begin_walk(const dsc_attention_args *a, walk *w, const reach *reaches, int32_t own,
                           int dim)
{
    w->all = join_reaches(reaches, DSC_ATTENTION_ROWS);
    w->warp = join_reaches(reaches + own, 16);
    w->key0 = w->all.first / TILE_STEP(dim) * TILE_STEP(dim);
    w->now = 0;
    load_keys(a, w, w->key0, 0, dim);
}

/* Whether there is a tile; then it is here, and the next one on its way. */
DSC_INLINE bool has_tile(const dsc_attention_args *a, const walk *w, int dim)
{
    if (w->key0 >= w->all.last) {
        return false;
    }
    load_keys(a, w, w->key0 + TILE_STEP(dim), 1 - w->now, dim);
    dsc_copy_wait(1);
    __syncthreads();
    return true;
}

/* Whether the warp's rows see some of it. */
DSC_INLINE bool is_met_by_warp(const walk *w, int dim)
{
    return w->key0 < w->warp.last && w->key0 + TILE_STEP(dim) > w->warp.first;
}

DSC_INLINE void leave_tile(walk *w, int dim)
{
    __syncthreads();
    w->now = 1 - w->now;
    w->key0 += TILE_STEP(dim);
}

/* ---- what is not finite -------------------------------------------------------------------- */

/* Such an element of a tile reaches every row of a product, those with the weight 0 too. Where sums
 * say that there is one, all is done again with 0 in its place, so that rows that do not see it
 * have the bits that they have without; then it is added to those that do. */

/* Whether a sum of the block is not finite. parts: shared. */
DSC_INLINE bool is_odd_block(bool is_odd_lane, float parts[32])
{
    return dsc_block_max(is_odd_lane ? 1.0f : 0.0f, parts) > 0.0f;
}

/* What is not finite in rows of v (keys or values), to the lane's rows that see them, `own`: times
 * the factor of dropout, or times 0, which makes NaN of it. */
DSC_INLINE void add_odd(const dsc_attention_args *a, const part *p, int act, int32_t row0, int dim,
                        const walk *w, const view *v, const reach own[2], bool is_dropped,
                        float sums[MOST_N][4])
{
    for (int32_t key = w->warp.first; key < w->warp.last; ++key) {
        const uint16_t *row = v->at + element_of(a, v, key);
        DSC_UNROLL
        for (int half = 0; half < 2; ++half) {
            const bool is_seen = key >= own[half].first && key < own[half].last;
            const float factor =
                is_seen && is_dropped ? row_dropout(a, p, fragment_row(row0, half), key) : 0.0f;
            DSC_UNROLL
            for (int i = 0; i < dim / 4; ++i) {
                const int64_t c = 8 * (i / 2) + threadIdx.x % 4 * 2 + i % 2;
                if (is_seen && c < a->head_dim && is_odd(act, row[c])) {
                    sums[i / 2][i % 2 + 2 * half] += factor * dsc_get(row, act, c);
                }
            }
        }
    }
}

#endif
