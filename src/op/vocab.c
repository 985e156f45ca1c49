/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on a part of the vocabulary: which rows a rank has is said by a tensor of their
 * numbers, which is cut with the table. pass/vocab_parts.c puts them where tp shards a vocabulary.
 */
#include "op/op_place.h"
#include "op/op_util.h"

#include <string.h>

/* A part has a row at least, and the whole table as many. */
static ds_status check_rows(const ds_infer *call, int64_t n_rows, uint32_t rows, int64_t part)
{
    if (part < 1 || n_rows < part) {
        return dsi_op_bad_attr(call,
                               "n_rows is %lld, expected at least the rows of the part: %lld, "
                               "one or more",
                               (long long)n_rows, (long long)part);
    }
    return dsi_op_need(call, rows, "rows", DS_DTYPE_I32, ds_shape_1d(part));
}

/* n_rows of the whole table, rows of this part of it. */
static ds_status check_part(const ds_infer *call, uint32_t rows, int64_t part)
{
    const dsi_vocab_attrs *a = call->attrs;
    return check_rows(call, a->n_rows, rows, part);
}

static const ds_attr vocab_attrs[] = {DSI_ATTR_INT(dsi_vocab_attrs, n_rows)};

static const ds_attr row_numbers_attrs[] = {
    DSI_ATTR_INT(dsi_row_numbers_attrs, n_rows), DSI_ATTR_INT(dsi_row_numbers_attrs, n_parts),
    DSI_ATTR_INT(dsi_row_numbers_attrs, turn),   DSI_ATTR_INT(dsi_row_numbers_attrs, halves),
    DSI_ATTR_INT(dsi_row_numbers_attrs, start),
};

static ds_status row_numbers_infer(ds_infer *call)
{
    const dsi_row_numbers_attrs *a = call->attrs;
    if (a->n_rows < 1 || a->n_rows > INT32_MAX) {
        return dsi_op_bad_attr(call, "n_rows is %lld, expected 1 to %d", (long long)a->n_rows,
                               INT32_MAX);
    }
    if (a->start < 0 || a->start > INT32_MAX - a->n_rows) {
        return dsi_op_bad_attr(call, "start is %lld, expected 0 to %lld", (long long)a->start,
                               (long long)(INT32_MAX - a->n_rows));
    }
    if (a->n_parts < 0 || (a->n_parts > 0 && a->n_rows % a->n_parts != 0) || a->turn < 0 ||
        (a->turn > 0 && a->turn >= a->n_parts)) {
        return dsi_op_bad_attr(call,
                               "n_parts is %lld and turn %lld, expected a divisor of %lld, and "
                               "below it",
                               (long long)a->n_parts, (long long)a->turn, (long long)a->n_rows);
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_I32, ds_shape_1d(a->n_rows));
    return DS_OK;
}

const ds_op dsi_op_row_numbers = {
    .version = DS_OP_VERSION,
    .name = "row_numbers",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.out = "_"),
    .doc = "→ i32 (n_rows): 0, 1, 2 …, or from start on; with n_parts in the order of a sequence "
           "that so many ranks "
           "share, in halves or not, its parts turned so often.",
    .n_in_min = 0,
    .n_in_max = 0,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_row_numbers_attrs),
    .attrs = row_numbers_attrs,
    .n_attrs = DSI_N(row_numbers_attrs),
    .infer = row_numbers_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status embedding_part_infer(ds_infer *call)
{
    const ds_meta table = dsi_op_in(call, 0);
    const ds_meta ids = dsi_op_in(call, 1);
    if (!dsi_dtype_is_float(table.dtype) || table.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "table", "a float tensor (V,C)");
    }
    if (ids.dtype != DS_DTYPE_I32 || ids.shape.n_dims >= DS_MAX_DIMS) {
        return dsi_op_bad(call, 1, "ids", "i32 with at most %d dimensions", DS_MAX_DIMS - 1);
    }
    DS_TRY(check_part(call, 2, table.shape.dims[0]));
    ds_shape shape = ids.shape;
    shape.dims[shape.n_dims++] = table.shape.dims[1];
    call->out[0] = dsi_meta_of(table.dtype, shape);
    call->out[1] = call->in[2];
    return DS_OK;
}

static void embedding_part_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes =
        2.0 * (double)ds_meta_bytes(call->out[0]) + (double)ds_meta_bytes(call->in[1]);
}

