/* SPDX-License-Identifier: Apache-2.0 */
/* paged_attention the plain way, in fp32: any head up to 512 wide, cells of any float dtype or in
 * codes, scores with a cap or with biases of positions. A warp has a token's head, 32 keys at a
 * time from the first that it sees on, as attention.cu has them: a token has the same bits beside
 * any others, and those of that kernel. */
#include "accel/cuda/kernels/attention_bend.h"
#include "accel/cuda/kernels/attention_softmax.h"
#include "accel/cuda/kernels/paged_span.h"

enum { CHANNELS = DSC_MOST_PAGED_HEAD_DIM / 32 };

/* Element of key `key` of a sequence's table, kv head kv. */
DSC_INLINE int64_t paged_key(const dsc_paged_args *a, const int32_t *table, int64_t key, int64_t kv)
{
    const int64_t listed = table[key / a->block];
    const int64_t block = listed >= 0 && listed < a->n_blocks ? listed : 0;
    return (block * a->block + key % a->block) * a->kv_stride + kv * a->kv_head;
}

/* The factor of the head at `at`: that of its codes, else 1. */
DSC_INLINE float factor_of(const dsc_paged_args *a, int kv_type, const void *cell, int64_t at)
{
    if (kv_type != DSC_PAGED_CODES) {
        return 1.0f;
    }
    const uint8_t *bytes = (const uint8_t *)cell + at + a->head_dim;
    return dsc_bits_float((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                          (uint32_t)bytes[3] << 24);
}

DSC_INLINE float cell_get(int kv_type, const void *cell, int64_t at, float factor)
{
    return kv_type == DSC_PAGED_CODES ? (float)((const int8_t *)cell)[at] * factor
                                      : dsc_get(cell, kv_type, at);
}

DSC_INLINE float dot_key(const dsc_paged_args *a, int kv_type, const float *q, int64_t at)
{
    const float factor = factor_of(a, kv_type, a->k, at);
    float sum = 0.0f;
    for (int64_t c = 0; c < a->head_dim; ++c) {
        sum = fmaf(q[c], cell_get(kv_type, a->k, at + c, factor), sum);
    }
    return sum;
}

/* sums[m] of this lane's channels += each lane's weight times the value whose key it had. */
DSC_INLINE void add_values(const dsc_paged_args *a, int kv_type, float weight, const int32_t *table,
                           int64_t key0, int64_t n, int64_t kv, float sums[CHANNELS])
{
    const uint32_t lane = threadIdx.x % 32;
    for (int l = 0; l < 32; ++l) {
        const float w = dsc_shfl_f32(0xffffffffu, weight, l);
        if (l < n) {
            const int64_t at = paged_key(a, table, key0 + l, kv);
            const float factor = factor_of(a, kv_type, a->v, at);
            for (int m = 0; m < CHANNELS; ++m) {
                const int64_t c = lane + 32 * m;
                if (c < a->head_dim) {
                    sums[m] = fmaf(w, cell_get(kv_type, a->v, at + c, factor), sums[m]);
                }
            }
        }
    }
}

DSC_INLINE void store_token(const dsc_paged_args *a, int act, int64_t t, int64_t h,
                            const float sums[CHANNELS], const softmax *soft, bool sees)
{
    const uint32_t lane = threadIdx.x % 32;
    const float factor = sum_factor(soft->sum, sees);
    for (int m = 0; m < CHANNELS; ++m) {
        const int64_t c = lane + 32 * m;
        if (c < a->head_dim) {
            dsc_set(a->y, act, (t * a->n_heads + h) * a->head_dim + c, sums[m] * factor);
        }
    }
    if (lane == 0) {
        a->lse[h * a->n_tokens + t] = log_sum_exp(soft->top, soft->sum, sees);
    }
}

/* Of keys so far before the query. */
DSC_INLINE float distance_bias(const dsc_paged_args *a, int64_t h, int64_t distance)
{
    const int64_t n = a->n_distances;
    return n == 0 ? 0.0f : a->biases[h * n + (distance < n ? n - 1 - distance : 0)];
}

DSC_INLINE void attend_token(const dsc_paged_args *a, int act, int kv_type, int64_t t, int64_t h,
                             float *q)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t kv = h / (a->n_heads / a->n_kv_heads);
    const bool is_one = is_token(a, t, h == 0 && lane == 0);
    const int64_t position = is_one ? a->positions[t] : -1;
    const int64_t first = is_one ? first_key(a, position) : 0;
    const int32_t *table = a->tables + (is_one ? a->sequence[t] * a->n_table : 0);
    const int64_t head = h + (a->heads != NULL ? a->heads[0] : 0);
    const int64_t n_heads = a->heads != NULL ? a->all_heads : a->n_heads;
    const int32_t rounded = a->alibi > 0.0 ? a->alibi_rounded : 0;
    const bend b = {a->scale, a->cap,
                    a->alibi > 0.0 ? (float)slope_of(a->alibi, n_heads, head) : 0.0f, rounded,
                    rounded != 0 ? 0 : position};
    float sums[CHANNELS] = {0.0f};
    softmax soft = {-INFINITY, 0.0f};
    for (int64_t c = lane; c < a->head_dim; c += 32) {
        q[c] = dsc_get(a->q, act, (t * a->n_heads + h) * a->head_dim + c);
    }
    if (h == 0) {
        check_blocks(a, is_one ? a->sequence[t] : 0, first, position + 1, lane, 32);
    }
    __syncwarp();
    for (int64_t j0 = first; j0 <= position; j0 += 32) {
        const int64_t n = position + 1 - j0 < 32 ? position + 1 - j0 : 32;
        float score = -INFINITY;
        if (lane < n) {
            float turn;
            score = bend_score(&b, dot_key(a, kv_type, q, paged_key(a, table, j0 + lane, kv)),
                               j0 + lane, &turn) +
                    distance_bias(a, h, position - j0 - lane);
        }
        const float p = soften(&soft, score, CHANNELS, sums);
        add_values(a, kv_type, p, table, j0, n, kv, sums);
    }
    store_token(a, act, t, h, sums, &soft, first <= position);
    __syncwarp();
}

