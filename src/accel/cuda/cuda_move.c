/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/move.cu: slice, pad, split, concat, permute, views with memory of their own, rows
 * by number, store of what is no float. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/move.h"

static int32_t width_of(ds_dtype dtype)
{
    return (int32_t)ds_dtype_bytes(dtype);
}

static bool moves(const ds_kernel_sig *sig)
{
    const int32_t width = width_of(sig->in[0].dtype);
    return width == 1 || width == 2 || width == 4 || width == 8;
}

static ds_status launch(const ds_kernel_call *call, const dsc_move_args *args)
{
    const dsc_shape shape = dsc_over_items(args->outer * args->n);
    return args->outer * args->n > 0 ? dsc_launch(call, DSC_FN_move, &shape, args, sizeof *args)
                                     : DS_OK;
}

/* A tensor as (outer, dim, inner). */
typedef struct folded {
    int64_t outer, dim, inner;
} folded;

static folded fold(const ds_tensor *t, int64_t dim)
{
    const ds_shape s = t->meta.shape;
    folded f = {1, s.dims[dim], 1};
    for (int64_t d = 0; d < dim; ++d) {
        f.outer *= s.dims[d];
    }
    for (int64_t d = dim + 1; d < (int64_t)s.n_dims; ++d) {
        f.inner *= s.dims[d];
    }
    return f;
}

/* Entries of dim, n of them; from NULL: zeros. */
static ds_status move_entries(const ds_kernel_call *call, const ds_tensor *to, int64_t to_at,
                              const ds_tensor *from, int64_t from_at, int64_t n, int64_t dim)
{
    const folded t = fold(to, dim);
    const folded f = from != NULL ? fold(from, dim) : t;
    const dsc_move_args args = {.from = from != NULL ? from->data : NULL,
                                .to = to->data,
                                .outer = t.outer,
                                .n = n * t.inner,
                                .from_pitch = f.dim * f.inner,
                                .from_at = from_at * f.inner,
                                .to_pitch = t.dim * t.inner,
                                .to_at = to_at * t.inner,
                                .width = width_of(to->meta.dtype)};
    return launch(call, &args);
}

static ds_status slice_run(const ds_kernel_call *call)
{
    const dsi_slice_attrs *a = call->sig->attrs;
    return move_entries(call, &call->out[0], 0, &call->in[0], a->start, a->length, a->dim);
}

static ds_status pad_run(const ds_kernel_call *call)
{
    const dsi_pad_attrs *a = call->sig->attrs;
    const int64_t n = call->in[0].meta.shape.dims[a->dim];
    DS_TRY(move_entries(call, &call->out[0], 0, NULL, 0, a->before, a->dim));
    DS_TRY(move_entries(call, &call->out[0], a->before, &call->in[0], 0, n, a->dim));
    return move_entries(call, &call->out[0], a->before + n, NULL, 0, a->after, a->dim);
}

static ds_status split_run(const ds_kernel_call *call)
{
    const dsi_split_attrs *a = call->sig->attrs;
    int64_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_out && call->out[i].data != NULL; ++i) {
        const int64_t n = call->out[i].meta.shape.dims[a->dim];
        DS_TRY(move_entries(call, &call->out[i], 0, &call->in[0], at, n, a->dim));
        at += n;
    }
    return DS_OK;
}

static ds_status concat_run(const ds_kernel_call *call)
{
    const dsi_concat_attrs *a = call->sig->attrs;
    int64_t at = 0;
    for (uint32_t i = 0; i < call->sig->n_in; ++i) {
        const int64_t n = call->in[i].meta.shape.dims[a->dim];
        DS_TRY(move_entries(call, &call->out[0], at, &call->in[i], 0, n, a->dim));
        at += n;
    }
    return DS_OK;
}

ds_status dsc_copy_whole(const ds_kernel_call *call, uint32_t o, const ds_tensor *from)
{
    const dsc_move_args args = {.from = from->data,
                                .to = call->out[o].data,
                                .outer = 1,
                                .n = ds_shape_count(call->out[o].meta.shape),
                                .width = width_of(from->meta.dtype)};
    return args.from != args.to ? launch(call, &args) : DS_OK;
}

