/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the global gradient norm. Items of one order, though any would do. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "base/exact_sum.h"
#include "op/ops.h"

/* The larger magnitude, NaN when either is NaN. */
static float larger(float top, float x)
{
    return isnan(top) || x <= top ? top : x;
}

static void abs_max_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[0];
    const int64_t n = ds_shape_count(x->meta.shape);
    float top = 0.0f;
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < n; ++i) {
        top = larger(top, fabsf(ref_get(x, i)));
    }
    *(float *)call->out[0].data = top;
}

static void max_of_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    float top = *(const float *)call->in[0].data;
    (void)begin;
    (void)end;
    (void)slot;
    for (uint32_t i = 1; i < call->sig->n_in; ++i) {
        top = larger(top, *(const float *)call->in[i].data);
    }
    *(float *)call->out[0].data = top;
}

static void sum_bins(const ds_kernel_call *call)
{
    const ds_tensor *x = &call->in[0];
    const int64_t n = ds_shape_count(x->meta.shape);
    dsi_exact_bins bins = {{0.0}};
    for (int64_t i = 0; i < n; ++i) {
        dsi_exact_bins_add(&bins, ref_get(x, i));
        if (i % DSI_EXACT_BLOCK == DSI_EXACT_BLOCK - 1) {
            dsi_exact_bins_carry(&bins);
        }
    }
    dsi_exact_bins_carry(&bins);
    memcpy(call->out[0].data, bins.at, sizeof bins.at);
}

static bool has_top(const ds_kernel_call *call)
{
    return call->sig->n_in > 1 && call->sig->in[1].dtype != DS_DTYPE_NONE;
}

static void sum_squares_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    if (!has_top(call)) {
        sum_bins(call);
        return;
    }
    const ds_tensor *x = &call->in[0];
    const int64_t n = ds_shape_count(x->meta.shape);
    const dsi_exact_grid grid = dsi_exact_grid_of(*(const float *)call->in[1].data);
    dsi_exact_parts parts = {0.0, 0.0};
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < n && !grid.empty; ++i) {
        dsi_exact_add(&grid, ref_get(x, i), &parts);
        if ((uint64_t)i % DSI_EXACT_RUN == DSI_EXACT_RUN - 1) {
            dsi_exact_carry(&grid, &parts);
        }
    }
    dsi_exact_carry(&grid, &parts);
    double *out = call->out[0].data;
    out[0] = parts.high;
    out[1] = parts.low;
}

static void sum_parts_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t length = ds_shape_count(call->out[0].meta.shape);
    double sum[2 * DSI_EXACT_WIDE] = {0.0};
    (void)begin;
    (void)end;
    (void)slot;
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        const double *part = call->in[i].data;
        const int64_t n = ds_shape_count(call->in[i].meta.shape) / length;
        for (int64_t at = 0; at < n * length; ++at) {
            sum[at % length] += part[at];
        }
    }
    memcpy(call->out[0].data, sum, (size_t)length * sizeof sum[0]);
}

static void clip_factor_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_clip_attrs *a = call->sig->attrs;
    const double *parts = call->in[0].data;
    const bool topped = has_top(call);
    double sum = topped ? parts[0] + parts[1] : 0.0;
    if (!topped) {
        dsi_exact_bins bins = {{0.0}};
        dsi_exact_bins_join(&bins, parts); /* carries */
        sum = dsi_exact_bins_total(bins.at);
    }
    const float top = topped ? *(const float *)call->in[1].data : (float)parts[DSI_EXACT_BINS];
    const float inverse_scale = *(const float *)call->in[2].data;
    float norm = top;
    float factor = 0.0f;
    (void)begin;
    (void)end;
    (void)slot;
    if (isfinite(top)) {
        norm = (float)(sqrt(sum) * (double)inverse_scale);
        factor = inverse_scale;
        const float ratio = (float)a->max_norm / (norm + 1e-6f);
        if (a->max_norm > 0.0 && ratio < 1.0f) {
            factor = inverse_scale * ratio;
        }
    }
    *(float *)call->out[0].data = norm;
    *(float *)call->out[1].data = factor;
}

#define SERIAL_RUN(op_name)                                                                        \
    static ds_status op_name##_run(const ds_kernel_call *call)                                     \
    {                                                                                              \
        dsi_ref_serial(call, op_name##_range);                                                     \
        return DS_OK;                                                                              \
    }                                                                                              \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run};

SERIAL_RUN(abs_max)
SERIAL_RUN(max_of)
SERIAL_RUN(sum_squares)
SERIAL_RUN(sum_parts)
SERIAL_RUN(clip_factor)

const ds_kernel *const DSI_REF(gradnorm)[] = {&abs_max_kernel,     &max_of_kernel,
                                              &sum_squares_kernel, &sum_parts_kernel,
                                              &clip_factor_kernel, NULL};
