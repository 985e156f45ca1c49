/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of top_mask, mask_weight and mask_scores. */
#include "accel/cpu/ref/ref_real.h"
#include "base/quantize.h"
#include "op/ops.h"

/* ---- top_mask: the numbers as floats in the workspace, then a mask behind them ----------------
 */

static int64_t numbers(const ds_kernel_sig *sig)
{
    return ds_shape_count(sig->out[0].shape);
}

static size_t top_mask_work(const ds_kernel_sig *sig)
{
    return (size_t)numbers(sig) * (sizeof(float) + 1);
}

static void numbers_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_top_mask_attrs *a = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    float *out = call->work;
    (void)slot;
    for (int64_t i = begin; i < end && a->by != DSI_TOP_ROW; ++i) {
        const float value = (float)ref_get(x, i);
        out[i] = a->by == DSI_TOP_MAGNITUDE ? fabsf(value) : value;
    }
    for (int64_t row = begin; row < end && a->by == DSI_TOP_ROW; ++row) {
        const int64_t n = x->meta.shape.dims[a->transposed != 0 ? 0 : 1];
        const int64_t step = a->transposed != 0 ? x->meta.shape.dims[1] : 1;
        double sum = 0.0;
        for (int64_t i = 0; i < n; ++i) {
            sum += fabs((double)ref_get(x, (a->transposed != 0 ? row : row * n) + i * step));
        }
        out[row] = (float)sum;
    }
}

static ds_status top_mask_run(const ds_kernel_call *call)
{
    const dsi_top_mask_attrs *a = call->sig->attrs;
    const size_t n = (size_t)numbers(call->sig);
    const bool as_bytes = call->out[0].meta.dtype == DS_DTYPE_BOOL;
    float *x = call->work;
    unsigned char *mask = as_bytes ? call->out[0].data : (unsigned char *)(x + n);
    dsi_ref_for(call, (int64_t)n, numbers_range);
    dsi_top_mask(x, n, dsi_top_count(a->ratio, n), mask);
    for (size_t i = 0; i < n && !as_bytes; ++i) {
        ref_set(&call->out[0], (int64_t)i, mask[i] != 0 ? R(1.0) : R(0.0));
    }
    return DS_OK;
}

/* ---- mask_weight, mask_scores -----------------------------------------------------------------
 */

/* The element of the mask that element i of a weight of this shape has. */
static int64_t mask_index(const dsi_mask_attrs *a, const ds_shape *w, int64_t i)
{
    if (a->along == DSI_MASK_ELEMENTS) {
        return i;
    }
    const int64_t last = w->dims[1];
    const int64_t o = a->transposed != 0 ? i % last : i / last;
    const int64_t k = a->transposed != 0 ? i / last : i % last;
    const int64_t n_in = a->transposed != 0 ? w->dims[0] : last;
    return a->along == DSI_MASK_ROWS ? o : k / (n_in / a->heads);
}

static void mask_weight_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_mask_attrs *a = call->sig->attrs;
    const ds_tensor *w = &call->in[0], *mask = &call->in[1];
    const bool on = ref_get(&call->in[2], 0) != R(0.0);
    const bool bytes = mask->meta.dtype == DS_DTYPE_BOOL;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real value = ref_get(w, i);
        if (on) {
            const int64_t m = mask_index(a, &w->meta.shape, i);
            const real factor = bytes
                                    ? ((const unsigned char *)mask->data)[m] != 0 ? R(1.0) : R(0.0)
                                    : ref_get(mask, m);
            ref_set(&call->out[0], i, value * factor);
        } else {
            ref_set(&call->out[0], i, value);
        }
    }
}

static ds_status mask_weight_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), mask_weight_range);
    return DS_OK;
}

/* Sums in double in the order of the stored weight. */
static void mask_scores_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_mask_attrs *a = call->sig->attrs;
    const ds_tensor *dy = &call->in[0], *w = &call->in[1];
    const ds_shape shape = w->meta.shape;
    const bool on = ref_get(&call->in[2], 0) != R(0.0);
    const bool rows = a->along == DSI_MASK_ROWS;
    const int64_t last = ds_shape_last(shape);
    const int64_t n_in = a->transposed != 0 ? ds_shape_rows(shape) : last;
    const int64_t n_out = ds_shape_count(shape) / n_in;
    const int64_t width = rows ? n_in : a->heads > 0 ? n_in / a->heads : 1;
    (void)slot;
    for (int64_t m = begin; m < end; ++m) {
        double sum = 0.0;
        if (a->along == DSI_MASK_ELEMENTS) {
            sum = (double)ref_get(dy, m) * (double)ref_get(w, m);
        } else {
            for (int64_t o = rows ? m : 0; o < (rows ? m + 1 : n_out); ++o) {
                for (int64_t k = rows ? 0 : m * width; k < (rows ? n_in : (m + 1) * width); ++k) {
                    const int64_t i = a->transposed != 0 ? k * last + o : o * last + k;
                    sum += (double)ref_get(dy, i) * (double)ref_get(w, i);
                }
            }
        }
        ref_set(&call->out[0], m, on ? (real)sum : R(0.0));
    }
}

static ds_status mask_scores_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), mask_scores_range);
    return DS_OK;
}

REF_KERNEL(top_mask, top_mask_run, top_mask_work);
REF_KERNEL(mask_weight, mask_weight_run, NULL);
REF_KERNEL(mask_scores, mask_scores_run, NULL);
const ds_kernel *const DSI_REF(prune)[] = {&top_mask_kernel, &mask_weight_kernel,
                                           &mask_scores_kernel, NULL};
