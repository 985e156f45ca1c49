/* SPDX-License-Identifier: Apache-2.0 */
/* slot_adapter in fp32 vectors: lanes are columns, each one chain over the rows that are added. A
 * task is a token, so that its bits depend on nothing beside it. */
#include "accel/cpu/simd/simd_kernel.h"
#include "accel/cpu/slot_adapter_shape.h"

#include <string.h>

enum { VECTORS = 4 };

static int64_t room_of(const slot_shape *s)
{
    return (s->n_in + s->rank + 2 * VF_WIDTH - 1) / VF_WIDTH * VF_WIDTH;
}

/* Columns [c, c + size) of sum += Σ factor[i]·matrix[i], i < n, whose rows begin `stride` apart. */
DSI_INLINE void add_columns(vf sum[VECTORS], const float *factor, int64_t n, const void *matrix,
                            size_t at, int64_t stride, size_t size, ds_dtype type)
{
    for (int64_t i = 0; i < n; ++i, at += (size_t)stride) {
        const vf f = vf_set(factor[i]);
#pragma GCC unroll 4
        for (size_t u = 0; u < VECTORS; ++u) {
            const size_t done = u * VF_WIDTH;
            if (size >= done + VF_WIDTH) {
                sum[u] = vf_fma(vf_get(matrix, type, at + done), f, sum[u]);
            } else if (size > done) {
                sum[u] = vf_fma(vf_get_n(matrix, type, at + done, size - done), f, sum[u]);
            }
        }
    }
}

typedef struct slot_job {
    const ds_kernel_call *call;
    slot_shape s;
} slot_job;

DSI_INLINE void adapt_token(const slot_job *job, int64_t t, int64_t slot, float *x, ds_dtype type)
{
    const ds_kernel_call *call = job->call;
    const slot_shape *s = &job->s;
    float *down = x + s->n_in;
    const ds_dtype of_y = call->sig->in[0].dtype;
    for (int64_t c = 0; c < s->n_in; c += VF_WIDTH) {
        const size_t n = (size_t)(s->n_in - c < VF_WIDTH ? s->n_in - c : VF_WIDTH);
        vf_store_n(x + c, vf_get_upto(call->in[1].data, type, (size_t)(t * s->n_in + c), n), n);
    }
    for (int64_t r = 0; r < s->rank; r += VECTORS * VF_WIDTH) {
        vf sum[VECTORS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        const size_t n = (size_t)(s->rank - r);
        add_columns(sum, x, s->n_in, call->in[2].data, (size_t)(slot * s->n_in * s->rank + r),
                    s->rank, n, type);
        for (size_t u = 0; u < VECTORS && n > u * VF_WIDTH; ++u) {
            const size_t left = n - u * VF_WIDTH;
            vf_store_n(down + r + (int64_t)u * VF_WIDTH, sum[u], left < VF_WIDTH ? left : VF_WIDTH);
        }
    }
    for (int64_t c = 0; c < s->n_out; c += VECTORS * VF_WIDTH) {
        vf sum[VECTORS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        const size_t n = (size_t)(s->n_out - c);
        for (size_t u = 0; u < VECTORS && n > u * VF_WIDTH; ++u) {
            const size_t left = n - u * VF_WIDTH;
            sum[u] = vf_get_upto(call->in[0].data, of_y, (size_t)(t * s->n_out + c) + u * VF_WIDTH,
                                 left < VF_WIDTH ? left : VF_WIDTH);
        }
        add_columns(sum, down, s->rank, call->in[3].data, (size_t)(slot * s->rank * s->n_out + c),
                    s->n_out, n, type);
        for (size_t u = 0; u < VECTORS && n > u * VF_WIDTH; ++u) {
            const size_t left = n - u * VF_WIDTH;
            vf_put_n(call->out[0].data, of_y, (size_t)(t * s->n_out + c) + u * VF_WIDTH, sum[u],
                     left < VF_WIDTH ? left : VF_WIDTH);
        }
    }
}

static void run_task(void *arg, uint32_t task, uint32_t thread)
{
    const slot_job *job = arg;
    const ds_kernel_call *call = job->call;
    const int32_t slot = ((const int32_t *)call->in[4].data)[task];
    float *x = (float *)call->work + thread * (size_t)room_of(&job->s);
    const size_t row = (size_t)job->s.n_out * ds_dtype_bytes(call->sig->in[0].dtype);
    if (slot < 0) {
        if (call->out[0].data != call->in[0].data) {
            memcpy((char *)call->out[0].data + task * row,
                   (const char *)call->in[0].data + task * row, row);
        }
        return;
    }
    DSI_BY_TYPE(call->sig->in[1].dtype, adapt_token(job, task, slot, x, T))
}

static bool is_act(ds_dtype type)
{
    return type == DS_DTYPE_F32 || type == DS_DTYPE_BF16 || type == DS_DTYPE_F16;
}

static bool supports(const ds_kernel_sig *sig)
{
    return is_act(sig->in[0].dtype) && is_act(sig->in[1].dtype) &&
           sig->in[0].shape.dims[1] < UINT32_MAX;
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    const slot_shape s = slot_shape_of(sig);
    return (size_t)room_of(&s) * sizeof(float) * sig->n_threads;
}

static ds_status run(const ds_kernel_call *call)
{
    const slot_job job = {call, slot_shape_of(call->sig)};
    DS_TRY(slot_check(call, &job.s));
    ds_parallel(call->ctx, run_task, (void *)(uintptr_t)&job, (uint32_t)job.s.n_tokens);
    return DS_OK;
}

DSI_SIMD_KERNEL(slot_adapter, supports, work_bytes, run);
