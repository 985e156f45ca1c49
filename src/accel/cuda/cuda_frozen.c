/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/frozen.cu and onebit_lamb.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/bin_layout.h"
#include "accel/cuda/kernels/frozen.h"

enum { IN_PARAM, IN_X, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_SQUARE };

static const dsc_shape one_warp = {{1, 1, 1}, {32, 1, 1}};

/* ---- param, x, hyper, factor, master, exp_avg, exp_avg_sq, … → param, master, exp_avg, … -------
 */

static bool is_update(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[IN_PARAM].dtype) && dsc_is_act(sig->in[IN_STATE].dtype) &&
           dsc_is_act(sig->in[IN_SQUARE].dtype);
}

/* exp_avg is one that is written, or the input alone. */
static dsc_frozen_args update_args(const ds_kernel_call *call, double eps)
{
    const ds_tensor *in = call->in;
    void *moment = dsc_out(call, 2);
    return (dsc_frozen_args){
        .update = {.param = dsc_out(call, 0),
                   .master = dsc_out(call, 1),
                   .state = {moment != NULL ? moment : (void *)(uintptr_t)dsc_in(call, IN_STATE),
                             (void *)(uintptr_t)dsc_in(call, IN_SQUARE)}, /* is read */
                   .grad = dsc_in(call, IN_X),
                   .hyper = dsc_in(call, IN_HYPER),
                   .factor = dsc_in(call, IN_FACTOR),
                   .n = ds_shape_count(in[IN_PARAM].meta.shape),
                   .param_dtype = (int32_t)in[IN_PARAM].meta.dtype,
                   .grad_dtype = (int32_t)in[IN_X].meta.dtype,
                   .state_dtype = (int32_t)in[IN_STATE].meta.dtype,
                   .eps = (float)eps},
        .square_dtype = (int32_t)in[IN_SQUARE].meta.dtype};
}

static double eps_of(const ds_kernel_call *call)
{
    return ((const dsi_optim_attrs *)call->sig->attrs)->eps;
}

static ds_status launch(const ds_kernel_call *call, dsc_fn fn, const dsc_frozen_args *args)
{
    const dsc_shape shape = dsc_over_items(args->update.n);
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static ds_status frozen_adam_run(const ds_kernel_call *call)
{
    const dsc_frozen_args args = update_args(call, eps_of(call));
    return launch(call, DSC_FN_frozen_adam, &args);
}

static ds_status frozen_lamb_run(const ds_kernel_call *call)
{
    const dsi_onebit_lamb_attrs *attrs = call->sig->attrs;
    dsc_frozen_args args = update_args(call, attrs->eps);
    args.ratio = dsc_in(call, IN_X);
    return launch(call, DSC_FN_frozen_lamb, &args);
}

static ds_status local_adam_run(const ds_kernel_call *call)
{
    dsc_frozen_args args = update_args(call, eps_of(call));
    args.local = dsc_out(call, 3);
    args.lrs = dsc_out(call, 4);
    return launch(call, DSC_FN_local_adam, &args);
}

static ds_status local_put_run(const ds_kernel_call *call)
{
    dsc_frozen_args args = update_args(call, eps_of(call));
    args.local = dsc_out(call, 3);
    args.lrs = dsc_out(call, 4);
    args.weight = dsc_out(call, 5);
    DS_TRY(launch(call, DSC_FN_local_put, &args));
    return dsc_launch(call, DSC_FN_local_clear, &one_warp, &args, sizeof args);
}

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->out[0].dtype);
}

static ds_status times_run(const ds_kernel_call *call)
{
    const dsc_frozen_args args = {.update = {.param = dsc_out(call, 0),
                                             .grad = dsc_in(call, 0),
                                             .factor = dsc_in(call, 1),
                                             .n = ds_shape_count(call->in[0].meta.shape),
                                             .param_dtype = (int32_t)call->out[0].meta.dtype,
                                             .grad_dtype = (int32_t)call->in[0].meta.dtype}};
    return launch(call, DSC_FN_times, &args);
}

static bool is_take(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[1].dtype);
}

