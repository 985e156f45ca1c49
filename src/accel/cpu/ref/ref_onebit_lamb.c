/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of 1-bit LAMB: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "op/ops.h"

enum { IN_PARAM, IN_RATIO, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };
enum { F_FACTOR, F_RATIO, F_MOMENT, F_SQ, F_FRESH, F_WEIGHT, F_HYPER };

static float scalar(const ds_kernel_call *call, uint32_t i)
{
    return *(const float *)call->in[i].data;
}

static void set_scalar(const ds_kernel_call *call, uint32_t o, double value)
{
    *(float *)call->out[o].data = (float)value;
}

static const dsi_onebit_lamb_attrs *attrs_of(const ds_kernel_call *call)
{
    return call->sig->attrs;
}

static double norm_of(const double *parts)
{
    dsi_exact_bins bins = {{0.0}};
    dsi_exact_bins_join(&bins, parts);
    return sqrt(dsi_exact_bins_total(bins.at));
}

static double clamp(double x, double least, double most)
{
    return x > most ? most : x < least ? least : x;
}

/* As lamb has it. */
static float ratio_of(const dsi_onebit_lamb_attrs *a, const double *sums)
{
    const double p_norm = norm_of(sums);
    const double u_norm = norm_of(sums + DSI_EXACT_WIDE);
    if (!(p_norm > 0.0) || !(u_norm > 0.0) || !isfinite(p_norm) || !isfinite(u_norm)) {
        return 1.0f;
    }
    return (float)clamp(p_norm / u_norm, a->min_coeff, a->max_coeff);
}

static ds_status average_ratio_run(const ds_kernel_call *call)
{
    const dsi_onebit_lamb_attrs *a = attrs_of(call);
    const float ratio = ratio_of(a, call->in[1].data);
    const double old = (double)scalar(call, 0);
    set_scalar(call, 0,
               ratio == 1.0f ? old : a->coeff_beta * old + (1.0 - a->coeff_beta) * (double)ratio);
    return DS_OK;
}

static ds_status root_mean_run(const ds_kernel_call *call)
{
    set_scalar(call, 0, norm_of(call->in[0].data) / sqrt((double)attrs_of(call)->count));
    return DS_OK;
}

static ds_status freeze_lamb_run(const ds_kernel_call *call)
{
    const float quotient = scalar(call, 2) / scalar(call, 3);
    set_scalar(call, 0, isfinite(quotient) && quotient > 0.0f ? (double)quotient : 1.0);
    set_scalar(call, 1, 1.0);
    return DS_OK;
}

static void moments_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float *hyper = call->in[4].data;
    const float b1 = hyper[DSI_HYPER_BETA1];
    const float b2 = hyper[DSI_HYPER_BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    const float scaling = scalar(call, 2);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float m = ref_get(&call->in[1], i) / scaling;
        const float g = fmaf(-b1, ref_get(&call->in[0], i), m) / c1;
        ref_set(&call->out[1], i, fmaf(b2, ref_get(&call->in[3], i), c2 * (g * g)));
        ref_set(&call->out[0], i, m);
    }
}

static ds_status frozen_lamb_moments_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), moments_range);
    return DS_OK;
}

static void add(dsi_exact_bins *bins, float x, int64_t i)
{
    dsi_exact_bins_add(bins, x);
    if (i % DSI_EXACT_BLOCK == DSI_EXACT_BLOCK - 1) {
        dsi_exact_bins_carry(bins);
    }
}

static double total(dsi_exact_bins *bins)
{
    dsi_exact_bins_carry(bins);
    return sqrt(dsi_exact_bins_total(bins->at));
}

/* How much smaller the update is for the decay that is added to it: at most 1. */
static double share_of_update(double adam_norm, double norm)
{
    const double share = adam_norm / norm;
    return share < 1.0 ? share : 1.0;
}

static void factor_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_onebit_lamb_attrs *a = attrs_of(call);
    const float wd = ((const float *)call->in[F_HYPER].data)[DSI_HYPER_WEIGHT_DECAY];
    const float eps = (float)a->eps;
    const int64_t n = ds_shape_count(call->in[F_MOMENT].meta.shape);
    const double last = (double)scalar(call, F_FACTOR);
    dsi_exact_bins of_adam = {{0.0}};
    dsi_exact_bins of_update = {{0.0}};
    float most = 0.0f;
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < n; ++i) {
        const float root = sqrtf(ref_get(&call->in[F_SQ], i)) + eps;
        const float adam = ref_get(&call->in[F_MOMENT], i) / root;
        const float quotient = root / (sqrtf(ref_get(&call->in[F_FRESH], i)) + eps);
        most = quotient > most ? quotient : most;
        add(&of_adam, adam, i);
        add(&of_update, fmaf(wd, ref_get(&call->in[F_WEIGHT], i), adam), i);
    }
    const double adam_norm = total(&of_adam);
    double factor = (double)most;
    if (wd > 0.0f) {
        const double share = share_of_update(adam_norm, total(&of_update));
        factor = factor * share + (1.0 - share);
    }
    factor = clamp(factor, a->factor_min, a->factor_max);
    factor = clamp(factor, last * (1.0 - a->factor_threshold), last * (1.0 + a->factor_threshold));
    set_scalar(call, 0, factor);
    set_scalar(call, 1, (double)scalar(call, F_RATIO) * factor);
}

static ds_status frozen_lamb_factor_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, factor_range);
    return DS_OK;
}

static void lamb_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float *hyper = call->in[IN_HYPER].data;
    const float wd = hyper[DSI_HYPER_WEIGHT_DECAY];
    const float eps = (float)attrs_of(call)->eps;
    const float step = -hyper[DSI_HYPER_LR] * scalar(call, IN_RATIO);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
        const float root = sqrtf(ref_get(&call->in[IN_STATE_SQ], i)) + eps;
        const float next = fmaf(step, fmaf(wd, p, ref_get(&call->in[IN_STATE], i) / root), p);
        ref_set(&call->out[0], i, next);
        if (ref_out(call, 1) != NULL) {
            ref_set(&call->out[1], i, next);
        }
    }
}

static ds_status frozen_lamb_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_PARAM].meta.shape), lamb_range);
    return DS_OK;
}

#define LAMB_KERNEL(op_name)                                                                       \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

LAMB_KERNEL(average_ratio);
LAMB_KERNEL(root_mean);
LAMB_KERNEL(freeze_lamb);
LAMB_KERNEL(frozen_lamb_moments);
LAMB_KERNEL(frozen_lamb_factor);
LAMB_KERNEL(frozen_lamb);

const ds_kernel *const DSI_REF(onebit_lamb)[] = {&average_ratio_kernel,
                                                 &root_mean_kernel,
                                                 &freeze_lamb_kernel,
                                                 &frozen_lamb_moments_kernel,
                                                 &frozen_lamb_factor_kernel,
                                                 &frozen_lamb_kernel,
                                                 NULL};
