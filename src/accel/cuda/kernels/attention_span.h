/* SPDX-License-Identifier: Apache-2.0 */
/* Of attention.cu and attention_mma*.cu: which keys a query sees, which probabilities are dropped,
 * where heads are. */
#ifndef DSC_ATTENTION_SPAN_H
#define DSC_ATTENTION_SPAN_H

#include "accel/cuda/kernels/attention.h"
#include "accel/cuda/kernels/device_random.h"

/* Numbers of the first query and of the first key among all positions. */
DSC_INLINE int64_t row_number(const dsc_attention_args *a)
{
    return a->rows != NULL ? a->rows[0] : 0;
}

DSC_INLINE int64_t key_number(const dsc_attention_args *a)
{
    return a->keys != NULL ? a->keys[0] : 0;
}

/* Keys [first,last) that query i of sample b sees. */
typedef struct span {
    int64_t first, last;
} span;

DSC_INLINE span visible(const dsc_attention_args *a, int64_t b, int64_t i)
{
    const int64_t key0 = key_number(a);
    const int64_t position = row_number(a) - key0 + i + (a->offset != NULL ? a->offset[b] : 0);
    span s = {0, a->n_keys};
    if (a->causal != 0 && position + 1 < s.last) {
        s.last = position + 1;
    }
    if (a->window > 0 && position - a->window + 1 > s.first) {
        s.first = position - a->window + 1;
    }
    if (a->window > 0 && position + a->window < s.last) {
        s.last = position + a->window;
    }
    if (a->first != NULL) {
        const int64_t lowest = a->first[b * a->n_queries + i] - key0;
        s.first = lowest > s.first ? lowest : s.first;
    }
    if (a->end != NULL && a->end[b * a->n_queries + i] - key0 < s.last) {
        s.last = a->end[b * a->n_queries + i] - key0;
    }
    if (s.last < s.first) {
        s.last = s.first;
    }
    return s;
}

/* What probability (b,h,row,key) is multiplied with, of so many rows and keys: 0 or 1/(1-p). */
DSC_INLINE float dropout_at(const dsc_attention_args *a, int64_t b, int64_t h, int64_t row,
                            int64_t all_rows, int64_t key, int64_t all_keys)
{
    if (a->dropout <= 0.0f) {
        return 1.0f;
    }
    const int64_t head0 = a->heads != NULL ? a->heads[0] : 0;
    const int64_t all_heads = a->heads != NULL ? a->all_heads : a->n_heads;
    const int64_t head = (a->rng[2] + b) * all_heads + head0 + h;
    const uint64_t element = (uint64_t)((head * all_rows + row) * all_keys + key);
    const float unit =
        dsc_random_unit((uint64_t)a->rng[0], (uint32_t)a->site, (uint32_t)a->rng[1], element);
    return unit >= a->dropout ? 1.0f / (1.0f - a->dropout) : 0.0f;
}

/* Of query i and key j of those that are here. */
DSC_INLINE float dropout_factor(const dsc_attention_args *a, int64_t b, int64_t h, int64_t i,
                                int64_t j)
{
    const int64_t all_keys = a->keys != NULL ? a->all_keys : a->n_keys;
    const int64_t all_rows = a->rows != NULL ? all_keys : a->n_queries;
    return dropout_at(a, b, h, row_number(a) + i, all_rows, key_number(a) + j, all_keys);
}

DSC_INLINE int64_t query_at(const dsc_attention_args *a, int64_t b, int64_t i, int64_t h)
{
    return (b * a->n_queries + i) * a->q_stride + h * a->head_dim;
}

DSC_INLINE int64_t key_at(const dsc_attention_args *a, int64_t b, int64_t j, int64_t kv)
{
    return (b * a->n_keys + j) * a->kv_stride + kv * a->head_dim;
}

DSC_INLINE int64_t y_at(const dsc_attention_args *a, int64_t b, int64_t i, int64_t h)
{
    return ((b * a->n_queries + i) * a->n_heads + h) * a->head_dim;
}

#endif
