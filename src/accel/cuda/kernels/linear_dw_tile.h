/* SPDX-License-Identifier: Apache-2.0 */
/* The product of linear_dw.cu and grouped_linear.cu: a block makes 16×16 elements of dw, a thread
 * one, over tiles of rows in shared memory, in ascending order. blockIdx.x: columns of dy,
 * blockIdx.y: columns of x. */
#ifndef DSC_LINEAR_DW_TILE_H
#define DSC_LINEAR_DW_TILE_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/linear.h"

/* The thread's element: column o of dy, column k of x. */
DSC_INLINE int64_t dw_column(void)
{
    return (int64_t)blockIdx.x * DSC_PLAIN_TILE + threadIdx.x % DSC_PLAIN_TILE;
}

DSC_INLINE int64_t dw_row(void)
{
    return (int64_t)blockIdx.y * DSC_PLAIN_TILE + threadIdx.x / DSC_PLAIN_TILE;
}

DSC_INLINE bool is_in_dw(const dsc_linear_dw_args *a)
{
    return dw_column() < a->n_out && dw_row() < a->n_in;
}

DSC_INLINE int64_t dw_at(const dsc_linear_dw_args *a)
{
    return a->transposed != 0 ? dw_row() * a->n_out + dw_column()
                              : dw_column() * a->n_in + dw_row();
}

/* Its sum over rows [begin,end). */
DSC_INLINE float plain_dw_of(const dsc_linear_dw_args *a, int act, int64_t begin, int64_t end,
                             plain_tile xs, plain_tile ds)
{
    const uint32_t tx = threadIdx.x % DSC_PLAIN_TILE;
    const uint32_t ty = threadIdx.x / DSC_PLAIN_TILE;
    const int64_t o = dw_column();
    const int64_t x_column = (int64_t)blockIdx.y * DSC_PLAIN_TILE + tx; /* that this thread loads */
    float sum = 0.0f;
    for (int64_t row0 = begin; row0 < end; row0 += DSC_PLAIN_TILE) {
        const int64_t row = row0 + ty;
        const bool in = row < end;
        xs[ty][tx] = in && x_column < a->n_in ? dsc_get(a->x, act, row * a->n_in + x_column) : 0.0f;
        ds[ty][tx] = in && o < a->n_out ? dsc_get(a->dy, act, row * a->n_out + o) : 0.0f;
        __syncthreads();
        for (uint32_t i = 0; i < DSC_PLAIN_TILE; ++i) {
            sum = fmaf(xs[i][ty], ds[i][tx], sum);
        }
        __syncthreads();
    }
    return sum;
}

#endif
