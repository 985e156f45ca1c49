/* SPDX-License-Identifier: Apache-2.0 */
/* weight_norms, a block a row: its threads make the elements, of which one adds the squares in
 * their order, so that the bits are the processor's. */
#include "accel/cuda/kernels/packed_value.h"
#include "accel/cuda/kernels/weight_norms.h"

enum { NORM_TILE = 256 };

/* Element k of row o of w. */
DSC_INLINE float base_at(const dsc_weight_norms_args *a, int act, int64_t o, int64_t k)
{
    if (a->packed.format != 0) {
        return dsc_round(act, packed_value(&a->packed, a->w, o, o * a->columns + k));
    }
    return dsc_get(a->w, act, a->transposed != 0 ? k * a->rows + o : o * a->columns + k);
}

DSC_INLINE float adapted_at(const dsc_weight_norms_args *a, int act, int64_t o, int64_t k)
{
    float added = 0.0f;
    for (int64_t r = 0; r < a->rank; ++r) {
        added += dsc_get(a->b, act, o * a->rank + r) * dsc_get(a->a, act, r * a->columns + k);
    }
    return base_at(a, act, o, k) + a->scale * added;
}

DSC_INLINE void weight_norms_body(const dsc_weight_norms_args *a, int act)
{
    __shared__ float tile[NORM_TILE];
    for (int64_t o = blockIdx.x; o < a->rows; o += gridDim.x) {
        double sum = 0.0;
        for (int64_t k = 0; k < a->columns; k += NORM_TILE) {
            const int64_t n = a->columns - k < NORM_TILE ? a->columns - k : NORM_TILE;
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
                tile[i] = adapted_at(a, act, o, k + i);
            }
            __syncthreads();
            for (int64_t i = 0; i < n && threadIdx.x == 0; ++i) {
                sum += (double)tile[i] * (double)tile[i];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            a->y[o] = (float)sum;
        }
    }
}

DSC_KERNEL_ACT(weight_norms, dsc_weight_norms_args)
