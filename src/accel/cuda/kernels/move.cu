/* SPDX-License-Identifier: Apache-2.0 */
/* What moves and computes nothing: blocks from one place to another, and permuted dims. A thread an
 * element, of 1, 2, 4 or 8 bytes. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/move.h"

DSC_INLINE void move_element(void *to, int64_t to_at, const void *from, int64_t from_at, int width)
{
    switch (width) {
    case 1:
        ((uint8_t *)to)[to_at] = from != NULL ? ((const uint8_t *)from)[from_at] : (uint8_t)0;
        break;
    case 2:
        ((uint16_t *)to)[to_at] = from != NULL ? ((const uint16_t *)from)[from_at] : (uint16_t)0;
        break;
    case 4:
        ((uint32_t *)to)[to_at] = from != NULL ? ((const uint32_t *)from)[from_at] : 0;
        break;
    default:
        ((uint64_t *)to)[to_at] = from != NULL ? ((const uint64_t *)from)[from_at] : 0;
        break;
    }
}

DSC_INLINE void move_all(const dsc_move_args *a)
{
    for (int64_t at = dsc_index(); at < a->outer * a->n; at += dsc_stride()) {
        const int64_t o = at / a->n;
        const int64_t i = at % a->n;
        int64_t from = o * a->from_pitch + a->from_at + i;
        int64_t to = o * a->to_pitch + a->to_at + i;
        if (a->indexed != DSC_NO_INDEX) {
            const int64_t k = a->index[o];
            if (k < 0 || k >= a->bound) {
                dsc_report(a->fault, a->call, o, k, a->bound);
                continue;
            }
            from += a->indexed == DSC_INDEX_FROM ? k * a->row : 0;
            to += a->indexed == DSC_INDEX_TO ? k * a->row : 0;
        }
        move_element(a->to, to, a->from, from, a->width);
    }
}

DSC_INLINE void permute_all(const dsc_permute_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        int64_t rest = i;
        int64_t from = 0;
        for (int d = a->n_dims - 1; d >= 0; --d) {
            from += rest % a->dims[d] * a->strides[d];
            rest /= a->dims[d];
        }
        move_element(a->y, i, a->x, from, a->width);
    }
}

DSC_KERNEL(move, dsc_move_args, move_all(a))
DSC_KERNEL(permute, dsc_permute_args, permute_all(a))
