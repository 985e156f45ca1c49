/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of a weight apart from the rest: sums, choice, taking and putting, and the gradient that
 * waits (ZenFlow): rules. See ops.h for what they compute and docs/internals/zenflow.md for use. */
#include "op/op_place.h"
#include "op/op_util.h"

static const ds_shape scalar = {0};

/* Columns' sums stay exact up to here: see column_sums in ops.h. */
enum { MOST_ROWS = 1 << 23 };

static ds_status check_attrs(const ds_infer *call)
{
    const dsi_columns_attrs *a = call->attrs;
    if (a->rows < 1 || a->columns < 1 || a->columns > INT32_MAX || a->rows > MOST_ROWS) {
        return dsi_op_bad_attr(call, "rows %lld, columns %lld, expected 1 to %d rows",
                               (long long)a->rows, (long long)a->columns, MOST_ROWS);
    }
    return DS_OK;
}

/* (rows, columns), or a slice of it. */
static ds_status need_matrix(const ds_infer *call, uint32_t i, const char *name)
{
    const dsi_columns_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, i, name, 1));
    const ds_meta x = call->in[i];
    if (x.dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, i, name, "f32, bf16 or f16");
    }
    return x.shape.n_dims == 1
               ? DS_OK
               : dsi_op_need(call, i, name, x.dtype, ds_shape_2d(a->rows, a->columns));
}

/* i32 (K), K columns at most. */
static ds_status need_index(const ds_infer *call, uint32_t i, int64_t *n_out)
{
    const dsi_columns_attrs *a = call->attrs;
    const ds_shape shape = dsi_op_in(call, i).shape;
    *n_out = shape.n_dims == 1 ? shape.dims[0] : 0;
    if (*n_out < 1 || *n_out > a->columns) {
        return dsi_op_bad(call, i, "index", "i32 (K), K from 1 to %lld", (long long)a->columns);
    }
    return dsi_op_need(call, i, "index", DS_DTYPE_I32, ds_shape_1d(*n_out));
}

/* f64 (columns), or (n, columns) of n ranks. */
static ds_status need_sums(const ds_infer *call, uint32_t i)
{
    const dsi_columns_attrs *a = call->attrs;
    const ds_shape shape = dsi_op_in(call, i).shape;
    return dsi_op_need(call, i, "sums", DS_DTYPE_F64,
                       shape.n_dims == 2 ? ds_shape_2d(shape.dims[0], a->columns)
                                         : ds_shape_1d(a->columns));
}

static const ds_attr columns_attrs[] = {
    DSI_ATTR_INT(dsi_columns_attrs, rows),
    DSI_ATTR_INT(dsi_columns_attrs, columns),
};
static const int8_t writes_first[] = {0};

#define COLUMNS_OP(op_name, class_is, role_is, place_is, n_inputs, infer_fn, writes_of, in_place,  \
                   text)                                                                           \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n_inputs),        \
        .n_in_max = (n_inputs), .n_out = 1, .flags = (in_place),                                   \
        .attrs_bytes = sizeof(dsi_columns_attrs), .attrs = columns_attrs,                          \
        .n_attrs = DSI_N(columns_attrs), .writes = (writes_of), .infer = (infer_fn),               \
        .cost = cost_of, .op_class = (class_is), .role = (role_is), .again = DS_AGAIN_COSTLY,      \
        .place = (place_is),                                                                       \
    }

