/* SPDX-License-Identifier: Apache-2.0 */
/* abs_max and sum_squares: the global gradient norm, the same bits for any split of the work. */
#include "accel/cpu/simd/simd_exact.h"

enum { NORM_GRAIN = 65536, BIN_BLOCK = 4096 };

/* ---- abs_max ----------------------------------------------------------------------------------
 */
typedef struct top_job {
    const void *x;
    ds_dtype type;
    size_t chunk;
    float *tops; /* one a chunk */
} top_job;

DSI_INLINE float top_of_range(const void *x, size_t begin, size_t end, ds_dtype type)
{
    vi top[2] = {vi_set(0), vi_set(0)};
    size_t i = begin;
    for (; i + 2 * VF_WIDTH <= end; i += 2 * VF_WIDTH) {
        vf_fetch(x, type, i);
        vf_fetch(x, type, i + VF_WIDTH);
        top[0] = abs_bits_max(top[0], vf_get(x, type, i));
        top[1] = abs_bits_max(top[1], vf_get(x, type, i + VF_WIDTH));
    }
    for (; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        top[0] = abs_bits_max(top[0], vf_get_n(x, type, i, n));
    }
    return abs_bits_top(vi_max(top[0], top[1]));
}

static void top_range(const void *opaque, size_t begin, size_t end)
{
    const top_job *job = opaque;
    float *top = &job->tops[begin / job->chunk];
    DSI_BY_TYPE(job->type, *top = top_of_range(job->x, begin, end, T))
}

static size_t chunk_count(const ds_meta *x, size_t *chunk_out)
{
    const size_t n = meta_count(x);
    *chunk_out = range_chunk(n, NORM_GRAIN);
    return (n + *chunk_out - 1) / *chunk_out;
}

static size_t abs_max_work(const ds_kernel_sig *sig)
{
    size_t chunk;
    return chunk_count(&sig->in[0], &chunk) * sizeof(float);
}

static ds_status abs_max_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    size_t chunk;
    const size_t n_chunks = chunk_count(&x->meta, &chunk);
    const top_job job = {x->data, x->meta.dtype, chunk, call->work};
    for_ranges(call->ctx, tensor_count(x), NORM_GRAIN, top_range, &job);
    float top = 0.0f;
    for (size_t c = 0; c < n_chunks; ++c) {
        top = larger_magnitude(top, job.tops[c]);
    }
    *(float *)call->out[0].data = top;
    return DS_OK;
}

DSI_SIMD_KERNEL(abs_max, all_act_types, abs_max_work, abs_max_run);

/* ---- sum_squares ------------------------------------------------------------------------------
 */
typedef struct squares_job {
    const void *x;
    ds_dtype type;
    size_t chunk;
    dsi_exact_grid grid;
    dsi_exact_parts *parts; /* one a chunk */
} squares_job;

DSI_INLINE dsi_exact_parts squares_of_range(const squares_job *job, size_t begin, size_t end,
                                            ds_dtype type)
{
    dsi_exact_parts parts = {0.0, 0.0};
    for (size_t run = begin; run < end; run += NORM_GRAIN) {
        const size_t stop = end - run < NORM_GRAIN ? end : run + NORM_GRAIN;
        exact_sums sums = exact_sums_zero();
        size_t i = run;
        for (; i + VF_WIDTH <= stop; i += VF_WIDTH) {
            vf_fetch(job->x, type, i);
            exact_sums_add(&job->grid, vf_get(job->x, type, i), &sums);
        }
        if (i < stop) {
            exact_sums_add(&job->grid, vf_get_n(job->x, type, i, stop - i), &sums);
        }
        exact_sums_close(&job->grid, &sums, &parts);
    }
    return parts;
}

static void squares_range(const void *opaque, size_t begin, size_t end)
{
    const squares_job *job = opaque;
    dsi_exact_parts *parts = &job->parts[begin / job->chunk];
    DSI_BY_TYPE(job->type, *parts = squares_of_range(job, begin, end, T))
}

/* ---- sum_squares without top: in bins ---- */
typedef struct bins_job {
    const void *x;
    ds_dtype type;
    size_t chunk;
    dsi_exact_bins *bins; /* one a chunk */
} bins_job;

DSI_INLINE vf bins_get(const bins_job *job, size_t i, size_t end, ds_dtype type)
{
    return end - i >= VF_WIDTH ? vf_get(job->x, type, i) : vf_get_n(job->x, type, i, end - i);
}

