/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/fake_quant.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/fake_quant.h"
#include "base/quantize.h"

_Static_assert((int)DSC_QUANT_BLOCK == DSI_QUANT_BLOCK, "the processor's blocks");
_Static_assert((int)DSC_QUANT_ON == DSI_QUANT_ON && (int)DSC_QUANT_BITS == DSI_QUANT_BITS &&
                   (int)DSC_QUANT_MIX == DSI_QUANT_MIX,
               "as op/ops.h has them");

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

/* Blocks of a group. */
static int64_t each_of(const ds_kernel_sig *sig)
{
    const dsi_fake_quant_attrs *a = sig->attrs;
    const int64_t in_group = ds_shape_count(sig->in[0].shape) / a->groups;
    return (in_group + DSC_QUANT_BLOCK - 1) / DSC_QUANT_BLOCK;
}

static size_t fake_quant_work(const ds_kernel_sig *sig)
{
    const dsi_fake_quant_attrs *a = sig->attrs;
    return (size_t)(a->groups * each_of(sig)) * sizeof(dsc_quant_part) +
           (size_t)a->groups * sizeof(dsc_quant_scale);
}

static ds_status measure(const ds_kernel_call *call, dsc_quant_args *args, bool kept)
{
    const int64_t at_once = DSC_QUANT_THREADS / DSC_QUANT_LANES;
    const dsc_shape by_block =
        dsc_block_an_item((args->groups * args->each + at_once - 1) / at_once, DSC_QUANT_THREADS);
    const dsc_shape by_group = dsc_over_items(args->groups);
    args->kept = kept;
    DS_TRY(dsc_launch(call, DSC_FN_fake_quant_measure, &by_block, args, sizeof *args));
    return dsc_launch(call, DSC_FN_fake_quant_scales, &by_group, args, sizeof *args);
}

/* What is asked for is known to the device alone (control), so that every launch is always made. */
static ds_status fake_quant_run(const ds_kernel_call *call)
{
    const dsi_fake_quant_attrs *attrs = call->sig->attrs;
    const ds_shape s = call->in[0].meta.shape;
    const int64_t n = ds_shape_count(s);
    dsc_quant_args args = {.x = dsc_in(call, 0),
                           .y = dsc_out(call, 0),
                           .control = dsc_in(call, 1),
                           .draw = dsc_in(call, 2),
                           .parts = call->work,
                           .groups = attrs->groups,
                           .in_group = n / attrs->groups,
                           .each = each_of(call->sig),
                           .n = n,
                           .outs = s.dims[attrs->transposed != 0 ? 1 : 0],
                           .ins = s.dims[attrs->transposed != 0 ? 0 : 1],
                           .site = (uint32_t)attrs->site,
                           .dtype = (int32_t)call->in[0].meta.dtype,
                           .transposed = attrs->transposed != 0,
                           .asymmetric = attrs->asymmetric != 0,
                           .stochastic = attrs->stochastic != 0};
    const dsc_shape shape = dsc_over_items(n);
    args.scales = (dsc_quant_scale *)(args.parts + args.groups * args.each);
    DS_TRY(measure(call, &args, false));
    DS_TRY(measure(call, &args, true));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_fake_quant_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status fake_quant_rows_run(const ds_kernel_call *call)
{
    const dsi_fake_quant_rows_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const dsc_quant_args args = {.x = dsc_in(call, 0),
                                 .y = dsc_out(call, 0),
                                 .control = dsc_in(call, 1),
                                 .rows = ds_shape_rows(x->shape),
                                 .columns = ds_shape_last(x->shape),
                                 .asymmetric = attrs->asymmetric != 0,
                                 .bits = (int32_t)attrs->bits};
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_fake_quant_rows_f32, x->dtype), &shape, &args,
                      sizeof args);
}

DSC_ROW_WORK(fake_quant, is_act, fake_quant_work, fake_quant_run);
DSC_ROW(fake_quant_rows, is_act, fake_quant_rows_run);
const ds_kernel *const dsc_fake_quant_kernels[] = {&fake_quant_kernel, &fake_quant_rows_kernel,
                                                   NULL};
