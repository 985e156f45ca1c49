/* SPDX-License-Identifier: Apache-2.0 */
/* adam, ademamix, sgd, lion and adagrad, a thread an element: the operations of
 * docs/internals/optim.md one by one, so that the bits are the processor's. */
#include "accel/cuda/kernels/update.h"

DSC_INLINE void adam_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float wd = a->hyper[DSC_HYPER_WEIGHT_DECAY];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    const float i2 = 1.0f / a->hyper[DSC_HYPER_BIAS2];
    const float step = -(a->hyper[DSC_HYPER_LR] / a->hyper[DSC_HYPER_BIAS1]);
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        float p = dsc_param_at(a, i);
        float g = dsc_grad_at(a, i);
        if (a->adamw == 0 && wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        const float m = fmaf(b1, dsc_get(a->state[0], a->state_dtype, i), c1 * g);
        const float v = fmaf(b2, dsc_get(a->state[1], a->state_dtype, i), c2 * (g * g));
        const float u = m / fmaf(sqrtf(v), i2, a->eps);
        if (a->adamw != 0) {
            p = p * dsc_decay_of(a);
        }
        dsc_set(a->state[0], a->state_dtype, i, m);
        dsc_set(a->state[1], a->state_dtype, i, v);
        dsc_put_param(a, i, fmaf(step, u, p));
    }
}

DSC_INLINE void ademamix_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float b3 = a->hyper[DSC_HYPER_BETA3];
    const float alpha = a->hyper[DSC_HYPER_ALPHA];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    const float c3 = 1.0f - b3;
    const float i1 = 1.0f / a->hyper[DSC_HYPER_BIAS1];
    const float i2 = 1.0f / a->hyper[DSC_HYPER_BIAS2];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = dsc_param_at(a, i) * dsc_decay_of(a);
        const float g = dsc_grad_at(a, i);
        const float m = fmaf(b1, dsc_get(a->state[0], a->state_dtype, i), c1 * g);
        const float v = fmaf(b2, dsc_get(a->state[1], a->state_dtype, i), c2 * (g * g));
        const float slow = fmaf(b3, dsc_get(a->state[2], a->state_dtype, i), c3 * g);
        const float u = fmaf(alpha, slow, m * i1) / fmaf(sqrtf(v), i2, a->eps);
        dsc_set(a->state[0], a->state_dtype, i, m);
        dsc_set(a->state[1], a->state_dtype, i, v);
        dsc_set(a->state[2], a->state_dtype, i, slow);
        dsc_put_param(a, i, fmaf(-a->hyper[DSC_HYPER_LR], u, p));
    }
}

DSC_INLINE void sgd_all(const dsc_optimizer_args *a)
{
    const float wd = a->hyper[DSC_HYPER_WEIGHT_DECAY];
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = dsc_param_at(a, i);
        float g = dsc_grad_at(a, i);
        if (wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        if (a->state[0] != NULL) {
            const float b =
                a->hyper[DSC_HYPER_FIRST] != 0.0f
                    ? g
                    : fmaf(b1, dsc_get(a->state[0], a->state_dtype, i), a->undamped * g);
            dsc_set(a->state[0], a->state_dtype, i, b);
            g = a->nesterov != 0 ? fmaf(b1, b, g) : b;
        }
        dsc_put_param(a, i, fmaf(-a->hyper[DSC_HYPER_LR], g, p));
    }
}

DSC_INLINE void lion_all(const dsc_optimizer_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float c1 = 1.0f - b1;
    const float c2 = 1.0f - b2;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = dsc_param_at(a, i) * dsc_decay_of(a);
        const float g = dsc_grad_at(a, i);
        const float m = dsc_get(a->state[0], a->state_dtype, i);
        const float c = fmaf(b1, m, c1 * g);
        const float sign = c > 0.0f ? 1.0f : c < 0.0f ? -1.0f : c;
        dsc_put_param(a, i, fmaf(-a->hyper[DSC_HYPER_LR], sign, p));
        dsc_set(a->state[0], a->state_dtype, i, fmaf(b2, m, c2 * g));
    }
}

DSC_INLINE void adagrad_all(const dsc_optimizer_args *a)
{
    const float wd = a->hyper[DSC_HYPER_WEIGHT_DECAY];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float p = dsc_param_at(a, i);
        float g = dsc_grad_at(a, i);
        if (wd != 0.0f) {
            g = fmaf(wd, p, g);
        }
        const float v = fmaf(g, g, dsc_get(a->state[0], a->state_dtype, i));
        dsc_set(a->state[0], a->state_dtype, i, v);
        dsc_put_param(a, i, fmaf(-a->hyper[DSC_HYPER_LR], g / (sqrtf(v) + a->eps), p));
    }
}

DSC_KERNEL(adam, dsc_optimizer_args, adam_all(a))
DSC_KERNEL(ademamix, dsc_optimizer_args, ademamix_all(a))
DSC_KERNEL(sgd, dsc_optimizer_args, sgd_all(a))
DSC_KERNEL(lion, dsc_optimizer_args, lion_all(a))
DSC_KERNEL(adagrad, dsc_optimizer_args, adagrad_all(a))
