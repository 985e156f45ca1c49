/* SPDX-License-Identifier: Apache-2.0 */
/* Adafactor: the operations of docs/internals/optim.md one by one, so that the bits are the
 * processor's. Means are sums in fp64 in the order of the elements: of 32 rows a block, whose
 * threads read tiles of 32 columns of which 32 threads add a row each; of columns a thread each. */
#include "accel/cuda/kernels/adafactor.h"
#include "accel/cuda/kernels/kernel_bins.h"
#include "accel/cuda/kernels/update.h"

DSC_INLINE float square_at(const dsc_adafactor_args *a, int64_t i)
{
    const float g = dsc_grad_at(&a->update, i);
    return fmaf(g, g, a->update.eps);
}

DSC_INLINE void put_moment(const dsc_adafactor_args *a, int64_t i, double sum, int64_t n)
{
    const float b2 = a->update.hyper[DSC_HYPER_BETA2];
    a->moment[i] = fmaf(b2, a->moment_in[i], (1.0f - b2) * (float)(sum / (double)n));
}

DSC_INLINE void adafactor_rows_all(const dsc_adafactor_args *a)
{
    __shared__ float tile[32][33];
    const int64_t all = a->matrices * a->rows;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    for (int64_t row0 = (int64_t)blockIdx.x * 32; row0 < all; row0 += (int64_t)gridDim.x * 32) {
        double sum = 0.0;
        for (int64_t c0 = 0; c0 < a->columns; c0 += 32) {
            const int64_t n = a->columns - c0 < 32 ? a->columns - c0 : 32;
            for (int64_t r = warp; r < 32 && row0 + r < all; r += blockDim.x / 32) {
                if (lane < n) {
                    tile[r][lane] = square_at(a, (row0 + r) * a->columns + c0 + lane);
                }
            }
            __syncthreads();
            for (int64_t i = 0; i < n && warp == 0 && row0 + lane < all; ++i) {
                sum += (double)tile[lane][i];
            }
            __syncthreads();
        }
        if (warp == 0 && row0 + lane < all) {
            put_moment(a, row0 + lane, sum, a->columns);
        }
    }
}

DSC_INLINE void adafactor_columns_all(const dsc_adafactor_args *a)
{
    for (int64_t i = dsc_index(); i < a->matrices * a->columns; i += dsc_stride()) {
        const int64_t first = i / a->columns * a->rows * a->columns + i % a->columns;
        double sum = 0.0;
        for (int64_t r = 0; r < a->rows; ++r) {
            sum += (double)square_at(a, first + r * a->columns);
        }
        put_moment(a, i, sum, a->rows);
    }
}

/* A block a matrix: its threads read, one adds. */
DSC_INLINE void adafactor_means_all(const dsc_adafactor_args *a)
{
    __shared__ float tile[256];
    for (int64_t m = blockIdx.x; m < a->matrices; m += gridDim.x) {
        double sum = 0.0;
        for (int64_t r = 0; r < a->rows; r += 256) {
            const int64_t n = a->rows - r < 256 ? a->rows - r : 256;
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
                tile[i] = a->row_moments[m * a->rows + r + i];
            }
            __syncthreads();
            for (int64_t i = 0; i < n && threadIdx.x == 0; ++i) {
                sum += (double)tile[i];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            a->means[m] = (float)(sum / (double)a->rows);
        }
    }
}

DSC_INLINE void adafactor_direction_all(const dsc_adafactor_args *a)
{
    for (int64_t i = dsc_index(); i < a->update.n; i += dsc_stride()) {
        const int64_t row = i / a->columns;
        const int64_t matrix = row / a->rows;
        const float own = a->row_moments[row];
        float both = 1.0f / sqrtf(a->factored != 0 ? own / a->means[matrix] : own);
        if (a->factored != 0) {
            const int64_t column = matrix * a->columns + i % a->columns;
            both = both * (1.0f / sqrtf(a->column_moments[column]));
        }
        a->direction[i] = both * dsc_grad_at(&a->update, i);
    }
}

/* The root of the mean of squares whose exact sum is in bins. */
DSC_INLINE float root_mean_of(const double *bins, int64_t n)
{
    double sum = 0.0;
    for (int i = 0; i < DSC_WIDE; ++i) {
        sum += bins[i];
    }
    return (float)sqrt(sum / (double)n);
}

/* grad: the direction; state: exp_avg, or none. */
DSC_INLINE void adafactor_all(const dsc_adafactor_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    const float clip = root_mean_of(a->direction_squares, a->count) / a->clip_threshold;
    const float size = root_mean_of(a->squares, a->count);
    const float scale = a->scales == 0 ? 1.0f : size > a->scale_eps ? size : a->scale_eps;
    const float lr = scale * u->hyper[DSC_HYPER_LR];
    const float step = lr / (clip > 1.0f ? clip : 1.0f);
    const float decay = 1.0f - lr * u->hyper[DSC_HYPER_WEIGHT_DECAY];
    const float b1 = u->hyper[DSC_HYPER_BETA1];
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float p = dsc_param_at(u, i);
        float d = dsc_get(u->grad, u->grad_dtype, i) * step;
        if (u->state[0] != NULL) {
            d = fmaf(b1, dsc_get(u->state[0], u->state_dtype, i), (1.0f - b1) * d);
            dsc_set(u->state[0], u->state_dtype, i, d);
        }
        dsc_put_param(u, i, fmaf(p, decay, -d));
    }
}

DSC_KERNEL(adafactor_rows, dsc_adafactor_args, adafactor_rows_all(a))
DSC_KERNEL(adafactor_columns, dsc_adafactor_args, adafactor_columns_all(a))
DSC_KERNEL(adafactor_means, dsc_adafactor_args, adafactor_means_all(a))
DSC_KERNEL(adafactor_direction, dsc_adafactor_args, adafactor_direction_all(a))
DSC_KERNEL(adafactor, dsc_adafactor_args, adafactor_all(a))
