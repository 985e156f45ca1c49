/* SPDX-License-Identifier: Apache-2.0 */
/* decay and its gradient: a thread an element; a block a head, whose sums run over all rows. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/recurrence.h"

DSC_INLINE float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

DSC_INLINE void decay_body(const dsc_decay_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->rows * a->heads; i += dsc_stride()) {
        const int64_t h = i % a->heads;
        const float x = dsc_get(a->a, act, i) + dsc_get(a->dt, a->dt_dtype, h);
        const float rate = -expf(dsc_get(a->a_log, a->rate_dtype, h));
        dsc_set(a->g, a->g_dtype, i, rate * softplus(x));
    }
}

DSC_INLINE void decay_backward_body(const dsc_decay_args *a, int act)
{
    __shared__ float parts[32];
    for (int64_t h = blockIdx.x; h < a->heads; h += gridDim.x) {
        const float rate = -expf(dsc_get(a->a_log, a->rate_dtype, h));
        const float dt = dsc_get(a->dt, a->dt_dtype, h);
        float da_log = 0.0f;
        float ddt = 0.0f;
        for (int64_t row = threadIdx.x; row < a->rows; row += blockDim.x) {
            const int64_t at = row * a->heads + h;
            const float x = dsc_get(a->a, act, at) + dt;
            const float da = a->dg[at] * rate / (1.0f + expf(-x));
            dsc_set(a->da, act, at, da);
            da_log += a->dg[at] * rate * softplus(x);
            ddt += da;
        }
        da_log = dsc_block_sum(da_log, parts);
        ddt = dsc_block_sum(ddt, parts);
        if (threadIdx.x == 0) {
            dsc_set(a->da_log, a->da_log_dtype, h, da_log);
            dsc_set(a->ddt, a->ddt_dtype, h, ddt);
        }
    }
}

DSC_KERNEL_ACT(decay, dsc_decay_args)
DSC_KERNEL_ACT(decay_backward, dsc_decay_args)
