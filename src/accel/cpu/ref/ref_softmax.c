/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of softmax and softmax_backward: items are rows. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

static size_t softmax_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, ds_shape_last(sig->in[0].shape));
}

static void softmax_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    real *e = ref_slot(call, slot, c);
    for (int64_t n = begin; n < end; ++n) {
        real top = -(real)INFINITY;
        for (int64_t i = 0; i < c; ++i) {
            e[i] = ref_get(&call->in[0], n * c + i);
            top = e[i] > top ? e[i] : top;
        }
        real sum = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            e[i] = r_exp(e[i] - top);
            sum += e[i];
        }
        for (int64_t i = 0; i < c; ++i) {
            ref_set(&call->out[0], n * c + i, e[i] / sum);
        }
    }
}

static void softmax_backward_rows(const ds_kernel_call *call, int64_t begin, int64_t end,
                                  uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        real sum = R(0.0);
        for (int64_t i = n * c; i < (n + 1) * c; ++i) {
            sum += ref_get(&call->in[0], i) * ref_get(&call->in[1], i);
        }
        for (int64_t i = n * c; i < (n + 1) * c; ++i) {
            const real d = ref_get(&call->in[0], i) - sum;
            ref_set(&call->out[0], i, ref_get(&call->in[1], i) * d);
        }
    }
}

static ds_status softmax_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->in[0].meta.shape), softmax_rows);
    return DS_OK;
}

static ds_status softmax_backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->in[0].meta.shape), softmax_backward_rows);
    return DS_OK;
}

REF_KERNEL(softmax, softmax_run, softmax_work);
REF_KERNEL(softmax_backward, softmax_backward_run, NULL);
const ds_kernel *const DSI_REF(softmax)[] = {&softmax_kernel, &softmax_backward_kernel, NULL};
