/* SPDX-License-Identifier: Apache-2.0 */
/* max_last and max_last_backward: the reference's bits, since a maximum has no rounding and the
 * number of its places is exact. */
#include "accel/cpu/simd/simd_rows.h"

#include <math.h>

typedef struct maximum_job {
    const void *x, *dy, *y; /* dy NULL: forward */
    void *out;
    size_t C;
    ds_dtype type;
} maximum_job;

/* The larger; NaN when either is. */
DSI_INLINE vf larger(vf top, vf x)
{
    return vf_select(vf_unord(top, top), top, vf_select(vf_ge(top, x), top, x));
}

DSI_INLINE float row_top(const void *x, size_t begin, size_t C, ds_dtype type)
{
    vf top = vf_set(-INFINITY);
    float lanes[VF_WIDTH];
    size_t i = 0;
    for (; i + VF_WIDTH <= C; i += VF_WIDTH) {
        vf_fetch(x, type, begin + i);
        top = larger(top, vf_get(x, type, begin + i));
    }
    if (i < C) {
        const vf rest = vf_get_n(x, type, begin + i, C - i);
        top = vf_select(vm_first(C - i), larger(top, rest), top);
    }
    vf_store(lanes, top);
    float one = lanes[0];
    for (size_t k = 1; k < VF_WIDTH; ++k) {
        one = lanes[k] > one || isnan(lanes[k]) ? lanes[k] : one;
    }
    return one + 0.0f; /* -0 becomes 0 */
}

DSI_INLINE void max_rows(const maximum_job *job, size_t first, size_t last, ds_dtype type)
{
    for (size_t row = first; row < last; ++row) {
        vf_put_n(job->out, type, row, vf_set(row_top(job->x, row * job->C, job->C, type)), 1);
    }
}

DSI_INLINE float one_of(const void *x, size_t at, ds_dtype type)
{
    float lanes[VF_WIDTH];
    vf_store(lanes, vf_get_n(x, type, at, 1));
    return lanes[0];
}

DSI_INLINE void spread_row(const maximum_job *job, size_t row, ds_dtype type)
{
    const size_t begin = row * job->C;
    const float top = one_of(job->y, row, type);
    const vf y = vf_set(top);
    size_t count = 0;
    for (size_t i = 0; i < job->C; i += VF_WIDTH) {
        const size_t n = job->C - i < VF_WIDTH ? job->C - i : VF_WIDTH;
        const vm is = vm_and(vm_first(n), vf_eq(vf_get_upto(job->x, type, begin + i, n), y));
        int32_t lanes[VF_WIDTH];
        vi_store(lanes, vi_select(is, vi_set(1), vi_set(0)));
        for (size_t k = 0; k < VF_WIDTH; ++k) {
            count += (size_t)lanes[k];
        }
    }
    const vf part = vf_set(one_of(job->dy, row, type) / (float)count);
    const vf rest = isnan(top) ? y : vf_zero();
    for (size_t i = 0; i < job->C; i += VF_WIDTH) {
        const size_t n = job->C - i < VF_WIDTH ? job->C - i : VF_WIDTH;
        const vm is = vf_eq(vf_get_upto(job->x, type, begin + i, n), y);
        vf_put_upto(job->out, type, begin + i, vf_select(is, part, rest), n);
    }
}

DSI_INLINE void spread_rows(const maximum_job *job, size_t first, size_t last, ds_dtype type)
{
    for (size_t row = first; row < last; ++row) {
        spread_row(job, row, type);
    }
}

static void max_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const maximum_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, max_rows(job, first, last, T))
}

static void spread_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const maximum_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, spread_rows(job, first, last, T))
}

static ds_status run_rows(ds_ctx *ctx, const ds_meta *x, const maximum_job *job, rows_fn fn)
{
    const size_t n_rows = (size_t)ds_shape_rows(x->shape);
    for_rows(ctx, n_rows, row_blocks(n_rows, job->C, ELEMENT_GRAIN, 1024), fn, job);
    return DS_OK;
}

static ds_status max_last_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    const maximum_job job = {
        .x = x->data,
        .out = call->out[0].data,
        .C = (size_t)ds_shape_last(x->meta.shape),
        .type = x->meta.dtype,
    };
    return run_rows(call->ctx, &x->meta, &job, max_block);
}

static ds_status max_last_backward_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[1];
    const maximum_job job = {
        .x = x->data,
        .dy = call->in[0].data,
        .y = call->in[2].data,
        .out = call->out[0].data,
        .C = (size_t)ds_shape_last(x->meta.shape),
        .type = x->meta.dtype,
    };
    return run_rows(call->ctx, &x->meta, &job, spread_block);
}

DSI_SIMD_KERNEL(max_last, all_act_types, NULL, max_last_run);
DSI_SIMD_KERNEL(max_last_backward, all_act_types, NULL, max_last_backward_run);
