/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/norm.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/norm.h"

static bool is_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run_forward(const ds_kernel_call *call, dsc_fn first, bool centred)
{
    const dsi_norm_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const dsc_norm_args args = {
        .x = dsc_in(call, 0),
        .w = dsc_in(call, 1),
        .b = centred ? dsc_in(call, 2) : NULL,
        .y = dsc_out(call, 0),
        .mean = centred ? dsc_out(call, 1) : NULL,
        .rstd = dsc_out(call, centred ? 2 : 1),
        .rows = ds_shape_rows(x->shape),
        .columns = ds_shape_last(x->shape),
        .eps = (float)attrs->eps,
        .shift = (float)attrs->shift,
        .w_dtype = (int32_t)call->in[1].meta.dtype,
        .b_dtype = centred && dsc_in(call, 2) != NULL ? (int32_t)call->in[2].meta.dtype : 0};
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(first, x->dtype), &shape, &args, sizeof args);
}

/* Of rms_norm and its gradient. */
static float shift_of(const ds_kernel_call *call)
{
    return (float)((const dsi_norm_attrs *)call->sig->attrs)->shift;
}

static ds_status run_backward(const ds_kernel_call *call, dsc_fn dx, dsc_fn dw, bool centred)
{
    const ds_meta *dy = &call->in[0].meta;
    const dsc_norm_backward_args args = {.dy = dsc_in(call, 0),
                                         .x = dsc_in(call, 1),
                                         .w = dsc_in(call, 2),
                                         .mean = centred ? dsc_in(call, 3) : NULL,
                                         .rstd = dsc_in(call, centred ? 4 : 3),
                                         .dres = dsc_in(call, centred ? 5 : 4),
                                         .dx = dsc_out(call, 0),
                                         .dw = dsc_out(call, 1),
                                         .db = dsc_out(call, 2),
                                         .rows = ds_shape_rows(dy->shape),
                                         .columns = ds_shape_last(dy->shape),
                                         .shift = centred ? 0.0f : shift_of(call),
                                         .w_dtype = (int32_t)call->in[2].meta.dtype};
    const dsc_shape by_row = dsc_block_an_item(args.rows, args.columns);
    const dsc_shape by_column = dsc_block_an_item((args.columns + 31) / 32, DSC_BLOCK);
    if (args.dw != NULL) { /* first: dx may lie where dy or x does */
        DS_TRY(dsc_launch(call, dsc_of_dtype(dw, dy->dtype), &by_column, &args, sizeof args));
    }
    return dsc_launch(call, dsc_of_dtype(dx, dy->dtype), &by_row, &args, sizeof args);
}

static ds_status layer_norm_run(const ds_kernel_call *call)
{
    return run_forward(call, DSC_FN_layer_norm_f32, true);
}

static ds_status rms_norm_run(const ds_kernel_call *call)
{
    return run_forward(call, DSC_FN_rms_norm_f32, false);
}

static ds_status layer_norm_backward_run(const ds_kernel_call *call)
{
    return run_backward(call, DSC_FN_layer_norm_dx_f32, DSC_FN_layer_norm_dw_f32, true);
}

static ds_status rms_norm_backward_run(const ds_kernel_call *call)
{
    return run_backward(call, DSC_FN_rms_norm_dx_f32, DSC_FN_rms_norm_dw_f32, false);
}

DSC_ROW(layer_norm, is_supported, layer_norm_run);
DSC_ROW(rms_norm, is_supported, rms_norm_run);
DSC_ROW(layer_norm_backward, is_supported, layer_norm_backward_run);
DSC_ROW(rms_norm_backward, is_supported, rms_norm_backward_run);
const ds_kernel *const dsc_norm_kernels[] = {&layer_norm_kernel, &rms_norm_kernel,
                                             &layer_norm_backward_kernel, &rms_norm_backward_kernel,
                                             NULL};
