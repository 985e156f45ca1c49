/* SPDX-License-Identifier: Apache-2.0 */
/* Of attention_mma*.cu: tiles of rows in shared memory, and products of a warp's 16 rows with them.
 *
 * dim and step, a head's width in shared memory and the rows of a tile, are constants where they
 * are passed. A head that is narrower has zeros behind it. A tile is read while the products of the
 * one before it run, as a group of copies. */
#ifndef DSC_ATTENTION_TILE_H
#define DSC_ATTENTION_TILE_H

#include "accel/cuda/kernels/attention_span.h"

#define TILE_PITCH(dim) ((dim) + 8)    /* elements: eight rows differ in their banks */
#define TILE_STEP(dim)  (4096 / (dim)) /* rows: four tiles stay below 48 KiB */
#define TILE_SIZE(dim)  (TILE_STEP(dim) * TILE_PITCH(dim))

enum { MOST_K = DSC_MOST_MMA_HEAD_DIM / 16, MOST_N = DSC_MOST_MMA_HEAD_DIM / 8 };
enum { MOST_STEP = 64 };

/* Keys [first,last) of a row. */
typedef struct reach {
    int32_t first, last;
} reach;

/* Row r of a tensor is at `at` + r/group·stride + r%group·head_dim; of one in blocks of rows (group
 * 1) at `at` + (table[r/block]·block + r%block)·stride, blocks that there are not being the first.
 */
typedef struct view {
    const uint16_t *at;
    int64_t stride;
    int32_t group;
    const int32_t *table; /* or NULL */
    int32_t block, n_blocks;
} view;

/* What a block works on: the heads of a group that share keys. */
typedef struct part {
    int64_t b, kv;
    int32_t group, n_rows; /* n_queries·group */
    int32_t row0;          /* of its tile: rows of q, or keys */
} part;

/* Blocks of tiles of n rows; the last tiles, which see most of a causal mask, come first. */
DSC_INLINE part part_of(const dsc_attention_args *a, int64_t n)
{
    const int64_t n_groups = a->n_batch * a->n_kv_heads;
    const int64_t n_tiles = (n + DSC_ATTENTION_ROWS - 1) / DSC_ATTENTION_ROWS;
    const int64_t which = blockIdx.x % n_groups;
    part p;
    p.group = (int32_t)(a->n_heads / a->n_kv_heads);
    p.n_rows = (int32_t)a->n_queries * p.group;
    p.b = which / a->n_kv_heads;
    p.kv = which % a->n_kv_heads;
    p.row0 = (int32_t)(n_tiles - 1 - blockIdx.x / n_groups) * DSC_ATTENTION_ROWS;
    return p;
}

DSC_INLINE view queries_of(const dsc_attention_args *a, const part *p, const void *t)
{
    const view v = {(const uint16_t *)t + query_at(a, p->b, 0, p->kv * p->group),
                    a->q_stride,
                    p->group,
                    NULL,
                    0,
                    0};
    return v;
}

/* y and its gradient. */
DSC_INLINE view outputs_of(const dsc_attention_args *a, const part *p, const void *t)
{
    const view v = {(const uint16_t *)t + y_at(a, p->b, 0, p->kv * p->group),
                    a->n_heads * a->head_dim,
                    p->group,
                    NULL,
                    0,
                    0};
    return v;
}

DSC_INLINE view keys_of(const dsc_attention_args *a, const part *p, const void *t)
{
    const view v = {(const uint16_t *)t + key_at(a, p->b, 0, p->kv), a->kv_stride, 1, NULL, 0, 0};
    return v;
}

DSC_INLINE int64_t element_of(const dsc_attention_args *a, const view *v, int32_t row)
{
    if (v->table != NULL) {
        const int32_t listed = v->table[row / v->block];
        const int64_t block = listed >= 0 && listed < v->n_blocks ? listed : 0;
        return (block * v->block + row % v->block) * v->stride;
    }
    return v->group == 1 ? row * v->stride
                         : row / v->group * v->stride + row % v->group * a->head_dim;
}

/* Of row r in lse and delta. */
DSC_INLINE int64_t stat_at(const dsc_attention_args *a, const part *p, int32_t row)
{
    return (p->b * a->n_heads + p->kv * p->group + row % p->group) * a->n_queries + row / p->group;
}

DSC_INLINE reach reach_of(const dsc_attention_args *a, const part *p, int32_t row)
{
    reach r = {0, 0};
    if (row < p->n_rows) {
        const span s = visible(a, p->b, row / p->group);
        r.first = (int32_t)s.first;
        r.last = (int32_t)s.last;
    }
    return r;
}

