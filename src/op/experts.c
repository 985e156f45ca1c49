/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to experts and back, and the products of each expert with its rows: rules. See ops.h. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <string.h>

/* ---- spread_rows, combine_rows -----------------------------------------------------------------
 */
static ds_shape lead_of(const ds_infer *call, uint32_t place)
{
    return dsi_shape_lead(dsi_op_in(call, place).shape);
}

static ds_status check_place(const ds_infer *call, uint32_t i)
{
    const ds_meta place = dsi_op_in(call, i);
    if (place.dtype != DS_DTYPE_I32 || place.shape.n_dims < 1 || ds_shape_last(place.shape) < 1) {
        return dsi_op_bad(call, i, "place", "i32 (..,K)");
    }
    return DS_OK;
}

static ds_shape with_width(ds_shape lead, int64_t width)
{
    lead.dims[lead.n_dims++] = width;
    return lead;
}

static ds_status spread_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(check_place(call, 1));
    const ds_meta x = call->in[0];
    const ds_meta place = call->in[1];
    const int64_t width = ds_shape_last(x.shape);
    DS_TRY(dsi_op_need(call, 0, "x", x.dtype, with_width(lead_of(call, 1), width)));
    DS_TRY(dsi_op_may(call, 2, "weights", dsi_stat_dtype(x.dtype), place.shape));
    call->out[0] = dsi_meta_of(x.dtype, ds_shape_2d(ds_shape_count(place.shape), width));
    return DS_OK;
}

static ds_status combine_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "rows", 2));
    DS_TRY(check_place(call, 1));
    const ds_meta rows = call->in[0];
    const ds_meta place = call->in[1];
    const int64_t width = ds_shape_last(rows.shape);
    DS_TRY(
        dsi_op_need(call, 0, "rows", rows.dtype, ds_shape_2d(ds_shape_count(place.shape), width)));
    DS_TRY(dsi_op_may(call, 2, "weights", dsi_stat_dtype(rows.dtype), place.shape));
    call->out[0] = dsi_meta_of(rows.dtype, with_width(lead_of(call, 1), width));
    return DS_OK;
}

static ds_status combine_dw_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 1, "rows", 2));
    DS_TRY(check_place(call, 2));
    const ds_meta rows = call->in[1];
    const ds_meta place = call->in[2];
    const int64_t width = ds_shape_last(rows.shape);
    DS_TRY(
        dsi_op_need(call, 1, "rows", rows.dtype, ds_shape_2d(ds_shape_count(place.shape), width)));
    DS_TRY(dsi_op_need(call, 0, "dy", rows.dtype, with_width(lead_of(call, 2), width)));
    call->out[0] = dsi_meta_of(dsi_stat_dtype(rows.dtype), place.shape);
    return DS_OK;
}

/* x is input 0 of the one, rows of the other; what goes back is the other operator. */
static ds_status rows_grad(ds_grad *call, const ds_op *back)
{
    const ds_value d = call->d_out[0];
    const ds_value weights = call->n_in > 2 ? call->in[2] : DS_NONE;
    const bool spreads = back == &dsi_op_combine_rows;
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (d == DS_NONE) {
        return DS_OK;
    }
    if (dsi_grad_wants(call, 0)) {
        const ds_value in[3] = {d, call->in[1], weights};
        DS_TRY(dsi_emit(call, back, call->attrs, in, 3, out));
        DS_TRY(dsi_grad_give(call, 0, out[0]));
    }
    if (dsi_grad_wants(call, 2)) {
        const ds_value in[3] = {spreads ? call->in[0] : d, spreads ? d : call->in[0], call->in[1]};
        DS_TRY(dsi_emit(call, &dsi_op_combine_rows_dw, call->attrs, in, 3, out));
        DS_TRY(dsi_grad_give(call, 2, out[0]));
    }
    return DS_OK;
}

static ds_status spread_grad(ds_grad *call)
{
    return rows_grad(call, &dsi_op_combine_rows);
}

static ds_status combine_grad(ds_grad *call)
{
    return rows_grad(call, &dsi_op_spread_rows);
}

