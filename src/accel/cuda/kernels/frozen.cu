/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of 1-bit Adam and 0/1 Adam, a thread an element: the operations of
 * docs/internals/optim.md one by one, so that the bits are the processor's. */
#include "accel/cuda/kernels/frozen.h"
#include "accel/cuda/kernels/update.h"

DSC_INLINE float root_at(const dsc_frozen_args *a, int64_t i)
{
    return sqrtf(dsc_get(a->update.state[1], a->square_dtype, i)) + a->update.eps;
}

DSC_INLINE void frozen_adam_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float m = dsc_get(u->grad, u->grad_dtype, i);
        const float step = m / root_at(a, i);
        const float p = dsc_param_at(u, i) * dsc_decay_of(u);
        dsc_set(u->state[0], u->state_dtype, i, m);
        dsc_put_param(u, i, fmaf(-u->hyper[DSC_HYPER_LR], step, p));
    }
}

/* param: what is made. */
DSC_INLINE void times_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        dsc_set(u->param, u->param_dtype, i, dsc_grad_at(u, i));
    }
}

DSC_INLINE void local_adam_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    const float lr = u->hyper[DSC_HYPER_LR];
    const float b1 = u->hyper[DSC_HYPER_BETA1];
    const float wd = u->hyper[DSC_HYPER_WEIGHT_DECAY];
    const float c1 = 1.0f - b1;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float p = dsc_param_at(u, i);
        const float g = dsc_grad_at(u, i);
        const float m = fmaf(b1, dsc_get(u->state[0], u->state_dtype, i), c1 * g);
        const float d = -lr * fmaf(wd, p, m / root_at(a, i));
        dsc_put_param(u, i, p + d);
        dsc_set(u->state[0], u->state_dtype, i, m);
        a->local[i] += d;
    }
    if (dsc_index() == 0) {
        *a->lrs += lr;
    }
}

DSC_INLINE void local_take_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        dsc_set(u->param, u->param_dtype, i, a->local[i] * root_at(a, i));
    }
}

/* lrs stays: the next kernel clears it, when no thread reads it any more. */
DSC_INLINE void local_put_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    const float lrs = *a->lrs;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float x = dsc_get(u->grad, u->grad_dtype, i);
        const float p = a->weight[i] + x / root_at(a, i);
        dsc_put_param(u, i, p);
        a->weight[i] = p;
        dsc_set(u->state[0], u->state_dtype, i, lrs != 0.0f ? -(x / lrs) : 0.0f);
        a->local[i] = 0.0f;
    }
}

DSC_INLINE void local_clear_all(const dsc_frozen_args *a)
{
    if (dsc_index() == 0) {
        *a->lrs = 0.0f;
    }
}

DSC_INLINE void frozen_lamb_all(const dsc_frozen_args *a)
{
    const dsc_optimizer_args *u = &a->update;
    const float step = -u->hyper[DSC_HYPER_LR] * *a->ratio;
    for (int64_t i = dsc_index(); i < u->n; i += dsc_stride()) {
        const float p = dsc_param_at(u, i);
        const float adam = dsc_get(u->state[0], u->state_dtype, i) / root_at(a, i);
        dsc_put_param(u, i, fmaf(step, fmaf(u->hyper[DSC_HYPER_WEIGHT_DECAY], p, adam), p));
    }
}

/* ---- schedule-free AdamW ---------------------------------------------------------------------
 */

/* The point at which gradients are taken. */
DSC_INLINE float point_of(float b1, float z, float x)
{
    return fmaf(b1, x, (1.0f - b1) * z);
}

/* hyper's eighth number: how much of the step goes into the average. */
DSC_INLINE void schedule_free_all(const dsc_average_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    const float b2 = a->hyper[DSC_HYPER_BETA2];
    const float lr = a->hyper[DSC_HYPER_LR];
    const float wd = a->hyper[DSC_HYPER_WEIGHT_DECAY];
    const float part = a->hyper[DSC_HYPER_ALPHA];
    const float i2 = 1.0f / a->hyper[DSC_HYPER_BIAS2];
    const bool first = a->hyper[DSC_HYPER_FIRST] != 0.0f;
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float g = dsc_get(a->grad, a->grad_dtype, i) * *a->factor;
        const float x = a->average[i];
        const float before = first ? x : a->z[i];
        const float v = fmaf(b2, dsc_get(a->squares, a->squares_dtype, i), (1.0f - b2) * (g * g));
        const float u = fmaf(wd, point_of(b1, before, x), g / fmaf(sqrtf(v), i2, a->eps));
        const float z = fmaf(-lr, u, before);
        a->average[i] = fmaf(part, z - x, x);
        a->z[i] = z;
        dsc_set(a->squares, a->squares_dtype, i, v);
    }
}

DSC_INLINE void schedule_free_point_all(const dsc_average_args *a)
{
    const float b1 = a->hyper[DSC_HYPER_BETA1];
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float x = a->average[i];
        a->point[i] = a->is_average != 0 ? x : point_of(b1, a->z[i], x);
    }
}

DSC_KERNEL(frozen_adam, dsc_frozen_args, frozen_adam_all(a))
DSC_KERNEL(times, dsc_frozen_args, times_all(a))
DSC_KERNEL(local_adam, dsc_frozen_args, local_adam_all(a))
DSC_KERNEL(local_take, dsc_frozen_args, local_take_all(a))
DSC_KERNEL(local_put, dsc_frozen_args, local_put_all(a))
DSC_KERNEL(local_clear, dsc_frozen_args, local_clear_all(a))
DSC_KERNEL(frozen_lamb, dsc_frozen_args, frozen_lamb_all(a))
DSC_KERNEL(schedule_free, dsc_average_args, schedule_free_all(a))
DSC_KERNEL(schedule_free_point, dsc_average_args, schedule_free_point_all(a))
