/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of elements, parts of tensors and reductions along a dim, of nn.h. */
#include "nn/nn.h"
#include "op/ops.h"

/* ---- functions of elements ------------------------------------------------------------------- */

static ds_value apply1(ds_nn *nn, const ds_op *op, ds_value x)
{
    return ds_nn_apply(nn, op, NULL, &x, 1);
}

ds_value ds_nn_neg(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_neg, x);
}

ds_value ds_nn_exp(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_exp, x);
}

ds_value ds_nn_log(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_log, x);
}

ds_value ds_nn_sqrt(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_sqrt, x);
}

ds_value ds_nn_square(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_square, x);
}

ds_value ds_nn_tanh(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_tanh, x);
}

ds_value ds_nn_sigmoid(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_sigmoid, x);
}

ds_value ds_nn_relu(ds_nn *nn, ds_value x)
{
    return apply1(nn, &dsi_op_relu, x);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* A dim of x counted from the front; false, with the error noted, where x has no such dim. */
static bool find_dim(ds_nn *nn, const char *what, ds_value x, int64_t dim, int64_t *dim_out)
{
    if (ds_nn_status(nn) < 0) {
        return false;
    }
    if (x == DS_NONE) {
        ds_nn_fail(nn, DS_ERR_ARG, "%s: x is absent", what);
        return false;
    }
    const int64_t n = ds_nn_meta(nn, x).shape.n_dims;
    if (dim < -n || dim >= n) {
        ds_nn_fail(nn, DS_ERR_SHAPE, "%s: dim is %lld, but x has %lld dims", what, (long long)dim,
                   (long long)n);
        return false;
    }
    *dim_out = dim < 0 ? dim + n : dim;
    return true;
}

ds_value ds_nn_slice(ds_nn *nn, ds_value x, int64_t dim, int64_t start, int64_t length)
{
    dsi_slice_attrs attrs = {.start = start, .length = length};
    return find_dim(nn, "ds_nn_slice", x, dim, &attrs.dim)
               ? ds_nn_apply(nn, &dsi_op_slice, &attrs, &x, 1)
               : DS_NONE;
}

void ds_nn_split(ds_nn *nn, ds_value x, int64_t dim, uint32_t n, ds_value *parts_out)
{
    dsi_split_attrs attrs = {0};
    ds_value out[DS_MAX_OUT];
    for (uint32_t i = 0; i < n; ++i) {
        parts_out[i] = DS_NONE;
    }
    if (n < 2 || n > DS_MAX_OUT) {
        ds_nn_fail(nn, DS_ERR_ARG, "ds_nn_split: %u parts, expected 2 to %d", n, DS_MAX_OUT);
        return;
    }
    if (!find_dim(nn, "ds_nn_split", x, dim, &attrs.dim)) {
        return;
    }
    const int64_t length = ds_nn_meta(nn, x).shape.dims[attrs.dim];
    attrs.length = length / n;
    if (length % n != 0) {
        ds_nn_fail(nn, DS_ERR_SHAPE, "ds_nn_split: %u parts of %lld elements", n,
                   (long long)length);
        return;
    }
    dsi_nn_apply_all(nn, &dsi_op_split, &attrs, &x, 1, out);
    for (uint32_t i = 0; i < n && ds_nn_status(nn) >= 0; ++i) {
        parts_out[i] = out[i];
    }
}

ds_value ds_nn_concat(ds_nn *nn, const ds_value *parts, uint32_t n, int64_t dim)
{
    dsi_concat_attrs attrs = {0};
    if (n < 1 || n > DS_MAX_IN) {
        ds_nn_fail(nn, DS_ERR_ARG, "ds_nn_concat: %u parts, expected 1 to %d", n, DS_MAX_IN);
        return DS_NONE;
    }
    if (!find_dim(nn, "ds_nn_concat", parts[0], dim, &attrs.dim)) {
        return DS_NONE;
    }
    for (uint32_t i = 1; i < n; ++i) {
        if (parts[i] == DS_NONE) {
            ds_nn_fail(nn, DS_ERR_ARG, "ds_nn_concat: part %u is absent", i);
            return DS_NONE;
        }
    }
    return n == 1 ? parts[0] : ds_nn_apply(nn, &dsi_op_concat, &attrs, parts, n);
}

ds_value ds_nn_transpose(ds_nn *nn, ds_value x, int64_t dim_a, int64_t dim_b)
{
    int64_t a = 0;
    int64_t b = 0;
    if (!find_dim(nn, "ds_nn_transpose", x, dim_a, &a) ||
        !find_dim(nn, "ds_nn_transpose", x, dim_b, &b)) {
        return DS_NONE;
    }
    dsi_permute_attrs attrs = {.n_dims = ds_nn_meta(nn, x).shape.n_dims};
    for (int64_t i = 0; i < attrs.n_dims; ++i) {
        attrs.order[i] = i == a ? b : i == b ? a : i;
    }
    return a == b ? x : ds_nn_apply(nn, &dsi_op_permute, &attrs, &x, 1);
}

/* ---- reductions along a dim ------------------------------------------------------------------ */

/* x with a dim moved to the end, the others in their order. */
static ds_value move_last(ds_nn *nn, ds_value x, int64_t dim)
{
    dsi_permute_attrs attrs = {.n_dims = ds_nn_meta(nn, x).shape.n_dims};
    for (int64_t i = 0; i + 1 < attrs.n_dims; ++i) {
        attrs.order[i] = i < dim ? i : i + 1;
    }
    attrs.order[attrs.n_dims - 1] = dim;
    return dim == attrs.n_dims - 1 ? x : ds_nn_apply(nn, &dsi_op_permute, &attrs, &x, 1);
}

ds_value ds_nn_sum(ds_nn *nn, ds_value x, int64_t dim)
{
    int64_t at = 0;
    return find_dim(nn, "ds_nn_sum", x, dim, &at)
               ? apply1(nn, &dsi_op_sum_last, move_last(nn, x, at))
               : DS_NONE;
}

ds_value ds_nn_mean(ds_nn *nn, ds_value x, int64_t dim)
{
    int64_t at = 0;
    if (!find_dim(nn, "ds_nn_mean", x, dim, &at)) {
        return DS_NONE;
    }
    const int64_t n = ds_nn_meta(nn, x).shape.dims[at];
    if (n == 0) {
        ds_nn_fail(nn, DS_ERR_SHAPE, "ds_nn_mean: dim %lld of x has no elements", (long long)at);
        return DS_NONE;
    }
    return ds_nn_scale(nn, ds_nn_sum(nn, x, at), 1.0 / (double)n);
}

/* The largest of a dim; `what` names the call in errors. */
static ds_value largest(ds_nn *nn, const char *what, ds_value x, int64_t dim)
{
    int64_t at = 0;
    if (!find_dim(nn, what, x, dim, &at)) {
        return DS_NONE;
    }
    if (ds_nn_meta(nn, x).shape.dims[at] == 0) {
        ds_nn_fail(nn, DS_ERR_SHAPE, "%s: dim %lld of x has no elements", what, (long long)at);
        return DS_NONE;
    }
    return apply1(nn, &dsi_op_max_last, move_last(nn, x, at));
}

ds_value ds_nn_max(ds_nn *nn, ds_value x, int64_t dim)
{
    return largest(nn, "ds_nn_max", x, dim);
}

/* The least is the largest of the negatives, exactly. */
ds_value ds_nn_min(ds_nn *nn, ds_value x, int64_t dim)
{
    return ds_nn_neg(nn, largest(nn, "ds_nn_min", ds_nn_neg(nn, x), dim));
}
