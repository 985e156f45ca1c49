/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of causal_conv and causal_conv_step, whose items are positions and samples, and
 * of the gradient, whose items are channels. */
#include "accel/cpu/ref/ref_documents.h"
#include "op/ops.h"

typedef struct layout {
    const ds_tensor *x, *w;
    const int32_t *first; /* NULL: absent */
    int64_t b, t, c, k;
} layout;

/* x at input `at`, then w; first at input `first`. */
static layout layout_of(const ds_kernel_call *call, uint32_t at, uint32_t first)
{
    const int64_t *x = call->in[at].meta.shape.dims;
    return (layout){.x = &call->in[at],
                    .w = &call->in[at + 1],
                    .first = ref_has(call, first) ? call->in[first].data : NULL,
                    .b = x[0],
                    .t = x[1],
                    .c = x[2],
                    .k = call->in[at + 1].meta.shape.dims[2]};
}

/* ---- forward -------------------------------------------------------------------------------- */
static real sum_at(const layout *l, int64_t b, int64_t t, int64_t c)
{
    const int64_t first = l->first != NULL ? l->first[b * l->t + t] : 0;
    real sum = R(0.0);
    for (int64_t j = 0; j < l->k; ++j) {
        const int64_t from = t - l->k + 1 + j;
        if (from >= first) {
            sum += ref_get(l->w, c * l->k + j) * ref_get(l->x, (b * l->t + from) * l->c + c);
        }
    }
    return sum;
}

static void conv_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, 2);
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < l.c; ++c) {
            ref_set(&call->out[0], row * l.c + c, sum_at(&l, row / l.t, row % l.t, c));
        }
    }
}

static ds_status conv_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, 2);
    DS_TRY(ref_check_documents(call, l.first, l.b, l.t));
    dsi_ref_for(call, l.b * l.t, conv_rows);
    return DS_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */
static real dx_at(const layout *l, const ds_tensor *dy, int64_t b, int64_t s, int64_t c)
{
    real sum = R(0.0);
    for (int64_t j = 0; j < l->k; ++j) {
        const int64_t t = s + l->k - 1 - j;
        if (t < l->t && (l->first == NULL || l->first[b * l->t + t] <= s)) {
            sum += ref_get(l->w, c * l->k + j) * ref_get(dy, (b * l->t + t) * l->c + c);
        }
    }
    return sum;
}

static real dw_at(const layout *l, const ds_tensor *dy, int64_t c, int64_t j)
{
    real sum = R(0.0);
    for (int64_t row = 0; row < l->b * l->t; ++row) {
        const int64_t first = l->first != NULL ? l->first[row] : 0;
        const int64_t back = l->k - 1 - j;
        if (row % l->t - back >= first) {
            sum += ref_get(dy, row * l->c + c) * ref_get(l->x, (row - back) * l->c + c);
        }
    }
    return sum;
}

static void backward_channels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1, 3);
    (void)slot;
    for (int64_t c = begin; c < end; ++c) {
        for (int64_t row = 0; row < l.b * l.t; ++row) {
            ref_set(&call->out[0], row * l.c + c, dx_at(&l, &call->in[0], row / l.t, row % l.t, c));
        }
        for (int64_t j = 0; j < l.k; ++j) {
            ref_set(&call->out[1], c * l.k + j, dw_at(&l, &call->in[0], c, j));
        }
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 1, 3);
    DS_TRY(ref_check_documents(call, l.first, l.b, l.t));
    dsi_ref_for(call, l.c, backward_channels);
    return DS_OK;
}

/* ---- step ----------------------------------------------------------------------------------- */
/* Position t of sample b, below 0 in the cell, which counts for nothing at the beginning. */
static real before(const ds_kernel_call *call, const layout *l, int64_t b, int64_t t, int64_t c)
{
    const bool begins = ((const int32_t *)call->in[3].data)[b] == 0;
    return t >= 0   ? ref_get(l->x, (b * l->t + t) * l->c + c)
           : begins ? R(0.0)
                    : ref_get(&call->in[2], (b * (l->k - 1) + t + l->k - 1) * l->c + c);
}

static void step_channel(const ds_kernel_call *call, const layout *l, int64_t b, int64_t c)
{
    const int64_t last = ((const int32_t *)call->in[4].data)[b];
    for (int64_t t = 0; t < l->t; ++t) {
        real sum = R(0.0);
        for (int64_t j = 0; j < l->k && t <= last; ++j) {
            sum += ref_get(l->w, c * l->k + j) * before(call, l, b, t - l->k + 1 + j, c);
        }
        ref_set(&call->out[0], (b * l->t + t) * l->c + c, sum);
    }
    for (int64_t i = 0; i < l->k - 1; ++i) { /* in this order: the cell is both in and out */
        ref_set(&call->out[1], (b * (l->k - 1) + i) * l->c + c,
                before(call, l, b, last - l->k + 2 + i, c));
    }
}

static void step_channels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        step_channel(call, &l, i / l.c, i % l.c);
    }
}

static ds_status step_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_step(call, 3, l.b, l.t));
    dsi_ref_for(call, l.b * l.c, step_channels);
    return DS_OK;
}

REF_KERNEL(causal_conv, conv_run, NULL);
REF_KERNEL(causal_conv_backward, backward_run, NULL);
REF_KERNEL(causal_conv_step, step_run, NULL);
const ds_kernel *const DSI_REF(causal_conv)[] = {&causal_conv_kernel, &causal_conv_backward_kernel,
                                                 &causal_conv_step_kernel, NULL};
