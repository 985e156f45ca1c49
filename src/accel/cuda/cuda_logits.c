/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of losses of logits that another operator made: kernels/cross_entropy.cu and
 * distillation.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/distillation.h"

/* logits, targets, [count] → loss, lse, count */
static bool is_forward(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

/* The rows' losses. */
static size_t forward_work(const ds_kernel_sig *sig)
{
    return (size_t)ds_shape_rows(sig->in[0].shape) * sizeof(float) + 64;
}

static ds_status cross_entropy_run(const ds_kernel_call *call)
{
    const ds_meta *z = &call->in[0].meta;
    const int64_t rows = ds_shape_rows(z->shape);
    const dsc_ce_args args = {.z = dsc_in(call, 0),
                              .targets = dsc_in(call, 1),
                              .lse = dsc_out(call, 1),
                              .losses = call->work,
                              .count_given = dsc_in(call, 2),
                              .loss = dsc_out(call, 0),
                              .count = dsc_out(call, 2),
                              .fault = dsc_fault_of(call),
                              .call = (uint64_t)(uintptr_t)call,
                              .rows = rows,
                              .all = rows,
                              .v = ds_shape_last(z->shape),
                              .ignore = ((const dsi_ce_attrs *)call->sig->attrs)->ignore_index};
    const dsc_shape by_row = dsc_block_an_item(rows, args.v);
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    DS_TRY(
        dsc_launch(call, dsc_of_dtype(DSC_FN_ce_rows_f32, z->dtype), &by_row, &args, sizeof args));
    return dsc_launch(call, DSC_FN_ce_loss, &one, &args, sizeof args);
}

/* dloss, logits, targets, lse, count → dlogits */
static bool is_backward(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && sig->out[0].dtype == sig->in[1].dtype;
}

static ds_status cross_entropy_backward_run(const ds_kernel_call *call)
{
    const ds_meta *z = &call->in[1].meta;
    const dsc_ce_args args = {.z = dsc_in(call, 1),
                              .targets = dsc_in(call, 2),
                              .lse = (float *)(uintptr_t)dsc_in(call, 3),
                              .dz = dsc_out(call, 0),
                              .dloss = dsc_in(call, 0),
                              .count = (float *)(uintptr_t)dsc_in(call, 4),
                              .rows = ds_shape_rows(z->shape),
                              .all = ds_shape_rows(z->shape),
                              .v = ds_shape_last(z->shape),
                              .ignore = ((const dsi_ce_attrs *)call->sig->attrs)->ignore_index};
    const dsc_shape all = dsc_over_items(args.rows * args.v);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_ce_given_dlogits_f32, z->dtype), &all, &args,
                      sizeof args);
}

/* ---- distillation ------------------------------------------------------------------------------
 * logits, teacher, targets, [count] → loss, lse, count, hot lse, teacher's lse, inner */

static bool is_distillation(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == DS_DTYPE_F32;
}

static dsc_distillation_args distillation_args(const ds_kernel_call *call, uint32_t at)
{
    const dsi_distillation_attrs *attrs = call->sig->attrs;
    const ds_shape z = call->in[at].meta.shape;
    return (dsc_distillation_args){.ce = {.z = dsc_in(call, at),
                                          .targets = dsc_in(call, at + 2),
                                          .rows = ds_shape_rows(z),
                                          .all = ds_shape_rows(z),
                                          .v = ds_shape_last(z),
                                          .ignore = attrs->ce.ignore_index},
                                   .teacher = dsc_in(call, at + 1),
                                   .weight = (float)attrs->weight,
                                   .temperature = (float)attrs->temperature,
                                   .mix = (float)attrs->mix};
}

static ds_status distillation_run(const ds_kernel_call *call)
{
    dsc_distillation_args args = distillation_args(call, 0);
    args.ce.lse = dsc_out(call, 1);
    args.ce.losses = call->work;
    args.ce.count_given = dsc_in(call, 3);
    args.ce.loss = dsc_out(call, 0);
    args.ce.count = dsc_out(call, 2);
    args.ce.fault = dsc_fault_of(call);
    args.ce.call = (uint64_t)(uintptr_t)call;
    args.hot_lse = dsc_out(call, 3);
    args.teacher_lse = dsc_out(call, 4);
    args.inner = dsc_out(call, 5);
    const dsc_shape by_row = dsc_block_an_item(args.ce.rows, args.ce.v);
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_distillation_f32, call->in[0].meta.dtype), &by_row,
                      &args, sizeof args));
    return dsc_launch(call, DSC_FN_ce_loss, &one, &args.ce, sizeof args.ce);
}

/* dloss, logits, teacher, targets, lse, count, hot lse, teacher's lse, inner → dlogits */
static bool is_distillation_backward(const ds_kernel_sig *sig)
{
    return is_backward(sig) && sig->in[2].dtype == DS_DTYPE_F32;
}

static ds_status distillation_backward_run(const ds_kernel_call *call)
{
    dsc_distillation_args args = distillation_args(call, 1);
    args.ce.dloss = dsc_in(call, 0);
    args.ce.lse = (float *)(uintptr_t)dsc_in(call, 4);
    args.ce.count = (float *)(uintptr_t)dsc_in(call, 5);
    args.hot_lse = (float *)(uintptr_t)dsc_in(call, 6);
    args.teacher_lse = (float *)(uintptr_t)dsc_in(call, 7);
    args.inner = (float *)(uintptr_t)dsc_in(call, 8);
    args.ce.dz = dsc_out(call, 0);
    const dsc_shape all = dsc_over_items(args.ce.rows * args.ce.v);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_distillation_backward_f32, call->in[1].meta.dtype),
                      &all, &args, sizeof args);
}

DSC_ROW_WORK(cross_entropy, is_forward, forward_work, cross_entropy_run);
DSC_ROW(cross_entropy_backward, is_backward, cross_entropy_backward_run);
DSC_ROW_WORK(distillation, is_distillation, forward_work, distillation_run);
DSC_ROW(distillation_backward, is_distillation_backward, distillation_backward_run);
const ds_kernel *const dsc_logits_kernels[] = {&cross_entropy_kernel,
                                               &cross_entropy_backward_kernel, &distillation_kernel,
                                               &distillation_backward_kernel, NULL};
