/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/gradnorm.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/gradnorm.h"
#include "base/exact_bins.h"
#include "base/exact_sum.h"

_Static_assert((int)DSC_BINS == (int)DSI_EXACT_BINS && (int)DSC_WIDE == (int)DSI_EXACT_WIDE &&
                   (int)DSC_BIN_STEP == (int)DSI_EXACT_STEP &&
                   (int)DSC_BIN_LEAST == (int)DSI_EXACT_LEAST &&
                   (int)DSC_BIN_BLOCK <= (int)DSI_EXACT_BLOCK &&
                   (unsigned)DSC_GRID_RUN <= DSI_EXACT_RUN,
               "the bins of base/exact_bins.h");

static const dsc_shape one_thread = {{1, 1, 1}, {32, 1, 1}};

static bool has_top(const ds_kernel_sig *sig)
{
    return sig->n_in > 1 && sig->in[1].dtype != DS_DTYPE_NONE;
}

static size_t squares_work(const ds_kernel_sig *sig)
{
    (void)sig;
    return (size_t)DSC_SUM_BLOCKS * DSC_WIDE * sizeof(double);
}

static ds_status sum_squares_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    const dsc_shape many = dsc_sum_blocks(n);
    const dsc_shape one = {{1, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
    const dsc_squares_args args = {.x = dsc_in(call, 0),
                                   .top = has_top(call->sig) ? dsc_in(call, 1) : NULL,
                                   .parts = call->work,
                                   .sum = dsc_out(call, 0),
                                   .n = n,
                                   .n_parts = many.grid[0],
                                   .x_dtype = (int32_t)call->in[0].meta.dtype};
    DS_TRY(dsc_launch(call, args.top != NULL ? DSC_FN_squares_on_grid : DSC_FN_squares, &many,
                      &args, sizeof args));
    return dsc_launch(call, args.top != NULL ? DSC_FN_grid_join : DSC_FN_squares_join, &one, &args,
                      sizeof args);
}

static bool any_parts(const ds_kernel_sig *sig)
{
    return sig->n_in <= DSC_MOST_PARTS;
}

static ds_status sum_parts_run(const ds_kernel_call *call)
{
    dsc_parts_args args = {.out = dsc_out(call, 0),
                           .n_in = call->sig->n_in,
                           .length = ds_shape_count(call->out[0].meta.shape)};
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        args.in[i] = dsc_in(call, i);
        args.n[i] = ds_shape_count(call->in[i].meta.shape);
    }
    const dsc_shape shape = dsc_over_items(args.length);
    return dsc_launch(call, DSC_FN_sum_parts, &shape, &args, sizeof args);
}

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status abs_max_run(const ds_kernel_call *call)
{
    const dsc_largest_args args = {.in = {dsc_in(call, 0)},
                                   .out = dsc_out(call, 0),
                                   .n_in = 1,
                                   .n = ds_shape_count(call->in[0].meta.shape),
                                   .x_dtype = (int32_t)call->in[0].meta.dtype};
    const dsc_shape shape = {{1, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
    return dsc_launch(call, DSC_FN_abs_max, &shape, &args, sizeof args);
}

static ds_status max_of_run(const ds_kernel_call *call)
{
    dsc_largest_args args = {.out = dsc_out(call, 0), .n_in = call->sig->n_in};
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        args.in[i] = dsc_in(call, i);
    }
    return dsc_launch(call, DSC_FN_max_of, &one_thread, &args, sizeof args);
}

static ds_status clip_factor_run(const ds_kernel_call *call)
{
    const dsi_clip_attrs *attrs = call->sig->attrs;
    const dsc_clip_args args = {.sum = dsc_in(call, 0),
                                .top = has_top(call->sig) ? dsc_in(call, 1) : NULL,
                                .inverse_scale = dsc_in(call, 2),
                                .norm = dsc_out(call, 0),
                                .factor = dsc_out(call, 1),
                                .max_norm = attrs->max_norm};
    return dsc_launch(call, DSC_FN_clip, &one_thread, &args, sizeof args);
}

DSC_ROW_WORK(sum_squares, is_act, squares_work, sum_squares_run);
DSC_ROW(sum_parts, any_parts, sum_parts_run);
DSC_ROW(abs_max, is_act, abs_max_run);
DSC_ROW(max_of, any_parts, max_of_run);
DSC_ROW(clip_factor, any_parts, clip_factor_run);
const ds_kernel *const dsc_gradnorm_kernels[] = {&sum_squares_kernel, &sum_parts_kernel,
                                                 &abs_max_kernel,     &max_of_kernel,
                                                 &clip_factor_kernel, NULL};