static ds_status local_take_run(const ds_kernel_call *call)
{
    const dsc_frozen_args args = {
        .update = {.param = dsc_out(call, 0),
                   .state = {NULL, (void *)(uintptr_t)dsc_in(call, 1)}, /* is read */
                   .n = ds_shape_count(call->in[0].meta.shape),
                   .param_dtype = (int32_t)call->out[0].meta.dtype,
                   .eps = (float)eps_of(call)},
        .local = (float *)(uintptr_t)dsc_in(call, 0), /* likewise */
        .square_dtype = (int32_t)call->in[1].meta.dtype};
    return launch(call, DSC_FN_local_take, &args);
}

/* ---- numbers of 1-bit LAMB ------------------------------------------------------------------- */

static bool is_f32(const ds_kernel_sig *sig)
{
    return sig->out[0].dtype == DS_DTYPE_F32;
}

static dsc_freeze_args freeze_args(const ds_kernel_call *call)
{
    const dsi_onebit_lamb_attrs *attrs = call->sig->attrs;
    return (dsc_freeze_args){.to = dsc_out(call, 0),
                             .second = dsc_out(call, 1),
                             .count = attrs->count,
                             .coeff_beta = attrs->coeff_beta,
                             .max_coeff = attrs->max_coeff,
                             .min_coeff = attrs->min_coeff,
                             .factor_max = attrs->factor_max,
                             .factor_min = attrs->factor_min,
                             .factor_threshold = attrs->factor_threshold,
                             .eps = (float)attrs->eps};
}

static ds_status average_ratio_run(const ds_kernel_call *call)
{
    dsc_freeze_args args = freeze_args(call);
    args.sums = dsc_in(call, 1);
    return dsc_launch(call, DSC_FN_average_ratio, &one_warp, &args, sizeof args);
}

static ds_status root_mean_run(const ds_kernel_call *call)
{
    dsc_freeze_args args = freeze_args(call);
    args.sums = dsc_in(call, 0);
    return dsc_launch(call, DSC_FN_root_mean, &one_warp, &args, sizeof args);
}

/* scaling, factor, united, own → scaling, factor */
static ds_status freeze_lamb_run(const ds_kernel_call *call)
{
    dsc_freeze_args args = freeze_args(call);
    args.united = dsc_in(call, 2);
    args.own = dsc_in(call, 3);
    return dsc_launch(call, DSC_FN_freeze_lamb, &one_warp, &args, sizeof args);
}

/* exp_avg, moment, scaling, fresh, hyper → exp_avg, fresh */
static bool is_moments(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->in[1].dtype) &&
           dsc_is_act(sig->in[3].dtype);
}

static ds_status frozen_lamb_moments_run(const ds_kernel_call *call)
{
    dsc_freeze_args args = freeze_args(call);
    args.moment = dsc_out(call, 0);
    args.fresh = dsc_out(call, 1);
    args.given = dsc_in(call, 1);
    args.scaling = dsc_in(call, 2);
    args.hyper = dsc_in(call, 4);
    args.n = ds_shape_count(call->in[0].meta.shape);
    args.moment_dtype = (int32_t)call->in[0].meta.dtype;
    args.given_dtype = (int32_t)call->in[1].meta.dtype;
    args.fresh_dtype = (int32_t)call->in[3].meta.dtype;
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_frozen_lamb_moments, &shape, &args, sizeof args);
}

/* factor, ratio, exp_avg, exp_avg_sq, fresh, weight, hyper → factor, trust ratio */
static bool is_factor(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[2].dtype) && dsc_is_act(sig->in[3].dtype) &&
           dsc_is_act(sig->in[4].dtype) && dsc_is_act(sig->in[5].dtype);
}

static size_t factor_work(const ds_kernel_sig *sig)
{
    (void)sig;
    return (size_t)(DSC_SUM_BLOCKS + 1) * (2 * DSC_WIDE + 1) * sizeof(double);
}

