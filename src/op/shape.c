/* SPDX-License-Identifier: Apache-2.0 */
/* cast, reshape, gradient, permute, take_rows: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <string.h>

/* ---- cast ------------------------------------------------------------------------------------ */
static ds_status cast_infer(ds_infer *call)
{
    const dsi_cast_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    if (a->dtype <= 0 || a->dtype >= DS_DTYPE_COUNT || !dsi_dtype_is_float((ds_dtype)a->dtype)) {
        return dsi_op_bad_attr(call, "dtype is %lld, expected a float dtype", (long long)a->dtype);
    }
    call->out[0] = dsi_meta_of((ds_dtype)a->dtype, call->in[0].shape);
    return DS_OK;
}

static ds_status cast_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK : dsi_grad_give(call, 0, call->d_out[0]);
}

static const ds_attr cast_attrs[] = {DSI_ATTR_INT(dsi_cast_attrs, dtype)};

const ds_op dsi_op_cast = {
    .version = DS_OP_VERSION,
    .name = "cast",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_CAST,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE_EACH("0"), /* LAW 4a: a gradient is rounded before it is reduced */
    .doc = "x → x in another float dtype, rounded to nearest even.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_cast_attrs),
    .attrs = cast_attrs,
    .n_attrs = DSI_N(cast_attrs),
    .infer = cast_infer,
    .grad = cast_grad,
    .cost = dsi_cost_elementwise,
};

/* ---- reshape --------------------------------------------------------------------------------- */
static ds_status reshape_infer(ds_infer *call)
{
    const dsi_reshape_attrs *a = call->attrs;
    if (!dsi_op_has(call, 0)) {
        return dsi_op_bad(call, 0, "x", "a tensor");
    }
    if (a->n_dims < 0 || a->n_dims > DS_MAX_DIMS) {
        return dsi_op_bad_attr(call, "n_dims is %lld, expected 0 to %d", (long long)a->n_dims,
                               DS_MAX_DIMS);
    }
    const ds_meta out = dsi_meta_of(call->in[0].dtype, ds_shape_of((uint32_t)a->n_dims, a->dims));
    bool negative = false;
    for (uint32_t i = 0; i < out.shape.n_dims; ++i) {
        negative = negative || out.shape.dims[i] < 0;
    }
    if (negative || ds_shape_count(out.shape) != ds_shape_count(call->in[0].shape)) {
        char text[96];
        return dsi_op_bad(call, 0, "x", "as many elements as %s",
                          ds_meta_text(out, text, sizeof text));
    }
    call->out[0] = out;
    return DS_OK;
}

static ds_status reshape_grad(ds_grad *call)
{
    const ds_shape x = dsi_grad_meta(call, call->in[0]).shape;
    dsi_reshape_attrs attrs = {.n_dims = x.n_dims};
    for (uint32_t i = 0; i < x.n_dims; ++i) {
        attrs.dims[i] = x.dims[i];
    }
    return dsi_grad_by(call, &dsi_op_reshape, &attrs);
}

#define ROWS8(type, field)                                                                         \
    DSI_ATTR_INT(type, field[0]), DSI_ATTR_INT(type, field[1]), DSI_ATTR_INT(type, field[2]),      \
        DSI_ATTR_INT(type, field[3]), DSI_ATTR_INT(type, field[4]), DSI_ATTR_INT(type, field[5]),  \
        DSI_ATTR_INT(type, field[6]), DSI_ATTR_INT(type, field[7])

static const ds_attr reshape_attrs[] = {DSI_ATTR_INT(dsi_reshape_attrs, n_dims),
                                        ROWS8(dsi_reshape_attrs, dims)};

static void no_cost(const ds_infer *call, ds_cost *cost_out)
{
    (void)call;
    *cost_out = (ds_cost){0};
}

/* A dim of x and a dim of y can be cut alike when what stands before them has the same size, and
 * both divide: then a part of either is the same run of elements. Letters that meet no partner are
 * dropped. */
static void adapt_reshape(ds_place_case *c)
{
    const ds_shape x = c->in_meta[0].shape;
    const ds_shape y = c->out_meta[0].shape;
    memset(c->out[0], '_', y.n_dims);
    c->out[0][y.n_dims] = '\0';
    int64_t before_x = 1;
    for (uint32_t i = 0; i < x.n_dims; before_x *= x.dims[i++]) {
        bool met = false;
        int64_t before_y = 1;
        for (uint32_t k = 0; k < y.n_dims && !met; before_y *= y.dims[k++]) {
            if (before_x == before_y && c->out[0][k] == '_' && (x.dims[i] > 1) == (y.dims[k] > 1)) {
                c->out[0][k] = c->in[0][i];
                met = true;
            }
        }
        if (!met) {
            dsi_place_drop(c->split, c->in[0][i]);
            c->in[0][i] = '_';
        }
    }
    c->hint = "the new shape does not keep the dim that is cut, or not in equal parts";
}

static void reshape_local(const ds_infer *local, void *attrs)
{
    dsi_reshape_attrs *a = attrs;
    a->n_dims = local->out[0].shape.n_dims;
    memcpy(a->dims, local->out[0].shape.dims, sizeof a->dims);
}

