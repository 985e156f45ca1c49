/* SPDX-License-Identifier: Apache-2.0 */
/* activation, glu and their gradients: a thread an element. */
#include "accel/cuda/kernels/act.h"
#include "accel/cuda/kernels/elementwise.h"

DSC_INLINE void activation_body(const dsc_activation_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        dsc_set(a->y, act, i, dsc_act(a->kind, dsc_get(a->x, act, i)));
    }
}

DSC_INLINE void activation_backward_body(const dsc_activation_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float x = dsc_get(a->x, act, i);
        dsc_set(a->y, act, i, dsc_get(a->dy, act, i) * dsc_act_derivative(a->kind, x));
    }
}

DSC_INLINE void glu_body(const dsc_activation_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        dsc_set(a->y, act, i, dsc_act(a->kind, dsc_get(a->x, act, i)) * dsc_get(a->up, act, i));
    }
}

DSC_INLINE void glu_backward_body(const dsc_activation_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const float dy = dsc_get(a->dy, act, i);
        const float gate = dsc_get(a->x, act, i);
        const float up = dsc_get(a->up, act, i);
        dsc_set(a->y, act, i, dy * up * dsc_act_derivative(a->kind, gate));
        dsc_set(a->dup, act, i, dy * dsc_act(a->kind, gate));
    }
}

DSC_KERNEL_ACT(activation, dsc_activation_args)
DSC_KERNEL_ACT(activation_backward, dsc_activation_args)
DSC_KERNEL_ACT(glu, dsc_activation_args)
DSC_KERNEL_ACT(glu_backward, dsc_activation_args)
