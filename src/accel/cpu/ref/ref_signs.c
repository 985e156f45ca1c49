/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of signs and scales. Items are bytes of eight signs, so that no two threads
 * write one. The sum of squares is exact in bins: no split of the work changes the scale. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "op/ops.h"

enum { BITS = 8, FIRST = 0x80 };

/* ---- compress_signs -------------------------------------------------------------------------- */

/* error = x + error, and the scale of it. */
static void measure_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[0];
    const int64_t count = ds_shape_count(x->meta.shape);
    const int64_t n = ds_shape_count(call->in[1].meta.shape);
    const float *old = call->in[1].data;
    float *error = call->out[2].data;
    dsi_exact_bins bins = {{0.0}};
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t i = 0; i < n; ++i) {
        error[i] = i < count ? ref_get(x, i) + old[i] : old[i];
        dsi_exact_bins_add(&bins, error[i]);
        if (i % DSI_EXACT_BLOCK == DSI_EXACT_BLOCK - 1) {
            dsi_exact_bins_carry(&bins);
        }
    }
    dsi_exact_bins_carry(&bins);
    *(float *)call->out[1].data = (float)sqrt(dsi_exact_bins_total(bins.at) / (double)n);
}

static void pack_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float scale = *(const float *)call->out[1].data;
    uint8_t *signs = call->out[0].data;
    float *error = call->out[2].data;
    (void)slot;
    for (int64_t b = begin; b < end; ++b) {
        uint8_t packed = 0;
        for (int64_t i = b * BITS; i < (b + 1) * BITS; ++i) {
            const bool plus = error[i] >= 0.0f;
            packed = (uint8_t)(packed << 1 | (plus ? 1 : 0));
            error[i] -= plus ? scale : -scale;
        }
        signs[b] = packed;
    }
}

static ds_status compress_signs_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, measure_range);
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], pack_range);
    return DS_OK;
}

/* ---- the way back ---------------------------------------------------------------------------- */

static bool is_plus(const uint8_t *signs, int64_t i)
{
    return (signs[i / BITS] & FIRST >> i % BITS) != 0;
}

static void average_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const uint8_t *signs = call->in[0].data;
    const float *scales = call->in[1].data;
    const int64_t n_ranks = call->in[1].meta.shape.dims[0];
    const int64_t n = call->out[0].meta.shape.dims[0];
    float *out = call->out[0].data;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        double sum = 0.0;
        for (int64_t r = 0; r < n_ranks; ++r) {
            sum += is_plus(signs + r * (n / BITS), i) ? (double)scales[r] : -(double)scales[r];
        }
        out[i] = (float)(sum / (double)n_ranks);
    }
}

static void expand_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const uint8_t *signs = call->in[0].data;
    const float *scales = call->in[1].data;
    const int64_t block =
        ds_shape_count(call->in[0].meta.shape) * BITS / call->in[1].meta.shape.dims[0];
    float *out = call->out[0].data;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        out[i] = is_plus(signs, i) ? scales[i / block] : -scales[i / block];
    }
}

static ds_status average_signs_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], average_range);
    return DS_OK;
}

static ds_status expand_signs_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], expand_range);
    return DS_OK;
}

#define SIGNS_KERNEL(op_name)                                                                      \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

SIGNS_KERNEL(compress_signs);
SIGNS_KERNEL(average_signs);
SIGNS_KERNEL(expand_signs);

const ds_kernel *const DSI_REF(signs)[] = {&compress_signs_kernel, &average_signs_kernel,
                                           &expand_signs_kernel, NULL};
