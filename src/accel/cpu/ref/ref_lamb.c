/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of LAMB's three steps: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "op/ops.h"

#include <string.h>

/* lamb_moments and lamb; lamb_sums */
enum { IN_FIRST, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };
enum { SUMS_M, SUMS_V, SUMS_WEIGHT, SUMS_HYPER };

static void moments_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float *hyper = call->in[IN_HYPER].data;
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const float b1 = hyper[DSI_HYPER_BETA1];
    const float b2 = hyper[DSI_HYPER_BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float g = ref_get(&call->in[IN_GRAD], i) * factor;
        ref_set(&call->out[0], i, fmaf(b1, ref_get(&call->in[IN_FIRST], i), c1 * g));
        ref_set(&call->out[2], i, fmaf(b2, ref_get(&call->in[IN_STATE], i), c2 * (g * g)));
    }
}

/* The update before the trust ratio; 0 of the zeros that fill a slice, whatever eps is. */
static float direction(float m, float v, float p, float wd, float eps)
{
    const float root = sqrtf(v) + eps;
    return fmaf(wd, p, m / (root < FLT_MIN ? FLT_MIN : root));
}

static void add(dsi_exact_bins *bins, float x, int64_t i)
{
    dsi_exact_bins_add(bins, x);
    if (i % DSI_EXACT_BLOCK == DSI_EXACT_BLOCK - 1) {
        dsi_exact_bins_carry(bins);
    }
}

static void sums_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float wd = ((const float *)call->in[SUMS_HYPER].data)[DSI_HYPER_WEIGHT_DECAY];
    const int64_t n = ds_shape_count(call->in[SUMS_M].meta.shape);
    dsi_exact_bins of_p = {{0.0}};
    dsi_exact_bins of_u = {{0.0}};
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < n; ++i) {
        const float p = ref_get(&call->in[SUMS_WEIGHT], i);
        add(&of_p, p, i);
        add(&of_u,
            direction(ref_get(&call->in[SUMS_M], i), ref_get(&call->in[SUMS_V], i), p, wd,
                      (float)a->eps),
            i);
    }
    dsi_exact_bins_carry(&of_p);
    dsi_exact_bins_carry(&of_u);
    double *out = call->out[0].data;
    memcpy(out, of_p.at, sizeof of_p.at);
    memcpy(out + DSI_EXACT_WIDE, of_u.at, sizeof of_u.at);
}

static double norm_of(const double *parts)
{
    dsi_exact_bins bins = {{0.0}};
    dsi_exact_bins_join(&bins, parts);
    return sqrt(dsi_exact_bins_total(bins.at));
}

static float ratio_of(const dsi_optim_attrs *a, const double *sums)
{
    const double p_norm = norm_of(sums);
    const double u_norm = norm_of(sums + DSI_EXACT_WIDE);
    if (!(p_norm > 0.0) || !(u_norm > 0.0) || !isfinite(p_norm) || !isfinite(u_norm)) {
        return 1.0f;
    }
    const double ratio = p_norm / u_norm;
    return (float)(ratio > a->max_coeff   ? a->max_coeff
                   : ratio < a->min_coeff ? a->min_coeff
                                          : ratio);
}

static void lamb_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    const float scaled = (hyper[DSI_HYPER_LR] * hyper[DSI_HYPER_BIAS2]) / hyper[DSI_HYPER_BIAS1];
    const float step = -scaled * ratio_of(a, call->in[IN_GRAD].data);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_FIRST], i);
        const float u =
            direction(ref_get(&call->in[IN_STATE], i), ref_get(&call->in[IN_STATE_SQ], i), p,
                      hyper[DSI_HYPER_WEIGHT_DECAY], (float)a->eps);
        const float next = fmaf(step, u, p);
        ref_set(&call->out[0], i, next);
        if (ref_out(call, 1) != NULL) {
            ref_set(&call->out[1], i, next);
        }
    }
}

static ds_status over_elements(const ds_kernel_call *call, dsi_ref_fn fn)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_FIRST].meta.shape), fn);
    return DS_OK;
}

static ds_status lamb_moments_run(const ds_kernel_call *call)
{
    return over_elements(call, moments_range);
}

static ds_status lamb_sums_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, sums_range);
    return DS_OK;
}

static ds_status lamb_run(const ds_kernel_call *call)
{
    return over_elements(call, lamb_range);
}

#define LAMB_KERNEL(op_name)                                                                       \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

LAMB_KERNEL(lamb_moments);
LAMB_KERNEL(lamb_sums);
LAMB_KERNEL(lamb);

const ds_kernel *const DSI_REF(lamb)[] = {&lamb_moments_kernel, &lamb_sums_kernel, &lamb_kernel,
                                          NULL};
