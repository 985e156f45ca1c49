/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of relative_bias, whose items are rows of scores, and of its gradient, whose
 * items are heads. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"
#include "op/relative_buckets.h"

typedef struct bounds {
    const int32_t *first, *end, *offset; /* end, offset: or NULL */
    int64_t t;
} bounds;

/* first, end and offset at input `at`. */
static bounds bounds_of(const ds_kernel_call *call, uint32_t at)
{
    const ds_tensor *end = ref_in(call, at + 1);
    const ds_tensor *offset = ref_in(call, at + 2);
    return (bounds){call->in[at].data, end != NULL ? end->data : NULL,
                    offset != NULL ? offset->data : NULL, call->in[at].meta.shape.dims[1]};
}

/* Keys *begin_out to *end_out that query i of sample b sees, of n; returns its position. */
static int64_t keys_of(const bounds *at, int64_t b, int64_t i, int64_t n, int64_t *begin_out,
                       int64_t *end_out)
{
    const int64_t position = i + (at->offset != NULL ? at->offset[b] : 0);
    const int64_t begin = at->first[b * at->t + i];
    const int64_t end = at->end != NULL ? at->end[b * at->t + i] : position + 1;
    *end_out = end < n ? end : n;
    *begin_out = begin > 0 ? begin : 0;
    return position;
}

/* Far below any score, and so that a score added to it stays finite. */
static real hidden(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F16 ? -R(3e4) : -R(1e30);
}

static void relative_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_relative_attrs *a = call->sig->attrs;
    const bounds at = bounds_of(call, 1);
    const ds_shape s = call->out[0].meta.shape;
    const int64_t n_buckets = call->in[0].meta.shape.dims[0];
    const int64_t n_heads = s.dims[1];
    const int64_t n_keys = s.dims[3];
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row % at.t;
        const int64_t h = row / at.t % n_heads;
        int64_t from = 0;
        int64_t to = 0;
        const int64_t position = keys_of(&at, row / at.t / n_heads, i, n_keys, &from, &to);
        for (int64_t j = 0; j < n_keys; ++j) {
            const bool sees = j >= from && j < to;
            const int64_t k = sees ? dsi_relative_bucket(a, n_buckets, j - position) : 0;
            ref_set(&call->out[0], row * n_keys + j,
                    sees ? ref_get(&call->in[0], k * n_heads + h)
                         : hidden(call->out[0].meta.dtype));
        }
    }
}

static ds_status relative_run(const ds_kernel_call *call)
{
    const ds_shape s = call->out[0].meta.shape;
    dsi_ref_for(call, s.dims[0] * s.dims[1] * s.dims[2], relative_rows);
    return DS_OK;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, ((const dsi_relative_attrs *)sig->attrs)->n_buckets);
}

static void backward_heads(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_relative_attrs *a = call->sig->attrs;
    const bounds at = bounds_of(call, 1);
    const ds_shape s = call->in[0].meta.shape;
    const int64_t n_heads = s.dims[1];
    real *sums = ref_slot(call, slot, a->n_buckets);
    for (int64_t h = begin; h < end; ++h) {
        for (int64_t k = 0; k < a->n_buckets; ++k) {
            sums[k] = R(0.0);
        }
        for (int64_t row = 0; row < s.dims[0] * at.t; ++row) {
            const int64_t b = row / at.t;
            const int64_t i = row % at.t;
            int64_t from = 0;
            int64_t to = 0;
            const int64_t position = keys_of(&at, b, i, at.t, &from, &to);
            for (int64_t j = from; j < to; ++j) {
                sums[dsi_relative_bucket(a, a->n_buckets, j - position)] +=
                    ref_get(&call->in[0], ((b * n_heads + h) * at.t + i) * at.t + j);
            }
        }
        for (int64_t k = 0; k < a->n_buckets; ++k) {
            ref_set(&call->out[0], k * n_heads + h, sums[k]);
        }
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->in[0].meta.shape.dims[1], backward_heads);
    return DS_OK;
}

REF_KERNEL(relative_bias, relative_run, NULL);
REF_KERNEL(relative_bias_backward, backward_run, backward_work);
const ds_kernel *const DSI_REF(relative_bias)[] = {&relative_bias_kernel,
                                                   &relative_bias_backward_kernel, NULL};