static const ds_attr parts_attrs[] = {DSI_ATTR_INT(dsi_parts_attrs, parts)};

/* The rows, which are cut where their tokens are: along T of (B,T,..). */
static void cut_rows(ds_place_case *c, char *rows)
{
    const dsi_parts_attrs *a = c->attrs;
    if (a->parts > 1) {
        const size_t n = strlen(c->split);
        rows[0] = 'B';
        c->split[n] = 'B';
        c->split[n + 1] = '\0';
    }
}

static void adapt_spread(ds_place_case *c)
{
    cut_rows(c, c->out[0]);
}

static void adapt_combine(ds_place_case *c)
{
    cut_rows(c, c->in[0]);
}

static void adapt_combine_dw(ds_place_case *c)
{
    cut_rows(c, c->in[1]);
}

static void rows_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 2.0 * dsi_op_count(call->in[call->op == &dsi_op_combine_rows_dw ? 1 : 0]);
    cost_out->bytes = dsi_op_bytes(call);
}

const ds_op dsi_op_spread_rows = {
    .version = DS_OP_VERSION,
    .name = "spread_rows",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*c *_ *_", .out = "_c", .split = "c", .linear = "0|2",
                       .adapt = adapt_spread),
    .doc = "x (..,C), place i32 (..,K), [weights f32 (..,K)] → rows (R,C): row place[t,j] is "
           "x[t], times weights[t,j]. A place that is no row is an error that names it.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_parts_attrs),
    .attrs = parts_attrs,
    .n_attrs = DSI_N(parts_attrs),
    .infer = spread_infer,
    .grad = spread_grad,
    .cost = rows_cost,
};

const ds_op dsi_op_combine_rows = {
    .version = DS_OP_VERSION,
    .name = "combine_rows",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_c *_ *_", .out = "*c", .split = "c", .linear = "0|2",
                       .adapt = adapt_combine),
    .doc = "rows (R,C), place i32 (..,K), [weights f32 (..,K)] → y (..,C): the sum over j, in its "
           "order, of row place[t,j] times weights[t,j].",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_parts_attrs),
    .attrs = parts_attrs,
    .n_attrs = DSI_N(parts_attrs),
    .infer = combine_infer,
    .grad = combine_grad,
    .cost = rows_cost,
};

const ds_op dsi_op_combine_rows_dw = {
    .version = DS_OP_VERSION,
    .name = "combine_rows_dw",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*c _c *_", .out = "*_", .split = "c", .sums = "c", .linear = "0|1",
                       .adapt = adapt_combine_dw),
    .doc = "dy (..,C), rows (R,C), place i32 (..,K) → dweights f32 (..,K): dy[t] · row place[t,j].",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_parts_attrs),
    .attrs = parts_attrs,
    .n_attrs = DSI_N(parts_attrs),
    .infer = combine_dw_infer,
    .cost = rows_cost,
};

/* ---- grouped_linear ----------------------------------------------------------------------------
 */
static const ds_attr grouped_attrs[] = {
    DSI_ATTR_INT(dsi_grouped_attrs, transposed), DSI_ATTR_INT(dsi_grouped_attrs, sources),
    DSI_ATTR_INT(dsi_grouped_attrs, parts), DSI_ATTR_INT(dsi_grouped_attrs, copies),
    DSI_ATTR_INT(dsi_grouped_attrs, expected)};

static int64_t or_one(int64_t n)
{
    return n > 1 ? n : 1;
}

/* *experts_out: E, of all parts together. */
static ds_status check_offsets(const ds_infer *call, uint32_t i, int64_t *experts_out)
{
    const dsi_grouped_attrs *a = call->attrs;
    const int64_t parts = or_one(a->parts);
    const int64_t sources = or_one(a->sources);
    const ds_meta offsets = dsi_op_in(call, i);
    const int64_t each = offsets.shape.n_dims == 1 ? offsets.shape.dims[0] / parts - 1 : 0;
    if (offsets.dtype != DS_DTYPE_I32 || offsets.shape.n_dims != 1 || each < sources ||
        offsets.shape.dims[0] % parts != 0 || each % sources != 0 ||
        parts % or_one(a->copies) != 0) {
        return dsi_op_bad(call, i, "offsets", "i32 (S·E+1), or one such list for each part");
    }
    *experts_out = each / sources * parts / or_one(a->copies);
    return DS_OK;
}

