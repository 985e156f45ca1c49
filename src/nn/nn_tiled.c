/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that are computed tile by tile: any function along T, a linear layer along its features.
 * Called by models; see nn.h. A split or concat holds a few parts only, so that both recurse. */
#include "base/reserved.h"
#include "nn/nn.h"
#include "op/ops.h"

enum { MAX_SPLITS = 64 };

ds_value ds_nn_tiled(ds_nn *nn, ds_value x, int64_t rows, ds_nn_fn fn, const void *user)
{
    const ds_shape shape = ds_nn_meta(nn, x).shape;
    const int64_t n = shape.n_dims == 3 ? shape.dims[1] : 0;
    ds_value parts[DS_MAX_OUT];
    uint32_t n_parts = 0;
    if (rows <= 0 || rows >= n || nn->status < 0) {
        return fn(nn, x, user);
    }
    const int64_t n_tiles = (n + rows - 1) / rows;
    const int64_t each = (n_tiles + DS_MAX_OUT - 1) / DS_MAX_OUT; /* tiles a part */
    const dsi_split_attrs split = {.dim = 1, .length = each * rows};
    const uint32_t n_sites = nn->n_sites;
    dsi_nn_apply_all(nn, &dsi_op_split, &split, &x, 1, parts);
    while (n_parts < DS_MAX_OUT && parts[n_parts] != DS_NONE) {
        ++n_parts;
    }
    for (uint32_t i = n_parts; i-- > 0;) { /* last first: the backward pass begins with the first */
        parts[i] = ds_nn_tiled(nn, parts[i], rows, fn, user);
    }
    if (nn->n_sites != n_sites) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED, "dropout inside of tiles; set it to 0, or do not tile");
    }
    const dsi_concat_attrs concat = {.dim = 1};
    return ds_nn_apply(nn, &dsi_op_concat, &concat, parts, n_parts);
}

/* ---- tiled linear ----------------------------------------------------------------------------
 */
/* Elements of part i of n_parts of a width. */
static int64_t part_width(int64_t width, int64_t n_parts, int64_t i)
{
    return width / n_parts + (i < width % n_parts ? 1 : 0);
}

static ds_value slice_last(ds_nn *nn, ds_value x, int64_t start, int64_t length)
{
    const dsi_slice_attrs attrs = {
        .dim = (int64_t)ds_nn_meta(nn, x).shape.n_dims - 1, .start = start, .length = length};
    return ds_nn_apply(nn, &dsi_op_slice, &attrs, &x, 1);
}

/* Cuts the last dim into n parts of `each` elements. */
static void cut_even(ds_nn *nn, ds_value x, int64_t each, int64_t n, ds_value *parts)
{
    if (n == 1 || nn->status < 0) {
        parts[0] = x;
        return;
    }
    ds_value groups[DS_MAX_OUT];
    const int64_t in_group = (n + DS_MAX_OUT - 1) / DS_MAX_OUT;
    const dsi_split_attrs split = {.dim = (int64_t)ds_nn_meta(nn, x).shape.n_dims - 1,
                                   .length = in_group * each};
    dsi_nn_apply_all(nn, &dsi_op_split, &split, &x, 1, groups);
    for (int64_t at = 0, g = 0; at < n; at += in_group, ++g) {
        cut_even(nn, groups[g], each, n - at < in_group ? n - at : in_group, parts + at);
    }
}

/* The same into n parts as even as possible, the first ones larger by one. */
static void cut(ds_nn *nn, ds_value x, int64_t n, ds_value *parts)
{
    const int64_t width = ds_shape_last(ds_nn_meta(nn, x).shape);
    const int64_t n_large = width % n;
    const int64_t each = width / n;
    if (n_large == 0) {
        cut_even(nn, x, each, n, parts);
        return;
    }
    const int64_t at = n_large * (each + 1);
    cut_even(nn, slice_last(nn, x, 0, at), each + 1, n_large, parts);
    cut_even(nn, slice_last(nn, x, at, width - at), each, n - n_large, parts + n_large);
}

