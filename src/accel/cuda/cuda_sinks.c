/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/sinks.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/sinks.h"

/* at: the input y; then lse and sinks. */
static bool is_sinks_at(const ds_kernel_sig *sig, uint32_t at)
{
    return dsc_is_act(sig->in[at].dtype) && sig->in[at + 1].dtype == DS_DTYPE_F32 &&
           sig->in[at + 2].dtype == sig->in[at].dtype;
}

static bool is_sinks(const ds_kernel_sig *sig)
{
    return is_sinks_at(sig, 0);
}

static bool is_sinks_backward(const ds_kernel_sig *sig)
{
    return is_sinks_at(sig, 1) && sig->out[2].dtype == DS_DTYPE_F32;
}

static dsc_sinks_args sinks_args(const ds_kernel_call *call, uint32_t at)
{
    const dsi_sinks_attrs *attrs = call->sig->attrs;
    const int64_t *d = call->in[at].meta.shape.dims;
    return (dsc_sinks_args){.y = dsc_in(call, at),
                            .lse = dsc_in(call, at + 1),
                            .sinks = dsc_in(call, at + 2),
                            .dy = dsc_out(call, 0),
                            .n_batch = d[0],
                            .n_queries = d[1],
                            .n_heads = attrs->n_heads,
                            .head_dim = d[2] / attrs->n_heads};
}

static ds_status attention_sinks_run(const ds_kernel_call *call)
{
    const dsc_sinks_args args = sinks_args(call, 0);
    const dsc_shape shape = dsc_over_items(ds_shape_count(call->in[0].meta.shape));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_attention_sinks_f32, call->in[0].meta.dtype),
                      &shape, &args, sizeof args);
}

static ds_status attention_sinks_backward_run(const ds_kernel_call *call)
{
    dsc_sinks_args args = sinks_args(call, 1);
    args.gradient = dsc_in(call, 0);
    args.dlse = dsc_out(call, 1);
    args.dsinks = dsc_out(call, 2);
    const int64_t rows = args.n_batch * args.n_queries;
    const dsc_shape by_query = dsc_over_items(rows * args.n_heads * 32);
    const dsc_shape by_head = dsc_block_an_item(args.n_heads, rows);
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_attention_sinks_dy_f32, call->in[1].meta.dtype),
                      &by_query, &args, sizeof args));
    return dsc_launch(call, DSC_FN_sum_sinks, &by_head, &args, sizeof args);
}

static bool is_slot(const ds_kernel_sig *sig)
{
    const ds_dtype dtype = sig->in[0].dtype;
    return dsc_is_act(dtype) && sig->in[1].dtype == dtype && sig->in[2].dtype == dtype &&
           sig->in[3].dtype == dtype && sig->in[2].shape.dims[2] <= DSC_MOST_RANK;
}

static ds_status slot_adapter_run(const ds_kernel_call *call)
{
    const dsc_slot_args args = {.y = dsc_in(call, 0),
                                .x = dsc_in(call, 1),
                                .a = dsc_in(call, 2),
                                .b = dsc_in(call, 3),
                                .slots = dsc_in(call, 4),
                                .out = dsc_out(call, 0),
                                .fault = dsc_fault_of(call),
                                .call = (uint64_t)(uintptr_t)call,
                                .n_tokens = call->in[0].meta.shape.dims[1],
                                .n_slots = call->in[2].meta.shape.dims[0],
                                .n_in = call->in[1].meta.shape.dims[2],
                                .n_out = call->in[0].meta.shape.dims[2],
                                .rank = call->in[2].meta.shape.dims[2]};
    const dsc_shape shape = dsc_block_an_item(args.n_tokens, args.n_out);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_slot_adapter_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

DSC_ROW(attention_sinks, is_sinks, attention_sinks_run);
DSC_ROW(attention_sinks_backward, is_sinks_backward, attention_sinks_backward_run);
DSC_ROW(slot_adapter, is_slot, slot_adapter_run);
const ds_kernel *const dsc_sinks_kernels[] = {
    &attention_sinks_kernel, &attention_sinks_backward_kernel, &slot_adapter_kernel, NULL};
