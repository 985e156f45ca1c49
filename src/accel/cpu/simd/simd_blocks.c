/* SPDX-License-Identifier: Apache-2.0 */
/* Quantized blocks. The reference's bits: its loops over fp32 (accel/cpu/block_row.h), compiled for
 * this instruction set; here are the conversions and the split of work, a block an item.
 */
#include "accel/cpu/block_row.h"
#include "accel/cpu/simd/simd_kernel.h"

enum { MOST_RUNS = 4096 };

typedef struct blocks_job {
    const ds_kernel_call *call;
    const dsi_blocks_attrs *attrs;
    dsi_blocks_attrs kept; /* how an error is kept */
    size_t n_blocks;       /* of a row */
    size_t row_bytes, kept_bytes;
    size_t count; /* of x, or of what is made */
    float unit;
} blocks_job;

/* n elements of x, 0 behind its end. */
DSI_INLINE void load_block(const blocks_job *job, size_t at, size_t n, float *out, ds_dtype type)
{
    const void *x = job->call->in[0].data;
    const size_t left = at < job->count ? job->count - at : 0;
    const size_t there = left < n ? left : n;
    size_t i = 0;
    for (; i + VF_WIDTH <= there; i += VF_WIDTH) {
        vf_fetch(x, type, at + i);
        vf_store(out + i, vf_get(x, type, at + i));
    }
    if (i < there) {
        vf_store_n(out + i, vf_get_n(x, type, at + i, there - i), there - i);
    }
    memset(out + there, 0, (n - there) * sizeof *out);
}

DSI_INLINE void store_block(const blocks_job *job, size_t at, size_t n, const float *x,
                            ds_dtype type)
{
    void *out = job->call->out[0].data;
    size_t i = 0;
    for (; i + VF_WIDTH <= n; i += VF_WIDTH) {
        vf_put(out, type, at + i, vf_load(x + i));
    }
    if (i < n) {
        vf_put_n(out, type, at + i, vf_load_n(x + i, n - i), n - i);
    }
}

static const uint8_t *row_in(const blocks_job *job, size_t r)
{
    return (const uint8_t *)job->call->in[0].data + r * job->row_bytes;
}

static blocks_job job_of(const ds_kernel_call *call, const ds_tensor *floats)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    blocks_job job = {.call = call,
                      .attrs = a,
                      .kept = *a,
                      .n_blocks = (size_t)dsi_blocks_count(a),
                      .row_bytes = (size_t)dsi_blocks_row_bytes(a),
                      .count = tensor_count(floats),
                      .unit = 1.0f};
    job.kept.bits = 8;
    job.kept_bytes = (size_t)dsi_blocks_row_bytes(&job.kept);
    return job;
}

static ds_status for_blocks(const blocks_job *job, size_t n_items, rows_fn fn)
{
    const size_t n = row_blocks(n_items, (size_t)job->attrs->block, ELEMENT_GRAIN, MOST_RUNS);
    for_rows(job->call->ctx, n_items, n, fn, job);
    return DS_OK;
}

/* ---- to blocks ------------------------------------------------------------------------------- */

static void quantize_items(const void *opaque, size_t first, size_t last, size_t run)
{
    const blocks_job *job = opaque;
    const dsi_blocks_attrs *a = job->attrs;
    float x[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    (void)run;
    for (size_t i = first; i < last; ++i) {
        const size_t r = i / job->n_blocks;
        const block_at at = block_find(a, (int64_t)(i % job->n_blocks));
        const size_t begin = r * (size_t)a->width + (size_t)at.first;
        float scale = 0.0f;
        DSI_BY_TYPE(job->call->in[0].meta.dtype, load_block(job, begin, (size_t)at.n, x, T))
        block_quantize(a->bits, x, at.n, q, &scale);
        block_put(a, &at, q, scale, (uint8_t *)job->call->out[0].data + r * job->row_bytes);
    }
}

static ds_status quantize_blocks_run(const ds_kernel_call *call)
{
    const blocks_job job = job_of(call, &call->in[0]);
    return for_blocks(&job, (size_t)job.attrs->n_rows * job.n_blocks, quantize_items);
}

static void with_error_items(const void *opaque, size_t first, size_t last, size_t run)
{
    const blocks_job *job = opaque;
    const dsi_blocks_attrs *a = job->attrs;
    float y[DSI_BLOCKS_MOST];
    float e[DSI_BLOCKS_MOST];
    int8_t q[DSI_BLOCKS_MOST];
    (void)run;
    for (size_t i = first; i < last; ++i) {
        const size_t r = i / job->n_blocks;
        const block_at at = block_find(a, (int64_t)(i % job->n_blocks));
        const block_at kept_at = block_find(&job->kept, (int64_t)(i % job->n_blocks));
        const size_t begin = r * (size_t)a->width + (size_t)at.first;
        const uint8_t *error = (const uint8_t *)job->call->in[1].data + r * job->kept_bytes;
        float scale = 0.0f;
        DSI_BY_TYPE(job->call->in[0].meta.dtype, load_block(job, begin, (size_t)at.n, y, T))
        block_unpack(&job->kept, error, &kept_at, 0, at.n, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] *= job->unit;
            y[k] += e[k];
        }
        block_quantize(a->bits, y, at.n, q, &scale);
        block_put(a, &at, q, scale, (uint8_t *)job->call->out[0].data + r * job->row_bytes);
        block_lose(a, y, q, at.n, scale, e);
        for (int64_t k = 0; k < at.n; ++k) {
            e[k] /= job->unit;
        }
        block_quantize(8, e, at.n, q, &scale);
        block_put(&job->kept, &kept_at, q, scale,
                  (uint8_t *)job->call->out[1].data + r * job->kept_bytes);
    }
}