static ds_status view_run(const ds_kernel_call *call)
{
    return dsc_copy_whole(call, 0, &call->in[0]);
}

static bool is_same(const ds_kernel_sig *sig)
{
    return sig->in[1].dtype == sig->out[0].dtype && moves(sig);
}

static ds_status store_run(const ds_kernel_call *call)
{
    return dsc_copy_whole(call, 0, &call->in[1]);
}

static ds_status take_rows_run(const ds_kernel_call *call)
{
    const int64_t *d = call->in[0].meta.shape.dims;
    const dsc_move_args args = {.from = dsc_in(call, 0),
                                .to = dsc_out(call, 0),
                                .index = dsc_in(call, 1),
                                .fault = dsc_fault_of(call),
                                .call = (uint64_t)(uintptr_t)call,
                                .outer = d[0],
                                .n = d[2],
                                .from_pitch = d[1] * d[2],
                                .to_pitch = d[2],
                                .row = d[2],
                                .bound = d[1],
                                .width = width_of(call->in[0].meta.dtype),
                                .indexed = DSC_INDEX_FROM};
    return launch(call, &args);
}

static ds_status kv_write_run(const ds_kernel_call *call)
{
    const int64_t *cell = call->out[0].meta.shape.dims;
    const int64_t t = call->in[1].meta.shape.dims[1];
    const dsc_move_args args = {.from = dsc_in(call, 1),
                                .to = dsc_out(call, 0),
                                .index = dsc_in(call, 2),
                                .fault = dsc_fault_of(call),
                                .call = (uint64_t)(uintptr_t)call,
                                .outer = cell[0],
                                .n = t * cell[2],
                                .from_pitch = t * cell[2],
                                .to_pitch = cell[1] * cell[2],
                                .row = cell[2],
                                .bound = cell[1] - t + 1,
                                .width = width_of(call->in[1].meta.dtype),
                                .indexed = DSC_INDEX_TO};
    return launch(call, &args);
}

static ds_status permute_run(const ds_kernel_call *call)
{
    const dsi_permute_attrs *a = call->sig->attrs;
    const ds_shape in = call->in[0].meta.shape;
    const ds_shape out = call->out[0].meta.shape;
    dsc_permute_args args = {.x = dsc_in(call, 0),
                             .y = dsc_out(call, 0),
                             .n = ds_shape_count(out),
                             .n_dims = (int32_t)out.n_dims,
                             .width = width_of(call->in[0].meta.dtype)};
    int64_t strides[DS_MAX_DIMS];
    int64_t stride = 1;
    for (uint32_t d = in.n_dims; d-- > 0;) {
        strides[d] = stride;
        stride *= in.dims[d];
    }
    for (uint32_t d = 0; d < out.n_dims; ++d) {
        args.dims[d] = out.dims[d];
        args.strides[d] = strides[a->order[d]];
    }
    const dsc_shape shape = dsc_over_items(args.n);
    return args.n > 0 ? dsc_launch(call, DSC_FN_permute, &shape, &args, sizeof args) : DS_OK;
}

_Static_assert((int)DSC_MOST_DIMS >= (int)DS_MAX_DIMS, "dims of a permutation");

DSC_ROW(slice, moves, slice_run);
DSC_ROW(pad, moves, pad_run);
DSC_ROW(split, moves, split_run);
DSC_ROW(concat, moves, concat_run);
DSC_ROW(reshape, moves, view_run);
DSC_ROW(gradient, moves, view_run);
DSC_ROW(whole, moves, view_run);
DSC_ROW(store, is_same, store_run);
DSC_ROW(take_rows, moves, take_rows_run);
DSC_ROW(kv_write, moves, kv_write_run);
DSC_ROW(permute, moves, permute_run);
const ds_kernel *const dsc_move_kernels[] = {&slice_kernel,    &pad_kernel,     &split_kernel,
                                             &concat_kernel,   &reshape_kernel, &gradient_kernel,
                                             &whole_kernel,    &store_kernel,   &take_rows_kernel,
                                             &kv_write_kernel, &permute_kernel, NULL};
