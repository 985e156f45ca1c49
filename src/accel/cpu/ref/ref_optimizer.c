/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the optimizers: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_sum.h"
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

/* ---- lamb
 * ---------------------------------------------------------------------------------------- */
static void lamb_moments(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const scalars s = scalars_of(call);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float g = load_grad(call, &s, i);
        store_state(call, 0, i, fmaf(s.b1, load_state(call, 0, i), s.c1 * g));
        store_state(call, 1, i, fmaf(s.b2, load_state(call, 1, i), s.c2 * (g * g)));
    }
}

/* The update before the trust ratio, from the stored moments. */
static float lamb_update(const ds_kernel_call *call, const scalars *s, int64_t i, float p)
{
    const float m = ref_get(&call->out[OUT_STATE], i);
    const float v = ref_get(&call->out[OUT_STATE + 1], i);
    return fmaf(s->wd, p, m / (sqrtf(v) + s->eps));
}

/* sqrt(Σ x²) by the exact sum, x the parameter or the update; NaN or Inf when top is. */
static double lamb_norm(const ds_kernel_call *call, const scalars *s, bool of_update)
{
    const int64_t n = ds_shape_count(call->in[IN_PARAM].meta.shape);
    float top = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float p = load_param(call, i);
        const float x = fabsf(of_update ? lamb_update(call, s, i, p) : p);
        top = isnan(top) || x <= top ? top : x;
    }
    if (!isfinite(top)) {
        return (double)top;
    }
    const dsi_exact_grid grid = dsi_exact_grid_of(top);
    dsi_exact_parts parts = {0.0, 0.0};
    for (int64_t i = 0; i < n && !grid.empty; ++i) {
        const float p = load_param(call, i);
        dsi_exact_add(&grid, of_update ? lamb_update(call, s, i, p) : p, &parts);
        if ((uint64_t)i % DSI_EXACT_RUN == DSI_EXACT_RUN - 1) {
            dsi_exact_carry(&grid, &parts);
        }
    }
    dsi_exact_carry(&grid, &parts);
    return sqrt(parts.high + parts.low);
}

static float lamb_ratio(const dsi_optim_attrs *a, double p_norm, double u_norm)
{
    if (!(p_norm > 0.0) || !(u_norm > 0.0) || !isfinite(p_norm) || !isfinite(u_norm)) {
        return 1.0f;
    }
    const double ratio = p_norm / u_norm;
    return (float)(ratio > a->max_coeff   ? a->max_coeff
                   : ratio < a->min_coeff ? a->min_coeff
                                          : ratio);
}

static void lamb_apply(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const scalars s = scalars_of(call);
    const int64_t n = ds_shape_count(call->in[IN_PARAM].meta.shape);
    (void)begin;
    (void)end;
    (void)slot;
    const float ratio = lamb_ratio(a, lamb_norm(call, &s, false), lamb_norm(call, &s, true));
    const float scaled = (s.lr * s.bias2) / s.bias1;
    const float step = -scaled * ratio;
    for (int64_t i = 0; i < n; ++i) {
        const float p = load_param(call, i);
        store_param(call, i, fmaf(step, lamb_update(call, &s, i, p), p));
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

static ds_status lamb_run(const ds_kernel_call *call)
{
    DS_TRY(over_elements(call, lamb_moments));
    dsi_ref_serial(call, lamb_apply);
    return DS_OK;
}

REF_KERNEL(adam, adam_run, NULL);
REF_KERNEL(sgd, sgd_run, NULL);
REF_KERNEL(lion, lion_run, NULL);
REF_KERNEL(adagrad, adagrad_run, NULL);
REF_KERNEL(lamb, lamb_run, NULL);
const ds_kernel *const DSI_REF(optimizer)[] = {&adam_kernel,    &sgd_kernel,  &lion_kernel,
                                               &adagrad_kernel, &lamb_kernel, NULL};
