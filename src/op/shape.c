/* SPDX-License-Identifier: Apache-2.0 */
/* cast, reshape, permute, slice, pad, split, concat, take_rows: rules. */
#include "op/op_util.h"

#include <stdio.h>

static ds_status give_emitted(ds_grad *call, const ds_op *op, const void *attrs)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    ds_value d;
    DS_TRY(dsi_emit1(call, op, attrs, call->d_out[0], &d));
    return dsi_grad_give(call, 0, d);
}

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
    return give_emitted(call, &dsi_op_reshape, &attrs);
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

const ds_op dsi_op_reshape = {
    .version = DS_OP_VERSION,
    .name = "reshape",
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
    .doc = "x → x: the gradient of a parameter is complete here, and what reduces gradients over "
           "ranks reduces it; a view, nothing moves.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_VIEW,
    .infer = gradient_infer,
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
    return give_emitted(call, &dsi_op_permute, &inverse);
}

static const ds_attr permute_attrs[] = {DSI_ATTR_INT(dsi_permute_attrs, n_dims),
                                        ROWS8(dsi_permute_attrs, order)};

const ds_op dsi_op_permute = {
    .version = DS_OP_VERSION,
    .name = "permute",
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

/* ---- slice and pad ----------------------------------------------------------------------------
 */
static ds_status check_dim(const ds_infer *call, int64_t dim)
{
    const ds_meta x = dsi_op_in(call, 0);
    if (!dsi_op_has(call, 0) || x.shape.n_dims < 1) {
        return dsi_op_bad(call, 0, "x", "a tensor with at least 1 dimension");
    }
    if (dim < 0 || dim >= (int64_t)x.shape.n_dims) {
        return dsi_op_bad_attr(call, "dim is %lld, expected 0 to %u", (long long)dim,
                               x.shape.n_dims - 1);
    }
    return DS_OK;
}

static ds_status slice_infer(ds_infer *call)
{
    const dsi_slice_attrs *a = call->attrs;
    DS_TRY(check_dim(call, a->dim));
    const ds_meta x = call->in[0];
    if (a->start < 0 || a->length < 0 || a->length > x.shape.dims[a->dim] ||
        a->start > x.shape.dims[a->dim] - a->length) {
        return dsi_op_bad_attr(call, "start %lld and length %lld on dim %lld of %lld elements",
                               (long long)a->start, (long long)a->length, (long long)a->dim,
                               (long long)x.shape.dims[a->dim]);
    }
    call->out[0] = x;
    call->out[0].shape.dims[a->dim] = a->length;
    return DS_OK;
}

static ds_status slice_grad(ds_grad *call)
{
    const dsi_slice_attrs *a = call->attrs;
    const ds_shape x = dsi_grad_meta(call, call->in[0]).shape;
    const dsi_pad_attrs attrs = {
        .dim = a->dim, .before = a->start, .after = x.dims[a->dim] - a->start - a->length};
    return give_emitted(call, &dsi_op_pad, &attrs);
}

static void copy_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->out[0]);
}

static const ds_attr slice_attrs[] = {
    DSI_ATTR_INT(dsi_slice_attrs, dim),
    DSI_ATTR_INT(dsi_slice_attrs, start),
    DSI_ATTR_INT(dsi_slice_attrs, length),
};

const ds_op dsi_op_slice = {
    .version = DS_OP_VERSION,
    .name = "slice",
    .doc = "x → elements start to start+length of one dim.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_slice_attrs),
    .attrs = slice_attrs,
    .n_attrs = DSI_N(slice_attrs),
    .infer = slice_infer,
    .grad = slice_grad,
    .cost = copy_cost,
};

static ds_status pad_infer(ds_infer *call)
{
    const dsi_pad_attrs *a = call->attrs;
    enum { LIMIT = 1 << 30 };
    DS_TRY(check_dim(call, a->dim));
    if (a->before < 0 || a->after < 0 || a->before > LIMIT || a->after > LIMIT) {
        return dsi_op_bad_attr(call, "before %lld, after %lld, expected 0 to %d",
                               (long long)a->before, (long long)a->after, LIMIT);
    }
    call->out[0] = call->in[0];
    call->out[0].shape.dims[a->dim] += a->before + a->after;
    return DS_OK;
}

static ds_status pad_grad(ds_grad *call)
{
    const dsi_pad_attrs *a = call->attrs;
    const ds_shape x = dsi_grad_meta(call, call->in[0]).shape;
    const dsi_slice_attrs attrs = {.dim = a->dim, .start = a->before, .length = x.dims[a->dim]};
    return give_emitted(call, &dsi_op_slice, &attrs);
}

static const ds_attr pad_attrs[] = {
    DSI_ATTR_INT(dsi_pad_attrs, dim),
    DSI_ATTR_INT(dsi_pad_attrs, before),
    DSI_ATTR_INT(dsi_pad_attrs, after),
};

const ds_op dsi_op_pad = {
    .version = DS_OP_VERSION,
    .name = "pad",
    .doc = "x → zeros before and after x on one dim.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_pad_attrs),
    .attrs = pad_attrs,
    .n_attrs = DSI_N(pad_attrs),
    .infer = pad_infer,
    .grad = pad_grad,
    .cost = copy_cost,
};