/* What n rows see, together. */
DSC_INLINE reach join_reaches(const reach *rows, int n)
{
    reach all = {0, 0};
    for (int i = 0; i < n; ++i) {
        const reach r = rows[i];
        if (r.first < r.last) {
            all.first = all.last == 0 || r.first < all.first ? r.first : all.first;
            all.last = r.last > all.last ? r.last : all.last;
        }
    }
    return all;
}

DSC_INLINE float row_dropout(const dsc_attention_args *a, const part *p, int32_t row, int32_t key)
{
    return a->dropout <= 0.0f
               ? 1.0f
               : dropout_factor(a, p->b, p->kv * p->group + row % p->group, row / p->group, key);
}

/* ---- tiles -------------------------------------------------------------------------------- */

/* Rows row0 and on of a view, those outside of `in` zeros: what nothing sees may be anything. */
DSC_INLINE void load_tile(const dsc_attention_args *a, view v, int32_t row0, reach in, int dim,
                          uint16_t *to)
{
    const uint32_t step = TILE_STEP(dim);
    const uint32_t chunks = dim / 8;
    for (uint32_t i = threadIdx.x; a->copies != 0 && i < step * chunks;
         i += DSC_ATTENTION_THREADS) {
        const int32_t row = row0 + (int32_t)(i / chunks);
        const uint32_t c = i % chunks * 8;
        const bool is_in = row >= in.first && row < in.last && c < a->head_dim;
        dsc_copy_async(to + i / chunks * TILE_PITCH(dim) + c,
                       is_in ? v.at + element_of(a, &v, row) + c : v.at, is_in ? 16 : 0);
    }
    for (uint32_t i = threadIdx.x; a->copies == 0 && i < step * dim; i += DSC_ATTENTION_THREADS) {
        const int32_t row = row0 + (int32_t)(i / dim);
        const uint32_t c = i % dim;
        const bool is_in = row >= in.first && row < in.last && c < a->head_dim;
        to[i / dim * TILE_PITCH(dim) + c] = is_in ? v.at[element_of(a, &v, row) + c] : (uint16_t)0;
    }
}

/* Whether an element of the dtype is infinite, or none that is a number. */
DSC_INLINE bool is_odd(int act, uint16_t bits)
{
    const uint16_t exponent = act == DSC_BF16 ? 0x7f80u : 0x7c00u;
    return (bits & exponent) == exponent;
}

/* 0 in place of what is not finite in a tile: each thread of what load_tile had it load, behind its
 * wait and before the barrier. */
DSC_INLINE void clear_odd(const dsc_attention_args *a, int act, int dim, uint16_t *tile)
{
    const uint32_t each =
        a->copies != 0 ? 8 : 1; /* elements that a thread loads beside each other */
    for (uint32_t i = threadIdx.x * each; i < (uint32_t)(TILE_STEP(dim) * dim);
         i += DSC_ATTENTION_THREADS * each) {
        uint16_t *at = tile + i / dim * TILE_PITCH(dim) + i % dim;
        for (uint32_t e = 0; e < each; ++e) {
            at[e] = is_odd(act, at[e]) ? (uint16_t)0 : at[e];
        }
    }
}

DSC_INLINE uint32_t join_pair(uint16_t low, uint16_t high)
{
    return (uint32_t)low | (uint32_t)high << 16;
}

/* Elements c and c + 1 of a row; c is even. */
DSC_INLINE uint32_t pair_of_row(const dsc_attention_args *a, const uint16_t *row, int64_t c)
{
    const uint16_t low = c < a->head_dim ? row[c] : (uint16_t)0;
    const uint16_t high = c + 1 < a->head_dim ? row[c + 1] : (uint16_t)0;
    return join_pair(low, high);
}

/* The lane's row and channel of register i in k-step k of the left operand: row + lane/4, 8 below
 * it for odd i. */
DSC_INLINE int32_t fragment_row(int32_t row0, int i)
{
    return row0 + (int32_t)(threadIdx.x % 32 / 4) + i % 2 * 8;
}

DSC_INLINE int64_t fragment_column(int k, int i)
{
    return 16 * k + threadIdx.x % 4 * 2 + i / 2 * 8;
}

/* 16 rows as the left operand of products over channels. */
DSC_INLINE void load_left(const dsc_attention_args *a, view v, int32_t row0, int32_t n, int dim,
                          uint32_t left[MOST_K][4])
{
    DSC_UNROLL
    for (int k = 0; k < dim / 16; ++k) {
        DSC_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int32_t row = fragment_row(row0, i);
            left[k][i] =
                row < n ? pair_of_row(a, v.at + element_of(a, &v, row), fragment_column(k, i)) : 0;
        }
    }
}

DSC_INLINE void multiply_add(int act, float sums[4], const uint32_t left[4],
                             const uint32_t right[2])
{
    if (act == DSC_BF16) {
        dsc_mma_bf16(sums, left, right, sums);
    } else {
        dsc_mma_f16(sums, left, right, sums);
    }
}

