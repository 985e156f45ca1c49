/* SPDX-License-Identifier: Apache-2.0 */
/* What updates of parameters share, for kernel sources: the operands of dsc_optimizer_args. */
#ifndef DSC_UPDATE_H
#define DSC_UPDATE_H

#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/optimizer.h"

/* DSI_HYPER_* of op/ops.h */
enum {
    DSC_HYPER_LR,
    DSC_HYPER_BETA1,
    DSC_HYPER_BETA2,
    DSC_HYPER_WEIGHT_DECAY,
    DSC_HYPER_BIAS1,
    DSC_HYPER_BIAS2,
    DSC_HYPER_FIRST,
    DSC_HYPER_BETA3 = DSC_HYPER_FIRST, /* AdEMAMix */
    DSC_HYPER_ALPHA
};

DSC_INLINE float dsc_param_at(const dsc_optimizer_args *a, int64_t i)
{
    return a->master != NULL ? a->master[i] : dsc_get(a->param, a->param_dtype, i);
}

DSC_INLINE void dsc_put_param(const dsc_optimizer_args *a, int64_t i, float p)
{
    dsc_set(a->param, a->param_dtype, i, p);
    if (a->master != NULL) {
        a->master[i] = p;
    }
}

DSC_INLINE float dsc_grad_at(const dsc_optimizer_args *a, int64_t i)
{
    return dsc_get(a->grad, a->grad_dtype, i) * *a->factor;
}

DSC_INLINE float dsc_decay_of(const dsc_optimizer_args *a)
{
    const float product = a->hyper[DSC_HYPER_LR] * a->hyper[DSC_HYPER_WEIGHT_DECAY];
    return 1.0f - product;
}

#endif