/* ---- split ----------------------------------------------------------------------------------- */
static ds_status split_infer(ds_infer *call)
{
    const dsi_split_attrs *a = call->attrs;
    DS_TRY(check_dim(call, a->dim));
    const int64_t n = call->in[0].shape.dims[a->dim];
    if (a->length < 1 || a->length >= n || (n - 1) / a->length >= DS_MAX_OUT) {
        return dsi_op_bad_attr(
            call, "length %lld of a dim of %lld, expected one that makes 2 to %d parts",
            (long long)a->length, (long long)n, DS_MAX_OUT);
    }
    for (int64_t at = 0, i = 0; at < n; at += a->length, ++i) {
        call->out[i] = call->in[0];
        call->out[i].shape.dims[a->dim] = n - at < a->length ? n - at : a->length;
    }
    return DS_OK;
}

/* Some parts lack a gradient: those that have one, each between zeros, added. */
static ds_status split_grad_some(ds_grad *call, uint32_t n, ds_value *sum)
{
    const dsi_split_attrs *a = call->attrs;
    const int64_t whole = dsi_grad_meta(call, call->in[0]).shape.dims[a->dim];
    *sum = DS_NONE;
    for (uint32_t i = 0; i < n; ++i) {
        const int64_t length = dsi_grad_meta(call, call->out[i]).shape.dims[a->dim];
        const dsi_pad_attrs pad = {
            .dim = a->dim, .before = i * a->length, .after = whole - i * a->length - length};
        ds_value d = DS_NONE;
        if (call->d_out[i] == DS_NONE) {
            continue;
        }
        DS_TRY(dsi_emit1(call, &dsi_op_pad, &pad, call->d_out[i], &d));
        if (*sum != DS_NONE) {
            DS_TRY(dsi_emit2(call, &dsi_op_add, NULL, *sum, d, &d));
        }
        *sum = d;
    }
    return DS_OK;
}

static ds_status split_grad(ds_grad *call)
{
    const dsi_concat_attrs attrs = {.dim = ((const dsi_split_attrs *)call->attrs)->dim};
    uint32_t n = 0;
    uint32_t given = 0;
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    for (; n < call->n_out && call->out[n] != DS_NONE; ++n) {
        given += call->d_out[n] != DS_NONE ? 1 : 0;
    }
    DS_TRY(given == n ? dsi_emit(call, &dsi_op_concat, &attrs, call->d_out, n, out)
                      : split_grad_some(call, n, &out[0]));
    return dsi_grad_give(call, 0, out[0]);
}

static const ds_attr split_attrs[] = {
    DSI_ATTR_INT(dsi_split_attrs, dim),
    DSI_ATTR_INT(dsi_split_attrs, length),
};

static void split_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->in[0]);
}

const ds_op dsi_op_split = {
    .version = DS_OP_VERSION,
    .name = "split",
    .doc = "x → 2 to 8 parts of `length` elements on one dim, the last one maybe shorter.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = DS_MAX_OUT,
    .attrs_bytes = sizeof(dsi_split_attrs),
    .attrs = split_attrs,
    .n_attrs = DSI_N(split_attrs),
    .infer = split_infer,
    .grad = split_grad,
    .cost = split_cost,
};

/* ---- concat ---------------------------------------------------------------------------------- */
static ds_status concat_infer(ds_infer *call)
{
    const dsi_concat_attrs *a = call->attrs;
    DS_TRY(check_dim(call, a->dim));
    ds_meta out = call->in[0];
    for (uint32_t i = 1; i < call->n_in; ++i) {
        ds_meta want = call->in[0];
        const ds_meta x = call->in[i];
        if (x.shape.n_dims == want.shape.n_dims) {
            want.shape.dims[a->dim] = x.shape.dims[a->dim];
        }
        char name[16];
        (void)snprintf(name, sizeof name, "x%u", i);
        DS_TRY(dsi_op_need(call, i, name, want.dtype, want.shape));
        out.shape.dims[a->dim] += x.shape.dims[a->dim];
    }
    call->out[0] = out;
    return DS_OK;
}

static ds_status concat_grad(ds_grad *call)
{
    const dsi_concat_attrs *a = call->attrs;
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    dsi_slice_attrs attrs = {.dim = a->dim};
    for (uint32_t i = 0; i < call->n_in; ++i) {
        attrs.length = dsi_grad_meta(call, call->in[i]).shape.dims[a->dim];
        if (dsi_grad_wants(call, i)) {
            ds_value d;
            DS_TRY(dsi_emit1(call, &dsi_op_slice, &attrs, call->d_out[0], &d));
            DS_TRY(dsi_grad_give(call, i, d));
        }
        attrs.start += attrs.length;
    }
    return DS_OK;
}

static const ds_attr concat_attrs[] = {DSI_ATTR_INT(dsi_concat_attrs, dim)};

const ds_op dsi_op_concat = {
    .version = DS_OP_VERSION,
    .name = "concat",
    .doc = "2 to 16 tensors that differ on one dim only → one, side by side on that dim.",
    .n_in_min = 2,
    .n_in_max = DS_MAX_IN,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_concat_attrs),
    .attrs = concat_attrs,
    .n_attrs = DSI_N(concat_attrs),
    .infer = concat_infer,
    .grad = concat_grad,
    .cost = copy_cost,
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
    .doc =
        "x (B,T,C), index i32 (B) → (B,C): row index[b] of sample b. An index out of range is an "
        "error. No gradient.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .infer = take_rows_infer,
    .cost = copy_cost,
};
