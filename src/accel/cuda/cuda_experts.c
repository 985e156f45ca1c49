/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/experts.cu and grouped_linear.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/experts.h"

/* at: weights, or n_in when there are none. */
static bool has_f32_weights(const ds_kernel_sig *sig, uint32_t at)
{
    return at >= sig->n_in || sig->in[at].dtype == DS_DTYPE_NONE ||
           sig->in[at].dtype == DS_DTYPE_F32;
}

static bool is_rows(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && has_f32_weights(sig, 2);
}

static bool is_rows_dw(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype &&
           sig->out[0].dtype == DS_DTYPE_F32;
}

/* at: the input place; rows: of the tensor that it points into. */
static dsc_rows_args rows_args(const ds_kernel_call *call, uint32_t at, int64_t n_rows)
{
    const ds_shape place = call->in[at].meta.shape;
    return (dsc_rows_args){.place = dsc_in(call, at),
                           .fault = dsc_fault_of(call),
                           .call = (uint64_t)(uintptr_t)call,
                           .tokens = ds_shape_rows(place),
                           .n_choices = ds_shape_last(place),
                           .columns = ds_shape_last(call->in[0].meta.shape),
                           .n_rows = n_rows};
}

static ds_status launch_rows(const ds_kernel_call *call, dsc_fn first, const dsc_rows_args *args,
                             int64_t n)
{
    const dsc_shape shape = dsc_block_an_item(n, args->columns);
    return dsc_launch(call, dsc_of_dtype(first, call->in[0].meta.dtype), &shape, args,
                      sizeof *args);
}

static ds_status spread_rows_run(const ds_kernel_call *call)
{
    dsc_rows_args args = rows_args(call, 1, call->out[0].meta.shape.dims[0]);
    args.x = dsc_in(call, 0);
    args.weights = dsc_in(call, 2);
    args.y = dsc_out(call, 0);
    return launch_rows(call, DSC_FN_spread_rows_f32, &args, args.tokens * args.n_choices);
}

static ds_status combine_rows_run(const ds_kernel_call *call)
{
    dsc_rows_args args = rows_args(call, 1, call->in[0].meta.shape.dims[0]);
    args.x = dsc_in(call, 0);
    args.weights = dsc_in(call, 2);
    args.y = dsc_out(call, 0);
    return launch_rows(call, DSC_FN_combine_rows_f32, &args, args.tokens);
}

static ds_status combine_rows_dw_run(const ds_kernel_call *call)
{
    dsc_rows_args args = rows_args(call, 2, call->in[1].meta.shape.dims[0]);
    args.dy = dsc_in(call, 0);
    args.x = dsc_in(call, 1);
    args.dweights = dsc_out(call, 0);
    return launch_rows(call, DSC_FN_combine_rows_dw_f32, &args, args.tokens * args.n_choices);
}

/* ---- products of experts --------------------------------------------------------------------- */

static bool is_grouped(const ds_kernel_sig *sig)
{
    return ((const dsi_grouped_attrs *)sig->attrs)->parts <= 1 && dsc_is_act(sig->in[0].dtype) &&
           sig->in[1].dtype == sig->in[0].dtype && dsc_is_act(sig->out[0].dtype) &&
           dsc_fits_y(sig->in[0].shape.dims[0] + sig->in[2].shape.dims[0] * DSC_PLAIN_TILE,
                      DSC_PLAIN_TILE);
}

static bool is_grouped_mma(const ds_kernel_sig *sig)
{
    return is_grouped(sig) && sig->in[0].dtype != DS_DTYPE_F32;
}

static bool is_grouped_dw(const ds_kernel_sig *sig)
{
    return is_grouped(sig) && sig->out[0].dtype == DS_DTYPE_F32;
}

static dsc_grouped_args grouped_args(const ds_kernel_call *call)
{
    const dsi_grouped_attrs *attrs = call->sig->attrs;
    const ds_shape x = call->in[0].meta.shape;
    return (dsc_grouped_args){.linear = {.x = dsc_in(call, 0),
                                         .w = dsc_in(call, 1),
                                         .y = dsc_out(call, 0),
                                         .rows = x.dims[0],
                                         .n_in = x.dims[1],
                                         .n_out = ds_shape_last(call->out[0].meta.shape),
                                         .transposed = attrs->transposed != 0,
                                         .activation = DSI_ACT_NONE,
                                         .y_dtype = (int32_t)call->out[0].meta.dtype},
                              .offsets = dsc_in(call, 2),
                              .fault = dsc_fault_of(call),
                              .call = (uint64_t)(uintptr_t)call,
                              .n_segments = call->in[2].meta.shape.dims[0] - 1,
                              .n_experts = call->in[1].meta.shape.dims[0]};
}

