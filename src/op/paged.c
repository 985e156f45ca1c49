/* SPDX-License-Identifier: Apache-2.0 */
/* paged_write, paged_attention: tokens of many sequences in a row, whose keys and values lie in
 * blocks of shared cells. Rules. */
#include "op/op_place.h"
#include "op/op_util.h"
#include "op/paged_cell.h"
#include "op/paged_state.h"

ds_status dsi_op_need_tokens(const ds_infer *call, uint32_t x, const char *name, uint32_t at)
{
    const ds_shape tokens = dsi_op_in(call, x).shape;
    if (tokens.n_dims < 2 || tokens.dims[0] != 1) {
        return dsi_op_bad(call, x, name, "one row of tokens (1,T,..)");
    }
    DS_TRY(dsi_op_need(call, at, "sequence", DS_DTYPE_I32, ds_shape_1d(tokens.dims[1])));
    return dsi_op_need(call, at + 1, "positions", DS_DTYPE_I32, ds_shape_2d(1, tokens.dims[1]));
}

static ds_status need_pool(const ds_infer *call, uint32_t i, const char *name, int64_t width)
{
    const ds_meta pool = dsi_op_in(call, i);
    if ((!dsi_dtype_is_float(pool.dtype) && pool.dtype != DS_DTYPE_I8) || pool.shape.n_dims != 3 ||
        (width >= 0 && pool.shape.dims[2] != width)) {
        return dsi_op_bad(call, i, name,
                          "a float or i8 tensor (blocks,positions,C) of the heads' width");
    }
    return DS_OK;
}

static ds_status paged_write_infer(ds_infer *call)
{
    DS_TRY(need_pool(call, 0, "cell", -1));
    const ds_meta cell = call->in[0];
    const ds_meta x = dsi_op_in(call, 1);
    const int64_t d = ((const dsi_paged_write_attrs *)call->attrs)->head_dim;
    if (d < 0 || (d == 0) != (cell.dtype != DS_DTYPE_I8)) {
        return dsi_op_bad_attr(call, "head_dim %lld, expected that of an i8 cell, 0 of others",
                               (long long)d);
    }
    const int64_t each = dsi_paged_head(cell.dtype, d); /* 0: any width */
    const int64_t width = d > 0 ? cell.shape.dims[2] / each * d : cell.shape.dims[2];
    if (d > 0 && cell.shape.dims[2] % each != 0) {
        return dsi_op_bad(call, 0, "cell", "heads of %lld bytes", (long long)each);
    }
    if (!dsi_dtype_is_float(x.dtype) || x.shape.n_dims != 3 || x.shape.dims[0] != 1 ||
        x.shape.dims[2] != width) {
        return dsi_op_bad(call, 1, "x", "a float tensor [1,T,%lld]", (long long)width);
    }
    DS_TRY(dsi_op_need(call, 2, "slots", DS_DTYPE_I32, ds_shape_1d(x.shape.dims[1])));
    call->out[0] = cell;
    return DS_OK;
}

static void paged_write_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 0.0;
    cost_out->bytes = 2.0 * (double)ds_meta_bytes(call->in[1]);
}

static const int8_t writes_first[] = {0};
static const ds_attr write_attrs[] = {DSI_ATTR_INT(dsi_paged_write_attrs, head_dim)};

static void adapt_write(ds_place_case *c)
{
    const int64_t d = ((const dsi_paged_write_attrs *)c->attrs)->head_dim;
    if (d > 0) { /* rows of two widths, cut between heads */
        c->unit_letter = 'c';
        c->units[0] = c->units[1] = c->in_meta[1].shape.dims[2] / d;
    }
}