DSC_INLINE void attend_tokens(const dsc_paged_args *a, int act, int kv_type, float *q)
{
    const int64_t step = (int64_t)gridDim.x * DSC_PAGED_WARPS;
    const uint32_t warp = threadIdx.x / 32;
    for (int64_t i = (int64_t)blockIdx.x * DSC_PAGED_WARPS + warp; i < a->n_tokens * a->n_heads;
         i += step) {
        attend_token(a, act, kv_type, i / a->n_heads, i % a->n_heads,
                     q + warp * DSC_MOST_PAGED_HEAD_DIM);
    }
}

DSC_INLINE void paged_attention_body(const dsc_paged_args *a, int act)
{
    __shared__ float q[DSC_PAGED_WARPS * DSC_MOST_PAGED_HEAD_DIM];
    attend_tokens(a, act, act, q);
}

DSC_INLINE void paged_attention_codes_body(const dsc_paged_args *a, int act)
{
    __shared__ float q[DSC_PAGED_WARPS * DSC_MOST_PAGED_HEAD_DIM];
    attend_tokens(a, act, DSC_PAGED_CODES, q);
}

/* Cells of another dtype than q. */
DSC_INLINE void paged_attention_other_body(const dsc_paged_args *a, int act)
{
    __shared__ float q[DSC_PAGED_WARPS * DSC_MOST_PAGED_HEAD_DIM];
    attend_tokens(a, act, a->kv_dtype, q);
}

DSC_KERNEL_ACT(paged_attention, dsc_paged_args)
DSC_KERNEL_ACT(paged_attention_codes, dsc_paged_args)
DSC_KERNEL_ACT(paged_attention_other, dsc_paged_args)
