/* SPDX-License-Identifier: Apache-2.0 */
/* activation, glu and their gradients: GELU in both forms and SiLU. Held to a tolerance. */
#include "accel/cpu/simd/simd_kernel.h"
#include "accel/cpu/simd/vec_math.h"

typedef struct act_job {
    const void *in[3];
    void *out[2];
    ds_dtype type;
    int64_t kind;
} act_job;

typedef vf (*act_fn)(vf x);

DSI_INLINE vf act_none(vf x)
{
    return x;
}

DSI_INLINE vf act_none_slope(vf x)
{
    (void)x;
    return vf_set(1.0f);
}

/* Each loop body for one vector of n elements, whole when n is VF_WIDTH. */
DSI_INLINE vf get_part(const act_job *job, int k, size_t i, size_t n, bool whole, ds_dtype type)
{
    vf_fetch(job->in[k], type, i);
    return whole ? vf_get(job->in[k], type, i) : vf_get_n(job->in[k], type, i, n);
}

DSI_INLINE void put_part(const act_job *job, int k, size_t i, size_t n, bool whole, ds_dtype type,
                         vf v)
{
    vf_fetch(job->out[k], type, i);
    whole ? vf_put(job->out[k], type, i, v) : vf_put_n(job->out[k], type, i, v, n);
}

typedef void (*act_part)(const act_job *job, size_t i, size_t n, bool whole, ds_dtype type,
                         act_fn act, act_fn slope);

DSI_INLINE void forward_part(const act_job *job, size_t i, size_t n, bool whole, ds_dtype type,
                             act_fn act, act_fn slope)
{
    (void)slope;
    put_part(job, 0, i, n, whole, type, act(get_part(job, 0, i, n, whole, type)));
}

DSI_INLINE void backward_part(const act_job *job, size_t i, size_t n, bool whole, ds_dtype type,
                              act_fn act, act_fn slope)
{
    (void)act;
    const vf dy = get_part(job, 0, i, n, whole, type);
    put_part(job, 0, i, n, whole, type, vf_mul(dy, slope(get_part(job, 1, i, n, whole, type))));
}

DSI_INLINE void glu_part(const act_job *job, size_t i, size_t n, bool whole, ds_dtype type,
                         act_fn act, act_fn slope)
{
    (void)slope;
    const vf up = get_part(job, 1, i, n, whole, type);
    put_part(job, 0, i, n, whole, type, vf_mul(act(get_part(job, 0, i, n, whole, type)), up));
}

DSI_INLINE void glu_backward_part(const act_job *job, size_t i, size_t n, bool whole, ds_dtype type,
                                  act_fn act, act_fn slope)
{
    const vf dy = get_part(job, 0, i, n, whole, type);
    const vf gate = get_part(job, 1, i, n, whole, type);
    const vf up = get_part(job, 2, i, n, whole, type);
    put_part(job, 0, i, n, whole, type, vf_mul(vf_mul(dy, up), slope(gate)));
    put_part(job, 1, i, n, whole, type, vf_mul(dy, act(gate)));
}

DSI_INLINE void act_loop(const act_job *job, size_t begin, size_t end, ds_dtype type, act_part part,
                         act_fn act, act_fn slope)
{
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        part(job, i, VF_WIDTH, true, type, act, slope);
    }
    if (i < end) {
        part(job, i, end - i, false, type, act, slope);
    }
}

DSI_INLINE void act_kinds(const act_job *job, size_t begin, size_t end, ds_dtype type,
                          act_part part)
{
    switch (job->kind) {
    case DSI_ACT_GELU_TANH:
        act_loop(job, begin, end, type, part, vf_gelu_tanh, vf_gelu_tanh_slope);
        break;
    case DSI_ACT_SILU:
        act_loop(job, begin, end, type, part, vf_silu, vf_silu_slope);
        break;
    case DSI_ACT_GELU_ERF:
        act_loop(job, begin, end, type, part, vf_gelu_erf, vf_gelu_erf_slope);
        break;
    default:
        act_loop(job, begin, end, type, part, act_none, act_none_slope);
        break;
    }
}

static ds_status run_act(const ds_kernel_call *call, range_fn fn)
{
    act_job job = {.type = call->in[0].meta.dtype,
                   .kind = ((const dsi_act_attrs *)call->sig->attrs)->kind};
    for (uint32_t i = 0; i < call->sig->n_in && i < 3; ++i) {
        job.in[i] = call->in[i].data;
    }
    for (uint32_t i = 0; i < call->sig->n_out && i < 2; ++i) {
        job.out[i] = call->out[i].data;
    }
    for_ranges(call->ctx, tensor_count(&call->in[0]), ELEMENT_GRAIN, fn, &job);
    return DS_OK;
}

#define ACTIVATION(name, part)                                                                     \
    static void name##_range(const void *opaque, size_t begin, size_t end)                         \
    {                                                                                              \
        const act_job *job = opaque;                                                               \
        DSI_BY_TYPE(job->type, act_kinds(job, begin, end, T, part))                                \
    }                                                                                              \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run_act(call, name##_range);                                                        \
    }                                                                                              \
    DSI_SIMD_KERNEL(name, all_act_types, NULL, name##_run)

ACTIVATION(activation, forward_part);
ACTIVATION(activation_backward, backward_part);
ACTIVATION(glu, glu_part);
ACTIVATION(glu_backward, glu_backward_part);