const ds_op dsi_op_paged_write = {
    .version = DS_OP_VERSION,
    .name = "paged_write",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "__c __c _", .out = "__c", .split = "c", .adapt = adapt_write),
    .doc =
        "cell (N,P,C): N blocks of P positions, x (1,T,C), slots i32 (T) → the cell's next "
        "version with position slots[t] of all N·P replaced by row t of x, rounded to the cell's "
        "dtype; a slot of -1 takes nothing. A slot beyond the cell is an error. A cell of i8 has "
        "rows of heads: head_dim codes x/scale, rounded to even, then the scale in fp32, the "
        "largest magnitude of the head's values over 127 (not finite: NaN).",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_paged_write_attrs),
    .attrs = write_attrs,
    .n_attrs = DSI_N(write_attrs),
    .writes = writes_first,
    .flags = DS_OP_INPLACE,
    .infer = paged_write_infer,
    .cost = paged_write_cost,
};

static ds_status check_heads(const ds_infer *call)
{
    enum { MOST = 1 << 20 };
    const dsi_paged_attrs *a = call->attrs;
    if (a->n_heads < 1 || a->n_heads > MOST || a->n_kv_heads < 1 ||
        a->n_heads % a->n_kv_heads != 0 || a->head_dim < 1 || a->head_dim > MOST || a->window < 0 ||
        !(a->cap >= 0.0 && a->cap <= 1e6) || !(a->alibi >= 0.0 && a->alibi <= 1e3) ||
        a->alibi_rounded < 0 || a->alibi_rounded > 1) {
        return dsi_op_bad_attr(call,
                               "n_heads %lld, n_kv_heads %lld, head_dim %lld, window %lld, cap %g, "
                               "alibi %g, expected positive numbers, n_heads a multiple of "
                               "n_kv_heads, and a window, cap and alibi of 0 or more",
                               (long long)a->n_heads, (long long)a->n_kv_heads,
                               (long long)a->head_dim, (long long)a->window, a->cap, a->alibi);
    }
    if (dsi_op_has(call, 6) ? a->all_heads < a->n_heads : a->all_heads != 0) {
        return dsi_op_bad_attr(call,
                               "all_heads is %lld, expected n_heads or more with heads, else 0",
                               (long long)a->all_heads);
    }
    return DS_OK;
}

/* Of distances E - 1 to 0; farther keys get what the farthest has. */
static ds_status check_bias(const ds_infer *call)
{
    const dsi_paged_attrs *a = call->attrs;
    if (!dsi_op_has(call, 7)) {
        return DS_OK;
    }
    const ds_meta bias = dsi_op_in(call, 7);
    if (bias.dtype != DS_DTYPE_F32 || bias.shape.n_dims != 4 || bias.shape.dims[0] != 1 ||
        bias.shape.dims[1] != a->n_heads || bias.shape.dims[2] != 1 || bias.shape.dims[3] < 1) {
        return dsi_op_bad(call, 7, "bias", "f32 (1,%lld,1,E)", (long long)a->n_heads);
    }
    return a->alibi == 0.0 ? DS_OK
                           : dsi_op_bad_attr(call, "alibi %g, expected 0 beside bias", a->alibi);
}

static ds_status paged_attention_infer(ds_infer *call)
{
    const dsi_paged_attrs *a = call->attrs;
    DS_TRY(check_heads(call));
    const ds_meta q = dsi_op_in(call, 0);
    if (!dsi_dtype_is_float(q.dtype) || q.shape.n_dims != 3 || q.shape.dims[0] != 1 ||
        q.shape.dims[2] != a->n_heads * a->head_dim) {
        return dsi_op_bad(call, 0, "q", "a float tensor (1,T,%lld)",
                          (long long)(a->n_heads * a->head_dim));
    }
    const ds_meta k = dsi_op_in(call, 1);
    DS_TRY(need_pool(call, 1, "k", a->n_kv_heads * dsi_paged_head(k.dtype, a->head_dim)));
    DS_TRY(dsi_op_need(call, 2, "v", k.dtype, k.shape));
    const ds_meta tables = dsi_op_in(call, 3);
    if (tables.dtype != DS_DTYPE_I32 || tables.shape.n_dims != 2) {
        return dsi_op_bad(call, 3, "tables", "i32 (sequences,blocks)");
    }
    DS_TRY(dsi_op_need_tokens(call, 0, "q", 4));
    DS_TRY(dsi_op_may(call, 6, "heads", DS_DTYPE_I32, ds_shape_1d(a->n_heads)));
    DS_TRY(check_bias(call));
    call->out[0] = q;
    call->out[1] =
        dsi_meta_of(dsi_stat_dtype(q.dtype), ds_shape_3d(1, a->n_heads, q.shape.dims[1]));
    return DS_OK;
}