/* sums (16, 8·n8) = left · (rows of the tile)ᵀ. */
DSC_INLINE void multiply_rows(int act, int dim, int n8, uint32_t left[MOST_K][4],
                              const uint16_t *tile, float sums[MOST_STEP / 8][4])
{
    const uint32_t lane = threadIdx.x % 32;
    DSC_UNROLL
    for (int n = 0; n < n8; ++n) {
        const uint16_t *row = tile + (8 * n + lane / 4) * TILE_PITCH(dim) + lane % 4 * 2;
        DSC_UNROLL
        for (int i = 0; i < 4; ++i) {
            sums[n][i] = 0.0f;
        }
        DSC_UNROLL
        for (int k = 0; k < dim / 16; ++k) {
            const uint16_t *at = row + 16 * k;
            const uint32_t right[2] = {join_pair(at[0], at[1]), join_pair(at[8], at[9])};
            multiply_add(act, sums[n], left[k], right);
        }
    }
}

/* Two elements, 0 in place of what is not finite. */
DSC_INLINE uint32_t finite_pair(int act, uint16_t low, uint16_t high)
{
    return join_pair(is_odd(act, low) ? (uint16_t)0 : low, is_odd(act, high) ? (uint16_t)0 : high);
}

/* sums (16, dim) += weights (16, 16·k16), rounded · rows of the tile. What products leave in a
 * lane is what the left operand needs there. finite: what is not counts as 0. */
DSC_INLINE void add_products(int act, int dim, int k16, float weights[MOST_STEP / 8][4],
                             const uint16_t *tile, bool finite, float sums[MOST_N][4])
{
    const uint32_t lane = threadIdx.x % 32;
    DSC_UNROLL
    for (int k = 0; k < k16; ++k) {
        const uint16_t *column = tile + (16 * k + lane % 4 * 2) * TILE_PITCH(dim) + lane / 4;
        uint32_t left[4];
        DSC_UNROLL
        for (int i = 0; i < 4; ++i) {
            const float *w = weights[2 * k + i / 2] + i % 2 * 2;
            left[i] = act == DSC_BF16 ? join_pair(dsc_to_bf16(w[0]), dsc_to_bf16(w[1]))
                                      : join_pair(dsc_to_f16(w[0]), dsc_to_f16(w[1]));
        }
        DSC_UNROLL
        for (int n = 0; n < dim / 8; ++n) {
            const uint16_t *at = column + 8 * n;
            uint32_t right[2] = {join_pair(at[0], at[TILE_PITCH(dim)]),
                                 join_pair(at[8 * TILE_PITCH(dim)], at[9 * TILE_PITCH(dim)])};
            if (finite) {
                right[0] = finite_pair(act, at[0], at[TILE_PITCH(dim)]);
                right[1] = finite_pair(act, at[8 * TILE_PITCH(dim)], at[9 * TILE_PITCH(dim)]);
            }
            multiply_add(act, sums[n], left, right);
        }
    }
}

DSC_INLINE void clear_sums(int dim, float sums[MOST_N][4])
{
    DSC_UNROLL
    for (int i = 0; i < dim / 2; ++i) {
        sums[i / 4][i % 4] = 0.0f;
    }
}

/* Whether one of the lane's sums is not finite. */
DSC_INLINE bool has_odd_sum(int dim, float sums[MOST_N][4])
{
    float zero = 0.0f;
    DSC_UNROLL
    for (int i = 0; i < dim / 2; ++i) {
        zero += sums[i / 4][i % 4] * 0.0f;
    }
    return zero != zero;
}

/* sums times factor[half], rounded, to rows of a tensor laid out like the view. */
DSC_INLINE void store_sums(const dsc_attention_args *a, int act, view v, int32_t row0, int32_t n,
                           int dim, float sums[MOST_N][4], const float factor[2])
{
    DSC_UNROLL
    for (int i = 0; i < dim / 2; ++i) {
        const int half = i % 4 / 2;
        const int32_t row = fragment_row(row0, half);
        const int64_t c = 8 * (i / 4) + threadIdx.x % 4 * 2 + i % 2;
        if (row < n && c < a->head_dim) {
            dsc_set((void *)(uintptr_t)v.at, act, element_of(a, &v, row) + c,
                    sums[i / 4][i % 4] * factor[half]);
        }
    }
}

/* Of a row's four lanes. */
DSC_INLINE float quad_sum(float value)
{
    value += dsc_shfl_xor_f32(0xffffffffu, value, 1);
    return value + dsc_shfl_xor_f32(0xffffffffu, value, 2);
}

DSC_INLINE float quad_max(float value)
{
    for (int lanes = 1; lanes <= 2; ++lanes) {
        const float other = dsc_shfl_xor_f32(0xffffffffu, value, lanes);
        value = other > value ? other : value;
    }
    return value;
}

#endif
