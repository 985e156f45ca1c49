/* SPDX-License-Identifier: Apache-2.0 */
/* Activation functions and their derivatives, for kernel sources. Kinds: DSI_ACT_* of op/ops.h. */
#ifndef DSC_ACT_H
#define DSC_ACT_H

#include "accel/cuda/cuda_device.h"

enum { DSC_ACT_NONE, DSC_ACT_GELU_TANH, DSC_ACT_SILU, DSC_ACT_GELU_ERF };

#define DSC_GELU_S       0.7978845608028654f /* sqrt(2/pi) */
#define DSC_GELU_C       0.044715f
#define DSC_SQRT_HALF    0.7071067811865476f
#define DSC_INV_SQRT_2PI 0.3989422804014327f

DSC_INLINE float dsc_act(int kind, float x)
{
    switch (kind) {
    case DSC_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(DSC_GELU_S * (x + DSC_GELU_C * x * x * x)));
    case DSC_ACT_SILU:
        return x / (1.0f + expf(-x));
    case DSC_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * DSC_SQRT_HALF));
    default:
        return x;
    }
}

DSC_INLINE float dsc_act_derivative(int kind, float x)
{
    switch (kind) {
    case DSC_ACT_GELU_TANH: {
        const float t = tanhf(DSC_GELU_S * (x + DSC_GELU_C * x * x * x));
        const float inner = DSC_GELU_S * (1.0f + 3.0f * DSC_GELU_C * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case DSC_ACT_SILU: {
        const float s = 1.0f / (1.0f + expf(-x));
        return s * (1.0f + x * (1.0f - s));
    }
    case DSC_ACT_GELU_ERF:
        return 0.5f * (1.0f + erff(x * DSC_SQRT_HALF)) + x * DSC_INV_SQRT_2PI * expf(-0.5f * x * x);
    default:
        return 1.0f;
    }
}

#endif