static ds_status quantize_with_error_run(const ds_kernel_call *call)
{
    const ds_tensor *unit = input_at(call, 2);
    blocks_job job = job_of(call, &call->in[0]);
    job.unit = unit != NULL ? *(const float *)unit->data : 1.0f;
    return for_blocks(&job, (size_t)job.attrs->n_rows * job.n_blocks, with_error_items);
}

/* ---- and back -------------------------------------------------------------------------------- */

static void dequantize_items(const void *opaque, size_t first, size_t last, size_t run)
{
    const blocks_job *job = opaque;
    const dsi_blocks_attrs *a = job->attrs;
    float x[DSI_BLOCKS_MOST];
    (void)run;
    for (size_t i = first; i < last; ++i) {
        const size_t r = i / job->n_blocks;
        const block_at at = block_find(a, (int64_t)(i % job->n_blocks));
        const size_t begin = r * (size_t)a->width + (size_t)at.first;
        const size_t left = begin < job->count ? job->count - begin : 0;
        const size_t n = left < (size_t)at.n ? left : (size_t)at.n;
        block_unpack(a, row_in(job, r), &at, 0, at.n, x);
        DSI_BY_TYPE(job->call->out[0].meta.dtype, store_block(job, begin, n, x, T))
    }
}

static ds_status dequantize_blocks_run(const ds_kernel_call *call)
{
    const blocks_job job = job_of(call, &call->out[0]);
    return for_blocks(&job, (size_t)job.attrs->n_rows * job.n_blocks, dequantize_items);
}

static void sum_items(const void *opaque, size_t first, size_t last, size_t run)
{
    const blocks_job *job = opaque;
    const dsi_blocks_attrs *a = job->attrs;
    const float factor = (float)a->factor;
    float level[BLOCK_LEVELS + 1][BLOCK_CHUNK];
    float *sum = level[BLOCK_LEVELS];
    (void)run;
    for (size_t b = first; b < last; ++b) {
        const block_at at = block_find(a, (int64_t)b);
        for (int64_t i = 0; i < at.n; i += BLOCK_CHUNK) {
            const int64_t n = at.n - i < BLOCK_CHUNK ? at.n - i : BLOCK_CHUNK;
            block_add_rows(a, row_in(job, 0), &at, i, n, level);
            for (int64_t k = 0; k < n; ++k) {
                sum[k] *= factor;
            }
            DSI_BY_TYPE(job->call->out[0].meta.dtype,
                        store_block(job, (size_t)(at.first + i), (size_t)n, sum, T))
        }
    }
}

static ds_status dequantize_sum_run(const ds_kernel_call *call)
{
    const blocks_job job = job_of(call, &call->out[0]);
    return for_blocks(&job, job.n_blocks, sum_items);
}

DSI_SIMD_KERNEL(quantize_blocks, NULL, NULL, quantize_blocks_run);
DSI_SIMD_KERNEL(quantize_with_error, NULL, NULL, quantize_with_error_run);
DSI_SIMD_KERNEL(dequantize_blocks, NULL, NULL, dequantize_blocks_run);
DSI_SIMD_KERNEL(dequantize_sum, NULL, NULL, dequantize_sum_run);
