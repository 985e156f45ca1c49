/* SPDX-License-Identifier: Apache-2.0 */
/* linear: a block a tile of y (linear_tile.h). */
#include "accel/cuda/kernels/linear_tile.h"

DSC_INLINE void linear_body(const dsc_linear_args *a, int act)
{
    __shared__ plain_tile xs;
    __shared__ plain_tile ws;
    plain_tile_of(a, act, NULL, (int64_t)blockIdx.y * DSC_PLAIN_TILE,
                  (int64_t)blockIdx.x * DSC_PLAIN_TILE, xs, ws);
}

DSC_KERNEL_ACT(linear, dsc_linear_args)

DSC_INLINE void linear_mma_body(const dsc_linear_args *a, int act)
{
    __shared__ DSC_ALIGN(16) mma_tile xs[2];
    __shared__ DSC_ALIGN(16) mma_tile ws[2];
    mma_tile_of(a, act, NULL, (int64_t)blockIdx.y * DSC_MMA_TILE,
                (int64_t)blockIdx.x * DSC_MMA_TILE, xs, ws);
}

DSC_KERNEL(linear_mma_bf16, dsc_linear_args, linear_mma_body(a, DSC_BF16))
DSC_KERNEL(linear_mma_f16, dsc_linear_args, linear_mma_body(a, DSC_F16))
