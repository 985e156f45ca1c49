/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/muon.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/muon.h"

enum { MOMENT, GRAD, HYPER, FACTOR, SCALING };
enum { IN_PARAM, IN_DIRECTION, IN_HYPER };

static bool is_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->in[1].dtype);
}

static bool unit_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static ds_status first_moment_run(const ds_kernel_call *call)
{
    const dsc_moment_args args = {.moment = dsc_in(call, MOMENT),
                                  .grad = dsc_in(call, GRAD),
                                  .hyper = dsc_in(call, HYPER),
                                  .factor = dsc_in(call, FACTOR),
                                  .scaling = dsc_in(call, SCALING),
                                  .out = dsc_out(call, 0),
                                  .n = ds_shape_count(call->in[MOMENT].meta.shape),
                                  .moment_dtype = (int32_t)call->in[MOMENT].meta.dtype,
                                  .grad_dtype = (int32_t)call->in[GRAD].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_first_moment, &shape, &args, sizeof args);
}

/* Elements of a matrix, the last two dims. */
static int64_t matrix_size(ds_shape shape)
{
    return shape.dims[shape.n_dims - 2] * shape.dims[shape.n_dims - 1];
}

static int64_t count_matrices(ds_shape shape)
{
    const int64_t size = matrix_size(shape);
    return size > 0 ? ds_shape_count(shape) / size : 0;
}

/* Parts, then divisors. */
static size_t unit_work(const ds_kernel_sig *sig)
{
    const ds_shape shape = sig->in[0].shape;
    const size_t n = (size_t)count_matrices(shape);
    const size_t n_parts = dsc_sum_blocks(matrix_size(shape)).grid[0];
    return n * (n_parts * DSC_WIDE * sizeof(double) + sizeof(float));
}

static ds_status unit_matrix_run(const ds_kernel_call *call)
{
    const ds_meta *x = &call->in[0].meta;
    dsc_unit_args args = {.x = dsc_in(call, 0),
                          .out = dsc_out(call, 0),
                          .parts = call->work,
                          .n_matrices = count_matrices(x->shape),
                          .size = matrix_size(x->shape),
                          .x_dtype = (int32_t)x->dtype,
                          .out_dtype = (int32_t)call->out[0].meta.dtype};
    if (args.n_matrices == 0) {
        return DS_OK;
    }
    args.n_parts = dsc_sum_blocks(args.size).grid[0];
    args.divisor = (float *)(args.parts + args.n_matrices * args.n_parts * DSC_WIDE);
    const dsc_shape sums = dsc_block_an_item(args.n_matrices * args.n_parts, DSC_SUM_THREADS);
    const dsc_shape norms = dsc_block_an_item(args.n_matrices, DSC_SUM_THREADS);
    const dsc_shape each = dsc_over_items(args.n_matrices * args.size);
    DS_TRY(dsc_launch(call, DSC_FN_unit_sums, &sums, &args, sizeof args));
    DS_TRY(dsc_launch(call, DSC_FN_unit_norms, &norms, &args, sizeof args));
    return dsc_launch(call, DSC_FN_unit_matrix, &each, &args, sizeof args);
}

static ds_status muon_run(const ds_kernel_call *call)
{
    const dsc_optimizer_args args = {.param = dsc_out(call, 0),
                                     .master = dsc_out(call, 1),
                                     .grad = dsc_in(call, IN_DIRECTION),
                                     .hyper = dsc_in(call, IN_HYPER),
                                     .n = ds_shape_count(call->in[IN_PARAM].meta.shape),
                                     .param_dtype = (int32_t)call->in[IN_PARAM].meta.dtype,
                                     .grad_dtype = (int32_t)call->in[IN_DIRECTION].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_muon, &shape, &args, sizeof args);
}

DSC_ROW(first_moment, is_supported, first_moment_run);
DSC_ROW_WORK(unit_matrix, unit_supported, unit_work, unit_matrix_run);
DSC_ROW(muon, is_supported, muon_run);
const ds_kernel *const dsc_muon_kernels[] = {&first_moment_kernel, &unit_matrix_kernel,
                                             &muon_kernel, NULL};
