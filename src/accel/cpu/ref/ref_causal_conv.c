/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of causal_conv, whose items are positions, and of the gradient,
 * causal_conv_step and paged_causal_conv, whose items are channels. */
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
/* Rows of x that go on from one row of the cell, which counts for nothing where they begin. */
typedef struct run {
    int64_t row, n; /* of x */
    int64_t held;   /* of the cell */
    bool begins;
} run;

/* Position t of a run, below 0 in the cell. */
static real before(const ds_kernel_call *call, const layout *l, const run *r, int64_t t, int64_t c)
{
    return t >= 0      ? ref_get(l->x, (r->row + t) * l->c + c)
           : r->begins ? R(0.0)
                       : ref_get(&call->in[2], (r->held * (l->k - 1) + t + l->k - 1) * l->c + c);
}

static void run_channel(const ds_kernel_call *call, const layout *l, const run *r, int64_t c)
{
    for (int64_t t = 0; t < r->n; ++t) {
        real sum = R(0.0);
        for (int64_t j = 0; j < l->k; ++j) {
            sum += ref_get(l->w, c * l->k + j) * before(call, l, r, t - l->k + 1 + j, c);
        }
        ref_set(&call->out[0], (r->row + t) * l->c + c, sum);
    }
    for (int64_t i = 0; i < l->k - 1; ++i) { /* in this order: the cell is both in and out */
        ref_set(&call->out[1], (r->held * (l->k - 1) + i) * l->c + c,
                before(call, l, r, r->n - l->k + 1 + i, c));
    }
}

static void step_channels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / l.c;
        const run r = {.row = b * l.t,
                       .n = ((const int32_t *)call->in[4].data)[b] + 1,
                       .held = b,
                       .begins = ((const int32_t *)call->in[3].data)[b] == 0};
        run_channel(call, &l, &r, i % l.c);
        for (int64_t t = r.n; t < l.t; ++t) {
            ref_set(&call->out[0], (r.row + t) * l.c + i % l.c, R(0.0));
        }
    }
}

static ds_status step_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_step(call, 3, l.b, l.t));
    dsi_ref_for(call, l.b * l.c, step_channels);
    return DS_OK;
}

static void paged_channels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    const int32_t *sequence = call->in[3].data;
    (void)slot;
    for (int64_t t = 0, n = 1; t < l.t; t += n) {
        n = sequence[t] < 0 ? 1 : ref_run_length(sequence, t, l.t);
        const run r = {.row = t,
                       .n = n,
                       .held = sequence[t],
                       .begins = ((const int32_t *)call->in[4].data)[t] == 0};
        for (int64_t c = begin; c < end && sequence[t] >= 0; ++c) {
            run_channel(call, &l, &r, c);
        }
        for (int64_t c = begin; c < end && sequence[t] < 0; ++c) {
            ref_set(&call->out[0], t * l.c + c, R(0.0));
        }
    }
}

static ds_status paged_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, UINT32_MAX);
    DS_TRY(ref_check_tokens(call, 3, call->in[2].meta.shape.dims[0], l.t));
    dsi_ref_for(call, l.c, paged_channels);
    return DS_OK;
}

REF_KERNEL(causal_conv, conv_run, NULL);
REF_KERNEL(causal_conv_backward, backward_run, NULL);
REF_KERNEL(causal_conv_step, step_run, NULL);
REF_KERNEL(paged_causal_conv, paged_run, NULL);
const ds_kernel *const DSI_REF(causal_conv)[] = {&causal_conv_kernel, &causal_conv_backward_kernel,
                                                 &causal_conv_step_kernel,
                                                 &paged_causal_conv_kernel, NULL};
