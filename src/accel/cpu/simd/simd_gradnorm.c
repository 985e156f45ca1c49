/* SPDX-License-Identifier: Apache-2.0 */
/* abs_max and sum_squares: the global gradient norm, the same bits for any split of the work. */
#include "accel/cpu/simd/simd_exact.h"

enum { NORM_GRAIN = 65536 };

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

static void bins_range(const void *opaque, size_t begin, size_t end)
{
    const bins_job *job = opaque;
    dsi_exact_bins bins = {{0.0}};
    for (size_t at = begin; at < end; at += EXACT_BIN_BLOCK) {
        const size_t stop = end - at < EXACT_BIN_BLOCK ? end : at + EXACT_BIN_BLOCK;
        DSI_BY_TYPE(job->type, exact_bins_block(job->x, at, stop, T, &bins))
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
