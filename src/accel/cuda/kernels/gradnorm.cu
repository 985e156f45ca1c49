/* SPDX-License-Identifier: Apache-2.0 */
/* The global norm of gradients by the exact sum of base/exact_bins.h, whose operations these are
 * one by one: the bits are the processor's, in any split of the work. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/gradnorm.h"
#include "accel/cuda/kernels/kernel_bins.h"

DSC_INLINE void squares_all(const dsc_squares_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double bins[DSC_WIDE];
    int64_t added = 0;
    dsc_bins_clear(bins);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        dsc_bins_add(bins, dsc_get(a->x, a->x_dtype, i));
        if (++added % DSC_BIN_BLOCK == 0) {
            dsc_bins_carry(bins);
        }
    }
    dsc_bins_carry(bins);
    dsc_bins_block(bins, all);
    dsc_bins_store(bins, a->parts + (int64_t)blockIdx.x * DSC_WIDE);
}

/* One block. */
DSC_INLINE void squares_join_all(const dsc_squares_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][DSC_WIDE];
    double bins[DSC_WIDE];
    dsc_bins_load(bins, a->parts, a->n_parts);
    dsc_bins_block(bins, all);
    dsc_bins_store(bins, a->sum);
}

/* ---- where the largest magnitude is known: two grids, as base/exact_sum.h has them ------------
 */

typedef struct grid {
    int empty;
    double q1, coarse, fine;
} grid;

DSC_INLINE grid grid_of(float top)
{
    union {
        float value;
        uint32_t bits;
    } f;
    grid g = {1, 0.0, 0.0, 0.0};
    if (top > 0.0f && isfinite(top)) {
        int exponent = 0;
        f.value = top;
        const int biased = (int)(f.bits >> 23 & 255);
        exponent = biased - 126;
        if (biased == 0) { /* subnormal: its highest bit */
            exponent = -149;
            for (uint32_t rest = f.bits; rest != 0; rest >>= 1) {
                ++exponent;
            }
        }
        g.empty = 0;
        g.q1 = dsc_power_of_two(2 * exponent - 17);
        g.coarse = 1.5 * dsc_power_of_two(52 + 2 * exponent - 17);
        g.fine = g.coarse * dsc_power_of_two(-34);
    }
    return g;
}

DSC_INLINE void grid_carry(const grid *g, double parts[2])
{
    if (g->empty == 0) {
        const double moved = floor(parts[1] / g->q1) * g->q1;
        parts[0] += moved;
        parts[1] -= moved;
    }
}

/* Parts of the block's threads, to one. */
DSC_INLINE void grid_block(const grid *g, double parts[2], double all[DSC_SUM_THREADS][2],
                           double *out)
{
    all[threadIdx.x][0] = parts[0];
    all[threadIdx.x][1] = parts[1];
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t t = 1; t < blockDim.x; ++t) {
            parts[0] += all[t][0];
            parts[1] += all[t][1];
        }
        grid_carry(g, parts);
        out[0] = parts[0];
        out[1] = parts[1];
    }
}

DSC_INLINE void squares_on_grid_all(const dsc_squares_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][2];
    const grid g = grid_of(*a->top);
    double parts[2] = {0.0, 0.0};
    int64_t added = 0;
    for (int64_t i = dsc_index(); i < a->n && g.empty == 0; i += dsc_stride()) {
        const float x = dsc_get(a->x, a->x_dtype, i);
        const double square = (double)x * (double)x;
        const double high = (square + g.coarse) - g.coarse;
        parts[0] += high;
        parts[1] += ((square - high) + g.fine) - g.fine;
        if (++added % DSC_GRID_RUN == 0) {
            grid_carry(&g, parts);
        }
    }
    grid_carry(&g, parts);
    grid_block(&g, parts, all, a->parts + (int64_t)blockIdx.x * 2);
}

