/* SPDX-License-Identifier: Apache-2.0 */
/* slice, pad, split and concat: they only move elements, so any type goes by its size.
 *
 * They copy runs: a tensor is `outer` groups of dim·inner elements around the
 * attribute's dim.
 */
#include "accel/cpu/simd/simd_kernel.h"

/* n_runs copies of run_bytes from one stride to another; from NULL: zeros. */
typedef struct runs_job {
    const char *from;
    char *to;
    size_t run_bytes, from_stride, to_stride;
} runs_job;

static void copy_runs(const void *opaque, size_t first, size_t last, size_t block)
{
    const runs_job *job = opaque;
    (void)block;
    for (size_t r = first; r < last; ++r) {
        char *to = job->to + r * job->to_stride;
        if (job->from == NULL) {
            memset(to, 0, job->run_bytes);
        } else {
            memcpy(to, job->from + r * job->from_stride, job->run_bytes);
        }
    }
}

static void for_runs(ds_ctx *ctx, size_t n_runs, const runs_job *job)
{
    if (job->run_bytes > 0) {
        const size_t blocks = row_blocks(n_runs, job->run_bytes, 4 * ELEMENT_GRAIN, 1024);
        for_rows(ctx, n_runs, blocks, copy_runs, job);
    }
}

/* Groups before dim and elements after it. */
static void around(const ds_shape *shape, int64_t dim, size_t *outer_out, size_t *inner_out)
{
    *outer_out = 1;
    *inner_out = 1;
    for (uint32_t i = 0; i < shape->n_dims; ++i) {
        size_t *product = (int64_t)i < dim ? outer_out : inner_out;
        *product *= (int64_t)i == dim ? 1 : (size_t)shape->dims[i];
    }
}

static bool any_type(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype != DS_DTYPE_NONE;
}

static ds_status slice_run(const ds_kernel_call *call)
{
    const dsi_slice_attrs *attrs = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    size_t outer;
    size_t inner;
    around(&x->meta.shape, attrs->dim, &outer, &inner);
    const size_t step = inner * ds_dtype_bytes(x->meta.dtype);
    const size_t run = (size_t)attrs->length * step;
    const runs_job job = {(const char *)x->data + (size_t)attrs->start * step, call->out[0].data,
                          run, (size_t)x->meta.shape.dims[attrs->dim] * step, run};
    for_runs(call->ctx, outer, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(slice, any_type, NULL, slice_run);

static ds_status pad_run(const ds_kernel_call *call)
{
    const dsi_pad_attrs *attrs = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    size_t outer;
    size_t inner;
    around(&x->meta.shape, attrs->dim, &outer, &inner);
    const size_t step = inner * ds_dtype_bytes(x->meta.dtype);
    const size_t run = (size_t)x->meta.shape.dims[attrs->dim] * step;
    const size_t before = (size_t)attrs->before * step;
    const size_t after = (size_t)attrs->after * step;
    const size_t whole = before + run + after;
    char *to = call->out[0].data;
    const runs_job head = {NULL, to, before, 0, whole};
    const runs_job body = {x->data, to + before, run, run, whole};
    const runs_job tail = {NULL, to + before + run, after, 0, whole};
    for_runs(call->ctx, outer, &head);
    for_runs(call->ctx, outer, &body);
    for_runs(call->ctx, outer, &tail);
    return DS_OK;
}

DSI_SIMD_KERNEL(pad, any_type, NULL, pad_run);

static ds_status split_run(const ds_kernel_call *call)
{
    const dsi_split_attrs *attrs = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    size_t outer;
    size_t inner;
    around(&x->meta.shape, attrs->dim, &outer, &inner);
    const size_t step = inner * ds_dtype_bytes(x->meta.dtype);
    const size_t whole = (size_t)x->meta.shape.dims[attrs->dim] * step;
    size_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_out && call->out[i].data != NULL; ++i) {
        const ds_tensor *out = &call->out[i];
        const size_t run = (size_t)out->meta.shape.dims[attrs->dim] * step;
        const runs_job job = {(const char *)x->data + at, out->data, run, whole, run};
        for_runs(call->ctx, outer, &job);
        at += run;
    }
    return DS_OK;
}

DSI_SIMD_KERNEL(split, any_type, NULL, split_run);

static ds_status concat_run(const ds_kernel_call *call)
{
    const dsi_concat_attrs *attrs = call->sig->attrs;
    const ds_tensor *out = &call->out[0];
    size_t outer;
    size_t inner;
    around(&out->meta.shape, attrs->dim, &outer, &inner);
    const size_t step = inner * ds_dtype_bytes(out->meta.dtype);
    const size_t whole = (size_t)out->meta.shape.dims[attrs->dim] * step;
    size_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        const ds_tensor *x = &call->in[i];
        const size_t run = (size_t)x->meta.shape.dims[attrs->dim] * step;
        const runs_job job = {x->data, (char *)out->data + at, run, run, whole};
        for_runs(call->ctx, outer, &job);
        at += run;
    }
    return DS_OK;
}

DSI_SIMD_KERNEL(concat, any_type, NULL, concat_run);
