/* SPDX-License-Identifier: Apache-2.0 */
/* Columns that are taken apart from the rest of a weight, and gradients that wait (ZenFlow): the
 * processor's operations one by one, so that the bits are its own. A thread a column, a row or an
 * element; of what has an order (the list of columns, the sums of weigh_columns) one block or one
 * thread. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/columns.h"

typedef struct dsc_part {
    int64_t begin, end;
} dsc_part;

/* Which elements of the whole weight a tensor holds. n_slice 0: all. */
DSC_INLINE dsc_part part_of(const dsc_columns_args *a)
{
    const int64_t all = a->rows * a->columns;
    dsc_part p;
    p.begin = a->n_slice > 0 ? a->n_slice * *a->rank : 0;
    p.begin = p.begin < all ? p.begin : all;
    p.end = a->n_slice > 0 && p.begin + a->n_slice < all ? p.begin + a->n_slice : all;
    return p;
}

/* Where element (row, column) lies in it, or -1. */
DSC_INLINE int64_t place_in(const dsc_columns_args *a, dsc_part p, int64_t row, int64_t column)
{
    const int64_t at = row * a->columns + column;
    return column >= 0 && column < a->columns && at >= p.begin && at < p.end ? at - p.begin : -1;
}

DSC_INLINE void magnitude_sums_body(const dsc_columns_args *a)
{
    const dsc_part p = part_of(a);
    const float top = *a->top;
    const bool counts = top > 0.0f && top <= 3.4028234663852886e38f;
    double *out = (double *)a->out;
    int exponent = 0;
    (void)frexp((double)(counts ? top : 1.0f), &exponent);
    const double grid = ldexp(6755399441055744.0, exponent - 30); /* 1.5·2^52 */
    for (int64_t c = dsc_index(); c < a->columns; c += dsc_stride()) {
        double sum = 0.0;
        for (int64_t row = p.begin / a->columns; counts && row * a->columns < p.end; ++row) {
            const int64_t at = place_in(a, p, row, c);
            if (at >= 0) {
                sum += (fabs((double)dsc_get(a->x, a->x_dtype, at)) + grid) - grid;
            }
        }
        out[c] = sum;
    }
}

/* The sum of each column over what the ranks gave. */
DSC_INLINE void column_totals_body(const dsc_columns_args *a)
{
    for (int64_t c = dsc_index(); c < a->columns; c += dsc_stride()) {
        double sum = 0.0;
        for (int64_t i = 0; i < a->n_ranks; ++i) {
            sum += a->sums[i * a->columns + c];
        }
        a->totals[c] = sum;
    }
}

/* Chosen is what fewer than k stand before: the larger sum, of equal ones the first column. */
DSC_INLINE void mark_columns_body(const dsc_columns_args *a)
{
    for (int64_t c = dsc_index(); c < a->columns; c += dsc_stride()) {
        const double own = a->totals[c];
        int64_t before = 0;
        for (int64_t i = 0; i < a->columns; ++i) {
            before += a->totals[i] > own || (a->totals[i] == own && i < c) ? 1 : 0;
        }
        a->chosen[c] = before < a->k ? 1 : 0;
    }
}

/* One block: a thread lists the chosen of a range of columns, behind those of the threads before.
 */
DSC_INLINE void list_columns_body(const dsc_columns_args *a)
{
    __shared__ int32_t counts[DSC_LIST_THREADS];
    const int64_t each = (a->columns + DSC_LIST_THREADS - 1) / DSC_LIST_THREADS;
    const int64_t begin = threadIdx.x * each;
    const int64_t end = begin + each < a->columns ? begin + each : a->columns;
    int32_t n = 0;
    for (int64_t c = begin; c < end; ++c) {
        n += a->chosen[c];
    }
    counts[threadIdx.x] = n;
    __syncthreads();
    int64_t at = 0;
    for (uint32_t t = 0; t < threadIdx.x; ++t) {
        at += counts[t];
    }
    for (int64_t c = begin; c < end; ++c) {
        if (a->chosen[c] != 0 && at < a->k) {
            a->index_out[at++] = (int32_t)c;
        }
    }
}

/* One thread. */
DSC_INLINE void weigh_columns_body(const dsc_columns_args *a)
{
    double *out = (double *)a->out;
    double all = 0.0;
    double chosen = 0.0;
    for (int64_t c = 0; c < a->columns; ++c) {
        all += a->totals[c];
    }
    for (int64_t i = 0; i < a->k; ++i) {
        const int32_t c = a->index[i];
        chosen += c >= 0 && c < a->columns ? a->totals[c] : 0.0;
    }
    const bool more = *a->more != 0.0f;
    const double rest = (more ? a->weights[0] : 0.0) + (all - chosen);
    const double kept = (more ? a->weights[1] : 0.0) + chosen;
    out[0] = rest;
    out[1] = kept;
}

/* -0 is taken as 0: added to others' zeros it would become that. */
DSC_INLINE void take_columns_body(const dsc_columns_args *a)
{
    const dsc_part p = part_of(a);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t at = place_in(a, p, i / a->k, a->index[i % a->k]);
        dsc_set(a->out, a->out_dtype, i, at < 0 ? 0.0f : dsc_get(a->x, a->x_dtype, at) + 0.0f);
    }
}

/* A thread a row, one column after the other: of a column that is there twice the last counts. */
DSC_INLINE void put_columns_body(const dsc_columns_args *a)
{
    const dsc_part p = part_of(a);
    for (int64_t row = dsc_index(); row < a->rows; row += dsc_stride()) {
        for (int64_t j = 0; j < a->k; ++j) {
            const int64_t at = place_in(a, p, row, a->index[j]);
            if (at >= 0) {
                dsc_set(a->out, a->out_dtype, at, dsc_get(a->x, a->x_dtype, row * a->k + j));
            }
        }
    }
}

DSC_INLINE void postpone_body(const dsc_columns_args *a)
{
    const bool more = *a->more != 0.0f;
    const float factor = *a->factor;
    float *out = (float *)a->out; /* the cell itself, or apart from it */
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float x = dsc_get(a->x, a->x_dtype, i);
        out[i] = more ? fmaf(factor, x, a->cell[i]) : factor * x;
    }
}

DSC_KERNEL(magnitude_sums, dsc_columns_args, magnitude_sums_body(a))
DSC_KERNEL(column_totals, dsc_columns_args, column_totals_body(a))
DSC_KERNEL(mark_columns, dsc_columns_args, mark_columns_body(a))
DSC_KERNEL(list_columns, dsc_columns_args, list_columns_body(a))
DSC_KERNEL(weigh_columns, dsc_columns_args, weigh_columns_body(a))
DSC_KERNEL(take_columns, dsc_columns_args, take_columns_body(a))
DSC_KERNEL(put_columns, dsc_columns_args, put_columns_body(a))
DSC_KERNEL(postpone, dsc_columns_args, postpone_body(a))