const ds_op dsi_op_embedding_part = {
    .version = DS_OP_VERSION,
    .name = "embedding_part",
    .op_class = DS_CLASS_EMBEDDING,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "vc * v", .out = "*c v<2", .split = "v*c", .sums = "v",
                       .flags = DSI_PLACE_PART),
    .doc =
        "table (V,C), ids i32 (..), rows i32 (V): the numbers of the table's rows, ascending by "
        "one, of n_rows in all → (..,C): the row of the id, or -0 where the part lacks it; rows. "
        "An id beyond n_rows is an error that names it.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_vocab_attrs),
    .attrs = vocab_attrs,
    .n_attrs = DSI_N(vocab_attrs),
    .infer = embedding_part_infer,
    .cost = embedding_part_cost,
};

static ds_status embedding_part_dw_infer(ds_infer *call)
{
    const ds_meta ids = dsi_op_in(call, 0);
    const ds_meta rows = dsi_op_in(call, 2);
    if (ids.dtype != DS_DTYPE_I32 || ids.shape.n_dims >= DS_MAX_DIMS) {
        return dsi_op_bad(call, 0, "ids", "i32 with at most %d dimensions", DS_MAX_DIMS - 1);
    }
    DS_TRY(dsi_op_need_float(call, 1, "dy", 1));
    const ds_meta dy = call->in[1];
    ds_shape want = ids.shape;
    want.dims[want.n_dims++] = ds_shape_last(dy.shape);
    DS_TRY(dsi_op_need(call, 1, "dy", dy.dtype, want));
    if (rows.shape.n_dims != 1) {
        return dsi_op_bad(call, 2, "rows", "i32 (V)");
    }
    DS_TRY(check_part(call, 2, rows.shape.dims[0]));
    call->out[0] = dsi_meta_of(dsi_stat_dtype(dy.dtype),
                               ds_shape_2d(rows.shape.dims[0], ds_shape_last(dy.shape)));
    return dsi_op_may(call, 3, "dtable_in", call->out[0].dtype, call->out[0].shape);
}

const ds_op dsi_op_embedding_part_dw = {
    .version = DS_OP_VERSION,
    .name = "embedding_part_dw",
    .op_class = DS_CLASS_EMBEDDING_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* *c v vc", .out = "vc<012+3", .split = "v*c", .sums = "*",
                       .linear = "13", .flags = DSI_PLACE_PART),
    .doc = "ids i32 (..), dy (..,C), rows i32 (V), [dtable_in f32 (V,C)] → dtable f32 (V,C): "
           "dtable_in, or 0, plus the rows of dy whose ids are in the part, in token order.",
    .n_in_min = 3,
    .n_in_max = 4,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_vocab_attrs),
    .attrs = vocab_attrs,
    .n_attrs = DSI_N(vocab_attrs),
    .infer = embedding_part_dw_infer,
    .cost = dsi_cost_elementwise,
};

/* ---- cross entropy: terms of the parts, and what they make together ----------------------------
 */
static const ds_attr ce_part_attrs[] = {
    {"n_rows", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, n_rows)},
    {"ignore_index", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, back.ce.ignore_index)},
    {"transposed", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, back.ce.transposed)},
    {"counted", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, back.ce.counted)},
    {"no_dx", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, back.no_dx)},
    {"no_dw", DS_ATTR_INT, offsetof(dsi_ce_part_attrs, back.no_dw)},
};

/* x (..,C), w and targets from input i on, the numbers of w's rows at `rows`. */
static ds_status check_projection(const ds_infer *call, uint32_t i, uint32_t rows)
{
    const dsi_ce_part_attrs *a = call->attrs;
    const bool transposed = a->back.ce.transposed != 0;
    DS_TRY(dsi_op_need_float(call, i, "x", 1));
    const ds_meta x = call->in[i];
    const ds_meta w = dsi_op_in(call, i + 1);
    const int64_t c = ds_shape_last(x.shape);
    if (w.dtype != x.dtype || w.shape.n_dims != 2 || w.shape.dims[transposed ? 0 : 1] != c) {
        return dsi_op_bad(call, i + 1, "w", transposed ? "%s[%lld,V]" : "%s[V,%lld]",
                          ds_dtype_name(x.dtype), (long long)c);
    }
    DS_TRY(dsi_op_need(call, i + 2, "targets", DS_DTYPE_I32, dsi_shape_lead(x.shape)));
    const int64_t n_rows = w.shape.dims[transposed ? 1 : 0];
    return check_rows(call, a->n_rows, rows, n_rows);
}

