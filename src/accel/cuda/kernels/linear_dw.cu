/* SPDX-License-Identifier: Apache-2.0 */
/* linear_dw: a block makes 16×16 elements of dw, a thread one, over tiles of rows in shared memory;
 * the column sums of dy 32 columns a block, whose eight warps take rows in turns. A sum runs over
 * the rows in ascending order. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/linear.h"

/* blockIdx.x: columns of dy, blockIdx.y: columns of x. */
DSC_INLINE void linear_dw_body(const dsc_linear_dw_args *a, int act)
{
    __shared__ float xs[DSC_PLAIN_TILE][DSC_PLAIN_TILE + 1];
    __shared__ float ds[DSC_PLAIN_TILE][DSC_PLAIN_TILE + 1];
    const uint32_t tx = threadIdx.x % DSC_PLAIN_TILE;
    const uint32_t ty = threadIdx.x / DSC_PLAIN_TILE;
    const int64_t o = (int64_t)blockIdx.x * DSC_PLAIN_TILE + tx;
    const int64_t k = (int64_t)blockIdx.y * DSC_PLAIN_TILE + ty;
    const int64_t x_column = (int64_t)blockIdx.y * DSC_PLAIN_TILE + tx; /* that this thread loads */
    float sum = 0.0f;
    for (int64_t row0 = 0; row0 < a->rows; row0 += DSC_PLAIN_TILE) {
        const int64_t row = row0 + ty;
        const bool in = row < a->rows;
        xs[ty][tx] = in && x_column < a->n_in ? dsc_get(a->x, act, row * a->n_in + x_column) : 0.0f;
        ds[ty][tx] = in && o < a->n_out ? dsc_get(a->dy, act, row * a->n_out + o) : 0.0f;
        __syncthreads();
        for (uint32_t i = 0; i < DSC_PLAIN_TILE; ++i) {
            sum = fmaf(xs[i][ty], ds[i][tx], sum);
        }
        __syncthreads();
    }
    if (o < a->n_out && k < a->n_in) {
        const int64_t at = a->transposed != 0 ? k * a->n_out + o : o * a->n_in + k;
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