static ds_status check_rows(const ds_infer *call, uint32_t i, const char *name)
{
    DS_TRY(dsi_op_need_float(call, i, name, 2));
    return call->in[i].shape.n_dims == 2 ? DS_OK : dsi_op_bad(call, i, name, "rows (R,C)");
}

static ds_status grouped_infer(ds_infer *call)
{
    const dsi_grouped_attrs *a = call->attrs;
    int64_t n_experts = 0;
    DS_TRY(check_rows(call, 0, "x"));
    DS_TRY(check_offsets(call, 2, &n_experts));
    const ds_meta x = call->in[0];
    const ds_meta w = dsi_op_in(call, 1);
    const int64_t k = x.shape.dims[1];
    const uint32_t in_dim = a->transposed != 0 ? 1 : 2;
    if (w.dtype != x.dtype || w.shape.n_dims != 3 || w.shape.dims[in_dim] != k ||
        w.shape.dims[0] != n_experts) {
        return dsi_op_bad(call, 1, "w",
                          a->transposed != 0 ? "%s[%lld,%lld,out]" : "%s[%lld,out,%lld]",
                          ds_dtype_name(x.dtype), (long long)n_experts, (long long)k);
    }
    call->out[0] = dsi_meta_of(x.dtype, ds_shape_2d(x.shape.dims[0], w.shape.dims[3 - in_dim]));
    return DS_OK;
}

/* Rows that are expected to hold something; of all parts. */
static int64_t rows_expected(const ds_infer *call)
{
    const dsi_grouped_attrs *a = call->attrs;
    return a->expected > 0 ? a->expected * or_one(a->parts) : call->in[0].shape.dims[0];
}

/* Of those, the rows between two offsets, when all have as many. */
static int64_t rows_each(const ds_infer *call)
{
    const int64_t n = call->in[2].shape.dims[0] - 1;
    return n > 0 ? (rows_expected(call) + n - 1) / n : 0;
}

static void grouped_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->m = rows_each(call);
    cost_out->n = ds_shape_last(call->out[0].shape);
    cost_out->k = ds_shape_last(call->in[0].shape);
    cost_out->flops = 2.0 * (double)(rows_expected(call) * cost_out->n) * (double)cost_out->k;
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status grouped_grad(ds_grad *call)
{
    const dsi_grouped_attrs *a = call->attrs;
    const ds_value d = call->d_out[0];
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (d == DS_NONE) {
        return DS_OK;
    }
    if (dsi_grad_wants(call, 0)) {
        const dsi_grouped_attrs dx = {.transposed = a->transposed == 0,
                                      .sources = a->sources,
                                      .parts = a->parts,
                                      .copies = a->copies,
                                      .expected = a->expected};
        const ds_value in[3] = {d, call->in[1], call->in[2]};
        DS_TRY(dsi_emit(call, &dsi_op_grouped_linear, &dx, in, 3, out));
        DS_TRY(dsi_grad_give(call, 0, out[0]));
    }
    if (dsi_grad_wants(call, 1)) {
        const ds_value in[3] = {call->in[0], d, call->in[2]};
        DS_TRY(dsi_emit(call, &dsi_op_grouped_linear_dw, a, in, 3, out));
        DS_TRY(dsi_grad_give(call, 1, out[0]));
    }
    return DS_OK;
}

static void adapt_grouped(ds_place_case *c)
{
    const dsi_grouped_attrs *a = c->attrs;
    if (a->transposed != 0) {
        dsi_place_swap_dims(c->in[1] + 1);
    }
    if (a->parts < 2) {
        dsi_place_drop(c->split, 'e');
    }
}

