/* SPDX-License-Identifier: Apache-2.0 */
/* attention_sinks and its gradient, and slot_adapter: what models and servers put behind attention
 * and behind a product. A warp a query and head; of slot_adapter a block a token. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/sinks.h"

/* What the keys keep of the sum under the softmax, 0 of a query that sees none. */
DSC_INLINE float share_of(const dsc_sinks_args *a, int act, int64_t b, int64_t t, int64_t h)
{
    const float lse = a->lse[(b * a->n_heads + h) * a->n_queries + t];
    return 1.0f / (1.0f + expf(dsc_get(a->sinks, act, h) - lse));
}

DSC_INLINE void attention_sinks_body(const dsc_sinks_args *a, int act)
{
    const int64_t width = a->n_heads * a->head_dim;
    for (int64_t i = dsc_index(); i < a->n_batch * a->n_queries * width; i += dsc_stride()) {
        const int64_t row = i / width;
        const int64_t h = i % width / a->head_dim;
        const float keep = share_of(a, act, row / a->n_queries, row % a->n_queries, h);
        dsc_set(a->dy, act, i, dsc_get(a->y, act, i) * keep);
    }
}

/* dy becomes what comes to y, and dlse. */
DSC_INLINE void attention_sinks_dy_body(const dsc_sinks_args *a, int act)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t n = a->n_batch * a->n_queries * a->n_heads;
    for (int64_t i = dsc_index() / 32; i < n; i += dsc_stride() / 32) {
        const int64_t h = i % a->n_heads;
        const int64_t t = i / a->n_heads % a->n_queries;
        const int64_t b = i / a->n_heads / a->n_queries;
        const float keep = share_of(a, act, b, t, h);
        float sum = 0.0f;
        for (int64_t c = lane; c < a->head_dim; c += 32) {
            const float dy = dsc_get(a->gradient, act, i * a->head_dim + c);
            sum += dy * dsc_get(a->y, act, i * a->head_dim + c);
            dsc_set(a->dy, act, i * a->head_dim + c, dy * keep);
        }
        sum = dsc_warp_sum(sum);
        if (lane == 0) {
            a->dlse[(b * a->n_heads + h) * a->n_queries + t] = sum * keep * (1.0f - keep);
        }
    }
}

/* A block a head. */
DSC_INLINE void sum_sinks(const dsc_sinks_args *a)
{
    __shared__ float parts[32];
    for (int64_t h = blockIdx.x; h < a->n_heads; h += gridDim.x) {
        float sum = 0.0f;
        for (int64_t row = threadIdx.x; row < a->n_batch * a->n_queries; row += blockDim.x) {
            const int64_t b = row / a->n_queries;
            sum += a->dlse[(b * a->n_heads + h) * a->n_queries + row % a->n_queries];
        }
        sum = dsc_block_sum(sum, parts);
        if (threadIdx.x == 0) {
            a->dsinks[h] = -sum;
        }
    }
}

DSC_KERNEL_ACT(attention_sinks, dsc_sinks_args)
DSC_KERNEL_ACT(attention_sinks_dy, dsc_sinks_args)
DSC_KERNEL(sum_sinks, dsc_sinks_args, sum_sinks(a))

/* ---- slot_adapter -------------------------------------------------------------------------- */

DSC_INLINE void slot_adapter_body(const dsc_slot_args *a, int act)
{
    __shared__ float down[DSC_MOST_RANK];
    for (int64_t t = blockIdx.x; t < a->n_tokens; t += gridDim.x) {
        const int64_t slot = a->slots[t];
        const bool is_slot = slot >= 0 && slot < a->n_slots;
        if ((slot < -1 || slot >= a->n_slots) && threadIdx.x == 0) {
            dsc_report(a->fault, a->call, t, slot, a->n_slots);
        }
        for (int64_t r = threadIdx.x; r < a->rank && is_slot; r += blockDim.x) {
            float sum = 0.0f;
            for (int64_t c = 0; c < a->n_in; ++c) {
                sum = fmaf(dsc_get(a->x, act, t * a->n_in + c),
                           dsc_get(a->a, act, (slot * a->n_in + c) * a->rank + r), sum);
            }
            down[r] = sum;
        }
        __syncthreads();
        for (int64_t n = threadIdx.x; n < a->n_out; n += blockDim.x) {
            float sum = dsc_get(a->y, act, t * a->n_out + n);
            for (int64_t r = 0; r < a->rank && is_slot; ++r) {
                sum = fmaf(down[r], dsc_get(a->b, act, (slot * a->rank + r) * a->n_out + n), sum);
            }
            dsc_set(a->out, act, t * a->n_out + n, sum);
        }
        __syncthreads();
    }
}

DSC_KERNEL_ACT(slot_adapter, dsc_slot_args)
