/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/collective_blocks.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/collective_blocks.h"

static int64_t blocks_of(const dsi_blocks_attrs *a)
{
    return (a->width + a->block - 1) / a->block;
}

static dsc_blocks_layout layout_of(const dsi_blocks_attrs *a, int64_t bits)
{
    const int64_t numbers = bits == 8 ? a->width : (a->width + 1) / 2;
    const int64_t scales = blocks_of(a) * (int64_t)sizeof(float);
    return (dsc_blocks_layout){bits, scales + (numbers + 3) / 4 * 4, scales};
}

static dsc_blocks_args args_of(const ds_kernel_call *call)
{
    const dsi_blocks_attrs *a = call->sig->attrs;
    return (dsc_blocks_args){.block = a->block,
                             .n_blocks = blocks_of(a),
                             .n_rows = a->n_rows,
                             .width = a->width,
                             .sent = layout_of(a, a->bits),
                             .kept = layout_of(a, 8),
                             .factor = (float)a->factor,
                             .beta = (float)a->beta};
}

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static bool makes_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->out[0].dtype);
}

static ds_status to_blocks(const ds_kernel_call *call, dsc_fn fn, dsc_blocks_args *args)
{
    const dsc_shape shape = dsc_block_an_item(args->n_rows * args->n_blocks, args->block);
    args->x = dsc_in(call, 0);
    args->n_x = ds_shape_count(call->in[0].meta.shape);
    args->rows_out = dsc_out(call, 0);
    args->dtype = (int32_t)call->in[0].meta.dtype;
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static ds_status quantize_blocks_run(const ds_kernel_call *call)
{
    dsc_blocks_args args = args_of(call);
    return to_blocks(call, DSC_FN_quantize_blocks, &args);
}

static ds_status quantize_with_error_run(const ds_kernel_call *call)
{
    dsc_blocks_args args = args_of(call);
    args.error_in = dsc_in(call, 1);
    args.error = dsc_out(call, 1);
    args.unit = dsc_in(call, 2);
    return to_blocks(call, DSC_FN_quantize_with_error, &args);
}

static ds_status from_blocks(const ds_kernel_call *call, dsc_fn fn)
{
    dsc_blocks_args args = args_of(call);
    args.rows_in = dsc_in(call, 0);
    args.y = dsc_out(call, 0);
    args.n_y = ds_shape_count(call->out[0].meta.shape);
    args.dtype = (int32_t)call->out[0].meta.dtype;
    const dsc_shape shape = dsc_over_items(args.n_y);
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

static ds_status dequantize_blocks_run(const ds_kernel_call *call)
{
    return from_blocks(call, DSC_FN_dequantize_blocks);
}

static ds_status dequantize_sum_run(const ds_kernel_call *call)
{
    return from_blocks(call, DSC_FN_dequantize_sum);
}

DSC_ROW(quantize_blocks, is_act, quantize_blocks_run);
DSC_ROW(quantize_with_error, is_act, quantize_with_error_run);
DSC_ROW(dequantize_blocks, makes_act, dequantize_blocks_run);
DSC_ROW(dequantize_sum, makes_act, dequantize_sum_run);
const ds_kernel *const dsc_collective_blocks_kernels[] = {
    &quantize_blocks_kernel, &quantize_with_error_kernel, &dequantize_blocks_kernel,
    &dequantize_sum_kernel, NULL};
