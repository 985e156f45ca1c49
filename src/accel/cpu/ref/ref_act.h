/* SPDX-License-Identifier: Apache-2.0 */
/* Activation functions and their derivatives. */
#ifndef DSI_ACCEL_CPU_REF_ACT_H
#define DSI_ACCEL_CPU_REF_ACT_H

#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#define REF_GELU_S       R(0.7978845608028654) /* sqrt(2/pi) */
#define REF_GELU_C       R(0.044715)
#define REF_SQRT_HALF    R(0.7071067811865476)
#define REF_INV_SQRT_2PI R(0.3989422804014327)

static inline real ref_act(int64_t kind, real x)
{
    switch (kind) {
    case DSI_ACT_GELU_TANH:
        return R(0.5) * x * (R(1.0) + r_tanh(REF_GELU_S * (x + REF_GELU_C * x * x * x)));
    case DSI_ACT_SILU:
        return x / (R(1.0) + r_exp(-x));
    case DSI_ACT_GELU_ERF:
        return R(0.5) * x * (R(1.0) + r_erf(x * REF_SQRT_HALF));
    default:
        return x;
    }
}

static inline real ref_act_derivative(int64_t kind, real x)
{
    switch (kind) {
    case DSI_ACT_GELU_TANH: {
        const real t = r_tanh(REF_GELU_S * (x + REF_GELU_C * x * x * x));
        const real inner = REF_GELU_S * (R(1.0) + R(3.0) * REF_GELU_C * x * x);
        return R(0.5) * (R(1.0) + t) + R(0.5) * x * (R(1.0) - t * t) * inner;
    }
    case DSI_ACT_SILU: {
        const real s = R(1.0) / (R(1.0) + r_exp(-x));
        return s * (R(1.0) + x * (R(1.0) - s));
    }
    case DSI_ACT_GELU_ERF:
        return R(0.5) * (R(1.0) + r_erf(x * REF_SQRT_HALF)) +
               x * REF_INV_SQRT_2PI * r_exp(R(-0.5) * x * x);
    default:
        return R(1.0);
    }
}

#endif