/* 2·rows·V·C operations a product. */
static void products_cost(const ds_infer *call, uint32_t i, double products, ds_cost *cost_out)
{
    const int64_t rows = ds_shape_rows(call->in[i].shape);
    const int64_t width = ds_shape_last(call->in[i].shape);
    const int64_t weights = ds_shape_count(call->in[i + 1].shape);
    cost_out->flops = 2.0 * products * (double)rows * (double)weights;
    cost_out->bytes = dsi_op_bytes(call);
    cost_out->m = rows;
    cost_out->n = weights / (width > 0 ? width : 1);
    cost_out->k = width;
}

/* Rows are cut where their loss is divided by a given count alone: it is a term of a sum then. Else
 * `letters` are all that may be. */
static void keep_rows_whole(ds_place_case *c, const dsi_ce_attrs *a, const char *letters)
{
    if (a->counted == 0) {
        memcpy(c->split, letters, strlen(letters) + 1);
        memcpy(c->sums, letters, strlen(letters) + 1);
    }
}

static void swap_weight(ds_place_case *c, uint32_t i)
{
    const dsi_ce_part_attrs *a = c->attrs;
    if (a->back.ce.transposed != 0) {
        dsi_place_swap_dims(c->in[i]);
    }
}

static ds_status ce_part_infer(ds_infer *call)
{
    DS_TRY(check_projection(call, 0, 3));
    const ds_meta x = call->in[0];
    call->out[0] = dsi_meta_of(dsi_stat_dtype(x.dtype), dsi_shape_with_last(x.shape, 2));
    call->out[1] = call->in[3];
    return DS_OK;
}

static void ce_part_cost(const ds_infer *call, ds_cost *cost_out)
{
    products_cost(call, 0, 1.0, cost_out);
}

static void ce_part_adapt(ds_place_case *c)
{
    keep_rows_whole(c, &((const dsi_ce_part_attrs *)c->attrs)->back.ce, "v");
    swap_weight(c, 1);
}

const ds_op dsi_op_linear_cross_entropy_part = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy_part",
    .op_class = DS_CLASS_LOSS,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ v_ * v", .out = "*_ v<3", .split = "v*", .sums = "v",
                       .flags = DSI_PLACE_PART | DSI_PLACE_SIDE, .adapt = ce_part_adapt),
    .doc =
        "x (..,C), w (V,C) or, transposed, (C,V), targets i32 (..), rows i32 (V): the numbers of "
        "w's rows, ascending by one, of n_rows in all → terms f32 (..,2): the log-sum-exp of each "
        "row over the part, and its target's logit, or -0 where the part lacks it; rows. counted: "
        "as cross_entropy_join has it.",
    .n_in_min = 4,
    .n_in_max = 4,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_ce_part_attrs),
    .attrs = ce_part_attrs,
    .n_attrs = DSI_N(ce_part_attrs),
    .infer = ce_part_infer,
    .cost = ce_part_cost,
};

static ds_status ce_join_infer(ds_infer *call)
{
    const ds_meta terms = dsi_op_in(call, 0);
    const ds_meta targets = dsi_op_in(call, 1);
    const ds_shape scalar = {0};
    if (targets.dtype != DS_DTYPE_I32) {
        return dsi_op_bad(call, 1, "targets", "i32");
    }
    const uint32_t by_parts = terms.shape.n_dims == targets.shape.n_dims + 2 ? 1 : 0;
    bool fits = terms.shape.n_dims == targets.shape.n_dims + 1 + by_parts &&
                ds_shape_last(terms.shape) == 2 && ds_shape_count(terms.shape) > 0;
    for (uint32_t d = 0; d < targets.shape.n_dims && fits; ++d) {
        fits = terms.shape.dims[d + by_parts] == targets.shape.dims[d];
    }
    if ((terms.dtype != DS_DTYPE_F32 && terms.dtype != DS_DTYPE_F64) || !fits) {
        return dsi_op_bad(call, 0, "terms", "f32 (..,2) or (n,..,2) of the %lld targets",
                          (long long)ds_shape_count(targets.shape));
    }
    const dsi_ce_attrs *a = call->attrs;
    if (a->counted != 0) {
        DS_TRY(dsi_op_need(call, 2, "count", terms.dtype, scalar));
    } else if (dsi_op_has(call, 2)) {
        return dsi_op_bad(call, 2, "count", "none, since counted is 0");
    }
    call->out[0] = dsi_meta_of(terms.dtype, scalar);
    call->out[1] = dsi_meta_of(terms.dtype, targets.shape);
    call->out[2] = dsi_meta_of(terms.dtype, scalar);
    return DS_OK;
}

