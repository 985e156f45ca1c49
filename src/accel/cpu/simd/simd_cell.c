/* SPDX-License-Identifier: Apache-2.0 */
/* cast, store, accumulate and postpone. The reference's bits. */
#include "accel/cpu/simd/simd_kernel.h"

typedef struct cast_job {
    const void *x;
    void *y;
    ds_dtype from, to;
    const void *cell; /* of accumulate: what x is added to */
} cast_job;

DSI_INLINE void cast_loop(const cast_job *job, size_t begin, size_t end, ds_dtype from, ds_dtype to)
{
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(job->x, from, i);
        vf_fetch(job->y, to, i);
        vf_put(job->y, to, i, vf_get(job->x, from, i));
    }
    if (i < end) {
        vf_put_n(job->y, to, i, vf_get_n(job->x, from, i, end - i), end - i);
    }
}

/* to may be from itself. */
static void copy_bytes(char *to, const char *from, size_t bytes)
{
    enum { STEP = 4 * VF_WIDTH };
    size_t i = 0;
    for (; i + STEP <= bytes; i += STEP) {
        _mm_prefetch(from + i + FETCH_AHEAD, _MM_HINT_T0);
        _mm_prefetch(to + i + FETCH_AHEAD, _MM_HINT_T0);
        vi_store((int32_t *)(void *)(to + i), vi_load((const int32_t *)(const void *)(from + i)));
    }
    memmove(to + i, from + i, bytes - i);
}

static void cast_range(const void *opaque, size_t begin, size_t end)
{
    const cast_job *job = opaque;
    if (job->from == job->to) {
        const size_t bytes = ds_dtype_bytes(job->to);
        copy_bytes((char *)job->y + begin * bytes, (const char *)job->x + begin * bytes,
                   (end - begin) * bytes);
    } else if (job->from == DS_DTYPE_F32) {
        DSI_BY_TYPE(job->to, cast_loop(job, begin, end, DS_DTYPE_F32, T))
    } else if (job->to == DS_DTYPE_F32) {
        DSI_BY_TYPE(job->from, cast_loop(job, begin, end, T, DS_DTYPE_F32))
    } else {
        cast_loop(job, begin, end, job->from, job->to);
    }
}

static ds_status run_cast(const ds_kernel_call *call, const ds_tensor *x)
{
    const cast_job job = {x->data, call->out[0].data, x->meta.dtype, call->out[0].meta.dtype, NULL};
    for_ranges(call->ctx, tensor_count(x), 2 * ELEMENT_GRAIN, cast_range, &job);
    return DS_OK;
}

static ds_status cast_run(const ds_kernel_call *call)
{
    return run_cast(call, &call->in[0]);
}

static ds_status store_run(const ds_kernel_call *call)
{
    return run_cast(call, &call->in[1]);
}

/* Also any type onto itself. */
static bool store_supports(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == sig->in[1].dtype || all_act_types(sig);
}

DSI_SIMD_KERNEL(cast, all_act_types, NULL, cast_run);
DSI_SIMD_KERNEL(store, store_supports, NULL, store_run);

/* ---- accumulate -------------------------------------------------------------------------------
 */
DSI_INLINE void accumulate_loop(const cast_job *job, size_t begin, size_t end, ds_dtype from,
                                ds_dtype to)
{
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(job->x, from, i);
        vf_fetch(job->y, to, i);
        vf_put(job->y, to, i, vf_add(vf_get(job->cell, to, i), vf_get(job->x, from, i)));
    }
    if (i < end) {
        const size_t n = end - i;
        vf_put_n(job->y, to, i, vf_add(vf_get_n(job->cell, to, i, n), vf_get_n(job->x, from, i, n)),
                 n);
    }
}

static void accumulate_range(const void *opaque, size_t begin, size_t end)
{
    const cast_job *job = opaque;
    if (job->to == DS_DTYPE_F32) {
        DSI_BY_TYPE(job->from, accumulate_loop(job, begin, end, T, DS_DTYPE_F32))
    } else {
        accumulate_loop(job, begin, end, job->from, job->to);
    }
}

static ds_status accumulate_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[1];
    const cast_job job = {x->data, call->out[0].data, x->meta.dtype, call->out[0].meta.dtype,
                          call->in[0].data};
    for_ranges(call->ctx, tensor_count(x), ELEMENT_GRAIN, accumulate_range, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(accumulate, all_act_types, NULL, accumulate_run);

/* ---- postpone ---------------------------------------------------------------------------------
 */
typedef struct postpone_job {
    const void *x;
    const float *cell;
    float *y;
    ds_dtype from;
    float factor;
    bool more;
} postpone_job;

DSI_INLINE vf postponed(const postpone_job *job, vf x, vf cell)
{
    const vf factor = vf_set(job->factor);
    return job->more ? vf_fma(factor, x, cell) : vf_mul(factor, x);
}

DSI_INLINE void postpone_loop(const postpone_job *job, size_t begin, size_t end, ds_dtype from)
{
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(job->x, from, i);
        vf_fetch(job->y, DS_DTYPE_F32, i);
        vf_put(job->y, DS_DTYPE_F32, i,
               postponed(job, vf_get(job->x, from, i), vf_get(job->cell, DS_DTYPE_F32, i)));
    }
    if (i < end) {
        const size_t n = end - i;
        vf_put_n(
            job->y, DS_DTYPE_F32, i,
            postponed(job, vf_get_n(job->x, from, i, n), vf_get_n(job->cell, DS_DTYPE_F32, i, n)),
            n);
    }
}

static void postpone_range(const void *opaque, size_t begin, size_t end)
{
    const postpone_job *job = opaque;
    DSI_BY_TYPE(job->from, postpone_loop(job, begin, end, T))
}

static ds_status postpone_run(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[1];
    const postpone_job job = {.x = x->data,
                              .cell = call->in[0].data,
                              .y = call->out[0].data,
                              .from = x->meta.dtype,
                              .factor = *(const float *)call->in[3].data,
                              .more = *(const float *)call->in[2].data != 0.0f};
    for_ranges(call->ctx, tensor_count(x), ELEMENT_GRAIN, postpone_range, &job);
    return DS_OK;
}

DSI_SIMD_KERNEL(postpone, NULL, NULL, postpone_run);
