/* SPDX-License-Identifier: Apache-2.0 */
/* linear_packed: the tiles of linear.cu, whose elements of w are made where they are read. */
#include "accel/cuda/kernels/linear_tile.h"

DSC_INLINE void linear_packed_body(const dsc_linear_packed_args *a, int act)
{
    __shared__ plain_tile xs;
    __shared__ plain_tile ws;
    plain_tile_of(&a->linear, act, &a->packed, (int64_t)blockIdx.y * DSC_PLAIN_TILE,
                  (int64_t)blockIdx.x * DSC_PLAIN_TILE, xs, ws);
}

DSC_KERNEL_ACT(linear_packed, dsc_linear_packed_args)

DSC_INLINE void linear_packed_mma_body(const dsc_linear_packed_args *a, int act)
{
    __shared__ DSC_ALIGN(16) mma_tile xs[2];
    __shared__ DSC_ALIGN(16) mma_tile ws[2];
    mma_tile_of(&a->linear, act, &a->packed, (int64_t)blockIdx.y * DSC_MMA_TILE,
                (int64_t)blockIdx.x * DSC_MMA_TILE, xs, ws);
}

DSC_KERNEL(linear_packed_mma_bf16, dsc_linear_packed_args, linear_packed_mma_body(a, DSC_BF16))
DSC_KERNEL(linear_packed_mma_f16, dsc_linear_packed_args, linear_packed_mma_body(a, DSC_F16))