static const ds_attr ce_attrs[] = {
    DSI_ATTR_INT(dsi_ce_attrs, ignore_index),
    DSI_ATTR_INT(dsi_ce_attrs, transposed),
    DSI_ATTR_INT(dsi_ce_attrs, counted),
};

/* Terms that lie side by side have the parts in front of the rows. */
static void ce_join_adapt(ds_place_case *c)
{
    const dsi_ce_attrs *a = c->attrs;
    const size_t rows = strlen(c->in[1]);
    if (c->in_meta[0].shape.n_dims == rows + 2) {
        c->in[0][0] = '_';
        memcpy(c->in[0] + 1, c->in[1], rows);
    }
    keep_rows_whole(c, a, "");
    if (a->counted != 0) {
        c->computed[2] = 1u << 2;
    }
}

const ds_op dsi_op_cross_entropy_join = {
    .version = DS_OP_VERSION,
    .name = "cross_entropy_join",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ * .", .out = ". * .", .split = "*", .sums = "*",
                       .adapt = ce_join_adapt),
    .doc = "terms f32 (..,2) or (n,..,2) of n parts, targets i32 (..) [, counted: count f32 ()] → "
           "loss f32 () mean over rows whose target is not ignore_index (0 when there are none; "
           "their sum / count where that is given), lse f32 (..), count f32 ().",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 3,
    .attrs_bytes = sizeof(dsi_ce_attrs),
    .attrs = ce_attrs,
    .n_attrs = DSI_N(ce_attrs),
    .infer = ce_join_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status ce_part_backward_infer(ds_infer *call)
{
    const dsi_ce_part_attrs *a = call->attrs;
    const ds_shape scalar = {0};
    DS_TRY(check_projection(call, 1, 6));
    const ds_meta x = call->in[1];
    const ds_dtype stat = dsi_stat_dtype(x.dtype);
    const ds_meta dw = dsi_meta_of(stat, call->in[2].shape);
    DS_TRY(dsi_op_need(call, 0, "dloss", stat, scalar));
    DS_TRY(dsi_op_need(call, 4, "lse", stat, dsi_shape_lead(x.shape)));
    DS_TRY(dsi_op_need(call, 5, "count", stat, scalar));
    if (a->back.no_dw != 0 && dsi_op_has(call, 7)) {
        return dsi_op_bad(call, 7, "dw_in", "none, since no_dw is 1");
    }
    if (a->back.no_dx == 0) {
        call->out[0] = x;
    }
    if (a->back.no_dw == 0) {
        call->out[1] = dw;
    }
    return dsi_op_may(call, 7, "dw_in", dw.dtype, dw.shape);
}

static void ce_part_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_ce_part_attrs *a = call->attrs;
    const double products =
        1.0 + (a->back.no_dx == 0 ? 1.0 : 0.0) + (a->back.no_dw == 0 ? 1.0 : 0.0);
    products_cost(call, 1, products, cost_out); /* the logits again, dx, dw */
    cost_out->again = cost_out->flops / products;
}

static void ce_part_backward_adapt(ds_place_case *c)
{
    swap_weight(c, 2);
    if (dsi_place_has(c, 7)) {
        swap_weight(c, 7);
    }
    const dsi_ce_part_attrs *a = c->attrs;
    keep_rows_whole(c, &a->back.ce, "v");
    if (a->back.ce.transposed != 0 && a->back.no_dw == 0) {
        dsi_place_swap_dims(c->out[1]);
    }
}

const ds_op dsi_op_linear_cross_entropy_part_backward = {
    .version = DS_OP_VERSION,
    .name = "linear_cross_entropy_part_backward",
    .op_class = DS_CLASS_LOSS_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = ". *_ v_ * * . v v_", .out = "*_<0123456 v_<0123456+7", .split = "v*",
                       .sums = "v*", .linear = "07", .flags = DSI_PLACE_PART,
                       .adapt = ce_part_backward_adapt),
    .doc = "dloss f32 (), x, w, targets, lse and count of all parts, rows, [dw_in f32] → [dx "
           "(..,C): what this part adds], [dw f32 in w's layout]: otherwise as "
           "linear_cross_entropy_backward.",
    .n_in_min = 7,
    .n_in_max = 8,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_ce_part_attrs),
    .attrs = ce_part_attrs,
    .n_attrs = DSI_N(ce_part_attrs),
    .infer = ce_part_backward_infer,
    .cost = ce_part_backward_cost,
};