/* A rank's part of rows and experts. */
static void local_grouped(const ds_infer *local, void *attrs)
{
    const dsi_grouped_attrs *whole = local->attrs;
    dsi_grouped_attrs *a = attrs;
    const uint32_t dealt = local->op == &dsi_op_grouped_linear ? 1 : 0;
    const int64_t n_experts = dealt == 1 ? local->in[1].shape.dims[0] : local->out[0].shape.dims[0];
    const int64_t n = local->in[2].shape.dims[0];
    const int64_t one = or_one(whole->sources) * n_experts + 1; /* the length of a list for these */
    a->parts = whole->parts > 1 && n == one ? 0 : whole->parts;
    a->copies = a->parts > 1 ? whole->copies : 0;
}

const ds_op dsi_op_grouped_linear = {
    .version = DS_OP_VERSION,
    .name = "grouped_linear",
    .op_class = DS_CLASS_LINEAR,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "ek eok e", .out = "eo", .split = "eok", .sums = "k", .linear = "0|1",
                       .adapt = adapt_grouped, .local = local_grouped),
    .doc = "x (R,K), w (E,O,K) or, transposed, (E,K,O), offsets i32 (E+1) → y (R,O): the rows from "
           "offsets[e] to offsets[e+1] - 1 times w[e]; zeros behind the last.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_grouped_attrs),
    .attrs = grouped_attrs,
    .n_attrs = DSI_N(grouped_attrs),
    .infer = grouped_infer,
    .grad = grouped_grad,
    .cost = grouped_cost,
};

static ds_status grouped_dw_infer(ds_infer *call)
{
    const dsi_grouped_attrs *a = call->attrs;
    DS_TRY(check_rows(call, 0, "x"));
    DS_TRY(check_rows(call, 1, "dy"));
    int64_t n_experts = 0;
    DS_TRY(check_offsets(call, 2, &n_experts));
    const ds_meta x = call->in[0];
    const int64_t k = x.shape.dims[1];
    const int64_t o = call->in[1].shape.dims[1];
    DS_TRY(dsi_op_need(call, 1, "dy", x.dtype, ds_shape_2d(x.shape.dims[0], o)));
    call->out[0] =
        dsi_meta_of(dsi_stat_dtype(x.dtype), a->transposed != 0 ? ds_shape_3d(n_experts, k, o)
                                                                : ds_shape_3d(n_experts, o, k));
    return dsi_op_may(call, 3, "dw_in", call->out[0].dtype, call->out[0].shape);
}

static void grouped_dw_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->m = ds_shape_last(call->in[0].shape);
    cost_out->n = ds_shape_last(call->in[1].shape);
    cost_out->k = rows_each(call);
    cost_out->flops = 2.0 * (double)(rows_expected(call) * cost_out->m) * (double)cost_out->n;
    cost_out->bytes = dsi_op_bytes(call);
}

static void adapt_grouped_dw(ds_place_case *c)
{
    const dsi_grouped_attrs *a = c->attrs;
    if (a->transposed != 0) {
        dsi_place_swap_dims(c->in[3] + 1);
        dsi_place_swap_dims(c->out[0] + 1);
    }
    if (a->parts < 2) {
        dsi_place_drop(c->split, 'e');
    }
}

const ds_op dsi_op_grouped_linear_dw = {
    .version = DS_OP_VERSION,
    .name = "grouped_linear_dw",
    .op_class = DS_CLASS_LINEAR_DW,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "ek eo e eok", .out = "eok<012+3", .split = "eok", .linear = "13",
                       .adapt = adapt_grouped_dw, .local = local_grouped),
    .doc = "x (R,K), dy (R,O), offsets i32 (E+1), [dw_in] → dw f32 (E,O,K) or, transposed, "
           "(E,K,O): the weight gradient of each expert over its own rows, in their order; dw_in "
           "is added.",
    .n_in_min = 3,
    .n_in_max = 4,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_grouped_attrs),
    .attrs = grouped_attrs,
    .n_attrs = DSI_N(grouped_attrs),
    .infer = grouped_dw_infer,
    .cost = grouped_dw_cost,
};
