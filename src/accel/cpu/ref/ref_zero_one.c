/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of 0/1 Adam: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

enum {
    IN_PARAM,
    IN_X,
    IN_HYPER,
    IN_FACTOR,
    IN_MASTER,
    IN_STATE,
    IN_STATE_SQ,
    IN_LOCAL,
    IN_LRS,
    IN_WEIGHT
};
enum { OUT_PARAM, OUT_MASTER, OUT_STATE, OUT_LOCAL, OUT_LRS, OUT_WEIGHT };

static float load_param(const ds_kernel_call *call, int64_t i)
{
    return ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
}

static void store_param(const ds_kernel_call *call, int64_t i, float p)
{
    ref_set(&call->out[OUT_PARAM], i, p);
    if (ref_out(call, OUT_MASTER) != NULL) {
        ref_set(&call->out[OUT_MASTER], i, p);
    }
}

static float root(const ds_kernel_call *call, uint32_t exp_avg_sq, int64_t i)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    return sqrtf(ref_get(&call->in[exp_avg_sq], i)) + (float)a->eps;
}

static void times_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float factor = *(const float *)call->in[1].data;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i) * factor);
    }
}

static void adam_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float *hyper = call->in[IN_HYPER].data;
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const float lr = hyper[DSI_HYPER_LR];
    const float b1 = hyper[DSI_HYPER_BETA1];
    const float wd = hyper[DSI_HYPER_WEIGHT_DECAY];
    const float c1 = 1.0f - b1;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = load_param(call, i);
        const float g = ref_get(&call->in[IN_X], i) * factor;
        const float m = fmaf(b1, ref_get(&call->in[IN_STATE], i), c1 * g);
        const float d = -lr * fmaf(wd, p, m / root(call, IN_STATE_SQ, i));
        store_param(call, i, p + d);
        ref_set(&call->out[OUT_STATE], i, m);
        ref_set(&call->out[OUT_LOCAL], i, ref_get(&call->in[IN_LOCAL], i) + d);
    }
}

static void take_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_get(&call->in[0], i) * root(call, 1, i));
    }
}

static void put_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float lrs = *(const float *)call->in[IN_LRS].data;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float x = ref_get(&call->in[IN_X], i);
        const float p = ref_get(&call->in[IN_WEIGHT], i) + x / root(call, IN_STATE_SQ, i);
        store_param(call, i, p);
        ref_set(&call->out[OUT_WEIGHT], i, p);
        ref_set(&call->out[OUT_STATE], i, lrs != 0.0f ? -(x / lrs) : 0.0f);
        ref_set(&call->out[OUT_LOCAL], i, 0.0f);
    }
}

static ds_status over_elements(const ds_kernel_call *call, dsi_ref_fn fn)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), fn);
    return DS_OK;
}

static ds_status times_run(const ds_kernel_call *call)
{
    return over_elements(call, times_range);
}

static ds_status local_adam_run(const ds_kernel_call *call)
{
    const float lr = ((const float *)call->in[IN_HYPER].data)[DSI_HYPER_LR];
    DS_TRY(over_elements(call, adam_range));
    *(float *)call->out[OUT_LRS].data = *(const float *)call->in[IN_LRS].data + lr;
    return DS_OK;
}

static ds_status local_take_run(const ds_kernel_call *call)
{
    return over_elements(call, take_range);
}

static ds_status local_put_run(const ds_kernel_call *call)
{
    DS_TRY(over_elements(call, put_range));
    *(float *)call->out[OUT_LRS].data = 0.0f;
    return DS_OK;
}

#define LOCAL_KERNEL(op_name)                                                                      \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

LOCAL_KERNEL(times);
LOCAL_KERNEL(local_adam);
LOCAL_KERNEL(local_take);
LOCAL_KERNEL(local_put);

const ds_kernel *const DSI_REF(zero_one)[] = {&times_kernel, &local_adam_kernel, &local_take_kernel,
                                              &local_put_kernel, NULL};
