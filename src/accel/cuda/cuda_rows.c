/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/softmax.cu, rope.cu and cell.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/row_args.h"

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status run_softmax(const ds_kernel_call *call, dsc_fn first)
{
    const ds_meta *x = &call->in[0].meta;
    const dsc_softmax_args args = {.x = dsc_in(call, 0),
                                   .saved = dsc_in(call, 1),
                                   .y = dsc_out(call, 0),
                                   .rows = ds_shape_rows(x->shape),
                                   .columns = ds_shape_last(x->shape)};
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(first, x->dtype), &shape, &args, sizeof args);
}

static ds_status softmax_run(const ds_kernel_call *call)
{
    return run_softmax(call, DSC_FN_softmax_f32);
}

static ds_status softmax_backward_run(const ds_kernel_call *call)
{
    return run_softmax(call, DSC_FN_softmax_backward_f32);
}

static bool rope_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && sig->in[1].dtype == DS_DTYPE_F32;
}

static ds_status rope_run(const ds_kernel_call *call)
{
    const dsi_rope_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const dsc_rope_args args = {.x = dsc_in(call, 0),
                                .table = dsc_in(call, 1),
                                .y = dsc_out(call, 0),
                                .tokens = ds_shape_rows(x->shape),
                                .n_heads = ds_shape_last(x->shape) / attrs->head_dim,
                                .head_dim = attrs->head_dim,
                                .rotary = ds_shape_last(call->in[1].meta.shape),
                                .inverse = attrs->inverse != 0,
                                .pairs = attrs->pairs != 0};
    const dsc_shape shape =
        dsc_over_items(args.tokens * args.n_heads * (args.head_dim - args.rotary / 2));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_rope_f32, x->dtype), &shape, &args, sizeof args);
}

static bool cast_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && dsc_is_act(sig->out[0].dtype);
}

static bool two_supported(const ds_kernel_sig *sig)
{
    return is_act(sig) && dsc_is_act(sig->in[1].dtype) && dsc_is_act(sig->out[0].dtype);
}

/* a and b: numbers of inputs; b < 0: none. */
static ds_status run_cell(const ds_kernel_call *call, uint32_t a, int32_t b)
{
    const dsc_cell_args args = {.a = dsc_in(call, a),
                                .b = b < 0 ? NULL : dsc_in(call, (uint32_t)b),
                                .y = dsc_out(call, 0),
                                .n = ds_shape_count(call->out[0].meta.shape),
                                .a_dtype = (int32_t)call->in[a].meta.dtype,
                                .b_dtype = b < 0 ? 0 : (int32_t)call->in[b].meta.dtype,
                                .y_dtype = (int32_t)call->out[0].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_cell, &shape, &args, sizeof args);
}

static ds_status cast_run(const ds_kernel_call *call)
{
    return run_cell(call, 0, -1);
}

static ds_status store_run(const ds_kernel_call *call)
{
    return run_cell(call, 1, -1);
}

static ds_status accumulate_run(const ds_kernel_call *call)
{
    return run_cell(call, 0, 1);
}

DSC_ROW(softmax, is_act, softmax_run);
DSC_ROW(softmax_backward, is_act, softmax_backward_run);
DSC_ROW(rope, rope_supported, rope_run);
DSC_ROW(cast, cast_supported, cast_run);
DSC_ROW(store, two_supported, store_run);
DSC_ROW(accumulate, two_supported, accumulate_run);
const ds_kernel *const dsc_rows_kernels[] = {
    &softmax_kernel, &softmax_backward_kernel, &rope_kernel, &cast_kernel,
    &store_kernel,   &accumulate_kernel,       NULL};
