/* SPDX-License-Identifier: Apache-2.0 */
/* Between values that each rank has of its own and those that all have: rules. localize makes
 * collectives of them (localize_own.c), so they have no kernels; a graph of one rank has none of
 * them. See ops.h. */
#include "base/exact_bins.h"
#include "op/op_place.h"
#include "op/op_util.h"

enum { X, WORKER_ERROR, SERVER_ERROR, BITS = 8 };

static ds_status own_term_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, X, "x", 0));
    call->out[0] = call->in[X];
    return DS_OK;
}

static ds_status largest_infer(ds_infer *call)
{
    const ds_shape scalar = {0};
    DS_TRY(dsi_op_need(call, X, "x", DS_DTYPE_F32, scalar));
    call->out[0] = call->in[X];
    return DS_OK;
}

static ds_status sum_infer(ds_infer *call)
{
    const ds_meta x = dsi_op_in(call, X);
    const int64_t n = x.shape.n_dims == 1 ? x.shape.dims[0] : 0;
    if (x.dtype != DS_DTYPE_F64 || (n != 2 && n != DSI_EXACT_WIDE && n != 2 * DSI_EXACT_WIDE)) {
        return dsi_op_bad(call, X, "x", "f64 (2), (%d) or (%d)", DSI_EXACT_WIDE,
                          2 * DSI_EXACT_WIDE);
    }
    call->out[0] = x;
    return DS_OK;
}

static ds_status mean_infer(ds_infer *call)
{
    const dsi_ranks_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, X, "x", 0));
    const ds_meta x = call->in[X];
    if (a->n_ranks < 1 || a->n_ranks > INT32_MAX) {
        return dsi_op_bad_attr(call, "n_ranks is %lld, expected at least 1", (long long)a->n_ranks);
    }
    const ds_meta worker = dsi_op_in(call, WORKER_ERROR);
    const int64_t n = worker.shape.n_dims == 1 ? worker.shape.dims[0] : 0;
    if (x.dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, X, "x", "f32, bf16 or f16");
    }
    if (worker.dtype != DS_DTYPE_F32 || n < 1 || n % (BITS * a->n_ranks) != 0 ||
        n < ds_shape_count(x.shape)) {
        return dsi_op_bad(call, WORKER_ERROR, "worker_error",
                          "f32 (N), N a multiple of %lld and at least %lld",
                          (long long)(BITS * a->n_ranks), (long long)ds_shape_count(x.shape));
    }
    DS_TRY(
        dsi_op_need(call, SERVER_ERROR, "server_error", DS_DTYPE_F32, ds_shape_1d(n / a->n_ranks)));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, x.shape);
    call->out[WORKER_ERROR] = worker;
    call->out[SERVER_ERROR] = call->in[SERVER_ERROR];
    return DS_OK;
}

/* Rows of all ranks, one rank's behind another's; and the other way, of each rank's term of them.
 */
static ds_status rows_infer(ds_infer *call)
{
    const dsi_ranks_attrs *a = call->attrs;
    const bool sums = call->op == &dsi_op_sum_rows_of_ranks;
    DS_TRY(dsi_op_need_float(call, X, "x", 2));
    const ds_meta x = call->in[X];
    if (a->n_ranks < 1 || a->n_ranks > INT32_MAX) {
        return dsi_op_bad_attr(call, "n_ranks is %lld, expected at least 1", (long long)a->n_ranks);
    }
    if (x.shape.n_dims != 2 || (sums && x.shape.dims[0] % a->n_ranks != 0)) {
        return dsi_op_bad(call, X, "x", "rows (R,C)%s", sums ? ", as many of each rank" : "");
    }
    const int64_t rows = x.shape.dims[0];
    call->out[0] = dsi_meta_of(
        x.dtype, ds_shape_2d(sums ? rows / a->n_ranks : rows * a->n_ranks, x.shape.dims[1]));
    return DS_OK;
}

static ds_status rows_grad(ds_grad *call)
{
    return dsi_grad_by(call, &dsi_op_sum_rows_of_ranks, call->attrs);
}

