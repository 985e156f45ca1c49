/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of schedule-free AdamW: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

enum { IN_AVERAGE, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_Z, IN_SQUARES };
enum { OF_AVERAGE, OF_Z, OF_HYPER };

/* The point at which gradients are taken. */
static float point(float b1, float z, float x)
{
    return fmaf(b1, x, (1.0f - b1) * z);
}

static void update_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_optim_attrs *a = call->sig->attrs;
    const float *hyper = call->in[IN_HYPER].data;
    const float factor = *(const float *)call->in[IN_FACTOR].data;
    const float b1 = hyper[DSI_HYPER_BETA1], b2 = hyper[DSI_HYPER_BETA2];
    const float lr = hyper[DSI_HYPER_LR], wd = hyper[DSI_HYPER_WEIGHT_DECAY];
    const float part = hyper[DSI_HYPER_SPARE], i2 = 1.0f / hyper[DSI_HYPER_BIAS2];
    const bool first = hyper[DSI_HYPER_FIRST] != 0.0f;
    const float eps = (float)a->eps;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float g = ref_get(&call->in[IN_GRAD], i) * factor;
        const float x = ref_get(&call->in[IN_AVERAGE], i);
        const float before = first ? x : ref_get(&call->in[IN_Z], i);
        const float v = fmaf(b2, ref_get(&call->in[IN_SQUARES], i), (1.0f - b2) * (g * g));
        const float u = fmaf(wd, point(b1, before, x), g / fmaf(sqrtf(v), i2, eps));
        const float z = fmaf(-lr, u, before);
        ref_set(&call->out[0], i, fmaf(part, z - x, x));
        ref_set(&call->out[2], i, z);
        ref_set(&call->out[3], i, v);
    }
}

static void point_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_point_attrs *a = call->sig->attrs;
    const float b1 = ((const float *)call->in[OF_HYPER].data)[DSI_HYPER_BETA1];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float x = ref_get(&call->in[OF_AVERAGE], i);
        ref_set(&call->out[0], i, a->average != 0 ? x : point(b1, ref_get(&call->in[OF_Z], i), x));
    }
}

static ds_status update_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), update_range);
    return DS_OK;
}

static ds_status point_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), point_range);
    return DS_OK;
}

static const ds_kernel update_kernel = {.version = DS_OP_VERSION,
                                        .name = "ref",
                                        .op = "schedule_free",
                                        .needs = DS_ISA_REF,
                                        .run = update_run};
static const ds_kernel point_kernel = {.version = DS_OP_VERSION,
                                       .name = "ref",
                                       .op = "schedule_free_point",
                                       .needs = DS_ISA_REF,
                                       .run = point_run};

const ds_kernel *const DSI_REF(schedule_free)[] = {&update_kernel, &point_kernel, NULL};
