/* SPDX-License-Identifier: Apache-2.0 */
/* compare, where and band, masks and what they choose: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <math.h>
#include <string.h>

static bool chosen_from(ds_dtype dtype)
{
    return dsi_dtype_is_float(dtype) || dtype == DS_DTYPE_I32 || dtype == DS_DTYPE_BOOL;
}

static ds_status need_values(const ds_infer *call, uint32_t i, const char *name, uint32_t min_dims)
{
    const ds_meta meta = dsi_op_in(call, i);
    if (!chosen_from(meta.dtype) || meta.shape.n_dims < min_dims) {
        return dsi_op_bad(call, i, name,
                          "a tensor of floats, i32 or bool with at least %u dimension(s)",
                          min_dims);
    }
    return DS_OK;
}

/* A number that stands for elements of this dtype is one of its numbers; floats are rounded. */
static ds_status check_number(const ds_infer *call, const char *name, double x, ds_dtype dtype)
{
    const bool whole = x >= (double)INT32_MIN && x <= (double)INT32_MAX && x == floor(x);
    if ((dtype == DS_DTYPE_I32 && !whole) || (dtype == DS_DTYPE_BOOL && x != 0.0 && x != 1.0)) {
        return dsi_op_bad_attr(call, "%s is %g, which is no %s", name, x, ds_dtype_name(dtype));
    }
    return DS_OK;
}

/* Whether `shape` repeats into `whole`: from the last dim on, each the same or 1. */
static bool repeats_into(ds_shape shape, ds_shape whole)
{
    if (shape.n_dims > whole.n_dims) {
        return false;
    }
    for (uint32_t i = 1; i <= shape.n_dims; ++i) {
        const int64_t n = shape.dims[shape.n_dims - i];
        if (n != 1 && n != whole.dims[whole.n_dims - i]) {
            return false;
        }
    }
    return true;
}

/* Labels of an operand that repeats into one labelled `whole`. */
static void label_repeated(ds_shape shape, const char *whole, ds_shape whole_shape, char *label)
{
    const uint32_t skipped = whole_shape.n_dims - shape.n_dims;
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        const bool same = shape.dims[i] == whole_shape.dims[skipped + i];
        label[i] = same ? whole[skipped + i] : '_';
    }
    label[shape.n_dims] = '\0';
}

/* Terms of a sum pass through floats only, and only where what stands for others is 0. */
static void refuse_terms(ds_place_case *c, ds_dtype dtype, double other)
{
    if (other != 0.0 || !dsi_dtype_is_float(dtype)) {
        c->n_groups = 0;
        c->hint = "masks, and numbers in the place of masked elements, are no terms of a sum";
    }
}

/* ---- compare --------------------------------------------------------------------------------- */
static ds_status compare_infer(ds_infer *call)
{
    const dsi_compare_attrs *t = call->attrs;
    DS_TRY(need_values(call, 0, "a", 0));
    const ds_meta a = call->in[0];
    if (t->kind < 0 || t->kind >= DSI_COMPARE_COUNT) {
        return dsi_op_bad_attr(call, "kind is %lld, expected 0 to %d", (long long)t->kind,
                               DSI_COMPARE_COUNT - 1);
    }
    if (dsi_op_has(call, 1)) {
        DS_TRY(dsi_op_need(call, 1, "b", a.dtype, a.shape));
    } else {
        DS_TRY(check_number(call, "value", t->value, a.dtype));
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_BOOL, a.shape);
    return DS_OK;
}

static const ds_attr compare_attrs[] = {DSI_ATTR_INT(dsi_compare_attrs, kind),
                                        DSI_ATTR_REAL(dsi_compare_attrs, value)};

const ds_op dsi_op_compare = {
    .version = DS_OP_VERSION,
    .name = "compare",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE_POINTS,
    .doc = "a, [b as a] → bool: a < b (kind 0), ≤ (1), = (2), ≠ (3), > (4) or ≥ (5); without b: "
           "value in its place. With NaN only ≠ holds. No gradient.",
    .n_in_min = 1,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_compare_attrs),
    .attrs = compare_attrs,
    .n_attrs = DSI_N(compare_attrs),
    .infer = compare_infer,
    .cost = dsi_cost_elementwise,
};

