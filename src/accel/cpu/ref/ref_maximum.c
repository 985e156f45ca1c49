/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of max_last and its gradient: items are rows. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

static void max_last_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        real top = ref_get(&call->in[0], n * c);
        for (int64_t i = 1; i < c; ++i) {
            const real x = ref_get(&call->in[0], n * c + i);
            top = x > top || isnan(x) ? x : top;
        }
        ref_set(&call->out[0], n, top + R(0.0)); /* -0 becomes 0 */
    }
}

static void max_last_backward_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                                    uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[1].meta.shape);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        const real y = ref_get(&call->in[2], n);
        real count = R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            count += ref_get(&call->in[1], n * c + i) == y ? R(1.0) : R(0.0);
        }
        const real part = ref_get(&call->in[0], n) / count;
        const real rest = isnan(y) ? (real)NAN : R(0.0);
        for (int64_t i = 0; i < c; ++i) {
            const bool is = ref_get(&call->in[1], n * c + i) == y;
            ref_set(&call->out[0], n * c + i, is ? part : rest);
        }
    }
}

static ds_status max_last_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), max_last_range);
    return DS_OK;
}

static ds_status max_last_backward_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), max_last_backward_range);
    return DS_OK;
}

REF_KERNEL(max_last, max_last_run, NULL);
REF_KERNEL(max_last_backward, max_last_backward_run, NULL);
const ds_kernel *const DSI_REF(maximum)[] = {&max_last_kernel, &max_last_backward_kernel, NULL};
