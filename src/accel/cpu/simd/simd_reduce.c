/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over everything, over rows and over columns, and their transposes fill and expand.
 *
 * Blocks depend on the shape only; sums inside a block are fp32 in a fixed order, whole sums add
 * the blocks in fp64.
 */
#include "accel/cpu/simd/simd_rows.h"

enum { SUM_GRAIN = 16384 };

/* ---- sum_all, mean_all --------------------------------------------------------------------------
 */
typedef struct sum_job {
    const void *x;
    ds_dtype type;
    size_t chunk;
    double *sums; /* one a chunk */
} sum_job;

DSI_INLINE float sum_of(const void *x, size_t begin, size_t n, ds_dtype type)
{
    row_sum sum = row_sum_zero();
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        vf_fetch(x, type, begin + (i));                                                            \
        sum.part[u] = vf_add(sum.part[u], vf_get(x, type, begin + (i)));                           \
    } while (0)
#define TAIL(i, m) sum.part[0] = vf_add(sum.part[0], vf_get_n(x, type, begin + (i), m))
    FOR_ROW(n, FULL, TAIL);
#undef FULL
#undef TAIL
    return row_sum_total(sum);
}

static float sum_by_type(const void *x, size_t begin, size_t n, ds_dtype type)
{
    float sum = 0.0f;
    DSI_BY_TYPE(type, sum = sum_of(x, begin, n, T))
    return sum;
}

static void sum_range(const void *opaque, size_t begin, size_t end)
{
    enum { RUN = 4096 };
    const sum_job *job = opaque;
    double total = 0.0;
    for (size_t i = begin; i < end; i += RUN) {
        const size_t n = end - i < RUN ? end - i : RUN;
        total += (double)sum_by_type(job->x, i, n, job->type);
    }
    job->sums[begin / job->chunk] = total;
}

static size_t sum_work(const ds_kernel_sig *sig)
{
    const size_t n = meta_count(&sig->in[0]);
    const size_t chunk = range_chunk(n, SUM_GRAIN);
    return (n + chunk - 1) / chunk * sizeof(double);
}

static double whole_sum(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    const size_t n = tensor_count(x);
    const sum_job job = {x->data, x->meta.dtype, range_chunk(n, SUM_GRAIN), call->work};
    double total = 0.0;
    for_ranges(call->ctx, n, SUM_GRAIN, sum_range, &job);
    for (size_t c = 0; c * job.chunk < n; ++c) {
        total += job.sums[c];
    }
    return total;
}

static ds_status sum_all_run(const ds_kernel_call *call)
{
    *(float *)call->out[0].data = (float)whole_sum(call);
    return DS_OK;
}

static ds_status mean_all_run(const ds_kernel_call *call)
{
    *(float *)call->out[0].data = (float)(whole_sum(call) / (double)tensor_count(&call->in[0]));
    return DS_OK;
}

DSI_SIMD_KERNEL(sum_all, all_act_types, sum_work, sum_all_run);
DSI_SIMD_KERNEL(mean_all, all_act_types, sum_work, mean_all_run);

/* ---- sum_last -----------------------------------------------------------------------------------
 */
typedef struct rows_job {
    const void *x;
    void *out;
    float *partial;
    size_t C;
    ds_dtype type;
} rows_job;

static void sum_last_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const rows_job *job = opaque;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        ((float *)job->out)[row] = sum_by_type(job->x, row * job->C, job->C, job->type);
    }
}

