/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/select.cu and integers.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/select.h"
#include "op/constants.h"

_Static_assert((int)DSC_SELECT_DIMS >= (int)DS_MAX_DIMS, "dims of a mask");
_Static_assert((int)DSC_CONSTANTS >= (int)DSI_MOST_CONSTANTS, "numbers that a configuration gives");

static bool is_number(ds_dtype dtype)
{
    return dsc_is_act(dtype) || dtype == DS_DTYPE_I32 || dtype == DS_DTYPE_BOOL;
}

static bool is_numbers(const ds_kernel_sig *sig)
{
    return is_number(sig->in[0].dtype);
}

static bool is_where(const ds_kernel_sig *sig)
{
    return is_number(sig->in[0].dtype) && is_number(sig->in[1].dtype);
}

static bool is_any(const ds_kernel_sig *sig)
{
    (void)sig;
    return true;
}

static ds_status launch(const ds_kernel_call *call, dsc_fn fn, dsc_select_args *args)
{
    args->y = dsc_out(call, 0);
    args->n = ds_shape_count(call->out[0].meta.shape);
    const dsc_shape shape = dsc_over_items(args->n);
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static ds_status compare_run(const ds_kernel_call *call)
{
    const dsi_compare_attrs *attrs = call->sig->attrs;
    const ds_dtype dtype = call->in[0].meta.dtype;
    dsc_select_args args = {.a = dsc_in(call, 0),
                            .b = dsc_in(call, 1),
                            .kind = (int32_t)attrs->kind,
                            .dtype = (int32_t)dtype,
                            .value =
                                dsc_is_act(dtype) ? (double)(float)attrs->value : attrs->value};
    return launch(call, DSC_FN_compare, &args);
}

static ds_status where_run(const ds_kernel_call *call)
{
    const dsi_where_attrs *attrs = call->sig->attrs;
    const ds_shape mask = call->in[0].meta.shape;
    const ds_shape a = call->in[1].meta.shape;
    dsc_select_args args = {.mask = dsc_in(call, 0),
                            .a = dsc_in(call, 1),
                            .b = dsc_in(call, 2),
                            .inverse = attrs->inverse != 0,
                            .value = attrs->other,
                            .n_dims = (int32_t)a.n_dims,
                            .dtype = (int32_t)call->in[1].meta.dtype,
                            .mask_dtype = (int32_t)call->in[0].meta.dtype};
    int64_t step = 1;
    for (uint32_t d = 1; d <= a.n_dims; ++d) {
        const int64_t m = d <= mask.n_dims ? mask.dims[mask.n_dims - d] : 1;
        args.dims[a.n_dims - d] = a.dims[a.n_dims - d];
        args.strides[a.n_dims - d] = m == 1 ? 0 : step;
        step *= m;
    }
    return launch(call, DSC_FN_where, &args);
}

static ds_status band_run(const ds_kernel_call *call)
{
    const dsi_band_attrs *attrs = call->sig->attrs;
    const ds_shape x = call->in[0].meta.shape;
    dsc_select_args args = {.a = dsc_in(call, 0),
                            .rows = x.dims[x.n_dims - 2],
                            .columns = ds_shape_last(x),
                            .lower = attrs->lower,
                            .upper = attrs->upper,
                            .value = attrs->other,
                            .dtype = (int32_t)call->in[0].meta.dtype};
    return launch(call, DSC_FN_band, &args);
}

/* ---- whole numbers -----------------------------------------------------------------------------
 */

static ds_status launch_integers(const ds_kernel_call *call, dsc_fn fn, dsc_integers_args *args)
{
    const ds_shape out = call->out[0].meta.shape;
    args->out = dsc_out(call, 0);
    args->n = ds_shape_count(out);
    args->length = ds_shape_last(out);
    const dsc_shape shape = dsc_over_items(args->n);
    return dsc_launch(call, fn, &shape, args, sizeof *args);
}

static ds_status document_end_run(const ds_kernel_call *call)
{
    return launch_integers(call, DSC_FN_document_end,
                           &(dsc_integers_args){.first = dsc_in(call, 0)});
}

static ds_status filled_end_run(const ds_kernel_call *call)
{
    const dsi_filled_attrs *attrs = call->sig->attrs;
    return launch_integers(
        call, DSC_FN_filled_end,
        &(dsc_integers_args){.first = dsc_in(call, 0), .ids = dsc_in(call, 1), .pad = attrs->pad});
}

static ds_status shift_labels_run(const ds_kernel_call *call)
{
    const dsi_shift_labels_attrs *attrs = call->sig->attrs;
    return launch_integers(call, DSC_FN_shift_labels,
                           &(dsc_integers_args){.ids = dsc_in(call, 0),
                                                .first = dsc_in(call, 1),
                                                .start = attrs->start,
                                                .pad = attrs->pad});
}

static ds_status row_numbers_run(const ds_kernel_call *call)
{
    const dsi_row_numbers_attrs *attrs = call->sig->attrs;
    return launch_integers(
        call, DSC_FN_row_numbers,
        &(dsc_integers_args){.start = attrs->start,
                             .n_rows = attrs->n_rows,
                             .n_parts = attrs->n_parts > 1 ? attrs->n_parts : 1,
                             .turn = attrs->turn,
                             .halves = attrs->halves != 0 && attrs->n_parts > 1});
}

static ds_status count_targets_run(const ds_kernel_call *call)
{
    const dsi_ce_attrs *attrs = call->sig->attrs;
    const dsc_integers_args args = {.ids = dsc_in(call, 0),
                                    .count = dsc_out(call, 0),
                                    .n = ds_shape_count(call->in[0].meta.shape),
                                    .pad = attrs->ignore_index};
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    return dsc_launch(call, DSC_FN_count_targets, &one, &args, sizeof args);
}

static ds_status constants_run(const ds_kernel_call *call)
{
    const dsi_constants_attrs *attrs = call->sig->attrs;
    dsc_constants_args args = {.out = dsc_out(call, 0), .n = attrs->n};
    for (int64_t i = 0; i < attrs->n; ++i) {
        args.v[i] = (float)attrs->v[i];
    }
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, DSC_FN_constants, &shape, &args, sizeof args);
}

static ds_status rng_ahead_run(const ds_kernel_call *call)
{
    const dsi_rng_ahead_attrs *attrs = call->sig->attrs;
    const dsc_rng_args args = {dsc_in(call, 0), dsc_out(call, 0), attrs->samples};
    const dsc_shape one = dsc_block_an_item(1, 32);
    return dsc_launch(call, DSC_FN_rng_ahead, &one, &args, sizeof args);
}

DSC_ROW(compare, is_numbers, compare_run);
DSC_ROW(where, is_where, where_run);
DSC_ROW(band, is_numbers, band_run);
DSC_ROW(document_end, is_any, document_end_run);
DSC_ROW(filled_end, is_any, filled_end_run);
DSC_ROW(shift_labels, is_any, shift_labels_run);
DSC_ROW(row_numbers, is_any, row_numbers_run);
DSC_ROW(count_targets, is_any, count_targets_run);
DSC_ROW(constants, is_any, constants_run);
DSC_ROW(rng_ahead, is_any, rng_ahead_run);
const ds_kernel *const dsc_select_kernels[] = {&compare_kernel,
                                               &where_kernel,
                                               &band_kernel,
                                               &document_end_kernel,
                                               &filled_end_kernel,
                                               &shift_labels_kernel,
                                               &row_numbers_kernel,
                                               &count_targets_kernel,
                                               &constants_kernel,
                                               &rng_ahead_kernel,
                                               NULL};