/* Adds the squares of [begin,end) to bins first, first - 1, …: n of them. */
DSI_INLINE void bins_add(const bins_job *job, size_t begin, size_t end, int first, int n,
                         ds_dtype type, dsi_exact_bins *bins)
{
    double magic[DSI_EXACT_BINS];
    vd sums[DSI_EXACT_BINS];
    for (int k = 0; k < n; ++k) {
        magic[k] = 0x1.8p52 * dsi_exact_unit(first - k);
        sums[k] = vd_set(0.0);
    }
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        const vf x = bins_get(job, i, end, type);
        exact_cut(magic, vd_low(x), n, sums);
        exact_cut(magic, vd_high(x), n, sums);
    }
    for (int k = 0; k < n; ++k) {
        bins->at[first - k] += vd_sum(sums[k]);
    }
}

DSI_INLINE void bins_of_block(const bins_job *job, size_t begin, size_t end, ds_dtype type,
                              dsi_exact_bins *bins)
{
    const int bits = type == DS_DTYPE_F32 ? 24 : type == DS_DTYPE_F16 ? 11 : 8;
    exact_span span = {vi_set(0), vi_set(0)};
    for (size_t i = begin; i < end; i += VF_WIDTH) {
        vf_fetch(job->x, type, i + BIN_BLOCK);
        exact_span_add(&span, bins_get(job, i, end, type));
    }
    const int32_t top = exact_most(span.top);
    if (top >= 0x7f800000) {
        bins->at[DSI_EXACT_BINS] += top > 0x7f800000 ? (double)NAN : (double)INFINITY;
        return; /* the sum is not asked for then */
    }
    if (top < 0x00800000) {
        return;
    }
    const int first = dsi_exact_first_bin(exact_exponent(top));
    const int32_t least = exact_most(span.under) ^ 0x7fffffff;
    const int n = first - dsi_exact_last_bin(exact_exponent(least), bits) + 1;
    if (n <= 3 && first >= 2) {
        bins_add(job, begin, end, first, 3, type, bins);
    } else if (n == 4) {
        bins_add(job, begin, end, first, 4, type, bins);
    } else {
        bins_add(job, begin, end, first, n, type, bins);
    }
    dsi_exact_bins_carry(bins);
}

static void bins_range(const void *opaque, size_t begin, size_t end)
{
    const bins_job *job = opaque;
    dsi_exact_bins bins = {{0.0}};
    for (size_t at = begin; at < end; at += BIN_BLOCK) {
        const size_t stop = end - at < BIN_BLOCK ? end : at + BIN_BLOCK;
        DSI_BY_TYPE(job->type, bins_of_block(job, at, stop, T, &bins))
    }
    job->bins[begin / job->chunk] = bins;
}

static void sum_bins(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    dsi_exact_bins total = {{0.0}};
    size_t chunk;
    const size_t n_chunks = chunk_count(&x->meta, &chunk);
    const bins_job job = {x->data, x->meta.dtype, chunk, call->work};
    for_ranges(call->ctx, tensor_count(x), NORM_GRAIN, bins_range, &job);
    for (size_t c = 0; c < n_chunks; ++c) {
        dsi_exact_bins_join(&total, job.bins[c].at);
    }
    memcpy(call->out[0].data, total.at, sizeof total.at);
}

static size_t sum_squares_work(const ds_kernel_sig *sig)
{
    size_t chunk;
    const bool topped = sig->n_in > 1 && sig->in[1].dtype != DS_DTYPE_NONE;
    return chunk_count(&sig->in[0], &chunk) *
           (topped ? sizeof(dsi_exact_parts) : sizeof(dsi_exact_bins));
}

static ds_status sum_squares_run(const ds_kernel_call *call)
{
    if (input_at(call, 1) == NULL) {
        sum_bins(call);
        return DS_OK;
    }
    const ds_tensor *x = &call->in[0];
    double *out = call->out[0].data;
    size_t chunk;
    const size_t n_chunks = chunk_count(&x->meta, &chunk);
    const squares_job job = {x->data, x->meta.dtype, chunk,
                             dsi_exact_grid_of(*(const float *)call->in[1].data), call->work};
    dsi_exact_parts total = {0.0, 0.0};
    if (!job.grid.empty) {
        for_ranges(call->ctx, tensor_count(x), NORM_GRAIN, squares_range, &job);
        total = exact_total(&job.grid, job.parts, n_chunks);
    }
    out[0] = total.high;
    out[1] = total.low;
    return DS_OK;
}

static bool sum_squares_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

DSI_SIMD_KERNEL(sum_squares, sum_squares_supports, sum_squares_work, sum_squares_run);
