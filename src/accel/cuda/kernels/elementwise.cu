/* SPDX-License-Identifier: Apache-2.0 */
/* Elementwise operators: a thread an element. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/elementwise.h"

DSC_INLINE float of_two(int kind, float a, float b)
{
    switch (kind) {
    case DSC_ADD:
        return a + b;
    case DSC_SUB:
        return a - b;
    case DSC_MUL:
        return a * b;
    case DSC_DIV:
        return a / b;
    default:
        return b > 0.0f ? a : 0.0f;
    }
}

DSC_INLINE float of_one(int kind, float factor, float x)
{
    switch (kind) {
    case DSC_SCALE:
        return x * factor;
    case DSC_NEG:
        return -x;
    case DSC_EXP:
        return expf(x);
    case DSC_LOG:
        return logf(x);
    case DSC_SQRT:
        return sqrtf(x);
    case DSC_TANH:
        return tanhf(x);
    case DSC_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    case DSC_RELU:
        return x < 0.0f ? 0.0f : x;
    default:
        return x * x;
    }
}

DSC_INLINE void binary_body(const dsc_elementwise_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t j = a->n_b == a->n ? i : a->n_b == 1 ? 0 : i % a->n_b;
        dsc_set(a->y, act, i, of_two(a->kind, dsc_get(a->a, act, i), dsc_get(a->b, a->b_dtype, j)));
    }
}

DSC_INLINE void unary_body(const dsc_elementwise_args *a, int act)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        dsc_set(a->y, act, i, of_one(a->kind, a->factor, dsc_get(a->a, act, i)));
    }
}

DSC_KERNEL_ACT(binary, dsc_elementwise_args)
DSC_KERNEL_ACT(unary, dsc_elementwise_args)
