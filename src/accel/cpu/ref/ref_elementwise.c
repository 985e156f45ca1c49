/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of the elementwise operators: items are elements. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

/* Element of b that meets element i of a. */
static int64_t b_index(const ds_kernel_call *call, int64_t i)
{
    const int64_t n = ds_shape_count(call->in[1].meta.shape);
    return n == 1 ? 0 : i % n;
}

#define BINARY(name, expression)                                                                   \
    static void name##_range(const ds_kernel_call *call, int64_t begin, int64_t end,               \
                             uint32_t slot)                                                        \
    {                                                                                              \
        (void)slot;                                                                                \
        for (int64_t i = begin; i < end; ++i) {                                                    \
            const real a = ref_get(&call->in[0], i);                                               \
            const real b = ref_get(&call->in[1], b_index(call, i));                                \
            ref_set(&call->out[0], i, (expression));                                               \
        }                                                                                          \
    }                                                                                              \
    RUN(name)

#define UNARY(name, expression)                                                                    \
    static void name##_range(const ds_kernel_call *call, int64_t begin, int64_t end,               \
                             uint32_t slot)                                                        \
    {                                                                                              \
        (void)slot;                                                                                \
        for (int64_t i = begin; i < end; ++i) {                                                    \
            const real x = ref_get(&call->in[0], i);                                               \
            ref_set(&call->out[0], i, (expression));                                               \
        }                                                                                          \
    }                                                                                              \
    RUN(name)

#define RUN(name)                                                                                  \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), name##_range);                  \
        return DS_OK;                                                                              \
    }                                                                                              \
    REF_KERNEL(name, name##_run, NULL)

static real factor_of(const ds_kernel_call *call)
{
    const dsi_scale_attrs *a = call->sig->attrs;
    return (real)a->factor;
}

BINARY(add, a + b);
BINARY(sub, a - b);
BINARY(mul, a *b);
BINARY(div, a / b);
BINARY(relu_backward, b > R(0.0) ? a : R(0.0));
UNARY(scale, x *factor_of(call));
UNARY(neg, -x);
UNARY(exp, r_exp(x));
UNARY(log, r_log(x));
UNARY(sqrt, r_sqrt(x));
UNARY(tanh, r_tanh(x));
UNARY(sigmoid, R(1.0) / (R(1.0) + r_exp(-x)));
UNARY(relu, x < R(0.0) ? R(0.0) : x);
UNARY(square, x *x);

const ds_kernel *const DSI_REF(elementwise)[] = {
    &add_kernel,   &sub_kernel,     &mul_kernel,  &div_kernel,    &relu_backward_kernel,
    &scale_kernel, &neg_kernel,     &exp_kernel,  &log_kernel,    &sqrt_kernel,
    &tanh_kernel,  &sigmoid_kernel, &relu_kernel, &square_kernel, NULL};
