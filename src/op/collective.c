/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and the local cut that goes with them: rules. The executor runs them through the
 * communicator; no accelerator has kernels for them. Slices are one-dimensional. */
#include "op/op_place.h"
#include "op/op_util.h"

static int64_t slice_of(int64_t count, int64_t n_ranks)
{
    return count / n_ranks + (count % n_ranks != 0 ? 1 : 0);
}

static ds_status check_attrs(const ds_infer *call, const dsi_comm_attrs *a)
{
    if (a->n_ranks < 1 || a->n_ranks > INT32_MAX) {
        return dsi_op_bad_attr(call, "n_ranks is %lld, expected at least 1", (long long)a->n_ranks);
    }
    if (!(a->factor > 0.0)) {
        return dsi_op_bad_attr(call, "factor is %g, expected above 0", a->factor);
    }
    return DS_OK;
}

/* What is moved may be of any dtype; what is added, of one that a sum has. */
static ds_status need_x(const ds_infer *call, bool summed)
{
    const ds_meta x = dsi_op_in(call, 0);
    if (summed && !dsi_dtype_is_float(x.dtype)) {
        return dsi_op_need_float(call, 0, "x", 0);
    }
    return dsi_op_has(call, 0) ? DS_OK : dsi_op_bad(call, 0, "x", "a tensor");
}

/* x → its own slice. */
static ds_status cut_infer(ds_infer *call)
{
    const dsi_comm_attrs *a = call->attrs;
    DS_TRY(check_attrs(call, a));
    DS_TRY(need_x(call, call->op == &dsi_op_reduce_scatter));
    const ds_meta x = call->in[0];
    call->out[0] = dsi_meta_of(x.dtype, ds_shape_1d(slice_of(ds_shape_count(x.shape), a->n_ranks)));
    return DS_OK;
}

/* Of one shape: a sum, and a term of one. */
static ds_status alike_infer(ds_infer *call)
{
    DS_TRY(check_attrs(call, call->attrs));
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status need_slice(const ds_infer *call, uint32_t i, ds_meta whole)
{
    const dsi_comm_attrs *a = call->attrs;
    const ds_meta slice = dsi_op_in(call, i);
    const int64_t want = slice_of(ds_shape_count(whole.shape), a->n_ranks);
    if (slice.dtype != whole.dtype || ds_shape_count(slice.shape) != want) {
        return dsi_op_bad(call, i, "slice", "%s of %lld elements", ds_dtype_name(whole.dtype),
                          (long long)want);
    }
    return DS_OK;
}

static ds_status all_gather_infer(ds_infer *call)
{
    const dsi_comm_attrs *a = call->attrs;
    DS_TRY(check_attrs(call, a));
    if (a->n_dims < 0 || a->n_dims > DS_MAX_DIMS) {
        return dsi_op_bad_attr(call, "n_dims is %lld", (long long)a->n_dims);
    }
    ds_meta whole = {dsi_op_in(call, 0).dtype, {.n_dims = (uint32_t)a->n_dims}};
    for (int64_t i = 0; i < a->n_dims; ++i) {
        whole.shape.dims[i] = a->dims[i];
    }
    DS_TRY(need_slice(call, 0, whole));
    call->out[0] = whole;
    return DS_OK;
}

static ds_status all_to_all_infer(ds_infer *call)
{
    const dsi_comm_attrs *a = call->attrs;
    DS_TRY(check_attrs(call, a));
    DS_TRY(need_x(call, false));
    const ds_meta x = call->in[0];
    if (x.shape.n_dims < 1 || x.shape.dims[0] % a->n_ranks != 0) {
        return dsi_op_bad(call, 0, "x", "a first dim that %lld ranks divide",
                          (long long)a->n_ranks);
    }
    call->out[0] = x;
    return DS_OK;
}

static ds_status shift_infer(ds_infer *call)
{
    DS_TRY(check_attrs(call, call->attrs));
    DS_TRY(need_x(call, false));
    call->out[0] = call->in[0];
    return DS_OK;
}

/* table i32 (n_ranks,E+1) of all ranks' offsets, rows → rows of dims. */
static ds_status exchange_infer(ds_infer *call)
{
    const dsi_comm_attrs *a = call->attrs;
    DS_TRY(check_attrs(call, a));
    DS_TRY(dsi_op_need_float(call, 1, "rows", 2));
    const ds_meta table = dsi_op_in(call, 0);
    const ds_meta rows = call->in[1];
    if (table.dtype != DS_DTYPE_I32 || table.shape.n_dims != 2 ||
        table.shape.dims[0] != a->n_ranks || (table.shape.dims[1] - 1) % a->n_ranks != 0) {
        return dsi_op_bad(call, 0, "table", "i32[%lld,E+1], E a multiple of %lld",
                          (long long)a->n_ranks, (long long)a->n_ranks);
    }
    if (a->n_dims != 2 || rows.shape.n_dims != 2 || a->dims[1] != rows.shape.dims[1]) {
        return dsi_op_bad(call, 1, "rows", "rows (R,%lld)", (long long)a->dims[1]);
    }
    call->out[0] = dsi_meta_of(rows.dtype, ds_shape_2d(a->dims[0], a->dims[1]));
    return DS_OK;
}

static ds_status gather_store_infer(ds_infer *call)
{
    DS_TRY(check_attrs(call, call->attrs));
    DS_TRY(dsi_op_need_float(call, 0, "cell", 0));
    DS_TRY(need_slice(call, 1, call->in[0]));
    call->out[0] = call->in[0];
    return DS_OK;
}

static const ds_attr comm_attrs[] = {
    DSI_ATTR_INT(dsi_comm_attrs, n_ranks), DSI_ATTR_INT(dsi_comm_attrs, axes),
    DSI_ATTR_INT(dsi_comm_attrs, stride),  DSI_ATTR_INT(dsi_comm_attrs, bucket),
    DSI_ATTR_REAL(dsi_comm_attrs, factor), DSI_ATTR_INT(dsi_comm_attrs, n_dims),
    DSI_ATTR_INT(dsi_comm_attrs, dims[0]), DSI_ATTR_INT(dsi_comm_attrs, dims[1]),
    DSI_ATTR_INT(dsi_comm_attrs, dims[2]), DSI_ATTR_INT(dsi_comm_attrs, dims[3]),
    DSI_ATTR_INT(dsi_comm_attrs, dims[4]), DSI_ATTR_INT(dsi_comm_attrs, dims[5]),
    DSI_ATTR_INT(dsi_comm_attrs, dims[6]), DSI_ATTR_INT(dsi_comm_attrs, dims[7]),
};
static const int8_t writes_first[] = {0};

#define COMM_OP(op_name, class_is, role_is, n_inputs, infer_fn, writes_of, text)                   \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n_inputs),        \
        .n_in_max = (n_inputs), .n_out = 1, .flags = DS_OP_COMM,                                   \
        .attrs_bytes = sizeof(dsi_comm_attrs), .attrs = comm_attrs, .n_attrs = DSI_N(comm_attrs),  \
        .writes = (writes_of), .infer = (infer_fn), .op_class = (class_is), .role = (role_is),     \
        .again = DS_AGAIN_COSTLY, .place = DSI_PLACE_NOWHERE,                                      \
    }

