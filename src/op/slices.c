/* SPDX-License-Identifier: Apache-2.0 */
/* slice, pad, split, concat: parts of a tensor side by side on a dim. Rules. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <stdio.h>

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
    return dsi_grad_by(call, &dsi_op_pad, &attrs);
}

static const ds_attr slice_attrs[] = {
    DSI_ATTR_INT(dsi_slice_attrs, dim),
    DSI_ATTR_INT(dsi_slice_attrs, start),
    DSI_ATTR_INT(dsi_slice_attrs, length),
};

static void adapt_slice(ds_place_case *c)
{
    const dsi_slice_attrs *a = c->attrs;
    const int64_t n = c->in_meta[0].shape.dims[a->dim];
    const bool is_block = a->length > 0 && a->start % a->length == 0 && n % a->length == 0;
    dsi_place_blocks(c, a->dim, true, is_block ? n / a->length : 0);
}

/* A rank's part of a block, when blocks are cut. */
static void slice_local(const ds_infer *local, void *attrs)
{
    dsi_slice_attrs *a = attrs;
    const int64_t length = local->out[0].shape.dims[a->dim];
    a->start = length < a->length ? a->start / a->length * length : a->start;
    a->length = length;
}

const ds_op dsi_op_slice = {
    .version = DS_OP_VERSION,
    .name = "slice",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = "0", .adapt = adapt_slice,
                       .local = slice_local),
    .doc = "x → elements start to start+length of one dim.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_slice_attrs),
    .attrs = slice_attrs,
    .n_attrs = DSI_N(slice_attrs),
    .infer = slice_infer,
    .grad = slice_grad,
    .cost = dsi_cost_copy,
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
    return dsi_grad_by(call, &dsi_op_slice, &attrs);
}

static const ds_attr pad_attrs[] = {
    DSI_ATTR_INT(dsi_pad_attrs, dim),
    DSI_ATTR_INT(dsi_pad_attrs, before),
    DSI_ATTR_INT(dsi_pad_attrs, after),
};

static void adapt_pad(ds_place_case *c)
{
    const dsi_pad_attrs *a = c->attrs;
    const int64_t n = c->in_meta[0].shape.dims[a->dim];
    const bool is_block = n > 0 && a->before % n == 0 && a->after % n == 0;
    dsi_place_blocks(c, a->dim, false, is_block ? c->out_meta[0].shape.dims[a->dim] / n : 0);
}

static void pad_local(const ds_infer *local, void *attrs)
{
    dsi_pad_attrs *a = attrs;
    const int64_t zeros = local->out[0].shape.dims[a->dim] - local->in[0].shape.dims[a->dim];
    const int64_t whole = a->before + a->after;
    a->before = zeros < whole ? a->before * zeros / whole : a->before;
    a->after = zeros - a->before;
}

const ds_op dsi_op_pad = {
    .version = DS_OP_VERSION,
    .name = "pad",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = "0", .adapt = adapt_pad,
                       .local = pad_local),
    .doc = "x → zeros before and after x on one dim.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_pad_attrs),
    .attrs = pad_attrs,
    .n_attrs = DSI_N(pad_attrs),
    .infer = pad_infer,
    .grad = pad_grad,
    .cost = dsi_cost_copy,
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

static void adapt_split(ds_place_case *c)
{
    const dsi_split_attrs *a = c->attrs;
    const int64_t n = c->in_meta[0].shape.dims[a->dim];
    dsi_place_blocks(c, a->dim, true, n % a->length == 0 ? n / a->length : 0);
}

static void split_local(const ds_infer *local, void *attrs)
{
    dsi_split_attrs *a = attrs;
    a->length = local->out[0].shape.dims[a->dim];
}

const ds_op dsi_op_split = {
    .version = DS_OP_VERSION,
    .name = "split",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*", .out = "* * * * * * * *", .split = "*", .sums = "*",
                       .linear = "0", .adapt = adapt_split, .local = split_local),
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

static void adapt_concat(ds_place_case *c)
{
    const int64_t dim = ((const dsi_concat_attrs *)c->attrs)->dim;
    bool alike = true;
    for (uint32_t i = 1; i < c->n_in; ++i) {
        alike = alike && c->in_meta[i].shape.dims[dim] == c->in_meta[0].shape.dims[dim];
    }
    dsi_place_blocks(c, dim, false, alike ? c->n_in : 0);
}

const ds_op dsi_op_concat = {
    .version = DS_OP_VERSION,
    .name = "concat",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*", .out = "*", .split = "*", .linear = "all", .adapt = adapt_concat),
    .doc = "2 to 16 tensors that differ on one dim only → one, side by side on that dim.",
    .n_in_min = 2,
    .n_in_max = DS_MAX_IN,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_concat_attrs),
    .attrs = concat_attrs,
    .n_attrs = DSI_N(concat_attrs),
    .infer = concat_infer,
    .grad = concat_grad,
    .cost = dsi_cost_copy,
};
