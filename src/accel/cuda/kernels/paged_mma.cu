/* SPDX-License-Identifier: Apache-2.0 */
/* paged_attention in bf16 and fp16 by mma, of heads up to 128 wide in cells of q's dtype: the rows
 * and tiles of attention_mma.cu, keys by a sequence's table. A block has the heads that share keys
 * of tokens that follow each other in one sequence, as many as it has rows for and up to a position
 * that is a multiple of that number; the blocks of the tokens behind the first have nothing to do.
 * A token has the same bits beside any others, and those of attention_mma.cu. */
#include "accel/cuda/kernels/attention_forward.h"
#include "accel/cuda/kernels/paged_span.h"

/* Whether token t has its rows in the block of the token before it. */
DSC_INLINE bool goes_on(const dsc_paged_args *a, int64_t t, int32_t most)
{
    return t > 0 && t < a->n_tokens && a->sequence[t] >= 0 &&
           a->sequence[t] == a->sequence[t - 1] && a->positions[t] == a->positions[t - 1] + 1 &&
           a->positions[t] % most != 0;
}

/* The block's tokens as attention's arguments, from token t on. */
DSC_INLINE dsc_attention_args queries_from(const dsc_paged_args *a, int64_t t)
{
    const int64_t width = a->n_heads * a->head_dim;
    dsc_attention_args own = {0};
    own.q = (const uint16_t *)a->q + t * width;
    own.y = (uint16_t *)a->y + t * width;
    own.lse = a->lse + t;
    own.q_stride = width;
    own.n_queries = a->n_tokens;
    own.n_heads = a->n_heads;
    own.n_kv_heads = a->n_kv_heads;
    own.head_dim = a->head_dim;
    own.scale = a->scale;
    own.copies = a->copies;
    return own;
}

/* Keys or values of a sequence. */
DSC_INLINE view blocks_of(const dsc_paged_args *a, int64_t sequence, int64_t kv, const void *cell)
{
    const view v = {
        (const uint16_t *)cell + kv * a->kv_head, a->kv_stride,      1,
        a->tables + sequence * a->n_table,        (int32_t)a->block, (int32_t)a->n_blocks};
    return v;
}

/* Of n tokens from t on. */
DSC_INLINE void check_run(const dsc_paged_args *a, int64_t t, int64_t n)
{
    for (int64_t i = threadIdx.x; i < n; i += DSC_ATTENTION_THREADS) {
        (void)is_token(a, t + i, true);
    }
    if (is_token(a, t, false)) {
        const int64_t begin = a->positions[t];
        const int64_t room = a->n_table * a->block;
        check_blocks(a, a->sequence[t], first_key(a, begin), begin + n < room ? begin + n : room,
                     threadIdx.x, DSC_ATTENTION_THREADS);
    }
}

/* What row `row` of the block from token t on sees. */
DSC_INLINE reach reach_of_row(const dsc_paged_args *a, const part *p, int64_t t, int32_t row)
{
    reach r = {0, 0};
    if (row < p->n_rows && is_token(a, t + row / p->group, false)) {
        const int64_t position = a->positions[t + row / p->group];
        r.first = (int32_t)first_key(a, position);
        r.last = (int32_t)position + 1;
    }
    return r;
}

DSC_INLINE void attend_run(const dsc_paged_args *a, int act, int dim, uint16_t *keys,
                           uint16_t *values, reach *reaches, float *parts)
{
    const int64_t t = blockIdx.x / a->n_kv_heads;
    part p = {0, blockIdx.x % a->n_kv_heads, (int32_t)(a->n_heads / a->n_kv_heads), 0, 0};
    const int32_t most = DSC_ATTENTION_ROWS / p.group;
    int64_t n = 1;
    if (goes_on(a, t, most)) {
        return;
    }
    while (goes_on(a, t + n, most)) {
        ++n;
    }
    p.n_rows = (int32_t)n * p.group;
    if (p.kv == 0) {
        check_run(a, t, n);
    }
    const int64_t sequence = is_token(a, t, false) ? a->sequence[t] : 0;
    const dsc_attention_args own = queries_from(a, t);
    walk w;
    w.k = blocks_of(a, sequence, p.kv, a->k);
    w.v = blocks_of(a, sequence, p.kv, a->v);
    w.keys = keys;
    w.values = values;
    if (threadIdx.x < DSC_ATTENTION_ROWS) {
        reaches[threadIdx.x] = reach_of_row(a, &p, t, (int32_t)threadIdx.x);
    }
    attend(&own, &p, act, dim, &w, reaches, parts);
}

#define PAGED_MMA(dim, name, act)                                                                  \
    DSC_INLINE void body_##dim##_##name(const dsc_paged_args *a)                                   \
    {                                                                                              \
        __shared__ DSC_ALIGN(16) uint16_t keys[2 * TILE_SIZE(dim)];                                \
        __shared__ DSC_ALIGN(16) uint16_t values[2 * TILE_SIZE(dim)];                              \
        __shared__ reach reaches[DSC_ATTENTION_ROWS];                                              \
        __shared__ float parts[32];                                                                \
        attend_run(a, act, dim, keys, values, reaches, parts);                                     \
    }                                                                                              \
    DSC_KERNEL(paged_mma_##dim##_##name, dsc_paged_args, body_##dim##_##name(a))

PAGED_MMA(64, bf16, DSC_BF16)
PAGED_MMA(64, f16, DSC_F16)
PAGED_MMA(128, bf16, DSC_BF16)
PAGED_MMA(128, f16, DSC_F16)