static ds_status sum_rows_grad(ds_grad *call)
{
    return dsi_grad_by(call, &dsi_op_rows_of_ranks, call->attrs);
}

static const ds_attr ranks_attrs[] = {DSI_ATTR_INT(dsi_ranks_attrs, n_ranks)};
static const int8_t writes_errors[] = {-1, WORKER_ERROR, SERVER_ERROR};

#define RANKS_OP(op_name, n, role_is, infer_fn, writes_of, out_words, place_flags, text)           \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n),               \
        .n_in_max = (n), .n_out = (n), .flags = DS_OP_RANKS,                                       \
        .attrs_bytes = sizeof(dsi_ranks_attrs), .attrs = ranks_attrs,                              \
        .n_attrs = DSI_N(ranks_attrs), .writes = (writes_of), .infer = (infer_fn),                 \
        .op_class = DS_CLASS_REDUCE, .role = (role_is), .again = DS_AGAIN_COSTLY,                  \
        .place = DSI_PLACE(.in = "_", .out = (out_words), .flags = (place_flags)),                 \
    }

const ds_op dsi_op_own_term =
    RANKS_OP("own_term", 1, DS_ROLE_COMPUTE, own_term_infer, NULL, "_", DSI_PLACE_OWN_TERM,
             "x, a sum over ranks that is not made yet → this rank's term of it, its own. Nothing "
             "is done.");
const ds_op dsi_op_largest_of_ranks = RANKS_OP(
    "largest_of_ranks", 1, DS_ROLE_NORM, largest_infer, NULL, "_", DSI_PLACE_JOINS | DS_PLACE_MAX,
    "x f32 (), at least 0, each rank's own → the largest of the ranks'; NaN when any is.");
const ds_op dsi_op_sum_of_ranks = RANKS_OP(
    "sum_of_ranks", 1, DS_ROLE_NORM, sum_infer, NULL, "_", DSI_PLACE_JOINS | DSI_PLACE_EXACT,
    "x as sum_squares makes it, each rank's own, all with one top → the exact sum of the "
    "ranks'.");
const ds_op dsi_op_mean_by_signs =
    RANKS_OP("mean_by_signs", 3, DS_ROLE_WRITE, mean_infer, writes_errors, "_ _ _", DSI_PLACE_JOINS,
             "x (P elements), worker_error f32 (N; written), server_error f32 (N/n_ranks; "
             "written), each rank's own → f32 like x, which all ranks have: nearly the mean of the "
             "ranks' x, of which signs and scales are exchanged, and the errors, what was lost.");

#define ROWS_OP(op_name, infer_fn, grad_fn, place_flags, text)                                     \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 1, .n_in_max = 1,  \
        .n_out = 1, .flags = DS_OP_RANKS, .attrs_bytes = sizeof(dsi_ranks_attrs),                  \
        .attrs = ranks_attrs, .n_attrs = DSI_N(ranks_attrs), .infer = (infer_fn),                  \
        .grad = (grad_fn), .op_class = DS_CLASS_REDUCE, .role = DS_ROLE_COMPUTE,                   \
        .again = DS_AGAIN_COSTLY,                                                                  \
        .place = DSI_PLACE(.in = "__", .out = "__", .flags = (place_flags)),                       \
    }

const ds_op dsi_op_rows_of_ranks =
    ROWS_OP("rows_of_ranks", rows_infer, rows_grad, DSI_PLACE_ROWS | DSI_PLACE_JOINS,
            "x (R,C), each rank's own → (n_ranks·R,C), which all ranks have: the ranks' rows, in "
            "their order.");
const ds_op dsi_op_sum_rows_of_ranks = ROWS_OP(
    "sum_rows_of_ranks", rows_infer, sum_rows_grad, DSI_PLACE_ROWS,
    "x (n_ranks·R,C), each rank's own → (R,C), each rank's own: of its R rows, in the order "
    "of the ranks, the sum of all ranks' x.");