/* As if each token saw half of what a table can hold. */
static void paged_attention_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_paged_attrs *a = call->attrs;
    const int64_t tokens = call->in[0].shape.dims[1];
    const int64_t keys = call->in[3].shape.dims[1] * call->in[1].shape.dims[1];
    cost_out->flops = 2.0 * (double)(tokens * a->n_heads) * (double)keys * (double)a->head_dim;
    cost_out->bytes =
        2.0 * (double)ds_meta_bytes(call->in[0]) +
        (double)(keys * call->in[1].shape.dims[2]) * (double)ds_dtype_bytes(call->in[1].dtype);
    cost_out->m = tokens * a->n_heads;
    cost_out->n = keys;
    cost_out->k = a->head_dim;
}

static const ds_attr paged_attrs[] = {
    DSI_ATTR_INT(dsi_paged_attrs, n_heads),   DSI_ATTR_INT(dsi_paged_attrs, n_kv_heads),
    DSI_ATTR_INT(dsi_paged_attrs, head_dim),  DSI_ATTR_INT(dsi_paged_attrs, window),
    DSI_ATTR_REAL(dsi_paged_attrs, scale),    DSI_ATTR_REAL(dsi_paged_attrs, cap),
    DSI_ATTR_REAL(dsi_paged_attrs, alibi),    DSI_ATTR_INT(dsi_paged_attrs, alibi_rounded),
    DSI_ATTR_INT(dsi_paged_attrs, all_heads),
};

static void adapt_heads(ds_place_case *c)
{
    const dsi_paged_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = a->n_heads;
    c->units[1] = a->n_kv_heads;
    c->hint = "the ranks that share the heads must divide n_heads and n_kv_heads";
    if (a->alibi > 0.0 && !dsi_place_has(c, 6)) { /* slopes go by the number of a head */
        dsi_place_drop(c->split, 'h');
    }
}

/* A rank's heads. */
static void heads_local(const ds_infer *local, void *attrs)
{
    dsi_paged_attrs *a = attrs;
    a->n_heads = local->in[0].shape.dims[2] / a->head_dim;
    a->n_kv_heads = local->in[1].shape.dims[2] / dsi_paged_head(local->in[1].dtype, a->head_dim);
}

const ds_op dsi_op_paged_attention = {
    .version = DS_OP_VERSION,
    .name = "paged_attention",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "__h __h __h __ _ __ h _h__", .out = "__h _h_", .split = "h",
                       .adapt = adapt_heads, .local = heads_local),
    .doc =
        "q (1,T,H·D), k, v (N,P,KV·D): N blocks of P positions, tables i32 (S,M), sequence i32 "
        "(T), positions i32 (1,T), [heads i32 (H)], [bias f32 (1,H,1,E)] → y (1,T,H·D), "
        "lse f32 (1,H,T): softmax(scale·q·kᵀ)·v over the "
        "keys of the token's own sequence up to its position, those of the window if there is one. "
        "cap and alibi bend scores as in attention; then bias is added, its last element where key "
        "and query are at one position, the one before it at a distance of 1, its first at E-1 and "
        "beyond. k and v are as paged_write makes them, of any "
        "float dtype or of i8 with KV·(D+4) bytes a position. Position p of sequence s lies in "
        "block "
        "tables[s][p/P], row p%P. A token of sequence -1 gives 0, and -inf as lse. A sequence, "
        "position or block out of range is an error that names it. heads: which of all_heads these "
        "are, ascending by one.",
    .n_in_min = 6,
    .n_in_max = 8,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_paged_attrs),
    .attrs = paged_attrs,
    .n_attrs = DSI_N(paged_attrs),
    .infer = paged_attention_infer,
    .cost = paged_attention_cost,
};
