/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of 1-bit Adam's two steps: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

enum { MOMENT, GRAD, HYPER, FACTOR, SCALING };
enum { IN_PARAM, IN_MOMENT, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };

static void moment_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float b1 = ((const float *)call->in[HYPER].data)[DSI_HYPER_BETA1];
    const float factor = ref_has(call, FACTOR) ? *(const float *)call->in[FACTOR].data : 1.0f;
    const float c1 = 1.0f - b1;
    const float scaling = ref_has(call, SCALING) ? *(const float *)call->in[SCALING].data : 1.0f;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float g = ref_get(&call->in[GRAD], i) * factor;
        ref_set(&call->out[0], i, fmaf(b1, ref_get(&call->in[MOMENT], i), c1 * g) * scaling);
    }
}

static void adam_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    const float lr = hyper[DSI_HYPER_LR];
    const float product = lr * hyper[DSI_HYPER_WEIGHT_DECAY];
    const float decay = 1.0f - product;
    const float eps = (float)a->eps;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float m = ref_get(&call->in[IN_MOMENT], i);
        const float u = m / (sqrtf(ref_get(&call->in[IN_STATE_SQ], i)) + eps);
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
        const float next = fmaf(-lr, u, p * decay);
        ref_set(&call->out[0], i, next);
        if (ref_out(call, 1) != NULL) {
            ref_set(&call->out[1], i, next);
        }
        ref_set(&call->out[2], i, m);
    }
}

static ds_status first_moment_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), moment_range);
    return DS_OK;
}

static ds_status frozen_adam_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), adam_range);
    return DS_OK;
}

#define ONEBIT_KERNEL(op_name)                                                                     \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

ONEBIT_KERNEL(first_moment);
ONEBIT_KERNEL(frozen_adam);

const ds_kernel *const DSI_REF(onebit)[] = {&first_moment_kernel, &frozen_adam_kernel, NULL};
