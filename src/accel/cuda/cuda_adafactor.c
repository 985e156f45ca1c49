/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/adafactor.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/adafactor.h"

enum { IN_MOMENT, IN_GRAD, IN_HYPER, IN_FACTOR };
enum { OF_GRAD, OF_FACTOR, OF_ROWS, OF_COLUMNS };
enum { IN_PARAM, IN_DIRECTION, UPDATE_HYPER, IN_DIRECTION_SQUARES, IN_MASTER, IN_STATE };
enum { IN_SQUARES = IN_STATE + 1 };

static bool is_moment(const ds_kernel_sig *sig)
{
    return sig->in[IN_MOMENT].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[IN_GRAD].dtype);
}

/* A gradient as matrices; a vector has rows of one. */
static void set_sizes(dsc_adafactor_args *args, ds_shape grad)
{
    args->factored = grad.n_dims > 1;
    args->columns = args->factored ? ds_shape_last(grad) : 1;
    args->rows = args->factored ? grad.dims[grad.n_dims - 2] : ds_shape_count(grad);
    args->matrices = args->factored && args->rows > 0 ? ds_shape_rows(grad) / args->rows : 1;
    args->update.n = ds_shape_count(grad);
}

static dsc_adafactor_args moment_args(const ds_kernel_call *call)
{
    const dsi_adafactor_attrs *attrs = call->sig->attrs;
    dsc_adafactor_args args = {.update = {.grad = dsc_in(call, IN_GRAD),
                                          .hyper = dsc_in(call, IN_HYPER),
                                          .factor = dsc_in(call, IN_FACTOR),
                                          .grad_dtype = (int32_t)call->in[IN_GRAD].meta.dtype,
                                          .eps = (float)attrs->eps},
                               .moment_in = dsc_in(call, IN_MOMENT),
                               .moment = dsc_out(call, 0)};
    set_sizes(&args, call->in[IN_GRAD].meta.shape);
    return args;
}

static ds_status adafactor_rows_run(const ds_kernel_call *call)
{
    const dsc_adafactor_args args = moment_args(call);
    const dsc_shape shape = dsc_block_an_item((args.matrices * args.rows + 31) / 32, DSC_BLOCK);
    return dsc_launch(call, DSC_FN_adafactor_rows, &shape, &args, sizeof args);
}

static ds_status adafactor_columns_run(const ds_kernel_call *call)
{
    const dsc_adafactor_args args = moment_args(call);
    const dsc_shape shape = dsc_over_items(args.matrices * args.columns);
    return dsc_launch(call, DSC_FN_adafactor_columns, &shape, &args, sizeof args);
}

static bool is_direction(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[OF_GRAD].dtype) && sig->out[0].dtype == DS_DTYPE_F32;
}

/* A mean for each matrix. */
static size_t direction_work(const ds_kernel_sig *sig)
{
    dsc_adafactor_args args = {0};
    set_sizes(&args, sig->in[OF_GRAD].shape);
    return (size_t)args.matrices * sizeof(float) + 64;
}

static ds_status adafactor_direction_run(const ds_kernel_call *call)
{
    dsc_adafactor_args args = {.update = {.grad = dsc_in(call, OF_GRAD),
                                          .factor = dsc_in(call, OF_FACTOR),
                                          .grad_dtype = (int32_t)call->in[OF_GRAD].meta.dtype},
                               .row_moments = dsc_in(call, OF_ROWS),
                               .column_moments = dsc_in(call, OF_COLUMNS),
                               .means = call->work,
                               .direction = dsc_out(call, 0)};
    set_sizes(&args, call->in[OF_GRAD].meta.shape);
    const dsc_shape by_matrix = dsc_block_an_item(args.matrices, DSC_BLOCK);
    const dsc_shape all = dsc_over_items(args.update.n);
    if (args.factored != 0) {
        DS_TRY(dsc_launch(call, DSC_FN_adafactor_means, &by_matrix, &args, sizeof args));
    }
    return dsc_launch(call, DSC_FN_adafactor_direction, &all, &args, sizeof args);
}

static bool is_update(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[IN_PARAM].dtype) && sig->in[IN_DIRECTION].dtype == DS_DTYPE_F32;
}

static ds_status adafactor_run(const ds_kernel_call *call)
{
    const dsi_adafactor_attrs *attrs = call->sig->attrs;
    const dsc_adafactor_args args = {
        .update = {.param = dsc_out(call, 0),
                   .master = dsc_out(call, 1),
                   .state = {dsc_out(call, 2)},
                   .grad = dsc_in(call, IN_DIRECTION),
                   .hyper = dsc_in(call, UPDATE_HYPER),
                   .n = ds_shape_count(call->in[IN_PARAM].meta.shape),
                   .param_dtype = (int32_t)call->in[IN_PARAM].meta.dtype,
                   .grad_dtype = (int32_t)call->in[IN_DIRECTION].meta.dtype,
                   .state_dtype = (int32_t)call->in[IN_STATE].meta.dtype},
        .direction_squares = dsc_in(call, IN_DIRECTION_SQUARES),
        .squares = dsc_in(call, IN_SQUARES),
        .count = attrs->count,
        .clip_threshold = (float)attrs->clip_threshold,
        .scale_eps = (float)attrs->scale_eps,
        .scales = attrs->scales != 0};
    const dsc_shape shape = dsc_over_items(args.update.n);
    return dsc_launch(call, DSC_FN_adafactor, &shape, &args, sizeof args);
}

DSC_ROW(adafactor_rows, is_moment, adafactor_rows_run);
DSC_ROW(adafactor_columns, is_moment, adafactor_columns_run);
DSC_ROW_WORK(adafactor_direction, is_direction, direction_work, adafactor_direction_run);
DSC_ROW(adafactor, is_update, adafactor_run);
const ds_kernel *const dsc_adafactor_kernels[] = {&adafactor_rows_kernel, &adafactor_columns_kernel,
                                                  &adafactor_direction_kernel, &adafactor_kernel,
                                                  NULL};
