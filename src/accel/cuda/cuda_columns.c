/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/columns.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/columns.h"

static dsc_columns_args args_of(const ds_kernel_call *call)
{
    const dsi_columns_attrs *a = call->sig->attrs;
    return (dsc_columns_args){
        .out = dsc_out(call, 0), .rows = a->rows, .columns = a->columns, .n_ranks = 1};
}

/* The tensor that is the whole weight or a rank's slice of it. */
static void take_part(dsc_columns_args *args, const ds_tensor *x, const void *rank)
{
    args->n_slice = x->meta.shape.n_dims == 1 ? x->meta.shape.dims[0] : 0;
    args->rank = rank;
}

static bool act_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static bool is_supported(const ds_kernel_sig *sig)
{
    (void)sig;
    return true;
}

static ds_status column_sums_run(const ds_kernel_call *call)
{
    dsc_columns_args args = args_of(call);
    args.x = dsc_in(call, 0);
    args.x_dtype = (int32_t)call->in[0].meta.dtype;
    args.top = dsc_in(call, 1);
    take_part(&args, &call->in[0], dsc_in(call, 2));
    const dsc_shape shape = dsc_over_items(args.columns);
    return dsc_launch(call, DSC_FN_magnitude_sums, &shape, &args, sizeof args);
}

static size_t totals_bytes(const ds_kernel_sig *sig)
{
    const dsi_columns_attrs *a = sig->attrs;
    return (size_t)a->columns * sizeof(double);
}

static size_t choice_bytes(const ds_kernel_sig *sig)
{
    const dsi_columns_attrs *a = sig->attrs;
    return totals_bytes(sig) + (size_t)a->columns;
}

static ds_status add_ranks(const ds_kernel_call *call, dsc_columns_args *args)
{
    const ds_shape *sums = &call->in[1].meta.shape;
    const dsc_shape shape = dsc_over_items(args->columns);
    args->sums = dsc_in(call, 1);
    args->n_ranks = sums->n_dims == 2 ? sums->dims[0] : 1;
    args->totals = call->work;
    return dsc_launch(call, DSC_FN_column_totals, &shape, args, sizeof *args);
}

static ds_status choose_columns_run(const ds_kernel_call *call)
{
    dsc_columns_args args = args_of(call);
    const dsc_shape shape = dsc_over_items(args.columns);
    const dsc_shape one = {{1, 1, 1}, {DSC_LIST_THREADS, 1, 1}};
    DS_TRY(add_ranks(call, &args));
    args.chosen = (unsigned char *)(args.totals + args.columns);
    args.k = call->out[0].meta.shape.dims[0];
    args.index_out = dsc_out(call, 0);
    DS_TRY(dsc_launch(call, DSC_FN_mark_columns, &shape, &args, sizeof args));
    return dsc_launch(call, DSC_FN_list_columns, &one, &args, sizeof args);
}

static ds_status weigh_columns_run(const ds_kernel_call *call)
{
    dsc_columns_args args = args_of(call);
    const dsc_shape one = {{1, 1, 1}, {1, 1, 1}};
    DS_TRY(add_ranks(call, &args));
    args.weights = dsc_in(call, 0);
    args.index = dsc_in(call, 2);
    args.k = call->in[2].meta.shape.dims[0];
    args.more = dsc_in(call, 3);
    return dsc_launch(call, DSC_FN_weigh_columns, &one, &args, sizeof args);
}

static ds_status take_columns_run(const ds_kernel_call *call)
{
    dsc_columns_args args = args_of(call);
    args.x = dsc_in(call, 0);
    args.x_dtype = (int32_t)call->in[0].meta.dtype;
    args.out_dtype = (int32_t)call->out[0].meta.dtype;
    args.index = dsc_in(call, 1);
    args.k = call->out[0].meta.shape.dims[1];
    args.n = args.rows * args.k;
    take_part(&args, &call->in[0], dsc_in(call, 2));
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_take_columns, &shape, &args, sizeof args);
}

static ds_status put_columns_run(const ds_kernel_call *call)
{
    dsc_columns_args args = args_of(call);
    args.x = dsc_in(call, 1);
    args.x_dtype = DS_DTYPE_F32;
    args.out_dtype = (int32_t)call->out[0].meta.dtype;
    args.index = dsc_in(call, 2);
    args.k = call->in[1].meta.shape.dims[1];
    take_part(&args, &call->out[0], dsc_in(call, 3));
    const dsc_shape shape = dsc_over_items(args.rows);
    DS_TRY(dsc_copy_whole(call, 0, &call->in[0]));
    return dsc_launch(call, DSC_FN_put_columns, &shape, &args, sizeof args);
}

static bool postpone_supported(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype);
}

static ds_status postpone_run(const ds_kernel_call *call)
{
    const dsc_columns_args args = {.cell = dsc_in(call, 0),
                                   .x = dsc_in(call, 1),
                                   .x_dtype = (int32_t)call->in[1].meta.dtype,
                                   .more = dsc_in(call, 2),
                                   .factor = dsc_in(call, 3),
                                   .out = dsc_out(call, 0),
                                   .n = ds_shape_count(call->out[0].meta.shape)};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_postpone, &shape, &args, sizeof args);
}

DSC_ROW(column_sums, act_supported, column_sums_run);
DSC_ROW_WORK(choose_columns, is_supported, choice_bytes, choose_columns_run);
DSC_ROW_WORK(weigh_columns, is_supported, totals_bytes, weigh_columns_run);
DSC_ROW(take_columns, act_supported, take_columns_run);
DSC_ROW(put_columns, act_supported, put_columns_run);
DSC_ROW(postpone, postpone_supported, postpone_run);
const ds_kernel *const dsc_columns_kernels[] = {&column_sums_kernel,
                                                &choose_columns_kernel,
                                                &weigh_columns_kernel,
                                                &take_columns_kernel,
                                                &put_columns_kernel,
                                                &postpone_kernel,
                                                NULL};
