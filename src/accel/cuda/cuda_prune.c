/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/prune.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/prune.h"

#include <math.h>

_Static_assert((int)DSC_TOP_MAGNITUDE == DSI_TOP_MAGNITUDE && (int)DSC_TOP_ROW == DSI_TOP_ROW &&
                   (int)DSC_MASK_ROWS == DSI_MASK_ROWS && (int)DSC_MASK_HEADS == DSI_MASK_HEADS,
               "as op/ops.h has them");

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static int64_t runs_of(int64_t n)
{
    return (n + DSC_TOP_RUN - 1) / DSC_TOP_RUN;
}

/* The state, counts of blocks, counts of runs, keys. */
static size_t top_mask_work(const ds_kernel_sig *sig)
{
    const int64_t n = ds_shape_count(sig->out[0].shape);
    return sizeof(dsc_top_state) +
           (size_t)(DSC_TOP_BLOCKS * DSC_TOP_DIGITS + runs_of(n)) * sizeof(int64_t) +
           (size_t)n * sizeof(uint32_t);
}

/* ceil(ratio·n), at most n (base/quantize.h). */
static int64_t kept_of(double ratio, int64_t n)
{
    const double count = ceil(ratio * (double)n);
    return count < (double)n ? (int64_t)count : n;
}

static ds_status find_last(const ds_kernel_call *call, dsc_top_args *args)
{
    const dsc_shape elements = dsc_over_items(args->n);
    const dsc_shape runs = dsc_over_items(args->n_runs);
    const dsc_shape one_thread = {{1, 1, 1}, {1, 1, 1}};
    const dsc_shape one_block = {{1, 1, 1}, {DSC_TOP_THREADS, 1, 1}};
    const int64_t blocks = (args->n + DSC_TOP_THREADS - 1) / DSC_TOP_THREADS;
    dsc_shape counting = {{1, 1, 1}, {DSC_TOP_THREADS, 1, 1}};
    counting.grid[0] = (uint32_t)(blocks < DSC_TOP_BLOCKS ? blocks : DSC_TOP_BLOCKS);
    args->n_blocks = counting.grid[0];
    DS_TRY(dsc_launch(call, DSC_FN_top_keys, &elements, args, sizeof *args));
    for (uint32_t known = 0; known < 32; known += DSC_TOP_BITS) {
        args->shift = 32 - DSC_TOP_BITS - known;
        DS_TRY(dsc_launch(call, DSC_FN_top_counts, &counting, args, sizeof *args));
        DS_TRY(dsc_launch(call, DSC_FN_top_digit, &one_thread, args, sizeof *args));
    }
    DS_TRY(dsc_launch(call, DSC_FN_top_equal, &runs, args, sizeof *args));
    return dsc_launch(call, DSC_FN_top_before, &one_block, args, sizeof *args);
}

static ds_status top_mask_run(const ds_kernel_call *call)
{
    const dsi_top_mask_attrs *attrs = call->sig->attrs;
    const ds_meta *x = &call->in[0].meta;
    const int64_t n = ds_shape_count(call->out[0].meta.shape);
    dsc_top_args args = {.x = dsc_in(call, 0),
                         .mask = dsc_out(call, 0),
                         .state = call->work,
                         .n = n,
                         .n_runs = runs_of(n),
                         .keep = kept_of(attrs->ratio, n),
                         .dtype = (int32_t)x->dtype,
                         .by = (int32_t)attrs->by,
                         .transposed = attrs->transposed != 0,
                         .as_bytes = call->out[0].meta.dtype == DS_DTYPE_BOOL};
    if (attrs->by == DSI_TOP_ROW) {
        args.outs = n;
        args.ins = x->shape.dims[attrs->transposed != 0 ? 0 : 1];
    }
    args.counts = (int64_t *)(args.state + 1);
    args.equal = args.counts + DSC_TOP_BLOCKS * DSC_TOP_DIGITS;
    args.keys = (uint32_t *)(args.equal + args.n_runs);
    if (args.keep > 0 && args.keep < n) {
        DS_TRY(find_last(call, &args));
    }
    const dsc_shape runs = dsc_over_items(args.n_runs);
    return dsc_launch(call, DSC_FN_top_mask, &runs, &args, sizeof args);
}

static bool mask_supported(const ds_kernel_sig *sig)
{
    const ds_dtype mask = sig->in[1].dtype;
    return is_act(sig) && (mask == DS_DTYPE_BOOL || dsc_is_act(mask));
}

static dsc_mask_args args_of(const ds_kernel_call *call)
{
    const dsi_mask_attrs *attrs = call->sig->attrs;
    const ds_shape s = call->in[0].meta.shape;
    dsc_mask_args args = {.on = dsc_in(call, 2),
                          .y = dsc_out(call, 0),
                          .n = ds_shape_count(s),
                          .outs = 1,
                          .ins = ds_shape_count(s),
                          .heads = attrs->heads,
                          .dtype = (int32_t)call->in[0].meta.dtype,
                          .along = (int32_t)attrs->along,
                          .transposed = attrs->transposed != 0};
    if (attrs->along != DSI_MASK_ELEMENTS) {
        args.outs = s.dims[attrs->transposed != 0 ? 1 : 0];
        args.ins = s.dims[attrs->transposed != 0 ? 0 : 1];
    }
    return args;
}

static ds_status mask_weight_run(const ds_kernel_call *call)
{
    dsc_mask_args args = args_of(call);
    const ds_dtype mask = call->in[1].meta.dtype;
    const dsc_shape shape = dsc_over_items(args.n);
    args.w = dsc_in(call, 0);
    args.mask = dsc_in(call, 1);
    args.mask_dtype = mask == DS_DTYPE_BOOL ? 0 : (int32_t)mask;
    return dsc_launch(call, dsc_of_dtype(DSC_FN_mask_weight_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status mask_scores_run(const ds_kernel_call *call)
{
    dsc_mask_args args = args_of(call);
    args.dy = dsc_in(call, 0);
    args.w = dsc_in(call, 1);
    args.n_mask = ds_shape_count(call->out[0].meta.shape);
    const dsc_shape shape = dsc_over_items(args.n_mask);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_mask_scores_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

DSC_ROW_WORK(top_mask, is_act, top_mask_work, top_mask_run);
DSC_ROW(mask_weight, mask_supported, mask_weight_run);
DSC_ROW(mask_scores, is_act, mask_scores_run);
const ds_kernel *const dsc_prune_kernels[] = {&top_mask_kernel, &mask_weight_kernel,
                                              &mask_scores_kernel, NULL};
