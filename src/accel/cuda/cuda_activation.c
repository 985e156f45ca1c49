/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/activation.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/elementwise.h"

static bool is_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run(const ds_kernel_call *call, dsc_fn first, dsc_activation_args *args)
{
    const dsi_act_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    args->y = dsc_out(call, 0);
    args->dup = dsc_out(call, 1);
    args->n = ds_shape_count(x->shape);
    args->kind = (int32_t)attrs->kind;
    const dsc_shape shape = dsc_over_items(args->n);
    return dsc_launch(call, dsc_of_dtype(first, x->dtype), &shape, args, sizeof *args);
}

static ds_status activation_run(const ds_kernel_call *call)
{
    return run(call, DSC_FN_activation_f32, &(dsc_activation_args){.x = dsc_in(call, 0)});
}

static ds_status activation_backward_run(const ds_kernel_call *call)
{
    return run(call, DSC_FN_activation_backward_f32,
               &(dsc_activation_args){.dy = dsc_in(call, 0), .x = dsc_in(call, 1)});
}

static ds_status glu_run(const ds_kernel_call *call)
{
    return run(call, DSC_FN_glu_f32,
               &(dsc_activation_args){.x = dsc_in(call, 0), .up = dsc_in(call, 1)});
}

static ds_status glu_backward_run(const ds_kernel_call *call)
{
    return run(
        call, DSC_FN_glu_backward_f32,
        &(dsc_activation_args){.dy = dsc_in(call, 0), .x = dsc_in(call, 1), .up = dsc_in(call, 2)});
}

DSC_ROW(activation, is_supported, activation_run);
DSC_ROW(activation_backward, is_supported, activation_backward_run);
DSC_ROW(glu, is_supported, glu_run);
DSC_ROW(glu_backward, is_supported, glu_backward_run);
const ds_kernel *const dsc_activation_kernels[] = {&activation_kernel, &activation_backward_kernel,
                                                   &glu_kernel, &glu_backward_kernel, NULL};
