/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/route.cu and group.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/route.h"

#include <string.h>

static bool fits_warps(const dsi_route_attrs *attrs, int64_t n_experts)
{
    return n_experts <= DSC_MOST_EXPERTS && attrs->n_groups <= DSC_MOST_GROUPS;
}

static bool is_absent_or(const ds_kernel_sig *sig, uint32_t i, ds_dtype dtype)
{
    return i >= sig->n_in || sig->in[i].dtype == DS_DTYPE_NONE || sig->in[i].dtype == dtype;
}

static bool is_route(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && is_absent_or(sig, 1, DS_DTYPE_F32) &&
           is_absent_or(sig, 2, sig->in[0].dtype) &&
           fits_warps(sig->attrs, ds_shape_last(sig->in[0].shape));
}

static bool is_route_backward(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[1].dtype) &&
           fits_warps(sig->attrs, ds_shape_last(sig->in[1].shape));
}

static ds_status launch_route(const ds_kernel_call *call, dsc_fn first, const ds_meta *logits,
                              dsc_route_args *args)
{
    const dsi_route_attrs *attrs = call->sig->attrs;
    args->fault = dsc_fault_of(call);
    args->call = (uint64_t)(uintptr_t)call;
    args->tokens = ds_shape_rows(logits->shape);
    args->n_experts = ds_shape_last(logits->shape);
    args->n_chosen = attrs->n_chosen;
    args->n_groups = attrs->n_groups;
    args->top_groups = attrs->top_groups;
    args->noisy_from = attrs->noisy_from;
    args->score = (int32_t)attrs->score;
    args->normalise = attrs->normalise != 0;
    args->group_by = (int32_t)attrs->group_by;
    args->factor = (float)attrs->factor;
    const dsc_shape shape = dsc_block_an_item(
        (args->tokens + DSC_ROUTE_WARPS - 1) / DSC_ROUTE_WARPS, 32 * DSC_ROUTE_WARPS);
    return dsc_launch(call, dsc_of_dtype(first, logits->dtype), &shape, args, sizeof *args);
}

static ds_status route_run(const ds_kernel_call *call)
{
    dsc_route_args args = {.logits = dsc_in(call, 0),
                           .bias = dsc_in(call, 1),
                           .noisy = dsc_in(call, 2),
                           .weights = dsc_out(call, 0),
                           .experts = dsc_out(call, 1)};
    return launch_route(call, DSC_FN_route_f32, &call->in[0].meta, &args);
}

static ds_status route_backward_run(const ds_kernel_call *call)
{
    dsc_route_args args = {.dweights = dsc_in(call, 0),
                           .logits = dsc_in(call, 1),
                           .experts = (int32_t *)(uintptr_t)dsc_in(call, 2),
                           .dlogits = dsc_out(call, 0)};
    return launch_route(call, DSC_FN_route_backward_f32, &call->in[1].meta, &args);
}

/* ---- group_rows ---------------------------------------------------------------------------- */

/* Parts are of a logical graph. */
static bool is_group(const ds_kernel_sig *sig)
{
    return ((const dsi_group_attrs *)sig->attrs)->parts <= 1 && is_absent_or(sig, 1, DS_DTYPE_F32);
}

static int64_t chunks_of(int64_t n)
{
    return (n + DSC_GROUP_CHUNK - 1) / DSC_GROUP_CHUNK;
}

/* Counts, totals, and with a capacity which pairs are taken. */
static size_t group_work(const ds_kernel_sig *sig)
{
    const dsi_group_attrs *attrs = sig->attrs;
    const int64_t n = ds_shape_count(sig->in[0].shape);
    return (size_t)((chunks_of(n) + 1) * (attrs->n_experts + 1) + (attrs->capacity > 0 ? n : 0)) *
           sizeof(int32_t);
}

