/* SPDX-License-Identifier: Apache-2.0 */
/* bmm: for each item of the batch a block makes 16×16 elements, a thread one, over tiles in shared
 * memory; a sum runs over k in ascending order. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/linear.h"
#include "accel/cuda/kernels/reduce_args.h"

DSC_INLINE void bmm_item(const dsc_bmm_args *a, int act, int64_t item, plain_tile as, plain_tile bs)
{
    const uint32_t tx = threadIdx.x % DSC_PLAIN_TILE;
    const uint32_t ty = threadIdx.x / DSC_PLAIN_TILE;
    const int64_t row = (int64_t)blockIdx.y * DSC_PLAIN_TILE + ty;
    const int64_t column = (int64_t)blockIdx.x * DSC_PLAIN_TILE + tx;
    float sum = 0.0f;
    for (int64_t k0 = 0; k0 < a->n_in; k0 += DSC_PLAIN_TILE) {
        as[ty][tx] =
            row < a->rows && k0 + tx < a->n_in
                ? dsc_get(a->a, act, item * a->a_size + row * a->a_down + (k0 + tx) * a->a_right)
                : 0.0f;
        bs[ty][tx] =
            column < a->columns && k0 + ty < a->n_in
                ? dsc_get(a->b, act, item * a->b_size + (k0 + ty) * a->b_down + column * a->b_right)
                : 0.0f;
        __syncthreads();
        for (uint32_t i = 0; i < DSC_PLAIN_TILE; ++i) {
            sum = fmaf(as[ty][i], bs[i][tx], sum);
        }
        __syncthreads();
    }
    if (row < a->rows && column < a->columns) {
        dsc_set(a->y, a->y_dtype, (item * a->rows + row) * a->columns + column, sum);
    }
}

DSC_INLINE void bmm_body(const dsc_bmm_args *a, int act)
{
    __shared__ plain_tile as;
    __shared__ plain_tile bs;
    for (int64_t item = blockIdx.z; item < a->n_items; item += gridDim.z) {
        bmm_item(a, act, item, as, bs);
    }
}

DSC_KERNEL_ACT(bmm, dsc_bmm_args)
