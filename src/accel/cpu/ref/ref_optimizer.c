/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the optimizers but LAMB: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE };
enum { OUT_PARAM, OUT_MASTER, OUT_STATE };

typedef struct scalars {
    float lr, b1, b2, c1, c2, wd, bias1, bias2, decay, factor, eps;
    bool first;
} scalars;

static scalars scalars_of(const ds_kernel_call *call)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    scalars s = {.lr = hyper[DSI_HYPER_LR],
                 .b1 = hyper[DSI_HYPER_BETA1],
                 .b2 = hyper[DSI_HYPER_BETA2],
                 .wd = hyper[DSI_HYPER_WEIGHT_DECAY],
                 .bias1 = hyper[DSI_HYPER_BIAS1],
                 .bias2 = hyper[DSI_HYPER_BIAS2],
                 .first = hyper[DSI_HYPER_FIRST] != 0.0f,
                 .factor = *(const float *)call->in[IN_FACTOR].data,
                 .eps = (float)a->eps};
    s.c1 = 1.0f - s.b1;
    s.c2 = 1.0f - s.b2;
    const float product = s.lr * s.wd;
    s.decay = 1.0f - product;
    return s;
}

static float load_param(const ds_kernel_call *call, int64_t i)
{
    return ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
}

static void store_param(const ds_kernel_call *call, int64_t i, float p)
{
    ref_set(&call->out[OUT_PARAM], i, p);
    if (ref_out(call, OUT_MASTER) != NULL) {
        ref_set(&call->out[OUT_MASTER], i, p);
    }
}

static float load_grad(const ds_kernel_call *call, const scalars *s, int64_t i)
{
    return ref_get(&call->in[IN_GRAD], i) * s->factor;
}

static float load_state(const ds_kernel_call *call, uint32_t state, int64_t i)
{
    return ref_get(&call->in[IN_STATE + state], i);
}

static void store_state(const ds_kernel_call *call, uint32_t state, int64_t i, float value)
{
    ref_set(&call->out[OUT_STATE + state], i, value);
}

static void adam_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const scalars s = scalars_of(call);
    const float i2 = 1.0f / s.bias2;
    const float step = -(s.lr / s.bias1);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        float p = load_param(call, i);
        float g = load_grad(call, &s, i);
        if (a->adamw == 0 && s.wd != 0.0f) {
            g = fmaf(s.wd, p, g);
        }
        const float m = fmaf(s.b1, load_state(call, 0, i), s.c1 * g);
        const float v = fmaf(s.b2, load_state(call, 1, i), s.c2 * (g * g));
        const float u = m / fmaf(sqrtf(v), i2, s.eps);
        if (a->adamw != 0) {
            p = p * s.decay;
        }
        store_state(call, 0, i, m);
        store_state(call, 1, i, v);
        store_param(call, i, fmaf(step, u, p));
    }
}

static void ademamix_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const scalars s = scalars_of(call);
    const float *hyper = call->in[IN_HYPER].data;
    const float b3 = hyper[DSI_HYPER_BETA3], c3 = 1.0f - b3, alpha = hyper[DSI_HYPER_ALPHA];
    const float i1 = 1.0f / s.bias1, i2 = 1.0f / s.bias2;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = load_param(call, i) * s.decay;
        const float g = load_grad(call, &s, i);
        const float m = fmaf(s.b1, load_state(call, 0, i), s.c1 * g);
        const float v = fmaf(s.b2, load_state(call, 1, i), s.c2 * (g * g));
        const float slow = fmaf(b3, load_state(call, 2, i), c3 * g);
        const float u = fmaf(alpha, slow, m * i1) / fmaf(sqrtf(v), i2, s.eps);
        store_state(call, 0, i, m);
        store_state(call, 1, i, v);
        store_state(call, 2, i, slow);
        store_param(call, i, fmaf(-s.lr, u, p));
    }
}

static void sgd_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const scalars s = scalars_of(call);
    const float undamped = (float)(1.0 - a->dampening);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = load_param(call, i);
        float g = load_grad(call, &s, i);
        if (s.wd != 0.0f) {
            g = fmaf(s.wd, p, g);
        }
        if (ref_has(call, IN_STATE)) {
            const float b = s.first ? g : fmaf(s.b1, load_state(call, 0, i), undamped * g);
            store_state(call, 0, i, b);
            g = a->nesterov != 0 ? fmaf(s.b1, b, g) : b;
        }
        store_param(call, i, fmaf(-s.lr, g, p));
    }
}

static void lion_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const scalars s = scalars_of(call);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = load_param(call, i) * s.decay;
        const float g = load_grad(call, &s, i);
        const float m = load_state(call, 0, i);
        const float c = fmaf(s.b1, m, s.c1 * g);
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c;
        store_param(call, i, fmaf(-s.lr, sign, p));
        store_state(call, 0, i, fmaf(s.b2, m, s.c2 * g));
    }
}

static void adagrad_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const scalars s = scalars_of(call);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = load_param(call, i);
        float g = load_grad(call, &s, i);
        if (s.wd != 0.0f) {
            g = fmaf(s.wd, p, g);
        }
        const float v = fmaf(g, g, load_state(call, 0, i));
        store_state(call, 0, i, v);
        store_param(call, i, fmaf(-s.lr, g / (sqrtf(v) + s.eps), p));
    }
}

static ds_status over_elements(const ds_kernel_call *call, dsi_ref_fn fn)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_PARAM].meta.shape), fn);
    return DS_OK;
}

static ds_status adam_run(const ds_kernel_call *call)
{
    return over_elements(call, adam_range);
}

static ds_status ademamix_run(const ds_kernel_call *call)
{
    return over_elements(call, ademamix_range);
}

static ds_status sgd_run(const ds_kernel_call *call)
{
    return over_elements(call, sgd_range);
}

static ds_status lion_run(const ds_kernel_call *call)
{
    return over_elements(call, lion_range);
}

static ds_status adagrad_run(const ds_kernel_call *call)
{
    return over_elements(call, adagrad_range);
}

REF_KERNEL(adam, adam_run, NULL);
REF_KERNEL(ademamix, ademamix_run, NULL);
REF_KERNEL(sgd, sgd_run, NULL);
REF_KERNEL(lion, lion_run, NULL);
REF_KERNEL(adagrad, adagrad_run, NULL);
const ds_kernel *const DSI_REF(optimizer)[] = {&adam_kernel, &ademamix_kernel, &sgd_kernel,
                                               &lion_kernel, &adagrad_kernel,  NULL};