const ds_op dsi_op_reshape = {
    .version = DS_OP_VERSION,
    .name = "reshape",
    .op_class = DS_CLASS_VIEW,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = "0", .flags = DS_PLACE_VIEW,
                       .adapt = adapt_reshape, .local = reshape_local),
    .doc = "x → the same elements under another shape; a view, nothing moves.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_VIEW,
    .attrs_bytes = sizeof(dsi_reshape_attrs),
    .attrs = reshape_attrs,
    .n_attrs = DSI_N(reshape_attrs),
    .infer = reshape_infer,
    .grad = reshape_grad,
    .cost = no_cost,
};

/* ---- gradient -------------------------------------------------------------------------------- */
static ds_status gradient_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    call->out[0] = call->in[0];
    return DS_OK;
}

const ds_op dsi_op_gradient = {
    .version = DS_OP_VERSION,
    .name = "gradient",
    .op_class = DS_CLASS_VIEW,
    .role = DS_ROLE_GRADIENT,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE_EACH("0"),
    .doc = "x → x: the gradient of a parameter is complete here, and what reduces gradients over "
           "ranks reduces it; a view, nothing moves.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_VIEW,
    .infer = gradient_infer,
    .cost = no_cost,
};

/* ---- whole ----------------------------------------------------------------------------------- */
static ds_status whole_grad(ds_grad *call)
{
    return dsi_grad_by(call, &dsi_op_whole, NULL);
}

const ds_op dsi_op_whole = {
    .version = DS_OP_VERSION,
    .name = "whole",
    .op_class = DS_CLASS_VIEW,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bt_", .out = "bt_", .split = "bt", .flags = DSI_PLACE_WHOLE),
    .doc = "x → x: on each of the ranks that share it all of it, and all of its gradient, whatever "
           "those have that read it; a view, nothing moves on one rank.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_VIEW,
    .infer = gradient_infer,
    .grad = whole_grad,
    .cost = no_cost,
};

/* ---- permute --------------------------------------------------------------------------------- */
static ds_status permute_infer(ds_infer *call)
{
    const dsi_permute_attrs *a = call->attrs;
    const ds_meta x = dsi_op_in(call, 0);
    if (!dsi_op_has(call, 0) || (int64_t)x.shape.n_dims != a->n_dims) {
        return dsi_op_bad(call, 0, "x", "%lld dimensions", (long long)a->n_dims);
    }
    call->out[0] = x;
    uint32_t seen = 0;
    for (uint32_t i = 0; i < x.shape.n_dims; ++i) {
        if (a->order[i] < 0 || a->order[i] >= a->n_dims || (seen >> a->order[i] & 1U) != 0) {
            return dsi_op_bad_attr(call, "order[%u] is %lld, expected a permutation of %lld dims",
                                   i, (long long)a->order[i], (long long)a->n_dims);
        }
        seen |= 1U << a->order[i];
        call->out[0].shape.dims[i] = x.shape.dims[a->order[i]];
    }
    return DS_OK;
}

static ds_status permute_grad(ds_grad *call)
{
    const dsi_permute_attrs *a = call->attrs;
    dsi_permute_attrs inverse = {.n_dims = a->n_dims};
    for (int64_t i = 0; i < a->n_dims; ++i) {
        inverse.order[a->order[i]] = i;
    }
    return dsi_grad_by(call, &dsi_op_permute, &inverse);
}

static const ds_attr permute_attrs[] = {DSI_ATTR_INT(dsi_permute_attrs, n_dims),
                                        ROWS8(dsi_permute_attrs, order)};

static void adapt_permute(ds_place_case *c)
{
    const dsi_permute_attrs *a = c->attrs;
    for (uint32_t d = 0; d < c->out_meta[0].shape.n_dims; ++d) {
        c->out[0][d] = c->in[0][a->order[d]];
    }
}

const ds_op dsi_op_permute = {
    .version = DS_OP_VERSION,
    .name = "permute",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = "0", .adapt = adapt_permute),
    .doc = "x → its dims in another order: out dim i is in dim order[i].",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_permute_attrs),
    .attrs = permute_attrs,
    .n_attrs = DSI_N(permute_attrs),
    .infer = permute_infer,
    .grad = permute_grad,
};

/* ---- take_rows ------------------------------------------------------------------------------- */
static ds_status take_rows_infer(ds_infer *call)
{
    const ds_meta x = dsi_op_in(call, 0);
    if (!dsi_op_has(call, 0) || x.shape.n_dims != 3) {
        return dsi_op_bad(call, 0, "x", "a tensor (B,T,C)");
    }
    DS_TRY(dsi_op_need(call, 1, "index", DS_DTYPE_I32, ds_shape_1d(x.shape.dims[0])));
    call->out[0] = dsi_meta_of(x.dtype, ds_shape_2d(x.shape.dims[0], x.shape.dims[2]));
    return DS_OK;
}

const ds_op dsi_op_take_rows = {
    .version = DS_OP_VERSION,
    .name = "take_rows",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b_c b", .out = "bc", .split = "bc", .linear = "0"),
    .doc =
        "x (B,T,C), index i32 (B) → (B,C): row index[b] of sample b. An index out of range is an "
        "error. No gradient.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .infer = take_rows_infer,
    .cost = dsi_cost_copy,
};
