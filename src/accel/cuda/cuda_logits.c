/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of losses of logits that another operator made: kernels/cross_entropy.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/cross_entropy.h"

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
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_ce_rows_f32, z->dtype), &by_row, &args,
                      sizeof args));
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

DSC_ROW_WORK(cross_entropy, is_forward, forward_work, cross_entropy_run);
DSC_ROW(cross_entropy_backward, is_backward, cross_entropy_backward_run);
const ds_kernel *const dsc_logits_kernels[] = {&cross_entropy_kernel,
                                               &cross_entropy_backward_kernel, NULL};
