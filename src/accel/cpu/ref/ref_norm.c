/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of layer_norm, rms_norm and their backward operators. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

/* ---- forward: items are rows -------------------------------------------------------------------
 */
static void layer_norm_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_norm_attrs *a = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const ds_tensor *w = ref_in(call, 1);
    const ds_tensor *b = ref_in(call, 2);
    const int64_t c = ds_shape_last(x->meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        real sum = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            sum += ref_get(x, n * c + i);
        }
        const real mean = sum / (real)c;
        real squares = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            const real d = ref_get(x, n * c + i) - mean;
            squares += d * d;
        }
        const real rstd = R(1.0) / r_sqrt(squares / (real)c + (real)a->eps);
        for (int64_t i = 0; i < c; ++i) {
            const real normed = (ref_get(x, n * c + i) - mean) * rstd;
            const real y = w != NULL ? normed * ref_get(w, i) : normed;
            ref_set(&call->out[0], n * c + i, b != NULL ? y + ref_get(b, i) : y);
        }
        ref_set(&call->out[1], n, mean);
        ref_set(&call->out[2], n, rstd);
    }
}

static void rms_norm_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_norm_attrs *a = call->sig->attrs;
    const ds_tensor *x = &call->in[0];
    const ds_tensor *w = &call->in[1];
    const int64_t c = ds_shape_last(x->meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        real squares = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            const real v = ref_get(x, n * c + i);
            squares += v * v;
        }
        const real rstd = R(1.0) / r_sqrt(squares / (real)c + (real)a->eps);
        for (int64_t i = 0; i < c; ++i) {
            const real weight = ref_get(w, i) + (real)a->shift;
            ref_set(&call->out[0], n * c + i, ref_get(x, n * c + i) * rstd * weight);
        }
        ref_set(&call->out[1], n, rstd);
    }
}

static int64_t n_rows(const ds_kernel_call *call)
{
    return ds_shape_rows(call->in[0].meta.shape);
}

static ds_status layer_norm_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_rows(call), layer_norm_rows);
    return DS_OK;
}

static ds_status rms_norm_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_rows(call), rms_norm_rows);
    return DS_OK;
}

/* ---- backward: dy, x, w, [mean], rstd, [dres] ---------------------------------------------------
 */
typedef struct backward {
    const ds_tensor *dy, *x, *w, *mean, *rstd, *dres; /* w NULL: 1 */
    real shift;
    int64_t c;
} backward;

static real shift_of(const ds_kernel_call *call)
{
    return (real)((const dsi_norm_attrs *)call->sig->attrs)->shift;
}

static real weight(const backward *b, int64_t i)
{
    return b->w != NULL ? ref_get(b->w, i) + b->shift : R(1.0);
}

static backward operands(const ds_kernel_call *call, bool centred)
{
    return (backward){.dy = &call->in[0],
                      .x = &call->in[1],
                      .w = ref_in(call, 2),
                      .shift = centred ? R(0.0) : shift_of(call),
                      .mean = centred ? &call->in[3] : NULL,
                      .rstd = &call->in[centred ? 4 : 3],
                      .dres = ref_in(call, centred ? 5 : 4),
                      .c = ds_shape_last(call->in[0].meta.shape)};
}

/* Element i of normalised row n. */
static real normed(const backward *b, int64_t n, int64_t i)
{
    const real x = ref_get(b->x, n * b->c + i);
    return (b->mean != NULL ? x - ref_get(b->mean, n) : x) * ref_get(b->rstd, n);
}

static void dx_row(const backward *b, int64_t n, const ds_tensor *dx)
{
    real sum = R(0.0);
    real sum_normed = R(0.0);
    for (int64_t i = 0; i < b->c; ++i) {
        const real d = ref_get(b->dy, n * b->c + i) * weight(b, i);
        sum += d;
        sum_normed += d * normed(b, n, i);
    }
    const real mean_d = sum / (real)b->c;
    const real mean_normed = sum_normed / (real)b->c;
    for (int64_t i = 0; i < b->c; ++i) {
        const int64_t at = n * b->c + i;
        real d = ref_get(b->dy, at) * weight(b, i);
        if (b->mean != NULL) {
            d = d - mean_d;
        }
        d = (d - normed(b, n, i) * mean_normed) * ref_get(b->rstd, n);
        ref_set(dx, at, b->dres != NULL ? d + ref_get(b->dres, at) : d);
    }
}

static void layer_dx_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const backward b = operands(call, true);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        dx_row(&b, n, &call->out[0]);
    }
}

static void rms_dx_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const backward b = operands(call, false);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        dx_row(&b, n, &call->out[0]);
    }
}

/* Items are columns. */
static void dw_columns(const backward *b, int64_t begin, int64_t end, const ds_tensor *dw,
                       const ds_tensor *db)
{
    const int64_t rows = ds_shape_rows(b->dy->meta.shape);
    for (int64_t i = begin; i < end; ++i) {
        real sum_w = R(0.0);
        real sum_b = R(0.0);
        for (int64_t n = 0; n < rows; ++n) {
            const real dy = ref_get(b->dy, n * b->c + i);
            sum_w += dy * normed(b, n, i);
            sum_b += dy;
        }
        if (dw != NULL) {
            ref_set(dw, i, sum_w);
        }
        if (db != NULL) {
            ref_set(db, i, sum_b);
        }
    }
}

static void layer_dw(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const backward b = operands(call, true);
    (void)slot;
    dw_columns(&b, begin, end, ref_out(call, 1), ref_out(call, 2));
}

static void rms_dw(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const backward b = operands(call, false);
    (void)slot;
    dw_columns(&b, begin, end, &call->out[1], NULL);
}

static ds_status layer_norm_backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_rows(call), layer_dx_rows);
    dsi_ref_for(call, ds_shape_last(call->in[0].meta.shape), layer_dw);
    return DS_OK;
}

static ds_status rms_norm_backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, n_rows(call), rms_dx_rows);
    dsi_ref_for(call, ds_shape_last(call->in[0].meta.shape), rms_dw);
    return DS_OK;
}

REF_KERNEL(layer_norm, layer_norm_run, NULL);
REF_KERNEL(layer_norm_backward, layer_norm_backward_run, NULL);
REF_KERNEL(rms_norm, rms_norm_run, NULL);
REF_KERNEL(rms_norm_backward, rms_norm_backward_run, NULL);
const ds_kernel *const DSI_REF(norm)[] = {&layer_norm_kernel, &layer_norm_backward_kernel,
                                          &rms_norm_kernel, &rms_norm_backward_kernel, NULL};
