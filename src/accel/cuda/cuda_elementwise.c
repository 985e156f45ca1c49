/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/elementwise.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/elementwise.h"

static bool two_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->in[1].dtype);
}

static bool one_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run_two(const ds_kernel_call *call, int32_t kind)
{
    const ds_meta *a = &call->in[0].meta;
    const dsc_elementwise_args args = {.a = dsc_in(call, 0),
                                       .b = dsc_in(call, 1),
                                       .y = dsc_out(call, 0),
                                       .n = ds_shape_count(a->shape),
                                       .n_b = ds_shape_count(call->in[1].meta.shape),
                                       .kind = kind,
                                       .b_dtype = (int32_t)call->in[1].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_binary_f32, a->dtype), &shape, &args, sizeof args);
}

static ds_status run_one(const ds_kernel_call *call, int32_t kind, double factor)
{
    const ds_meta *a = &call->in[0].meta;
    const dsc_elementwise_args args = {.a = dsc_in(call, 0),
                                       .y = dsc_out(call, 0),
                                       .n = ds_shape_count(a->shape),
                                       .factor = (float)factor,
                                       .kind = kind};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_unary_f32, a->dtype), &shape, &args, sizeof args);
}

#define TWO(name, kind)                                                                            \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run_two(call, kind);                                                                \
    }                                                                                              \
    DSC_ROW(name, two_supported, name##_run)
#define ONE(name, kind)                                                                            \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run_one(call, kind, 1.0);                                                           \
    }                                                                                              \
    DSC_ROW(name, one_supported, name##_run)

TWO(add, DSC_ADD);
TWO(sub, DSC_SUB);
TWO(mul, DSC_MUL);
TWO(div, DSC_DIV);
TWO(relu_backward, DSC_RELU_BACKWARD);
ONE(neg, DSC_NEG);
ONE(exp, DSC_EXP);
ONE(log, DSC_LOG);
ONE(sqrt, DSC_SQRT);
ONE(tanh, DSC_TANH);
ONE(sigmoid, DSC_SIGMOID);
ONE(relu, DSC_RELU);
ONE(square, DSC_SQUARE);

static ds_status scale_run(const ds_kernel_call *call)
{
    const dsi_scale_attrs *attrs = call->sig->attrs;
    return run_one(call, DSC_SCALE, attrs->factor);
}
DSC_ROW(scale, one_supported, scale_run);

const ds_kernel *const dsc_elementwise_kernels[] = {
    &add_kernel,   &sub_kernel,     &mul_kernel,  &div_kernel,    &relu_backward_kernel,
    &scale_kernel, &neg_kernel,     &exp_kernel,  &log_kernel,    &sqrt_kernel,
    &tanh_kernel,  &sigmoid_kernel, &relu_kernel, &square_kernel, NULL};
