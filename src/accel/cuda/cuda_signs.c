/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/signs.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/bin_layout.h"
#include "accel/cuda/kernels/signs.h"

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static bool is_signs(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_U8;
}

static size_t compress_work(const ds_kernel_sig *sig)
{
    (void)sig;
    return (size_t)DSC_SUM_BLOCKS * DSC_WIDE * sizeof(double);
}

/* x, error → signs, scale, error */
static ds_status compress_signs_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[1].meta.shape);
    const dsc_shape many = dsc_sum_blocks(n);
    const dsc_shape one = {{1, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
    const dsc_shape by_byte = dsc_over_items(n / 8);
    const dsc_signs_args args = {.x = dsc_in(call, 0),
                                 .error = dsc_out(call, 2),
                                 .signs = dsc_out(call, 0),
                                 .scales = dsc_out(call, 1),
                                 .parts = call->work,
                                 .n = n,
                                 .n_x = ds_shape_count(call->in[0].meta.shape),
                                 .n_parts = many.grid[0],
                                 .x_dtype = (int32_t)call->in[0].meta.dtype};
    DS_TRY(dsc_launch(call, DSC_FN_signs_measure, &many, &args, sizeof args));
    DS_TRY(dsc_launch(call, DSC_FN_signs_scale, &one, &args, sizeof args));
    return dsc_launch(call, DSC_FN_signs_pack, &by_byte, &args, sizeof args);
}

/* signs, scales → y */
static ds_status run_back(const ds_kernel_call *call, dsc_fn fn)
{
    const int64_t n_scales = call->in[1].meta.shape.dims[0];
    const dsc_signs_args args = {.signs = (uint8_t *)(uintptr_t)dsc_in(call, 0), /* are read */
                                 .scales = (float *)(uintptr_t)dsc_in(call, 1),
                                 .y = dsc_out(call, 0),
                                 .n = call->out[0].meta.shape.dims[0],
                                 .n_scales = n_scales,
                                 .block = ds_shape_count(call->in[0].meta.shape) * 8 /
                                          (n_scales > 0 ? n_scales : 1)};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

static ds_status average_signs_run(const ds_kernel_call *call)
{
    return run_back(call, DSC_FN_signs_average);
}

static ds_status expand_signs_run(const ds_kernel_call *call)
{
    return run_back(call, DSC_FN_signs_expand);
}

DSC_ROW_WORK(compress_signs, is_act, compress_work, compress_signs_run);
DSC_ROW(average_signs, is_signs, average_signs_run);
DSC_ROW(expand_signs, is_signs, expand_signs_run);
const ds_kernel *const dsc_signs_kernels[] = {&compress_signs_kernel, &average_signs_kernel,
                                              &expand_signs_kernel, NULL};
