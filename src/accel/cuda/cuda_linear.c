/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/linear.cu and linear_dw.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/linear.h"

static bool is_plain(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype &&
           dsc_is_act(sig->out[0].dtype) &&
           dsc_fits_y(ds_shape_rows(sig->in[0].shape), DSC_PLAIN_TILE);
}

static bool is_mma(const ds_kernel_sig *sig)
{
    return is_plain(sig) && sig->in[0].dtype != DS_DTYPE_F32;
}

static dsc_linear_args args_of(const ds_kernel_call *call)
{
    const dsi_linear_attrs *attrs = call->sig->attrs;
    return (dsc_linear_args){.x = dsc_in(call, 0),
                             .w = dsc_in(call, 1),
                             .bias = dsc_in(call, 2),
                             .residual = dsc_in(call, 3),
                             .y = dsc_out(call, 0),
                             .pre = dsc_out(call, 1),
                             .rows = ds_shape_rows(call->in[0].meta.shape),
                             .n_in = ds_shape_last(call->in[0].meta.shape),
                             .n_out = ds_shape_last(call->out[0].meta.shape),
                             .transposed = attrs->transposed != 0,
                             .activation = (int32_t)attrs->activation,
                             .bias_dtype =
                                 dsc_in(call, 2) != NULL ? (int32_t)call->in[2].meta.dtype : 0,
                             .y_dtype = (int32_t)call->out[0].meta.dtype};
}

static dsc_shape in_tiles(const dsc_linear_args *a, int64_t tile, uint32_t threads)
{
    return (dsc_shape){
        {(uint32_t)((a->n_out + tile - 1) / tile), (uint32_t)((a->rows + tile - 1) / tile), 1},
        {threads, 1, 1}};
}

static ds_status launch_plain(const ds_kernel_call *call, const dsc_linear_args *args,
                              ds_dtype dtype)
{
    const dsc_shape shape = in_tiles(args, DSC_PLAIN_TILE, DSC_PLAIN_TILE * DSC_PLAIN_TILE);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_linear_f32, dtype), &shape, args, sizeof *args);
}

static ds_status launch_mma(const ds_kernel_call *call, dsc_linear_args *args, ds_dtype dtype)
{
    args->copies = args->n_in % 8 == 0 && ((uintptr_t)args->x | (uintptr_t)args->w) % 16 == 0;
    const dsc_shape shape = in_tiles(args, DSC_MMA_TILE, DSC_MMA_THREADS);
    const dsc_fn fn = dtype == DS_DTYPE_BF16 ? DSC_FN_linear_mma_bf16 : DSC_FN_linear_mma_f16;
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static ds_status plain_run(const ds_kernel_call *call)
{
    const dsc_linear_args args = args_of(call);
    return launch_plain(call, &args, call->in[0].meta.dtype);
}

static ds_status mma_run(const ds_kernel_call *call)
{
    dsc_linear_args args = args_of(call);
    return launch_mma(call, &args, call->in[0].meta.dtype);
}

ds_status dsc_multiply(const ds_kernel_call *call, const dsc_product *p)
{
    dsc_linear_args args = {.x = p->x,
                            .w = p->w,
                            .y = p->y,
                            .rows = p->rows,
                            .n_in = p->n_in,
                            .n_out = p->n_out,
                            .transposed = p->transposed,
                            .activation = DSI_ACT_NONE,
                            .y_dtype = (int32_t)p->y_dtype};
    return p->dtype == DS_DTYPE_F32 ? launch_plain(call, &args, p->dtype)
                                    : launch_mma(call, &args, p->dtype);
}

/* ---- linear_dw ----------------------------------------------------------------------------- */

static ds_status launch_dw(const ds_kernel_call *call, const dsc_linear_dw_args *args,
                           ds_dtype dtype)
{
    const dsc_shape tiles = {{(uint32_t)((args->n_out + DSC_PLAIN_TILE - 1) / DSC_PLAIN_TILE),
                              (uint32_t)((args->n_in + DSC_PLAIN_TILE - 1) / DSC_PLAIN_TILE), 1},
                             {DSC_PLAIN_TILE * DSC_PLAIN_TILE, 1, 1}};
    return dsc_launch(call, dsc_of_dtype(DSC_FN_linear_dw_f32, dtype), &tiles, args, sizeof *args);
}

ds_status dsc_multiply_rows(const ds_kernel_call *call, const void *x, const void *dy,
                            ds_dtype dtype, int64_t rows, int64_t n_in, int64_t n_out,
                            bool transposed, const float *dw_in, float *dw)
{
    const dsc_linear_dw_args args = {.x = x,
                                     .dy = dy,
                                     .dw_in = dw_in,
                                     .dw = dw,
                                     .rows = rows,
                                     .n_in = n_in,
                                     .n_out = n_out,
                                     .transposed = transposed,
                                     .dw_dtype = DS_DTYPE_F32};
    return launch_dw(call, &args, dtype);
}

static bool is_dw(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype &&
           dsc_is_act(sig->out[0].dtype) &&
           dsc_fits_y(ds_shape_last(sig->in[0].shape), DSC_PLAIN_TILE);
}

static dsc_linear_dw_args dw_args_of(const ds_kernel_call *call)
{
    const dsi_linear_dw_attrs *attrs = call->sig->attrs;
    return (dsc_linear_dw_args){.x = dsc_in(call, 0),
                                .dy = dsc_in(call, 1),
                                .dw_in = dsc_in(call, 2),
                                .dbias_in = dsc_in(call, 3),
                                .dw = dsc_out(call, 0),
                                .dbias = dsc_out(call, 1),
                                .rows = ds_shape_rows(call->in[0].meta.shape),
                                .n_in = ds_shape_last(call->in[0].meta.shape),
                                .n_out = ds_shape_last(call->in[1].meta.shape),
                                .transposed = attrs->transposed != 0,
                                .dw_dtype = (int32_t)call->out[0].meta.dtype};
}

ds_status dsc_sum_columns(const ds_kernel_call *call)
{
    const dsc_linear_dw_args args = dw_args_of(call);
    if (args.dbias == NULL) {
        return DS_OK;
    }
    const dsc_shape columns = dsc_block_an_item((args.n_out + 31) / 32, DSC_BLOCK);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_column_sums_f32, call->in[0].meta.dtype), &columns,
                      &args, sizeof args);
}

static ds_status linear_dw_run(const ds_kernel_call *call)
{
    const dsc_linear_dw_args args = dw_args_of(call);
    DS_TRY(launch_dw(call, &args, call->in[0].meta.dtype));
    return dsc_sum_columns(call);
}

static const ds_kernel mma_kernel = {.version = DS_OP_VERSION,
                                     .name = "cuda_mma",
                                     .op = "linear",
                                     .supports = is_mma,
                                     .run = mma_run};
static const ds_kernel plain_kernel = {.version = DS_OP_VERSION,
                                       .name = "cuda",
                                       .op = "linear",
                                       .supports = is_plain,
                                       .run = plain_run};
DSC_ROW(linear_dw, is_dw, linear_dw_run);
const ds_kernel *const dsc_linear_kernels[] = {&mma_kernel, &plain_kernel, &linear_dw_kernel, NULL};
