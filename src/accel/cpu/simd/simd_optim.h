/* SPDX-License-Identifier: Apache-2.0 */
/* The loop that all elementwise optimizer updates share: operands, scalars, prefetch, tails.
 *
 * Operands of the operators (op/ops.h): param, grad, hyper, factor, [master], states; outputs
 * param, [master], states, at the same addresses. Included by simd_optim.c and simd_lamb.c.
 */
#ifndef DSI_ACCEL_CPU_SIMD_OPTIM_H
#define DSI_ACCEL_CPU_SIMD_OPTIM_H

#include "accel/cpu/simd/simd_kernel.h"

enum { OPTIM_PARAM, OPTIM_GRAD, OPTIM_HYPER, OPTIM_FACTOR, OPTIM_MASTER, OPTIM_STATES };
enum { OPTIM_MOST_STATES = 3 };

typedef struct optim_job {
    void *param;
    const void *grad;
    float *master; /* NULL: the parameter is f32 */
    void *state[OPTIM_MOST_STATES];
    ds_dtype param_type, grad_type, state_type;
    const float *hyper;
    float factor;
    const dsi_optim_attrs *attrs;
    size_t n;
} optim_job;

/* The scalars of docs/internals/optim.md, broadcast. */
typedef struct optim_scalars {
    vf factor, wd, b1, c1, b2, c2, inverse_bias2, eps, decay, step, minus_lr, undamped;
    vf inverse_bias1, b3, c3, alpha;
    bool decays, l2, decoupled, first, nesterov;
} optim_scalars;

/* State i, or NULL when it is absent. Absent masters still hold their place. */
static inline const ds_tensor *optim_state(const ds_kernel_call *call, uint32_t i)
{
    return input_at(call, OPTIM_STATES + i);
}

static inline optim_scalars optim_scalars_of(const optim_job *job)
{
    const float *h = job->hyper;
    const float lr = h[DSI_HYPER_LR];
    const float wd = h[DSI_HYPER_WEIGHT_DECAY];
    const float lr_wd = lr * wd;
    const bool adamw = job->attrs->adamw != 0;
    return (optim_scalars){
        .factor = vf_set(job->factor),
        .wd = vf_set(wd),
        .b1 = vf_set(h[DSI_HYPER_BETA1]),
        .c1 = vf_set(1.0f - h[DSI_HYPER_BETA1]),
        .b2 = vf_set(h[DSI_HYPER_BETA2]),
        .c2 = vf_set(1.0f - h[DSI_HYPER_BETA2]),
        .inverse_bias2 = vf_set(1.0f / h[DSI_HYPER_BIAS2]),
        .eps = vf_set((float)job->attrs->eps),
        .decay = vf_set(1.0f - lr_wd),
        .step = vf_set(-(lr / h[DSI_HYPER_BIAS1])),
        .minus_lr = vf_set(-lr),
        .undamped = vf_set((float)(1.0 - job->attrs->dampening)),
        .decays = wd != 0.0f,
        .l2 = !adamw && wd != 0.0f,
        .decoupled = adamw,
        .first = h[DSI_HYPER_FIRST] != 0.0f,
        .nesterov = job->attrs->nesterov != 0,
        .inverse_bias1 = vf_set(1.0f / h[DSI_HYPER_BIAS1]),
        .b3 = vf_set(h[DSI_HYPER_BETA3]),
        .c3 = vf_set(1.0f - h[DSI_HYPER_BETA3]),
        .alpha = vf_set(h[DSI_HYPER_ALPHA]),
    };
}

/* s: the states. */
typedef void (*optim_step)(const optim_scalars *k, vf g, vf *p, vf *s);

/* Elements i..i+n-1, n <= VF_WIDTH. */
DSI_INLINE void optim_tail(const optim_job *job, const optim_scalars *k, size_t i, size_t n,
                           int n_states, optim_step step)
{
    const ds_dtype pt = job->param_type;
    const ds_dtype st = job->state_type;
    float *weight = job->master != NULL ? job->master : job->param;
    vf p = vf_load_n(weight + i, n);
    const vf g = vf_get_n(job->grad, job->grad_type, i, n);
    vf s[OPTIM_MOST_STATES] = {vf_zero(), vf_zero(), vf_zero()};
    for (int at = 0; at < n_states; ++at) {
        s[at] = vf_get_n(job->state[at], st, i, n);
    }
    step(k, vf_mul(g, k->factor), &p, s);
    for (int at = 0; at < n_states; ++at) {
        vf_put_n(job->state[at], st, i, s[at], n);
    }
    vf_store_n(weight + i, p, n);
    if (job->master != NULL) {
        vf_put_n(job->param, pt, i, p, n);
    }
}

/* Two vectors side by side: the roots and quotients of one go on during the rounding of the other.
 */
DSI_INLINE void optim_pair(const optim_job *job, const optim_scalars *k, size_t i, ds_dtype pt,
                           ds_dtype gt, ds_dtype st, int n_states, optim_step step)
{
    float *weight = job->master != NULL ? job->master : job->param;
    vf p[2] = {vf_load(weight + i), vf_load(weight + i + VF_WIDTH)};
    vf s[2][OPTIM_MOST_STATES];
    for (size_t v = 0; v < 2; ++v) {
        const size_t at = i + v * VF_WIDTH;
        for (int state = 0; state < n_states; ++state) {
            s[v][state] = vf_get(job->state[state], st, at);
        }
        step(k, vf_mul(vf_get(job->grad, gt, at), k->factor), &p[v], s[v]);
    }
    for (int state = 0; state < n_states; ++state) {
        const vf both[2] = {s[0][state], s[1][state]};
        vf_put_pair(job->state[state], st, i, both);
    }
    vf_put_pair(weight, DS_DTYPE_F32, i, p);
    if (job->master != NULL) {
        vf_put_pair(job->param, pt, i, p);
    }
}