const ds_op dsi_op_take_slice =
    COMM_OP("take_slice", DS_CLASS_COPY, DS_ROLE_TAKE_SLICE, 1, cut_infer, NULL,
            "x of P elements → the S = ceil(P/n_ranks) elements that this rank owns, padded with "
            "zeros. Nothing is sent.");
const ds_op dsi_op_take_term =
    COMM_OP("take_term", DS_CLASS_COPY, DS_ROLE_TAKE_SLICE, 1, alike_infer, NULL,
            "x, which all ranks have → x on the first rank, -0 on the others: terms "
            "whose sum over ranks is x. Nothing is sent.");
const ds_op dsi_op_reduce_scatter =
    COMM_OP("reduce_scatter", DS_CLASS_COMM, DS_ROLE_REDUCE_SCATTER, 1, cut_infer, NULL,
            "x of P elements → this rank's slice of the sum over ranks: in fp32 in the canonical "
            "order, times factor, rounded once.");
const ds_op dsi_op_all_reduce =
    COMM_OP("all_reduce", DS_CLASS_COMM, DS_ROLE_ALL_REDUCE, 1, alike_infer, NULL,
            "x → the sum over ranks: in fp32 in the canonical order, times factor, rounded once.");
const ds_op dsi_op_all_gather =
    COMM_OP("all_gather", DS_CLASS_COMM, DS_ROLE_ALL_GATHER, 1, all_gather_infer, NULL,
            "slice (S) → the tensor dims of all ranks' slices, padding cut off.");
const ds_op dsi_op_all_to_all =
    COMM_OP("all_to_all", DS_CLASS_COMM, DS_ROLE_ALL_TO_ALL, 1, all_to_all_infer, NULL,
            "x, whose first dim is n_ranks equal blocks → block i is what rank i has as the block "
            "of this rank's index.");
const ds_op dsi_op_shift =
    COMM_OP("shift", DS_CLASS_COMM, DS_ROLE_SHIFT, 1, shift_infer, NULL,
            "x → x of the rank before, the first rank having that of the last.");
const ds_op dsi_op_dispatch_rows = COMM_OP(
    "dispatch_rows", DS_CLASS_COMM, DS_ROLE_DISPATCH_ROWS, 2, exchange_infer, NULL,
    "table i32 (n_ranks,E+1): each rank's offsets of its rows sorted by expert; rows (R,C) → "
    "(dims): the ranks' rows for this rank's E/n_ranks experts, in the order of ranks; "
    "what is behind them stays as it is.");
const ds_op dsi_op_return_rows = COMM_OP(
    "return_rows", DS_CLASS_COMM, DS_ROLE_RETURN_ROWS, 2, exchange_infer, NULL,
    "table i32 (n_ranks,E+1), rows as dispatch_rows makes them → (dims): back to where they "
    "come from; zeros behind them.");
const ds_op dsi_op_gather_store = COMM_OP(
    "gather_store", DS_CLASS_COMM, DS_ROLE_GATHER_STORE, 2, gather_store_infer, writes_first,
    "cell, slice (S) → the cell's next version: all ranks' slices, padding cut off.");

ds_comm_op dsi_op_collective(const ds_op *op)
{
    switch (op->role) {
    case DS_ROLE_REDUCE_SCATTER:
        return DS_COMM_REDUCE_SCATTER;
    case DS_ROLE_ALL_REDUCE:
        return DS_COMM_ALL_REDUCE;
    case DS_ROLE_ALL_TO_ALL:
    case DS_ROLE_SHIFT:
    case DS_ROLE_DISPATCH_ROWS:
    case DS_ROLE_RETURN_ROWS:
        return DS_COMM_ALL_TO_ALL;
    case DS_ROLE_ALL_GATHER:
    case DS_ROLE_GATHER_STORE:
        return DS_COMM_ALL_GATHER;
    default:
        return DS_COMM_OP_COUNT;
    }
}
