/* SPDX-License-Identifier: Apache-2.0 */
/* linear_dw: a block 16×16 elements of dw (linear_dw_tile.h); the column sums of dy 32 columns a
 * block, whose eight warps take rows in turns. */
#include "accel/cuda/kernels/linear_dw_tile.h"

DSC_INLINE void linear_dw_body(const dsc_linear_dw_args *a, int act)
{
    __shared__ plain_tile xs;
    __shared__ plain_tile ds;
    const float sum = plain_dw_of(a, act, 0, a->rows, xs, ds);
    if (is_in_dw(a)) {
        const int64_t at = dw_at(a);
        dsc_set(a->dw, a->dw_dtype, at, a->dw_in != NULL ? sum + a->dw_in[at] : sum);
    }
}

DSC_INLINE void column_sums_body(const dsc_linear_dw_args *a, int act)
{
    __shared__ float sums[8][33];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    for (int64_t c = blockIdx.x; c * 32 < a->n_out; c += gridDim.x) {
        const int64_t column = c * 32 + lane;
        float sum = 0.0f;
        for (int64_t row = warp; row < a->rows && column < a->n_out; row += 8) {
            sum += dsc_get(a->dy, act, row * a->n_out + column);
        }
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && column < a->n_out) {
            for (uint32_t w = 1; w < 8; ++w) {
                sum += sums[w][lane];
            }
            dsc_set(a->dbias, a->dw_dtype, column,
                    a->dbias_in != NULL ? sum + a->dbias_in[column] : sum);
        }
        __syncthreads();
    }
}

DSC_KERNEL_ACT(linear_dw, dsc_linear_dw_args)
DSC_KERNEL_ACT(column_sums, dsc_linear_dw_args)
