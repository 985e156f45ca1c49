/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/linear.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/linear.h"

static bool is_plain(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype &&
           dsc_is_act(sig->out[0].dtype);
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

static ds_status plain_run(const ds_kernel_call *call)
{
    const dsc_linear_args args = args_of(call);
    const dsc_shape shape = in_tiles(&args, DSC_PLAIN_TILE, DSC_PLAIN_TILE * DSC_PLAIN_TILE);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_linear_f32, call->in[0].meta.dtype), &shape, &args,
                      sizeof args);
}

static ds_status mma_run(const ds_kernel_call *call)
{
    dsc_linear_args args = args_of(call);
    args.copies = args.n_in % 8 == 0 && ((uintptr_t)args.x | (uintptr_t)args.w) % 16 == 0;
    const dsc_shape shape = in_tiles(&args, DSC_MMA_TILE, DSC_MMA_THREADS);
    const dsc_fn fn =
        call->in[0].meta.dtype == DS_DTYPE_BF16 ? DSC_FN_linear_mma_bf16 : DSC_FN_linear_mma_f16;
    return dsc_launch(call, fn, &shape, &args, sizeof args);
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
const ds_kernel *const dsc_linear_kernels[] = {&mma_kernel, &plain_kernel, NULL};
