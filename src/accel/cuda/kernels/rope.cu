/* SPDX-License-Identifier: Apache-2.0 */
/* rope: a thread a pair, and one for each element behind the part that turns. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/row_args.h"

DSC_INLINE void rope_item(const dsc_rope_args *a, int act, int64_t head, int64_t i)
{
    const int64_t half = a->rotary / 2;
    const int64_t at = head * a->head_dim;
    if (i >= half) {
        const int64_t kept = at + i + half;
        dsc_set(a->y, act, kept, dsc_get(a->x, act, kept));
        return;
    }
    const float *row = a->table + head / a->n_heads * a->rotary;
    const int64_t first = at + (a->pairs != 0 ? 2 * i : i);
    const int64_t second = first + (a->pairs != 0 ? 1 : half);
    const float c = row[i];
    const float s = a->inverse != 0 ? -row[half + i] : row[half + i];
    const float p = dsc_get(a->x, act, first);
    const float q = dsc_get(a->x, act, second);
    dsc_set(a->y, act, first, p * c - q * s);
    dsc_set(a->y, act, second, q * c + p * s);
}

DSC_INLINE void rope_body(const dsc_rope_args *a, int act)
{
    const int64_t items = a->head_dim - a->rotary / 2; /* a head */
    const int64_t n = a->tokens * a->n_heads * items;
    for (int64_t i = dsc_index(); i < n; i += dsc_stride()) {
        rope_item(a, act, i / items, i % items);
    }
}

DSC_KERNEL_ACT(rope, dsc_rope_args)