static void cost_of(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status column_sums_infer(ds_infer *call)
{
    const dsi_columns_attrs *a = call->attrs;
    DS_TRY(check_attrs(call));
    DS_TRY(need_matrix(call, 0, "x"));
    DS_TRY(dsi_op_need(call, 1, "top", DS_DTYPE_F32, scalar));
    DS_TRY(dsi_op_need(call, 2, "rank", DS_DTYPE_I32, scalar));
    call->out[0] = dsi_meta_of(DS_DTYPE_F64, ds_shape_1d(a->columns));
    return DS_OK;
}

static ds_status choose_columns_infer(ds_infer *call)
{
    int64_t n = 0;
    DS_TRY(check_attrs(call));
    DS_TRY(need_index(call, 0, &n));
    DS_TRY(need_sums(call, 1));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status weigh_columns_infer(ds_infer *call)
{
    int64_t n = 0;
    DS_TRY(check_attrs(call));
    DS_TRY(dsi_op_need(call, 0, "weights", DS_DTYPE_F64, ds_shape_1d(2)));
    DS_TRY(need_sums(call, 1));
    DS_TRY(need_index(call, 2, &n));
    DS_TRY(dsi_op_need(call, 3, "more", DS_DTYPE_F32, scalar));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status take_columns_infer(ds_infer *call)
{
    const dsi_columns_attrs *a = call->attrs;
    int64_t n = 0;
    DS_TRY(check_attrs(call));
    DS_TRY(need_matrix(call, 0, "x"));
    DS_TRY(need_index(call, 1, &n));
    DS_TRY(dsi_op_need(call, 2, "rank", DS_DTYPE_I32, scalar));
    call->out[0] = dsi_meta_of(call->in[0].dtype, ds_shape_2d(a->rows, n));
    return DS_OK;
}

static ds_status put_columns_infer(ds_infer *call)
{
    const dsi_columns_attrs *a = call->attrs;
    int64_t n = 0;
    DS_TRY(check_attrs(call));
    DS_TRY(need_matrix(call, 0, "x"));
    DS_TRY(need_index(call, 2, &n));
    DS_TRY(dsi_op_need(call, 1, "taken", DS_DTYPE_F32, ds_shape_2d(a->rows, n)));
    DS_TRY(dsi_op_need(call, 3, "rank", DS_DTYPE_I32, scalar));
    call->out[0] = call->in[0];
    return DS_OK;
}

const ds_op dsi_op_column_sums =
    COLUMNS_OP("column_sums", DS_CLASS_REDUCE, DS_ROLE_SELECT,
               DSI_PLACE(.in = "* . .", .out = "_",
                         .flags = DS_PLACE_ADDS_ALL | DSI_PLACE_SIDE | DSI_PLACE_COLUMNS),
               3, column_sums_infer, NULL, 0,
               "x (rows,columns) or a slice of it, top f32 () (largest magnitude of all tensors), "
               "rank i32 () → f64 (columns): sums of magnitudes, exact on a grid below top.");
const ds_op dsi_op_choose_columns = COLUMNS_OP(
    "choose_columns", DS_CLASS_REDUCE, DS_ROLE_SELECT, DSI_PLACE(.in = "_ *", .out = "_"), 2,
    choose_columns_infer, writes_first, 0,
    "index i32 (K), sums f64 (columns) or (n,columns), which are added → the cell's next version: "
    "the K columns of the largest sums, ascending; of equal ones the first.");
const ds_op dsi_op_weigh_columns = COLUMNS_OP(
    "weigh_columns", DS_CLASS_REDUCE, DS_ROLE_SELECT, DSI_PLACE(.in = "_ * _ .", .out = "_"), 4,
    weigh_columns_infer, writes_first, 0,
    "weights f64 (2), sums, index, more f32 () → the cell's next version: the sums of the columns "
    "that are not in index, and of those that are, added to what was there unless more is 0.");
const ds_op dsi_op_take_columns = COLUMNS_OP(
    "take_columns", DS_CLASS_COPY, DS_ROLE_SELECT,
    DSI_PLACE(.in = "* _ .", .out = "__", .flags = DS_PLACE_ADDS_ALL | DSI_PLACE_COLUMNS), 3,
    take_columns_infer, NULL, 0,
    "x (rows,columns) or a slice of it, index i32 (K), rank i32 () → (rows,K): those "
    "columns; zeros where the index is -1 or the slice has not the element.");
const ds_op dsi_op_put_columns = COLUMNS_OP(
    "put_columns", DS_CLASS_COPY, DS_ROLE_WRITE,
    DSI_PLACE(.in = "* __ _ .", .out = "*", .flags = DS_PLACE_ELEMENTS | DSI_PLACE_COLUMNS), 4,
    put_columns_infer, writes_first, DS_OP_INPLACE,
    "x (rows,columns) or a slice of it, taken f32 (rows,K), index i32 (K), rank i32 () → the "
    "cell's next version: x with those columns replaced, rounded to its dtype.");

static ds_status postpone_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "x", 0));
    if (call->in[1].dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, 1, "x", "f32, bf16 or f16");
    }
    DS_TRY(dsi_op_need(call, 0, "cell", DS_DTYPE_F32, call->in[1].shape));
    DS_TRY(dsi_op_need(call, 2, "more", DS_DTYPE_F32, scalar));
    DS_TRY(dsi_op_need(call, 3, "factor", DS_DTYPE_F32, scalar));
    call->out[0] = call->in[0];
    return DS_OK;
}

const ds_op dsi_op_postpone = {
    .version = DS_OP_VERSION,
    .name = "postpone",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_POSTPONE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * . .", .out = "*", .split = "*", .flags = DS_PLACE_ELEMENTS),
    .doc = "cell f32, x of its shape, more f32 (), factor f32 () → the cell's next version: "
           "fma(factor, x, cell), or factor·x where more is 0.",
    .n_in_min = 4,
    .n_in_max = 4,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .writes = writes_first,
    .infer = postpone_infer,
    .cost = dsi_cost_elementwise,
};