static ds_status sum_last_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    const size_t C = (size_t)ds_shape_last(x->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(x->meta.shape);
    const rows_job job = {x->data, call->out[0].data, NULL, C, x->meta.dtype};
    for_rows(call->ctx, n_rows, row_blocks(n_rows, C, ELEMENT_GRAIN, 1024), sum_last_block, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(sum_last, all_act_types, NULL, sum_last_run);

/* ---- sum_rows -----------------------------------------------------------------------------------
 */
DSI_INLINE void add_row(const void *x, size_t begin, size_t C, float *sum, ds_dtype type)
{
#define FULL(i, u)                                                                                 \
    vf_fetch(x, type, begin + (i));                                                                \
    vf_store(sum + (i), vf_add(vf_load(sum + (i)), vf_get(x, type, begin + (i))))
#define TAIL(i, n)                                                                                 \
    vf_store_n(sum + (i), vf_add(vf_load_n(sum + (i), n), vf_get_n(x, type, begin + (i), n)), n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
}

static void sum_rows_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const rows_job *job = opaque;
    float *sum = job->partial + block * job->C;
    memset(sum, 0, job->C * sizeof *sum);
    for (size_t row = first; row < last; ++row) {
        DSI_BY_TYPE(job->type, add_row(job->x, row * job->C, job->C, sum, T))
    }
}

static size_t sum_rows_blocks(const ds_meta *x)
{
    const size_t n_rows = (size_t)ds_shape_rows(x->shape);
    return row_blocks(n_rows, (size_t)ds_shape_last(x->shape), 2 * ELEMENT_GRAIN, 64);
}

static size_t sum_rows_work(const ds_kernel_sig *sig)
{
    return sum_rows_blocks(&sig->in[0]) * (size_t)ds_shape_last(sig->in[0].shape) * sizeof(float);
}

static ds_status sum_rows_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    const size_t C = (size_t)ds_shape_last(x->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(x->meta.shape);
    const size_t n_blocks = sum_rows_blocks(&x->meta);
    const rows_job job = {x->data, call->out[0].data, call->work, C, x->meta.dtype};
    if (n_rows == 0) {
        memset(job.out, 0, C * sizeof(float));
        return DS_OK;
    }
    for_rows(call->ctx, n_rows, n_blocks, sum_rows_block, &job);
    const block_sum_job total = {job.partial, n_blocks, C, job.out};
    for_ranges(call->ctx, C, 1024, block_sum_range, &total);
    return DS_OK;
}

DSI_SIMD_KERNEL(sum_rows, all_act_types, sum_rows_work, sum_rows_run);

/* ---- fill, expand_last, expand_rows
 * --------------------------------------------------------------- */
DSI_INLINE void fill_of(void *out, size_t begin, size_t end, float value, ds_dtype type)
{
    const vf v = vf_set(value);
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(out, type, i);
        vf_put(out, type, i, v);
    }
    if (i < end) {
        vf_put_n(out, type, i, v, end - i);
    }
}

static void fill_range(const void *opaque, size_t begin, size_t end)
{
    const rows_job *job = opaque;
    DSI_BY_TYPE(job->type, fill_of(job->out, begin, end, *(const float *)job->x, T))
}

static ds_status fill_run(const ds_kernel_call *call)
{
    const rows_job job = {call->in[1].data, call->out[0].data, NULL, 1, call->out[0].meta.dtype};
    for_ranges(call->ctx, tensor_count(&call->out[0]), ELEMENT_GRAIN, fill_range, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(fill, all_act_types, NULL, fill_run);

static void expand_last_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const rows_job *job = opaque;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        const float value = ((const float *)job->x)[row];
        DSI_BY_TYPE(job->type, fill_of(job->out, row * job->C, (row + 1) * job->C, value, T))
    }
}

DSI_INLINE void copy_row(const float *x, void *out, size_t at, size_t C, ds_dtype type)
{
#define FULL(i, u) vf_put(out, type, at + (i), vf_load(x + (i)))
#define TAIL(i, n) vf_put_n(out, type, at + (i), vf_load_n(x + (i), n), n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
}

static void expand_rows_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const rows_job *job = opaque;
    (void)block;
    for (size_t row = first; row < last; ++row) {
        DSI_BY_TYPE(job->type, copy_row(job->x, job->out, row * job->C, job->C, T))
    }
}

static ds_status run_expand(const ds_kernel_call *call, rows_fn fn)
{
    const ds_tensor *out = &call->out[0];
    const size_t C = (size_t)ds_shape_last(out->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(out->meta.shape);
    const rows_job job = {call->in[0].data, out->data, NULL, C, out->meta.dtype};
    for_rows(call->ctx, n_rows, row_blocks(n_rows, C, ELEMENT_GRAIN, 1024), fn, &job);
    return DS_OK;
}

static ds_status expand_last_run(const ds_kernel_call *call)
{
    return run_expand(call, expand_last_block);
}

static ds_status expand_rows_run(const ds_kernel_call *call)
{
    return run_expand(call, expand_rows_block);
}

DSI_SIMD_KERNEL(expand_last, all_act_types, NULL, expand_last_run);
DSI_SIMD_KERNEL(expand_rows, all_act_types, NULL, expand_rows_run);