static ds_value join(ds_nn *nn, ds_value *parts, int64_t n)
{
    if (n == 1 || nn->status < 0) {
        return parts[0];
    }
    ds_value groups[DS_MAX_IN];
    uint32_t n_groups = 0;
    const int64_t in_group = (n + DS_MAX_IN - 1) / DS_MAX_IN;
    for (int64_t at = 0; at < n; at += in_group) {
        groups[n_groups++] = join(nn, parts + at, n - at < in_group ? n - at : in_group);
    }
    const dsi_concat_attrs concat = {.dim = (int64_t)ds_nn_meta(nn, parts[0]).shape.n_dims - 1};
    return ds_nn_apply(nn, &dsi_op_concat, &concat, groups, n_groups);
}

/* The tile of outputs o and inputs i: its product, added to `sum` when there is one. */
static ds_value tile(ds_nn *nn, ds_value x, ds_value sum, const ds_linear_params *params,
                     const dsi_linear_attrs *attrs)
{
    static const ds_init zeros = {.kind = DS_INIT_ZEROS};
    const ds_init normal = {.kind = DS_INIT_NORMAL,
                            .std = params->init_std > 0.0 ? params->init_std : 0.02};
    const int64_t n_in = ds_shape_last(ds_nn_meta(nn, x).shape);
    const ds_shape shape =
        params->transposed ? ds_shape_2d(n_in, params->n_out) : ds_shape_2d(params->n_out, n_in);
    const ds_value weight = ds_nn_param(nn, "weight", shape, normal, false);
    const ds_value bias =
        params->bias ? ds_nn_param(nn, "bias", ds_shape_1d(params->n_out), zeros, true) : DS_NONE;
    const ds_value in[4] = {x, weight, bias, sum};
    return ds_nn_apply(nn, &dsi_op_linear, attrs, in, sum != DS_NONE ? 4 : params->bias ? 3 : 2);
}

/* One part of the outputs from all parts of the inputs. */
static ds_value tile_row(ds_nn *nn, const ds_value *x, int64_t in_splits, int64_t o,
                         const ds_linear_params *params, ds_dtype dtype)
{
    const ds_dtype sum_dtype = dtype == DS_DTYPE_F64 ? dtype : DS_DTYPE_F32;
    const dsi_linear_attrs attrs = {.transposed = params->transposed,
                                    .out_dtype = in_splits > 1 ? sum_dtype : dtype};
    ds_value y = DS_NONE;
    for (int64_t i = 0; i < in_splits; ++i) {
        ds_linear_params own = *params;
        own.bias = params->bias && i == in_splits - 1;
        ds_nn_push(nn, "linears.%lld.%lld", (long long)o, (long long)i);
        y = tile(nn, x[i], y, &own, &attrs);
        ds_nn_pop(nn);
    }
    return ds_nn_cast(nn, y, dtype);
}

ds_value ds_nn_tiled_linear(ds_nn *nn, const char *name, ds_value x, const ds_linear_params *params,
                            int64_t in_splits, int64_t out_splits)
{
    if (!dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_linear_params", params))) {
        return DS_NONE;
    }
    const ds_meta meta = ds_nn_meta(nn, x);
    const int64_t n_in = ds_shape_last(meta.shape);
    ds_value xs[MAX_SPLITS];
    ds_value ys[MAX_SPLITS];
    if (nn->status >= 0 && nn->trace.packing != DS_PACKING_NONE) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED, "%s: a linear layer in tiles cannot be packed (%s)",
                   name, ds_packing_name(nn->trace.packing));
    }
    if (nn->status < 0) {
        return DS_NONE;
    }
    if (in_splits < 1 || in_splits > MAX_SPLITS || in_splits > n_in || out_splits < 1 ||
        out_splits > MAX_SPLITS || out_splits > params->n_out) {
        ds_nn_fail(nn, DS_ERR_ARG,
                   "%s: %lld inputs in %lld and %lld outputs in %lld parts, expected 1 to %d parts "
                   "that are not empty",
                   name, (long long)n_in, (long long)in_splits, (long long)params->n_out,
                   (long long)out_splits, MAX_SPLITS);
        return DS_NONE;
    }
    ds_nn_push(nn, "%s", name);
    cut(nn, x, in_splits, xs);
    for (int64_t o = 0; o < out_splits; ++o) {
        ds_linear_params own = *params;
        own.n_out = part_width(params->n_out, out_splits, o);
        ys[o] = tile_row(nn, xs, in_splits, o, &own,
                         params->out_dtype != DS_DTYPE_NONE ? params->out_dtype : meta.dtype);
    }
    const ds_value y = join(nn, ys, out_splits);
    ds_nn_pop(nn);
    return y;
}