/* One block. */
DSC_INLINE void grid_join_all(const dsc_squares_args *a)
{
    __shared__ double all[DSC_SUM_THREADS][2];
    const grid g = grid_of(*a->top);
    double parts[2] = {0.0, 0.0};
    if (threadIdx.x < a->n_parts) {
        parts[0] = a->parts[(int64_t)threadIdx.x * 2];
        parts[1] = a->parts[(int64_t)threadIdx.x * 2 + 1];
    }
    grid_block(&g, parts, all, a->sum);
}

/* ---- the rest ----------------------------------------------------------------------------------
 */

/* A thread a number of the result. */
DSC_INLINE void sum_parts_all(const dsc_parts_args *a)
{
    const int64_t at = dsc_index();
    if (at < a->length) {
        double sum = 0.0;
        for (int64_t k = 0; k < a->n_in; ++k) {
            for (int64_t i = at; i < a->n[k]; i += a->length) {
                sum += a->in[k][i];
            }
        }
        a->out[at] = sum;
    }
}

DSC_INLINE float larger(float top, float x)
{
    return isnan(top) || x <= top ? top : x;
}

/* The larger of all threads' tops, by one. */
DSC_INLINE void finish_largest(float top, float tops[DSC_SUM_THREADS], float *out)
{
    tops[threadIdx.x] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t t = 1; t < blockDim.x; ++t) {
            top = larger(top, tops[t]);
        }
        *out = top;
    }
}

/* One block. */
DSC_INLINE void abs_max_all(const dsc_largest_args *a)
{
    __shared__ float tops[DSC_SUM_THREADS];
    float top = 0.0f;
    for (int64_t i = threadIdx.x; i < a->n; i += blockDim.x) {
        top = larger(top, fabsf(dsc_get(a->in[0], a->x_dtype, i)));
    }
    finish_largest(top, tops, a->out);
}

/* One thread. */
DSC_INLINE void max_of_all(const dsc_largest_args *a)
{
    if (threadIdx.x != 0) {
        return;
    }
    float top = *(const float *)a->in[0];
    for (int64_t k = 1; k < a->n_in; ++k) {
        top = larger(top, *(const float *)a->in[k]);
    }
    *a->out = top;
}

/* One thread. */
DSC_INLINE void clip_all(const dsc_clip_args *a)
{
    double bins[DSC_WIDE];
    double sum = 0.0;
    if (threadIdx.x != 0) {
        return;
    }
    if (a->top != NULL) {
        sum = a->sum[0] + a->sum[1];
    } else {
        for (int i = 0; i < DSC_WIDE; ++i) {
            bins[i] = a->sum[i];
        }
        sum = dsc_bins_total(bins);
    }
    const float top = a->top != NULL ? *a->top : (float)a->sum[DSC_BINS];
    float norm = top;
    float factor = 0.0f;
    if (isfinite(top)) {
        norm = (float)(sqrt(sum) * (double)*a->inverse_scale);
        factor = *a->inverse_scale;
        const float ratio = (float)a->max_norm / (norm + 1e-6f);
        if (a->max_norm > 0.0 && ratio < 1.0f) {
            factor = *a->inverse_scale * ratio;
        }
    }
    *a->norm = norm;
    *a->factor = factor;
}

DSC_KERNEL(squares, dsc_squares_args, squares_all(a))
DSC_KERNEL(squares_join, dsc_squares_args, squares_join_all(a))
DSC_KERNEL(squares_on_grid, dsc_squares_args, squares_on_grid_all(a))
DSC_KERNEL(grid_join, dsc_squares_args, grid_join_all(a))
DSC_KERNEL(sum_parts, dsc_parts_args, sum_parts_all(a))
DSC_KERNEL(abs_max, dsc_largest_args, abs_max_all(a))
DSC_KERNEL(max_of, dsc_largest_args, max_of_all(a))
DSC_KERNEL(clip, dsc_clip_args, clip_all(a))
