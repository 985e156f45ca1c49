/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of attention_sinks, whose items are positions, and of its gradient, whose items
 * are heads. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

typedef struct layout {
    const ds_tensor *y, *lse, *sinks;
    int64_t b, t, h, d;
} layout;

/* y at input `at`, then lse and sinks. */
static layout layout_of(const ds_kernel_call *call, uint32_t at)
{
    const dsi_sinks_attrs *a = call->sig->attrs;
    const ds_shape s = call->in[at].meta.shape;
    return (layout){&call->in[at], &call->in[at + 1], &call->in[at + 2],     s.dims[0],
                    s.dims[1],     a->n_heads,        s.dims[2] / a->n_heads};
}

static int64_t stat_at(const layout *l, int64_t b, int64_t t, int64_t h)
{
    return (b * l->h + h) * l->t + t;
}

static int64_t value_at(const layout *l, int64_t b, int64_t t, int64_t h)
{
    return ((b * l->t + t) * l->h + h) * l->d;
}

/* What the keys keep of the sum under the softmax, 0 of a query that sees none. */
static real share(const layout *l, int64_t b, int64_t t, int64_t h)
{
    return R(1.0) / (R(1.0) + r_exp(ref_get(l->sinks, h) - ref_get(l->lse, stat_at(l, b, t, h))));
}

static void sinks_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0);
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t h = 0; h < l.h; ++h) {
            const real keep = share(&l, row / l.t, row % l.t, h);
            const int64_t at = value_at(&l, row / l.t, row % l.t, h);
            for (int64_t i = at; i < at + l.d; ++i) {
                ref_set(&call->out[0], i, ref_get(l.y, i) * keep);
            }
        }
    }
}

static ds_status sinks_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0);
    dsi_ref_for(call, l.b * l.t, sinks_rows);
    return DS_OK;
}

/* Of one query: its dy and dlse, which it returns. */
static real backward_query(const ds_kernel_call *call, const layout *l, int64_t b, int64_t t,
                           int64_t h)
{
    const real keep = share(l, b, t, h);
    const int64_t at = value_at(l, b, t, h);
    real sum = R(0.0);
    for (int64_t i = at; i < at + l->d; ++i) {
        const real dy = ref_get(&call->in[0], i);
        sum += dy * ref_get(l->y, i);
        ref_set(&call->out[0], i, dy * keep);
    }
    const real dlse = sum * keep * (R(1.0) - keep);
    ref_set(&call->out[1], stat_at(l, b, t, h), dlse);
    return dlse;
}

static void backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1);
    (void)slot;
    for (int64_t h = begin; h < end; ++h) {
        real sum = R(0.0);
        for (int64_t row = 0; row < l.b * l.t; ++row) {
            sum += backward_query(call, &l, row / l.t, row % l.t, h);
        }
        ref_set(&call->out[2], h, -sum);
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, layout_of(call, 1).h, backward_heads);
    return DS_OK;
}

REF_KERNEL(attention_sinks, sinks_run, NULL);
REF_KERNEL(attention_sinks_backward, backward_run, NULL);
const ds_kernel *const DSI_REF(attention_sinks)[] = {&attention_sinks_kernel,
                                                     &attention_sinks_backward_kernel, NULL};
