/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/reduce.cu and bmm.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/linear.h"
#include "accel/cuda/kernels/reduce_args.h"

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && dsc_is_act(sig->out[0].dtype);
}

static dsc_reduce_args args_of(const ds_kernel_call *call, int64_t rows, int64_t columns)
{
    return (dsc_reduce_args){.x = dsc_in(call, 0),
                             .y = dsc_out(call, 0),
                             .rows = rows,
                             .columns = columns,
                             .divisor = 1.0f,
                             .x_dtype = (int32_t)call->in[0].meta.dtype,
                             .y_dtype = (int32_t)call->out[0].meta.dtype};
}

static ds_status run_all(const ds_kernel_call *call, bool mean)
{
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    dsc_reduce_args args = args_of(call, 1, n);
    args.divisor = mean ? (float)n : 1.0f;
    const dsc_shape shape = dsc_block_an_item(1, n);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_sum_last_f32, call->in[0].meta.dtype), &shape,
                      &args, sizeof args);
}

static ds_status sum_all_run(const ds_kernel_call *call)
{
    return run_all(call, false);
}

static ds_status mean_all_run(const ds_kernel_call *call)
{
    return run_all(call, true);
}

static ds_status run_rows(const ds_kernel_call *call, dsc_fn first)
{
    const ds_meta *x = &call->in[0].meta;
    const dsc_reduce_args args = args_of(call, ds_shape_rows(x->shape), ds_shape_last(x->shape));
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(first, x->dtype), &shape, &args, sizeof args);
}

static ds_status sum_last_run(const ds_kernel_call *call)
{
    return run_rows(call, DSC_FN_sum_last_f32);
}

static ds_status max_last_run(const ds_kernel_call *call)
{
    return run_rows(call, DSC_FN_max_last_f32);
}

static ds_status sum_rows_run(const ds_kernel_call *call)
{
    const ds_meta *x = &call->in[0].meta;
    const dsc_reduce_args args = args_of(call, ds_shape_rows(x->shape), ds_shape_last(x->shape));
    const dsc_shape shape = dsc_block_an_item((args.columns + 31) / 32, DSC_BLOCK);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_sum_rows_f32, x->dtype), &shape, &args,
                      sizeof args);
}

static bool is_max_backward(const ds_kernel_sig *sig)
{
    return is_act(sig) && sig->in[1].dtype == sig->in[0].dtype &&
           sig->in[2].dtype == sig->in[0].dtype;
}

static ds_status max_last_backward_run(const ds_kernel_call *call)
{
    const ds_meta *x = &call->in[1].meta;
    dsc_reduce_args args = args_of(call, ds_shape_rows(x->shape), ds_shape_last(x->shape));
    args.x = dsc_in(call, 1);
    args.dy = dsc_in(call, 0);
    args.y_saved = dsc_in(call, 2);
    const dsc_shape shape = dsc_block_an_item(args.rows, args.columns);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_max_last_backward_f32, x->dtype), &shape, &args,
                      sizeof args);
}

/* ---- the same everywhere --------------------------------------------------------------------- */

/* at: the input that is spread. */
static ds_status run_expand(const ds_kernel_call *call, uint32_t at, int32_t kind)
{
    const dsc_expand_args args = {.x = dsc_in(call, at),
                                  .y = dsc_out(call, 0),
                                  .n = ds_shape_count(call->out[0].meta.shape),
                                  .columns = ds_shape_last(call->out[0].meta.shape),
                                  .x_dtype = (int32_t)call->in[at].meta.dtype,
                                  .y_dtype = (int32_t)call->out[0].meta.dtype,
                                  .kind = kind};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_expand, &shape, &args, sizeof args);
}

static bool is_fill(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && dsc_is_act(sig->out[0].dtype);
}

static ds_status fill_run(const ds_kernel_call *call)
{
    return run_expand(call, 1, DSC_EXPAND_ONE);
}

static ds_status expand_last_run(const ds_kernel_call *call)
{
    return run_expand(call, 0, DSC_EXPAND_LAST);
}

static ds_status expand_rows_run(const ds_kernel_call *call)
{
    return run_expand(call, 0, DSC_EXPAND_ROWS);
}

/* ---- bmm ---------------------------------------------------------------------------------------
 */

static bool is_bmm(const ds_kernel_sig *sig)
{
    const ds_shape y = sig->out[0].shape;
    return is_act(sig) && sig->in[1].dtype == sig->in[0].dtype &&
           dsc_fits_y(y.dims[y.n_dims - 2], DSC_PLAIN_TILE);
}

static ds_status bmm_run(const ds_kernel_call *call)
{
    const dsi_bmm_attrs *attrs = call->sig->attrs;
    const ds_shape a = call->in[0].meta.shape;
    const ds_shape y = call->out[0].meta.shape;
    const bool a_turned = attrs->a_transposed != 0;
    const bool b_turned = attrs->b_transposed != 0;
    dsc_bmm_args args = {.a = dsc_in(call, 0),
                         .b = dsc_in(call, 1),
                         .y = dsc_out(call, 0),
                         .rows = y.dims[y.n_dims - 2],
                         .columns = ds_shape_last(y),
                         .n_in = a.dims[a.n_dims - (a_turned ? 2 : 1)],
                         .y_dtype = (int32_t)call->out[0].meta.dtype};
    if (ds_shape_count(y) == 0) {
        return DS_OK;
    }
    args.n_items = ds_shape_count(y) / (args.rows * args.columns);
    args.a_size = args.rows * args.n_in;
    args.b_size = args.n_in * args.columns;
    args.a_down = a_turned ? 1 : args.n_in;
    args.a_right = a_turned ? args.rows : 1;
    args.b_down = b_turned ? 1 : args.columns;
    args.b_right = b_turned ? args.n_in : 1;
    const int64_t tile = DSC_PLAIN_TILE;
    const dsc_shape shape = {{(uint32_t)((args.columns + tile - 1) / tile),
                              (uint32_t)((args.rows + tile - 1) / tile),
                              (uint32_t)(args.n_items < DSC_MOST_YZ ? args.n_items : DSC_MOST_YZ)},
                             {DSC_PLAIN_TILE * DSC_PLAIN_TILE, 1, 1}};
    return dsc_launch(call, dsc_of_dtype(DSC_FN_bmm_f32, call->in[0].meta.dtype), &shape, &args,
                      sizeof args);
}

DSC_ROW(sum_all, is_act, sum_all_run);
DSC_ROW(mean_all, is_act, mean_all_run);
DSC_ROW(sum_last, is_act, sum_last_run);
DSC_ROW(sum_rows, is_act, sum_rows_run);
DSC_ROW(max_last, is_act, max_last_run);
DSC_ROW(max_last_backward, is_max_backward, max_last_backward_run);
DSC_ROW(fill, is_fill, fill_run);
DSC_ROW(expand_last, is_act, expand_last_run);
DSC_ROW(expand_rows, is_act, expand_rows_run);
DSC_ROW(bmm, is_bmm, bmm_run);
const ds_kernel *const dsc_reduce_kernels[] = {&sum_all_kernel,
                                               &mean_all_kernel,
                                               &sum_last_kernel,
                                               &sum_rows_kernel,
                                               &max_last_kernel,
                                               &fill_kernel,
                                               &expand_last_kernel,
                                               &expand_rows_kernel,
                                               &max_last_backward_kernel,
                                               &bmm_kernel,
                                               NULL};
