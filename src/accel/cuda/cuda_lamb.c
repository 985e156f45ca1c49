/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/lamb.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/lamb.h"

/* lamb_moments and lamb; lamb_sums */
enum { IN_FIRST, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, IN_STATE_SQ };
enum { SUMS_M, SUMS_V, SUMS_WEIGHT, SUMS_HYPER };

static bool moments_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[IN_FIRST].dtype) && dsc_is_act(sig->in[IN_GRAD].dtype) &&
           dsc_is_act(sig->in[IN_STATE].dtype);
}

static bool sums_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[SUMS_M].dtype) && dsc_is_act(sig->in[SUMS_V].dtype) &&
           dsc_is_act(sig->in[SUMS_WEIGHT].dtype);
}

static bool lamb_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[IN_FIRST].dtype) && dsc_is_act(sig->in[IN_STATE].dtype) &&
           dsc_is_act(sig->in[IN_STATE_SQ].dtype);
}

static ds_status lamb_moments_run(const ds_kernel_call *call)
{
    const dsc_optimizer_args args = {.param = dsc_out(call, 0),
                                     .state = {NULL, dsc_out(call, 2)},
                                     .grad = dsc_in(call, IN_GRAD),
                                     .hyper = dsc_in(call, IN_HYPER),
                                     .factor = dsc_in(call, IN_FACTOR),
                                     .n = ds_shape_count(call->in[IN_FIRST].meta.shape),
                                     .param_dtype = (int32_t)call->in[IN_FIRST].meta.dtype,
                                     .grad_dtype = (int32_t)call->in[IN_GRAD].meta.dtype,
                                     .state_dtype = (int32_t)call->in[IN_STATE].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_lamb_moments, &shape, &args, sizeof args);
}

static size_t sums_work(const ds_kernel_sig *sig)
{
    (void)sig;
    return (size_t)DSC_SUM_BLOCKS * 2 * DSC_WIDE * sizeof(double);
}

static ds_status lamb_sums_run(const ds_kernel_call *call)
{
    const dsi_optim_attrs *attrs = call->sig->attrs;
    const ds_tensor *in = call->in;
    const int64_t n = ds_shape_count(in[SUMS_M].meta.shape);
    const dsc_shape many = dsc_sum_blocks(n);
    const dsc_shape one = {{1, 1, 1}, {DSC_SUM_THREADS, 1, 1}};
    const dsc_lamb_args args = {
        .update = {.param = (void *)(uintptr_t)dsc_in(call, SUMS_WEIGHT), /* is read */
                   .hyper = dsc_in(call, SUMS_HYPER),
                   .n = n,
                   .param_dtype = (int32_t)in[SUMS_WEIGHT].meta.dtype,
                   .eps = (float)attrs->eps},
        .m = dsc_in(call, SUMS_M),
        .v = dsc_in(call, SUMS_V),
        .parts = call->work,
        .sums = dsc_out(call, 0),
        .n_parts = many.grid[0],
        .m_dtype = (int32_t)in[SUMS_M].meta.dtype,
        .v_dtype = (int32_t)in[SUMS_V].meta.dtype};
    DS_TRY(dsc_launch(call, DSC_FN_lamb_sums, &many, &args, sizeof args));
    return dsc_launch(call, DSC_FN_lamb_sums_join, &one, &args, sizeof args);
}

static ds_status lamb_run(const ds_kernel_call *call)
{
    const dsi_optim_attrs *attrs = call->sig->attrs;
    const ds_tensor *in = call->in;
    const dsc_lamb_args args = {.update = {.param = dsc_out(call, 0),
                                           .master = dsc_out(call, 1),
                                           .hyper = dsc_in(call, IN_HYPER),
                                           .n = ds_shape_count(in[IN_FIRST].meta.shape),
                                           .param_dtype = (int32_t)in[IN_FIRST].meta.dtype,
                                           .eps = (float)attrs->eps},
                                .m = dsc_in(call, IN_STATE),
                                .v = dsc_in(call, IN_STATE_SQ),
                                .sums = (double *)(uintptr_t)dsc_in(call, IN_GRAD), /* is read */
                                .max_coeff = attrs->max_coeff,
                                .min_coeff = attrs->min_coeff,
                                .m_dtype = (int32_t)in[IN_STATE].meta.dtype,
                                .v_dtype = (int32_t)in[IN_STATE_SQ].meta.dtype};
    const dsc_shape shape = dsc_over_items(args.update.n);
    return dsc_launch(call, DSC_FN_lamb, &shape, &args, sizeof args);
}

DSC_ROW(lamb_moments, moments_supported, lamb_moments_run);
DSC_ROW_WORK(lamb_sums, sums_supported, sums_work, lamb_sums_run);
DSC_ROW(lamb, lamb_supported, lamb_run);
const ds_kernel *const dsc_lamb_kernels[] = {&lamb_moments_kernel, &lamb_sums_kernel, &lamb_kernel,
                                             NULL};