static ds_status group_rows_run(const ds_kernel_call *call)
{
    const dsi_group_attrs *attrs = call->sig->attrs;
    const ds_shape pairs = call->in[0].meta.shape;
    dsc_group_args args = {.experts = dsc_in(call, 0),
                           .scores = dsc_in(call, 1),
                           .place = dsc_out(call, 0),
                           .offsets = dsc_out(call, 1),
                           .fault = dsc_fault_of(call),
                           .call = (uint64_t)(uintptr_t)call,
                           .counts = call->work,
                           .n = ds_shape_count(pairs),
                           .n_choices = ds_shape_last(pairs),
                           .n_experts = attrs->n_experts,
                           .capacity = attrs->capacity,
                           .take = (int32_t)attrs->take};
    args.n_chunks = chunks_of(args.n);
    args.totals = args.counts + args.n_chunks * (args.n_experts + 1);
    args.taken = args.capacity > 0 ? args.totals + args.n_experts + 1 : NULL;
    const dsc_shape by_chunk = dsc_block_an_item(args.n_chunks, DSC_GROUP_CHUNK);
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    const dsc_shape by_pair = dsc_over_items(args.n);
    if (args.taken != NULL) {
        DS_TRY(dsc_launch(call, DSC_FN_group_take, &by_chunk, &args, sizeof args));
    }
    DS_TRY(dsc_launch(call, DSC_FN_group_count, &by_chunk, &args, sizeof args));
    DS_TRY(dsc_launch(call, DSC_FN_group_sum, &one, &args, sizeof args));
    return dsc_launch(call, DSC_FN_group_place, &by_pair, &args, sizeof args);
}

/* ---- what is made of places and offsets ------------------------------------------------------ */

static bool is_any(const ds_kernel_sig *sig)
{
    (void)sig;
    return true;
}

static ds_status group_sizes_run(const ds_kernel_call *call)
{
    const dsc_offsets_args args = {.offsets = dsc_in(call, 0),
                                   .sizes = dsc_out(call, 0),
                                   .n = ds_shape_count(call->in[0].meta.shape),
                                   .each = ds_shape_count(call->out[0].meta.shape) + 1};
    const dsc_shape shape = dsc_over_items(args.each - 1);
    return dsc_launch(call, DSC_FN_group_sizes, &shape, &args, sizeof args);
}

static ds_status expert_segments_run(const ds_kernel_call *call)
{
    const dsi_expert_ranks_attrs *attrs = call->sig->attrs;
    const int64_t n = call->in[0].meta.shape.dims[1];
    const dsc_offsets_args args = {.offsets = dsc_in(call, 0),
                                   .segments = dsc_out(call, 0),
                                   .fault = dsc_fault_of(call),
                                   .call = (uint64_t)(uintptr_t)call,
                                   .n = n,
                                   .each = (n - 1) / attrs->n_ranks,
                                   .n_ranks = attrs->n_ranks,
                                   .n_rows = attrs->n_rows};
    const dsc_shape shape = dsc_over_items(args.n_ranks);
    return dsc_launch(call, DSC_FN_expert_segments, &shape, &args, sizeof args);
}

static bool is_kept(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32;
}

static ds_status run_kept(const ds_kernel_call *call, bool backward)
{
    const dsi_kept_attrs *attrs = call->sig->attrs;
    const uint32_t at = backward ? 1 : 0;
    const ds_shape weights = call->in[at].meta.shape;
    const dsc_kept_args args = {.dy = backward ? dsc_in(call, 0) : NULL,
                                .weights = dsc_in(call, at),
                                .place = dsc_in(call, at + 1),
                                .offsets = dsc_in(call, at + 2),
                                .out = dsc_out(call, 0),
                                .tokens = ds_shape_rows(weights),
                                .n_chosen = ds_shape_last(weights),
                                .n_experts = ds_shape_count(call->in[at + 2].meta.shape) - 1,
                                .normalise = attrs->normalise != 0};
    const dsc_shape shape = dsc_over_items(args.tokens);
    return dsc_launch(call, DSC_FN_kept_weights, &shape, &args, sizeof args);
}

static ds_status kept_weights_run(const ds_kernel_call *call)
{
    return run_kept(call, false);
}

static ds_status kept_weights_backward_run(const ds_kernel_call *call)
{
    return run_kept(call, true);
}

DSC_ROW(route, is_route, route_run);
DSC_ROW(route_backward, is_route_backward, route_backward_run);
DSC_ROW_WORK(group_rows, is_group, group_work, group_rows_run);
DSC_ROW(group_sizes, is_any, group_sizes_run);
DSC_ROW(expert_segments, is_any, expert_segments_run);
DSC_ROW(kept_weights, is_kept, kept_weights_run);
DSC_ROW(kept_weights_backward, is_kept, kept_weights_backward_run);
const ds_kernel *const dsc_route_kernels[] = {&route_kernel,
                                              &route_backward_kernel,
                                              &group_rows_kernel,
                                              &group_sizes_kernel,
                                              &expert_segments_kernel,
                                              &kept_weights_kernel,
                                              &kept_weights_backward_kernel,
                                              NULL};