/* As many tiles of rows as there may be: each segment, and what is behind them, may end within one.
 */
static dsc_shape in_tiles(const dsc_grouped_args *a, int64_t tile, uint32_t threads)
{
    return (dsc_shape){{(uint32_t)((a->linear.n_out + tile - 1) / tile),
                        (uint32_t)(a->linear.rows / tile + a->n_segments + 1), 1},
                       {threads, 1, 1}};
}

static ds_status grouped_run(const ds_kernel_call *call)
{
    const dsc_grouped_args args = grouped_args(call);
    const dsc_shape shape = in_tiles(&args, DSC_PLAIN_TILE, DSC_PLAIN_TILE * DSC_PLAIN_TILE);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_grouped_linear_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status grouped_mma_run(const ds_kernel_call *call)
{
    dsc_grouped_args args = grouped_args(call);
    const dsc_linear_args *l = &args.linear;
    args.linear.copies = l->n_in % 8 == 0 && ((uintptr_t)l->x | (uintptr_t)l->w) % 16 == 0;
    const dsc_shape shape = in_tiles(&args, DSC_MMA_TILE, DSC_MMA_THREADS);
    const dsc_fn fn = call->in[0].meta.dtype == DS_DTYPE_BF16 ? DSC_FN_grouped_linear_mma_bf16
                                                              : DSC_FN_grouped_linear_mma_f16;
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

static ds_status grouped_linear_dw_run(const ds_kernel_call *call)
{
    const dsi_grouped_attrs *attrs = call->sig->attrs;
    const ds_shape x = call->in[0].meta.shape;
    const dsc_grouped_dw_args args = {.linear = {.x = dsc_in(call, 0),
                                                 .dy = dsc_in(call, 1),
                                                 .dw_in = dsc_in(call, 3),
                                                 .dw = dsc_out(call, 0),
                                                 .rows = x.dims[0],
                                                 .n_in = x.dims[1],
                                                 .n_out = ds_shape_last(call->in[1].meta.shape),
                                                 .transposed = attrs->transposed != 0,
                                                 .dw_dtype = DS_DTYPE_F32},
                                      .offsets = dsc_in(call, 2),
                                      .fault = dsc_fault_of(call),
                                      .call = (uint64_t)(uintptr_t)call,
                                      .n_sources = attrs->sources > 1 ? attrs->sources : 1,
                                      .n_experts = call->out[0].meta.shape.dims[0]};
    const int64_t tile = DSC_PLAIN_TILE;
    const dsc_shape shape = {{(uint32_t)((args.linear.n_out + tile - 1) / tile),
                              (uint32_t)((args.linear.n_in + tile - 1) / tile),
                              (uint32_t)args.n_experts},
                             {DSC_PLAIN_TILE * DSC_PLAIN_TILE, 1, 1}};
    return dsc_launch(call, dsc_of_dtype(DSC_FN_grouped_linear_dw_f32, call->in[0].meta.dtype),
                      &shape, &args, sizeof args);
}

static const ds_kernel grouped_mma_kernel = {.version = DS_OP_VERSION,
                                             .name = "cuda_mma",
                                             .op = "grouped_linear",
                                             .supports = is_grouped_mma,
                                             .run = grouped_mma_run};
static const ds_kernel grouped_kernel = {.version = DS_OP_VERSION,
                                         .name = "cuda",
                                         .op = "grouped_linear",
                                         .supports = is_grouped,
                                         .run = grouped_run};
DSC_ROW(spread_rows, is_rows, spread_rows_run);
DSC_ROW(combine_rows, is_rows, combine_rows_run);
DSC_ROW(combine_rows_dw, is_rows_dw, combine_rows_dw_run);
DSC_ROW(grouped_linear_dw, is_grouped_dw, grouped_linear_dw_run);
const ds_kernel *const dsc_experts_kernels[] = {&spread_rows_kernel,
                                                &combine_rows_kernel,
                                                &combine_rows_dw_kernel,
                                                &grouped_mma_kernel,
                                                &grouped_kernel,
                                                &grouped_linear_dw_kernel,
                                                NULL};
