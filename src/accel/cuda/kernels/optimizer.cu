/* SPDX-License-Identifier: Apache-2.0 */
/* adam, sgd, lion and adagrad, a thread an element: the operations of docs/internals/optim.md one
 * by one, so that the bits are the processor's. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/optimizer.h"

/* DSI_HYPER_* of op/ops.h */
enum { LR, BETA1, BETA2, WEIGHT_DECAY, BIAS1, BIAS2, FIRST };

DSC_INLINE float param_at(const dsc_optimizer_args *a, int64_t i)
{
    return a->master != NULL ? a->master[i] : dsc_get(a->param, a->param_dtype, i);
}

DSC_INLINE void put_param(const dsc_optimizer_args *a, int64_t i, float p)
{
    dsc_set(a->param, a->param_dtype, i, p);
    if (a->master != NULL) {
        a->master[i] = p;
    }
}

DSC_INLINE float grad_at(const dsc_optimizer_args *a, int64_t i)
{
    return dsc_get(a->grad, a->grad_dtype, i) * *a->factor;
}

DSC_INLINE float decay_of(const dsc_optimizer_args *a)
{
    const float product = a->hyper[LR] * a->hyper[WEIGHT_DECAY];
    return 1.0f - product;
}

DSC_INLINE void adam_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[BETA1];
    const float b2 = a->hyper[BETA2];
    const float wd = a->hyper[WEIGHT_DECAY];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    const float i2 = 1.0f / a->hyper[BIAS2];
    const float step = -(a->hyper[LR] / a->hyper[BIAS1]);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        float p = param_at(a, i);
        float g = grad_at(a, i);
        if (a->adamw == 0 && wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        const float m = fmaf(b1, dsc_get(a->state[0], a->state_dtype, i), c1 * g);
        const float v = fmaf(b2, dsc_get(a->state[1], a->state_dtype, i), c2 * (g * g));
        const float u = m / fmaf(sqrtf(v), i2, a->eps);
        if (a->adamw != 0) {
            p = p * decay_of(a);
        }
        dsc_set(a->state[0], a->state_dtype, i, m);
        dsc_set(a->state[1], a->state_dtype, i, v);
        put_param(a, i, fmaf(step, u, p));
    }
}

DSC_INLINE void sgd_all(const dsc_optimizer_args *a)
{
    const float wd = a->hyper[WEIGHT_DECAY];
    const float b1 = a->hyper[BETA1];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = param_at(a, i);
        float g = grad_at(a, i);
        if (wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        if (a->state[0] != NULL) {
            const float b =
                a->hyper[FIRST] != 0.0f
                    ? g
                    : fmaf(b1, dsc_get(a->state[0], a->state_dtype, i), a->undamped * g);
            dsc_set(a->state[0], a->state_dtype, i, b);
            g = a->nesterov != 0 ? fmaf(b1, b, g) : b;
        }
        put_param(a, i, fmaf(-a->hyper[LR], g, p));
    }
}

DSC_INLINE void lion_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[BETA1];
    const float b2 = a->hyper[BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = param_at(a, i) * decay_of(a);
        const float g = grad_at(a, i);
        const float m = dsc_get(a->state[0], a->state_dtype, i);
        const float c = fmaf(b1, m, c1 * g);
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c;
        put_param(a, i, fmaf(-a->hyper[LR], sign, p));
        dsc_set(a->state[0], a->state_dtype, i, fmaf(b2, m, c2 * g));
    }
}

DSC_INLINE void adagrad_all(const dsc_optimizer_args *a)
{
    const float wd = a->hyper[WEIGHT_DECAY];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = param_at(a, i);
        float g = grad_at(a, i);
        if (wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        const float v = fmaf(g, g, dsc_get(a->state[0], a->state_dtype, i));
        dsc_set(a->state[0], a->state_dtype, i, v);
        put_param(a, i, fmaf(-a->hyper[LR], g / (sqrtf(v) + a->eps), p));
    }
}

DSC_KERNEL(adam, dsc_optimizer_args, adam_all(a))
DSC_KERNEL(sgd, dsc_optimizer_args, sgd_all(a))
DSC_KERNEL(lion, dsc_optimizer_args, lion_all(a))
DSC_KERNEL(adagrad, dsc_optimizer_args, adagrad_all(a))