/* ---- where ----------------------------------------------------------------------------------- */
static ds_status where_infer(ds_infer *call)
{
    const dsi_where_attrs *t = call->attrs;
    const ds_meta mask = dsi_op_in(call, 0);
    DS_TRY(need_values(call, 1, "a", 0));
    const ds_meta a = call->in[1];
    if ((mask.dtype != DS_DTYPE_BOOL && mask.dtype != DS_DTYPE_I32) ||
        !repeats_into(mask.shape, a.shape)) {
        char text[96];
        return dsi_op_bad(call, 0, "mask", "bool or i32 with dims of a (%s), or 1, from the last",
                          ds_meta_text(a, text, sizeof text));
    }
    if (dsi_op_has(call, 2)) {
        DS_TRY(dsi_op_need(call, 2, "b", a.dtype, a.shape));
    } else {
        DS_TRY(check_number(call, "other", t->other, a.dtype));
    }
    call->out[0] = a;
    return DS_OK;
}

/* Where the mask chose an operand, dy; elsewhere 0. */
static ds_status where_grad(ds_grad *call)
{
    const dsi_where_attrs *t = call->attrs;
    dsi_grad_clear(call);
    for (uint32_t i = 1; i < call->n_in && call->d_out[0] != DS_NONE; ++i) {
        if (dsi_grad_wants(call, i)) {
            const dsi_where_attrs part = {.inverse = (t->inverse != 0) != (i == 2)};
            ds_value d;
            DS_TRY(dsi_emit2(call, &dsi_op_where, &part, call->in[0], call->d_out[0], &d));
            DS_TRY(dsi_grad_give(call, i, d));
        }
    }
    return DS_OK;
}

static void adapt_where(ds_place_case *c)
{
    const dsi_where_attrs *t = c->attrs;
    label_repeated(c->in_meta[0].shape, c->in[1], c->in_meta[1].shape, c->in[0]);
    refuse_terms(c, c->in_meta[1].dtype, dsi_place_has(c, 2) ? 0.0 : t->other);
}

static const ds_attr where_attrs[] = {DSI_ATTR_INT(dsi_where_attrs, inverse),
                                      DSI_ATTR_REAL(dsi_where_attrs, other)};

const ds_op dsi_op_where = {
    .version = DS_OP_VERSION,
    .name = "where",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place =
        DSI_PLACE(.in = "* * *", .out = "*", .split = "*", .linear = "12", .adapt = adapt_where),
    .doc = "mask bool or i32, a, [b as a] → a where the mask is not 0, elsewhere b, or without b "
           "the number other; inverse: the other way round. The mask's dims are a's, or 1, "
           "from the last on.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .inplace_in = 1,
    .attrs_bytes = sizeof(dsi_where_attrs),
    .attrs = where_attrs,
    .n_attrs = DSI_N(where_attrs),
    .infer = where_infer,
    .grad = where_grad,
    .cost = dsi_cost_elementwise,
};

/* ---- band ------------------------------------------------------------------------------------ */
static ds_status band_infer(ds_infer *call)
{
    const dsi_band_attrs *t = call->attrs;
    DS_TRY(need_values(call, 0, "x", 2));
    DS_TRY(check_number(call, "other", t->other, call->in[0].dtype));
    call->out[0] = call->in[0];
    return DS_OK;
}

static ds_status band_grad(ds_grad *call)
{
    dsi_band_attrs t = *(const dsi_band_attrs *)call->attrs;
    t.other = 0.0;
    return dsi_grad_by(call, &dsi_op_band, &t);
}

static void adapt_band(ds_place_case *c)
{
    const dsi_band_attrs *t = c->attrs;
    refuse_terms(c, c->in_meta[0].dtype, t->other);
}

static const ds_attr band_attrs[] = {DSI_ATTR_INT(dsi_band_attrs, lower),
                                     DSI_ATTR_INT(dsi_band_attrs, upper),
                                     DSI_ATTR_REAL(dsi_band_attrs, other)};

const ds_op dsi_op_band = {
    .version = DS_OP_VERSION,
    .name = "band",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*__", .out = "*__", .split = "*", .linear = "0", .adapt = adapt_band),
    .doc = "x (..,T,S) → x on the diagonals lower ≤ s - t ≤ upper, elsewhere the number other.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_band_attrs),
    .attrs = band_attrs,
    .n_attrs = DSI_N(band_attrs),
    .infer = band_infer,
    .grad = band_grad,
    .cost = dsi_cost_elementwise,
};