enum { OPTIM_AHEAD = 1024, OPTIM_BATCH = 32 }; /* bytes of fp32 streams; elements a turn */

/* Asks for the lines of elements i+ahead.. of one stream, OPTIM_BATCH elements. */
DSI_INLINE void optim_prefetch(const void *base, ds_dtype type, size_t i)
{
    const size_t bytes = type == DS_DTYPE_F32 ? 4 : 2;
    const char *at = (const char *)base + i * bytes + OPTIM_AHEAD * bytes / 4;
    _mm_prefetch(at, _MM_HINT_T1);
    if (bytes == 4) {
        _mm_prefetch(at + 64, _MM_HINT_T1);
    }
}

DSI_INLINE void optim_loop(const optim_job *job, size_t begin, size_t end, ds_dtype pt, ds_dtype gt,
                           ds_dtype st, int n_states, optim_step step)
{
    const optim_scalars k = optim_scalars_of(job);
    size_t i = begin;
    for (; i + OPTIM_BATCH <= end; i += OPTIM_BATCH) {
        optim_prefetch(job->grad, gt, i);
        optim_prefetch(job->param, pt, i);
        if (job->master != NULL) {
            optim_prefetch(job->master, DS_DTYPE_F32, i);
        }
        for (int s = 0; s < n_states; ++s) {
            optim_prefetch(job->state[s], st, i);
        }
        for (size_t j = 0; j < OPTIM_BATCH; j += 2 * VF_WIDTH) {
            optim_pair(job, &k, i + j, pt, gt, st, n_states, step);
        }
    }
    for (; i < end; i += VF_WIDTH) {
        const size_t n = end - i < VF_WIDTH ? end - i : VF_WIDTH;
        optim_tail(job, &k, i, n, n_states, step);
    }
}

/* Defines NAME_range from NAME_step: the common element types specialised, the others by branches
 * inside the loop. */
#define OPTIM_RANGE(name, n_states)                                                                \
    static void name##_range(const void *opaque, size_t begin, size_t end)                         \
    {                                                                                              \
        const optim_job *j = opaque;                                                               \
        const ds_dtype f = DS_DTYPE_F32;                                                           \
        const ds_dtype h = DS_DTYPE_BF16;                                                          \
        const bool f32_state = j->state_type == f;                                                 \
        if (j->param_type == f && j->grad_type == f && f32_state) {                                \
            optim_loop(j, begin, end, f, f, f, n_states, name##_step);                             \
        } else if (j->param_type == h && j->grad_type == h && f32_state) {                         \
            optim_loop(j, begin, end, h, h, f, n_states, name##_step);                             \
        } else if (j->param_type == h && j->grad_type == f && f32_state) {                         \
            optim_loop(j, begin, end, h, f, f, n_states, name##_step);                             \
        } else if (j->param_type == h && j->grad_type == h && j->state_type == h) {                \
            optim_loop(j, begin, end, h, h, h, n_states, name##_step);                             \
        } else {                                                                                   \
            optim_loop(j, begin, end, j->param_type, j->grad_type, j->state_type, n_states,        \
                       name##_step);                                                               \
        }                                                                                          \
    }

static inline bool optim_supports(const ds_kernel_sig *sig)
{
    const bool master = sig->n_in > OPTIM_MASTER && sig->in[OPTIM_MASTER].dtype != DS_DTYPE_NONE;
    for (uint32_t i = OPTIM_STATES; i < sig->n_in; ++i) {
        if (sig->in[i].dtype == DS_DTYPE_F16) {
            return false;
        }
    }
    return all_act_types(sig) && (master || sig->in[OPTIM_PARAM].dtype == DS_DTYPE_F32);
}

/* Where output i is made, in place: what its input holds is there, or is copied there first. */
static inline void *optim_place(const ds_kernel_call *call, uint32_t i, uint32_t from)
{
    const ds_tensor *in = &call->in[from];
    void *out = call->out[i].data;
    if (out != in->data) {
        memcpy(out, in->data, ds_meta_bytes(in->meta));
    }
    return out;
}

static inline optim_job optim_job_of(const ds_kernel_call *call, uint32_t n_states)
{
    const ds_tensor *in = call->in;
    const ds_tensor *master = input_at(call, OPTIM_MASTER);
    optim_job job = {.param =
                         master != NULL ? call->out[0].data : optim_place(call, 0, OPTIM_PARAM),
                     .grad = in[OPTIM_GRAD].data,
                     .master = master != NULL ? optim_place(call, 1, OPTIM_MASTER) : NULL,
                     .param_type = in[OPTIM_PARAM].meta.dtype,
                     .grad_type = in[OPTIM_GRAD].meta.dtype,
                     .state_type = DS_DTYPE_F32,
                     .hyper = in[OPTIM_HYPER].data,
                     .factor = *(const float *)in[OPTIM_FACTOR].data,
                     .attrs = call->sig->attrs,
                     .n = tensor_count(&in[OPTIM_PARAM])};
    for (uint32_t s = 0; s < n_states; ++s) {
        job.state[s] = optim_place(call, 2 + s, OPTIM_STATES + s);
        job.state_type = in[OPTIM_STATES + s].meta.dtype;
    }
    return job;
}

enum { OPTIM_GRAIN = 65536 };

static inline ds_status run_optim(const ds_kernel_call *call, uint32_t n_states, range_fn fn)
{
    const optim_job job = optim_job_of(call, n_states);
    for_ranges(call->ctx, job.n, OPTIM_GRAIN, fn, &job);
    return DS_OK;
}

#endif
