/* SPDX-License-Identifier: Apache-2.0 */
/* relative_bias, a thread an element; its gradient, a block a bucket of a head, which goes over the
 * keys of each query that are as far away as the bucket says. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/relative.h"

/* Keys [from,to) that a query sees, and its position. */
typedef struct seen {
    int64_t position, from, to;
} seen;

DSC_INLINE seen seen_by(const dsc_relative_args *a, int64_t b, int64_t i)
{
    const int64_t position = i + (a->offset != NULL ? a->offset[b] : 0);
    const int64_t from = a->first[b * a->n_queries + i];
    const int64_t to = a->end != NULL ? a->end[b * a->n_queries + i] : position + 1;
    const seen s = {position, from > 0 ? from : 0, to < a->n_keys ? to : a->n_keys};
    return s;
}

DSC_INLINE int64_t bucket_of(const dsc_relative_args *a, int64_t distance)
{
    const bool behind = a->both != 0 && distance > 0;
    const int64_t off = behind ? distance : -distance;
    int low = 0;
    int high = a->n_ranges - 1;
    while (low < high) { /* the last range that begins at off or below it */
        const int k = (low + high + 1) / 2;
        if (a->starts[k] <= off) {
            low = k;
        } else {
            high = k - 1;
        }
    }
    return (behind ? a->n_ranges : 0) + low;
}

DSC_INLINE void relative_bias_body(const dsc_relative_args *a, int act)
{
    const float hidden = act == DSC_F16 ? -3e4f : -1e30f;
    const int64_t n = a->n_batch * a->heads * a->n_queries * a->n_keys;
    for (int64_t at = dsc_index(); at < n; at += dsc_stride()) {
        const int64_t j = at % a->n_keys;
        const int64_t row = at / a->n_keys;
        const int64_t h = row / a->n_queries % a->heads;
        const seen s = seen_by(a, row / a->n_queries / a->heads, row % a->n_queries);
        const bool sees = j >= s.from && j < s.to;
        const int64_t k = sees ? bucket_of(a, j - s.position) : 0;
        dsc_set(a->y, act, at, sees ? dsc_get(a->table, act, k * a->heads + h) : hidden);
    }
}

/* Keys of a query that bucket k is of: what it sees of them. */
DSC_INLINE seen of_bucket(const dsc_relative_args *a, seen s, int64_t k)
{
    const bool behind = k >= a->n_ranges;
    const int64_t r = behind ? k - a->n_ranges : k;
    const int64_t low = behind && r == 0 ? 1 : a->starts[r];
    const bool ends = r + 1 < a->n_ranges;
    const int64_t high = ends ? a->starts[r + 1] : a->n_keys + s.position + 1;
    const int64_t from = behind ? s.position + low : s.position - high + 1;
    const int64_t last = a->both == 0 && r == 0 ? s.to : s.position - low + 1;
    const int64_t to = behind ? s.position + high : last;
    s.from = from > s.from ? from : s.from;
    s.to = to < s.to ? to : s.to;
    return s;
}

DSC_INLINE void relative_bias_backward_body(const dsc_relative_args *a, int act)
{
    __shared__ float parts[32];
    const int64_t n = (int64_t)a->n_ranges * (a->both != 0 ? 2 : 1);
    for (int64_t item = blockIdx.x; item < n * a->heads; item += gridDim.x) {
        const int64_t k = item / a->heads;
        const int64_t h = item % a->heads;
        float sum = 0.0f;
        for (int64_t row = threadIdx.x; row < a->n_batch * a->n_queries; row += blockDim.x) {
            const int64_t b = row / a->n_queries;
            const int64_t i = row % a->n_queries;
            const seen s = of_bucket(a, seen_by(a, b, i), k);
            for (int64_t j = s.from; j < s.to; ++j) {
                sum += dsc_get(a->dy, act, ((b * a->heads + h) * a->n_queries + i) * a->n_keys + j);
            }
        }
        sum = dsc_block_sum(sum, parts);
        if (threadIdx.x == 0) {
            dsc_set(a->dtable, a->dtable_dtype, k * a->heads + h, sum);
        }
    }
}

DSC_KERNEL_ACT(relative_bias, dsc_relative_args)
DSC_KERNEL_ACT(relative_bias_backward, dsc_relative_args)