static ds_status frozen_lamb_factor_run(const ds_kernel_call *call)
{
    const int64_t n = ds_shape_count(call->in[2].meta.shape);
    const dsc_shape many = dsc_sum_blocks(n);
    const dsc_shape one = {{1, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
    dsc_freeze_args args = freeze_args(call);
    args.ratio = dsc_in(call, 1);
    args.moment = (void *)(uintptr_t)dsc_in(call, 2); /* are read */
    args.square = dsc_in(call, 3);
    args.fresh = (void *)(uintptr_t)dsc_in(call, 4);
    args.weight = dsc_in(call, 5);
    args.hyper = dsc_in(call, 6);
    args.parts = call->work;
    args.n = n;
    args.n_parts = many.grid[0];
    args.moment_dtype = (int32_t)call->in[2].meta.dtype;
    args.square_dtype = (int32_t)call->in[3].meta.dtype;
    args.fresh_dtype = (int32_t)call->in[4].meta.dtype;
    args.weight_dtype = (int32_t)call->in[5].meta.dtype;
    DS_TRY(dsc_launch(call, DSC_FN_lamb_factor_sums, &many, &args, sizeof args));
    return dsc_launch(call, DSC_FN_lamb_factor, &one, &args, sizeof args);
}

/* ---- schedule-free: average, grad, hyper, factor, none, z, squares → average, none, z, squares -
 */

static bool is_average(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[1].dtype) &&
           sig->in[5].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[6].dtype);
}

static ds_status schedule_free_run(const ds_kernel_call *call)
{
    const dsc_average_args args = {.average = dsc_out(call, 0),
                                   .z = dsc_out(call, 2),
                                   .squares = dsc_out(call, 3),
                                   .grad = dsc_in(call, 1),
                                   .hyper = dsc_in(call, 2),
                                   .factor = dsc_in(call, 3),
                                   .n = ds_shape_count(call->in[0].meta.shape),
                                   .grad_dtype = (int32_t)call->in[1].meta.dtype,
                                   .squares_dtype = (int32_t)call->in[6].meta.dtype,
                                   .eps = (float)eps_of(call)};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_schedule_free, &shape, &args, sizeof args);
}

static ds_status schedule_free_point_run(const ds_kernel_call *call)
{
    const dsc_average_args args = {.average = (float *)(uintptr_t)dsc_in(call, 0), /* are read */
                                   .z = (float *)(uintptr_t)dsc_in(call, 1),
                                   .hyper = dsc_in(call, 2),
                                   .point = dsc_out(call, 0),
                                   .n = ds_shape_count(call->in[0].meta.shape),
                                   .is_average =
                                       ((const dsi_point_attrs *)call->sig->attrs)->average != 0};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_schedule_free_point, &shape, &args, sizeof args);
}

DSC_ROW(frozen_adam, is_update, frozen_adam_run);
DSC_ROW(frozen_lamb, is_update, frozen_lamb_run);
DSC_ROW(local_adam, is_update, local_adam_run);
DSC_ROW(local_put, is_update, local_put_run);
DSC_ROW(local_take, is_take, local_take_run);
DSC_ROW(times, is_act, times_run);
DSC_ROW(average_ratio, is_f32, average_ratio_run);
DSC_ROW(root_mean, is_f32, root_mean_run);
DSC_ROW(freeze_lamb, is_f32, freeze_lamb_run);
DSC_ROW(frozen_lamb_moments, is_moments, frozen_lamb_moments_run);
DSC_ROW_WORK(frozen_lamb_factor, is_factor, factor_work, frozen_lamb_factor_run);
DSC_ROW(schedule_free, is_average, schedule_free_run);
DSC_ROW(schedule_free_point, is_f32, schedule_free_point_run);
const ds_kernel *const dsc_frozen_kernels[] = {
    &frozen_adam_kernel,         &frozen_lamb_kernel,
    &local_adam_kernel,          &local_put_kernel,
    &local_take_kernel,          &times_kernel,
    &average_ratio_kernel,       &root_mean_kernel,
    &freeze_lamb_kernel,         &frozen_lamb_moments_kernel,
    &frozen_lamb_factor_kernel,  &schedule_free_kernel,
    &schedule_free_point_kernel, NULL};
