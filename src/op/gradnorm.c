/* SPDX-License-Identifier: Apache-2.0 */
/* The global gradient norm: largest magnitude, exact sum of squares, clip factor: rules. */
#include "base/exact_bins.h"
#include "op/op_place.h"
#include "op/op_util.h"

static const ds_shape scalar = {0};

static ds_status abs_max_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, scalar);
    return DS_OK;
}

static void read_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 2.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

const ds_op dsi_op_abs_max = {
    .version = DS_OP_VERSION,
    .name = "abs_max",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_MAGNITUDE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*", .out = ".", .split = "*", .sums = "*",
                       .flags = DS_PLACE_ADDS_ALL | DS_PLACE_MAX),
    .doc = "x → f32 (): the largest magnitude; NaN when any element is NaN, else Inf when any is "
           "infinite.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .infer = abs_max_infer,
    .cost = read_cost,
};

static ds_status all_of(ds_infer *call, ds_dtype dtype, ds_shape shape)
{
    for (uint32_t i = 0; i < call->n_in; ++i) {
        DS_TRY(dsi_op_need(call, i, "part", dtype, shape));
    }
    call->out[0] = dsi_meta_of(dtype, shape);
    return DS_OK;
}

static ds_status max_of_infer(ds_infer *call)
{
    return all_of(call, DS_DTYPE_F32, scalar);
}

const ds_op dsi_op_max_of = {
    .version = DS_OP_VERSION,
    .name = "max_of",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_NORM,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = ".", .out = ".", .linear = "all", .flags = DS_PLACE_MAX),
    .doc = "1 to 16 f32 () → f32 (): the largest; NaN when any is NaN.",
    .n_in_min = 1,
    .n_in_max = DS_MAX_IN,
    .n_out = 1,
    .infer = max_of_infer,
};

static ds_status sum_squares_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    if (call->in[0].dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, 0, "x", "f32, bf16 or f16: squares of f64 are not exact");
    }
    DS_TRY(dsi_op_may(call, 1, "top", DS_DTYPE_F32, scalar));
    call->out[0] = dsi_meta_of(DS_DTYPE_F64, ds_shape_1d(dsi_op_has(call, 1) ? 2 : DSI_EXACT_WIDE));
    return DS_OK;
}

const ds_op dsi_op_sum_squares = {
    .version = DS_OP_VERSION,
    .name = "sum_squares",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_NORM,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* .", .out = "_", .split = "*", .sums = "*",
                       .flags = DS_PLACE_ADDS_ALL | DSI_PLACE_EXACT),
    .doc =
        "x, [top f32 () (at least the largest magnitude of x)] → f64 (2): the sum of x², each "
        "rounded to a grid set by top, as an exact pair; the same for any split and order. 0 when "
        "top is 0 or not finite. Without top f64 (19): the exact sum in bins, of normal numbers; "
        "the last is Inf or NaN when an element is.",
    .n_in_min = 1,
    .n_in_max = 2,
    .n_out = 1,
    .infer = sum_squares_infer,
    .cost = read_cost,
};

static ds_status sum_parts_infer(ds_infer *call)
{
    const ds_meta first = dsi_op_in(call, 0);
    const int64_t length = first.shape.n_dims > 0 ? ds_shape_last(first.shape) : 0;
    for (uint32_t i = 0; i < call->n_in; ++i) {
        const ds_meta part = dsi_op_in(call, i);
        if (part.dtype != DS_DTYPE_F64 || part.shape.n_dims < 1 || part.shape.n_dims > 2 ||
            (length != 2 && length != DSI_EXACT_WIDE && length != 2 * DSI_EXACT_WIDE) ||
            ds_shape_last(part.shape) != length) {
            return dsi_op_bad(call, i, "part",
                              "f64[2] or f64[n,2], or all f64[19] or f64[n,19], or twice 19");
        }
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F64, ds_shape_1d(length));
    return DS_OK;
}

const ds_op dsi_op_sum_parts = {
    .version = DS_OP_VERSION,
    .name = "sum_parts",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_NORM,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_", .out = "_", .linear = "all", .flags = DSI_PLACE_EXACT),
    .doc =
        "1 to 16 f64 (2) or (n,2) made by sum_squares or sum_parts with one top → f64 (2): their "
        "exact sum, for at most 2^19 parts in all. Likewise 19 numbers in place of 2, without top, "
        "and two such "
        "sums side by side.",
    .n_in_min = 1,
    .n_in_max = DS_MAX_IN,
    .n_out = 1,
    .infer = sum_parts_infer,
};

static ds_status clip_factor_infer(ds_infer *call)
{
    const dsi_clip_attrs *a = call->attrs;
    if (!(a->max_norm >= 0.0)) {
        return dsi_op_bad_attr(call, "max_norm is %g, expected at least 0", a->max_norm);
    }
    DS_TRY(dsi_op_may(call, 1, "top", DS_DTYPE_F32, scalar));
    DS_TRY(dsi_op_need(call, 0, "parts", DS_DTYPE_F64,
                       ds_shape_1d(dsi_op_has(call, 1) ? 2 : DSI_EXACT_WIDE)));
    DS_TRY(dsi_op_need(call, 2, "inverse_scale", DS_DTYPE_F32, scalar));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, scalar);
    call->out[1] = call->out[0];
    return DS_OK;
}

static const ds_attr clip_attrs[] = {DSI_ATTR_REAL(dsi_clip_attrs, max_norm)};

const ds_op dsi_op_clip_factor = {
    .version = DS_OP_VERSION,
    .name = "clip_factor",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_NORM,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "_ . .", .out = ". ."),
    .doc = "parts f64 (2), top f32 (), or f64 (19) and no top, inverse_scale f32 () → norm f32 () "
           "= sqrt(sum)·inverse_scale, "
           "factor f32 () = inverse_scale·min(1, max_norm/(norm + 1e-6)), without the min when "
           "max_norm is 0. When top is not finite: norm = top, factor = 0.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_clip_attrs),
    .attrs = clip_attrs,
    .n_attrs = DSI_N(clip_attrs),
    .infer = clip_factor_infer,
};
