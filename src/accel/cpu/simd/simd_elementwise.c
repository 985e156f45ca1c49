/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: arithmetic with broadcasting of a row or a scalar, and unary functions.
 *
 * Computed in fp32, rounded once. All but exp, log, tanh and sigmoid give the reference's bits.
 */
#include "accel/cpu/simd/simd_kernel.h"
#include "accel/cpu/simd/vec_math.h"

/* ---- unary ---------------------------------------------------------------------------------- */
typedef struct unary_job {
    const void *x;
    void *y;
    ds_dtype type;
    float factor; /* of scale */
} unary_job;

DSI_INLINE void unary_range(const unary_job *job, size_t begin, size_t end, ds_dtype type,
                            vf (*fn)(vf x, vf factor))
{
    const vf factor = vf_set(job->factor);
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(job->x, type, i);
        vf_fetch(job->y, type, i);
        vf_put(job->y, type, i, fn(vf_get(job->x, type, i), factor));
    }
    if (i < end) {
        vf_put_n(job->y, type, i, fn(vf_get_n(job->x, type, i, end - i), factor), end - i);
    }
}

static ds_status run_unary(const ds_kernel_call *call, range_fn fn, float factor)
{
    const unary_job job = {call->in[0].data, call->out[0].data, call->in[0].meta.dtype, factor};
    for_ranges(call->ctx, tensor_count(&call->in[0]), ELEMENT_GRAIN, fn, &job);
    return DS_OK;
}

static float scale_factor(const ds_kernel_call *call)
{
    return (float)((const dsi_scale_attrs *)call->sig->attrs)->factor;
}

#define UNARY(name, value, factor)                                                                 \
    DSI_INLINE vf name##_one(vf x, vf k)                                                           \
    {                                                                                              \
        (void)k;                                                                                   \
        return value;                                                                              \
    }                                                                                              \
    static void name##_range(const void *opaque, size_t begin, size_t end)                         \
    {                                                                                              \
        const unary_job *job = opaque;                                                             \
        DSI_BY_TYPE(job->type, unary_range(job, begin, end, T, name##_one))                        \
    }                                                                                              \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run_unary(call, name##_range, factor);                                              \
    }                                                                                              \
    DSI_SIMD_KERNEL(name, all_act_types, NULL, name##_run)

UNARY(scale, vf_mul(x, k), scale_factor(call));
UNARY(neg, vf_neg(x), 0.0f);
UNARY(exp, vf_exp(x), 0.0f);
UNARY(log, vf_log(x), 0.0f);
UNARY(sqrt, vf_sqrt(x), 0.0f);
UNARY(tanh, vf_tanh(x), 0.0f);
UNARY(sigmoid, vf_sigmoid(x), 0.0f);
UNARY(relu, vf_select(vf_gt(vf_zero(), x), vf_zero(), x), 0.0f);
UNARY(square, vf_mul(x, x), 0.0f);

/* ---- binary --------------------------------------------------------------------------------- */
typedef struct binary_job {
    const void *a, *b;
    void *c;
    ds_dtype a_type, b_type;
    size_t period; /* b repeats after this many elements; 1: a scalar */
} binary_job;

typedef vf (*binary_fn)(vf a, vf b);

/* Elements [begin,end) of a and c against elements [at,..) of b. */
DSI_INLINE void binary_run_of(const binary_job *job, size_t begin, size_t end, size_t at,
                              ds_dtype a_type, ds_dtype b_type, binary_fn fn)
{
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        const vf b = vf_get(job->b, b_type, at + (i - begin));
        vf_fetch(job->a, a_type, i);
        vf_fetch(job->b, b_type, at + (i - begin));
        vf_fetch(job->c, a_type, i);
        vf_put(job->c, a_type, i, fn(vf_get(job->a, a_type, i), b));
    }
    if (i < end) {
        const size_t n = end - i;
        const vf b = vf_get_n(job->b, b_type, at + (i - begin), n);
        vf_put_n(job->c, a_type, i, fn(vf_get_n(job->a, a_type, i, n), b), n);
    }
}

DSI_INLINE void binary_scalar(const binary_job *job, size_t begin, size_t end, ds_dtype type,
                              binary_fn fn)
{
    float first[VF_WIDTH];
    vf_store(first, vf_get_n(job->b, job->b_type, 0, 1));
    const vf b = vf_set(first[0]);
    size_t i = begin;
    for (; i + VF_WIDTH <= end; i += VF_WIDTH) {
        vf_fetch(job->a, type, i);
        vf_fetch(job->c, type, i);
        vf_put(job->c, type, i, fn(vf_get(job->a, type, i), b));
    }
    if (i < end) {
        vf_put_n(job->c, type, i, fn(vf_get_n(job->a, type, i, end - i), b), end - i);
    }
}

DSI_INLINE void binary_range(const binary_job *job, size_t begin, size_t end, ds_dtype type,
                             binary_fn fn)
{
    if (job->period == 1) {
        binary_scalar(job, begin, end, type, fn);
        return;
    }
    for (size_t i = begin; i < end;) {
        const size_t at = i % job->period;
        const size_t row_end = i + (job->period - at);
        const size_t stop = row_end < end ? row_end : end;
        if (job->b_type == type) {
            binary_run_of(job, i, stop, at, type, type, fn);
        } else {
            binary_run_of(job, i, stop, at, type, job->b_type, fn);
        }
        i = stop;
    }
}

static ds_status run_binary(const ds_kernel_call *call, range_fn fn)
{
    const ds_tensor *a = &call->in[0];
    const ds_tensor *b = &call->in[1];
    const binary_job job = {a->data,       b->data,       call->out[0].data,
                            a->meta.dtype, b->meta.dtype, tensor_count(b)};
    for_ranges(call->ctx, tensor_count(a), ELEMENT_GRAIN, fn, &job);
    return DS_OK;
}

#define BINARY(name, value)                                                                        \
    DSI_INLINE vf name##_two(vf a, vf b)                                                           \
    {                                                                                              \
        return value;                                                                              \
    }                                                                                              \
    static void name##_range(const void *opaque, size_t begin, size_t end)                         \
    {                                                                                              \
        const binary_job *job = opaque;                                                            \
        DSI_BY_TYPE(job->a_type, binary_range(job, begin, end, T, name##_two))                     \
    }                                                                                              \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run_binary(call, name##_range);                                                     \
    }                                                                                              \
    DSI_SIMD_KERNEL(name, all_act_types, NULL, name##_run)

BINARY(add, vf_add(a, b));
BINARY(sub, vf_sub(a, b));
BINARY(mul, vf_mul(a, b));
BINARY(div, vf_div(a, b));
BINARY(relu_backward, vf_select(vf_gt(b, vf_zero()), a, vf_zero()));
