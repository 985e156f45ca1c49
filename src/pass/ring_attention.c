/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of attention over parts of keys and values. See ring_attention.h.
 *
 *     keys of part    own     the rank before's     the one before that's …
 *     k, v            k, v -> turn_parts          -> turn_parts
 *     y, lse          part -> part                -> part (the last: y)
 *     dq              part -> part                -> part
 *     dk, dv          part -> turn -> part        -> turn -> part -> turn: home
 *
 * A turn stands before the step whose keys it follows, so that it can run beside it. */
#include "pass/ring_attention.h"

#include "ir/rewrite.h"
#include "op/ops.h"

enum { Q, K, V, FIRST, OFFSET, RNG, HEADS, ROWS, KEYS, END }; /* of attention */
enum { B_DY, B_Q, B_K, B_V, B_Y, B_LSE, B_FIRST, B_RNG, B_HEADS, B_ROWS, B_KEYS, B_END, B_DLSE };

typedef struct ring {
    dsi_rewrite r;
    int64_t ranks;
    bool halves;
} ring;

/* A chain under construction: keys and values of the step, and of the one behind it. */
typedef struct chain {
    dsi_attention_part_attrs attrs;
    ds_value k, v;           /* of this step */
    ds_value k_next, v_next; /* of the next; DS_NONE: it is the last */
    int64_t length;          /* of the sequence */
    ds_value own;            /* numbers of the queries */
} chain;

static ds_status turn(ring *x, int64_t part, ds_value *value)
{
    const dsi_turn_attrs attrs = {.part = part};
    ds_value out[DS_MAX_OUT];
    if (*value == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(x->r.to, &dsi_op_turn_parts, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

/* Numbers of the keys that the parts have after so many turns. */
static ds_status numbers(ring *x, int64_t length, int64_t turns, ds_value *value_out)
{
    const dsi_row_numbers_attrs attrs = {
        .n_rows = length, .n_parts = x->ranks, .turn = turns, .halves = x->halves};
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(x->r.to, &dsi_op_row_numbers, &attrs, NULL, 0, out));
    *value_out = out[0];
    return DS_OK;
}

static ds_status begin(ring *x, const dsi_node_info *node, const ds_value *in, uint32_t q,
                       chain *c_out)
{
    const dsi_attention_attrs *a = node->attrs;
    const int64_t length = ds_graph_meta(x->r.to, in[q]).shape.dims[1];
    if (a->packed != 0) {
        return ds_fail(x->r.from->ctx, DS_ERR_INTERNAL,
                       "%s: q, k and v that travel are packed, expected three tensors",
                       node->scope);
    }
    *c_out = (chain){.attrs = {.n_heads = a->n_heads,
                               .n_kv_heads = a->n_kv_heads,
                               .head_dim = a->head_dim,
                               .causal = a->causal,
                               .window = a->window,
                               .scale = a->scale,
                               .dropout = a->dropout,
                               .site = a->site,
                               .all_heads = a->all_heads,
                               .all_keys = length,
                               .cap = a->cap,
                               .alibi = a->alibi,
                               .alibi_rounded = a->alibi_rounded,
                               .part = length / x->ranks},
                     .k_next = in[q + 1],
                     .v_next = in[q + 2],
                     .length = length};
    return numbers(x, length, 0, &c_out->own);
}

/* The next step's keys, and the turn behind them. */
static ds_status advance(ring *x, chain *c, int64_t step, ds_value *keys_out)
{
    c->k = c->k_next;
    c->v = c->v_next;
    c->attrs.last = step == x->ranks - 1;
    if (c->attrs.last == 0) {
        DS_TRY(turn(x, c->attrs.part, &c->k_next));
        DS_TRY(turn(x, c->attrs.part, &c->v_next));
    }
    *keys_out = c->own;
    return step > 0 ? numbers(x, c->length, step, keys_out) : DS_OK;
}

static ds_status make_forward(ring *x, const dsi_node_info *node, const ds_value *in, ds_value *out)
{
    chain c;
    ds_value keys = DS_NONE;
    out[0] = out[1] = DS_NONE;
    DS_TRY(begin(x, node, in, Q, &c));
    for (int64_t step = 0; step < x->ranks; ++step) {
        DS_TRY(advance(x, &c, step, &keys));
        const ds_value all[11] = {in[Q],   c.k,       c.v,    c.own,  keys,   in[FIRST],
                                  in[RNG], in[HEADS], out[0], out[1], in[END]};
        const uint32_t n = in[END] != DS_NONE ? 11 : step > 0 ? 10 : 8;
        DS_TRY(ds_graph_apply(x->r.to, &dsi_op_attention_part, &c.attrs, all, n, out));
    }
    return DS_OK;
}

static ds_status cast_to(ring *x, ds_dtype dtype, ds_value *value)
{
    const dsi_cast_attrs attrs = {.dtype = dtype};
    ds_value out[DS_MAX_OUT];
    if (ds_graph_meta(x->r.to, *value).dtype == dtype) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(x->r.to, &dsi_op_cast, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

static ds_status make_backward(ring *x, const dsi_node_info *node, const ds_value *in,
                               ds_value *out)
{
    const ds_dtype act = ds_graph_meta(x->r.to, in[B_Q]).dtype;
    chain c;
    ds_value keys = DS_NONE;
    out[0] = out[1] = out[2] = DS_NONE;
    DS_TRY(begin(x, node, in, B_Q, &c));
    for (int64_t step = 0; step < x->ranks; ++step) {
        DS_TRY(advance(x, &c, step, &keys));
        const ds_value all[16] = {in[B_DY], in[B_Q], c.k,         c.v,       in[B_Y],     in[B_LSE],
                                  c.own,    keys,    in[B_FIRST], in[B_RNG], in[B_HEADS], out[0],
                                  out[1],   out[2],  in[B_END],   in[B_DLSE]};
        const uint32_t n = in[B_DLSE] != DS_NONE  ? 16
                           : in[B_END] != DS_NONE ? 15
                           : step > 0             ? 14
                                                  : 11;
        DS_TRY(ds_graph_apply(x->r.to, &dsi_op_attention_part_backward, &c.attrs, all, n, out));
        DS_TRY(turn(x, c.attrs.part, &out[1]));
        DS_TRY(turn(x, c.attrs.part, &out[2]));
    }
    DS_TRY(cast_to(x, act, &out[1]));
    return cast_to(x, act, &out[2]);
}

static ds_status rebuild_node(ring *x, const dsi_node_info *node)
{
    const bool is_forward = node->op == &dsi_op_attention;
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    if (!is_forward && node->op != &dsi_op_attention_backward) {
        return dsi_rewrite_copy(&x->r, node);
    }
    dsi_rewrite_inputs(&x->r, node, in);
    if (in[is_forward ? ROWS : B_ROWS] == DS_NONE) {
        return dsi_rewrite_copy(&x->r, node);
    }
    DS_TRY(dsi_rewrite_stand_at(&x->r, node));
    DS_TRY(is_forward ? make_forward(x, node, in, out) : make_backward(x, node, in, out));
    dsi_rewrite_made(&x->r, node, out);
    return DS_OK;
}

ds_status dsi_ring_attention(const ds_graph *graph, int64_t ranks, bool halves, ds_graph **ring_out)
{
    ring x = {.ranks = ranks, .halves = halves};
    ds_status status = dsi_rewrite_begin(&x.r, graph, graph->cells);
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        status = rebuild_node(&x, &graph->nodes[n]);
    }
    return dsi_rewrite_end(&x.r, status, ring_out);
}
