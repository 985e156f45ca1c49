/* SPDX-License-Identifier: Apache-2.0 */
/* Attention where keys and values travel: each part of the queries meets one part of the keys at a
 * time, and what it has seen so far goes from step to step. pass/ring_attention.c makes such steps
 * of attention; the parts go from rank to rank between them (turn_parts). Rules; see ops.h. */
#include "op/op_place.h"
#include "op/op_util.h"

/* Whether parts of this length make up dim 1. */
static ds_status check_part(const ds_infer *call, int64_t part, int64_t length)
{
    if (part < 1 || length % part != 0) {
        return dsi_op_bad_attr(call, "part is %lld, expected a divisor of %lld", (long long)part,
                               (long long)length);
    }
    return DS_OK;
}

/* ---- turn_parts ------------------------------------------------------------------------------ */

static ds_status turn_infer(ds_infer *call)
{
    const dsi_turn_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, 0, "x", 3));
    if (call->in[0].shape.n_dims != 3) {
        return dsi_op_bad(call, 0, "x", "a float tensor (B,T,C)");
    }
    call->out[0] = call->in[0];
    return check_part(call, a->part, call->in[0].shape.dims[1]);
}

static void adapt_turn(ds_place_case *c)
{
    c->part_letter = 't';
    c->part = ((const dsi_turn_attrs *)c->attrs)->part;
}

static const ds_attr turn_attrs[] = {DSI_ATTR_INT(dsi_turn_attrs, part)};

const ds_op dsi_op_turn_parts = {
    .version = DS_OP_VERSION,
    .name = "turn_parts",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "btc", .out = "btc", .split = "tbc", .flags = DSI_PLACE_TURNS,
                       .adapt = adapt_turn),
    .doc =
        "x (B,T,C), along T in parts of so many → each part in the place of the next, the last in "
        "that of the first. Ranks that have a part each send it to the next.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .flags = DS_OP_RANKS,
    .attrs_bytes = sizeof(dsi_turn_attrs),
    .attrs = turn_attrs,
    .n_attrs = DSI_N(turn_attrs),
    .infer = turn_infer,
    .cost = dsi_cost_copy,
};

/* ---- attention_part -------------------------------------------------------------------------- */

typedef struct dims {
    int64_t b, t, s; /* samples, queries and keys of all parts */
} dims;

static ds_status check_attrs(const ds_infer *call)
{
    enum { MOST = 1 << 20 };
    const dsi_attention_part_attrs *a = call->attrs;
    if (a->n_heads < 1 || a->n_heads > MOST || a->n_kv_heads < 1 ||
        a->n_heads % a->n_kv_heads != 0 || a->head_dim < 1 || a->head_dim > MOST || a->window < 0 ||
        a->all_keys < a->part || a->key_part < 0 || a->all_keys < a->key_part ||
        !(a->dropout >= 0.0 && a->dropout < 1.0) || !(a->scale > 0.0) || !(a->cap >= 0.0) ||
        !(a->alibi >= 0.0) || a->alibi_rounded < 0 || a->alibi_rounded > 1) {
        return dsi_op_bad_attr(call,
                               "n_heads %lld, n_kv_heads %lld, head_dim %lld, window %lld, scale "
                               "%g, cap %g, alibi %g: expected those of attention, scale above 0",
                               (long long)a->n_heads, (long long)a->n_kv_heads,
                               (long long)a->head_dim, (long long)a->window, a->scale, a->cap,
                               a->alibi);
    }
    return DS_OK;
}

/* q, k and v at inputs at, at+1, at+2: as many parts of keys as of queries. */
static ds_status check_qkv(const ds_infer *call, uint32_t at, dims *d)
{
    const dsi_attention_part_attrs *a = call->attrs;
    const ds_meta q = dsi_op_in(call, at);
    DS_TRY(check_attrs(call));
    if (!dsi_dtype_is_float(q.dtype) || q.shape.n_dims != 3 ||
        q.shape.dims[2] != a->n_heads * a->head_dim) {
        return dsi_op_bad(call, at, "q", "a float tensor (B,T,%lld)",
                          (long long)(a->n_heads * a->head_dim));
    }
    DS_TRY(check_part(call, a->part, q.shape.dims[1]));
    *d = (dims){q.shape.dims[0], q.shape.dims[1],
                q.shape.dims[1] / a->part * dsi_attention_key_part(a)};
    const ds_shape kv = ds_shape_3d(d->b, d->s, a->n_kv_heads * a->head_dim);
    DS_TRY(dsi_op_need(call, at + 1, "k", q.dtype, kv));
    return dsi_op_need(call, at + 2, "v", q.dtype, kv);
}

/* rows, keys, [first], [rng], [heads] at inputs at to at+4. */
static ds_status check_numbers(const ds_infer *call, uint32_t at, const dims *d)
{
    const dsi_attention_part_attrs *a = call->attrs;
    if (dsi_op_has(call, at + 4) ? a->all_heads < a->n_heads : a->all_heads != 0) {
        return dsi_op_bad_attr(call,
                               "all_heads is %lld, expected n_heads or more with heads, else 0",
                               (long long)a->all_heads);
    }
    DS_TRY(dsi_op_need(call, at, "rows", DS_DTYPE_I32, ds_shape_1d(d->t)));
    DS_TRY(dsi_op_need(call, at + 1, "keys", DS_DTYPE_I32, ds_shape_1d(d->s)));
    DS_TRY(dsi_op_may(call, at + 2, "first", DS_DTYPE_I32, ds_shape_2d(d->b, d->t)));
    if (a->dropout > 0.0 || dsi_op_has(call, at + 3)) {
        DS_TRY(dsi_op_need(call, at + 3, "rng", DS_DTYPE_I64, ds_shape_1d(4)));
    }
    return dsi_op_may(call, at + 4, "heads", DS_DTYPE_I32, ds_shape_1d(a->n_heads));
}

static ds_status check_end(const ds_infer *call, uint32_t at, const dims *d)
{
    if (dsi_op_has(call, at) && ((const dsi_attention_part_attrs *)call->attrs)->causal != 0) {
        return dsi_op_bad(call, at, "end", "none: causal attention ends at each query");
    }
    return dsi_op_may(call, at, "end", DS_DTYPE_I32, ds_shape_2d(d->b, d->t));
}

enum { Q, K, V, ROWS, KEYS, FIRST, RNG, HEADS, SEEN_Y, SEEN_LSE, END, N_IN };

static ds_status part_infer(ds_infer *call)
{
    const dsi_attention_part_attrs *a = call->attrs;
    dims d;
    DS_TRY(check_qkv(call, Q, &d));
    DS_TRY(check_numbers(call, ROWS, &d));
    const ds_dtype act = call->in[Q].dtype;
    const ds_dtype sum = dsi_stat_dtype(act);
    const ds_shape lse = ds_shape_3d(d.b, a->n_heads, d.t);
    DS_TRY(dsi_op_may(call, SEEN_Y, "y", sum, call->in[Q].shape));
    DS_TRY(dsi_op_may(call, SEEN_LSE, "lse", sum, lse));
    DS_TRY(check_end(call, END, &d));
    if (dsi_op_has(call, SEEN_Y) != dsi_op_has(call, SEEN_LSE)) {
        return dsi_op_bad(call, SEEN_LSE, "lse", "one where y is, and none where it is not");
    }
    call->out[0] = dsi_meta_of(a->last != 0 ? act : sum, call->in[Q].shape);
    call->out[1] = dsi_meta_of(sum, lse);
    return DS_OK;
}

/* Of causal attention half the pairs are visible, whichever part of the keys it is on average; of a
 * window, as many of a part as of all keys. */
static void cost_of(const ds_infer *call, uint32_t at, double products, ds_cost *cost_out)
{
    const dsi_attention_part_attrs *a = call->attrs;
    const ds_shape q = call->in[at].shape;
    const double share = dsi_attention_visible(a->causal != 0, a->window, a->all_keys) /
                         ((double)a->all_keys * (double)a->all_keys);
    const double pairs = (double)q.dims[1] * (double)dsi_attention_key_part(a) * share;
    cost_out->flops =
        2.0 * products * (double)q.dims[0] * (double)a->n_heads * pairs * (double)a->head_dim;
    cost_out->bytes = dsi_op_bytes(call);
    cost_out->m = ds_shape_rows(q) * a->n_heads;
    cost_out->n = dsi_attention_key_part(a);
    cost_out->k = a->head_dim;
}

static void part_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, Q, 2.0, cost_out);
}

static const ds_attr part_attrs[] = {
    DSI_ATTR_INT(dsi_attention_part_attrs, n_heads),
    DSI_ATTR_INT(dsi_attention_part_attrs, n_kv_heads),
    DSI_ATTR_INT(dsi_attention_part_attrs, head_dim),
    DSI_ATTR_INT(dsi_attention_part_attrs, causal),
    DSI_ATTR_INT(dsi_attention_part_attrs, window),
    DSI_ATTR_REAL(dsi_attention_part_attrs, scale),
    DSI_ATTR_REAL(dsi_attention_part_attrs, dropout),
    DSI_ATTR_INT(dsi_attention_part_attrs, site),
    DSI_ATTR_INT(dsi_attention_part_attrs, all_heads),
    DSI_ATTR_REAL(dsi_attention_part_attrs, cap),
    DSI_ATTR_REAL(dsi_attention_part_attrs, alibi),
    DSI_ATTR_INT(dsi_attention_part_attrs, all_keys),
    DSI_ATTR_INT(dsi_attention_part_attrs, part),
    DSI_ATTR_INT(dsi_attention_part_attrs, last),
    DSI_ATTR_INT(dsi_attention_part_attrs, alibi_rounded),
    DSI_ATTR_INT(dsi_attention_part_attrs, key_part),
};

/* Heads are cut as in attention, positions between parts. */
static void adapt_heads(ds_place_case *c, uint32_t first, uint32_t heads)
{
    const dsi_attention_part_attrs *a = c->attrs;
    c->part_letter = 't';
    c->part = a->part;
    c->unit_letter = 'h';
    c->units[0] = a->n_heads;
    c->units[1] = a->n_kv_heads;
    c->hint = "the ranks that share the heads must divide n_heads and n_kv_heads";
    c->gathered = 1u << first; /* of chunks by heads; parts have their own */
    const bool drops = a->dropout > 0.0;
    if ((a->alibi > 0.0 || drops) && !dsi_place_has(c, heads)) { /* both go by a head's number */
        dsi_place_drop(c->split, 'h');
    }
    if (drops) {
        c->numbered[0] = 't';
        c->numbered[1] = 'h';
        c->flags |= DS_PLACE_SAMPLES;
    }
}

static void adapt_part(ds_place_case *c)
{
    adapt_heads(c, FIRST, HEADS);
}

static void local_heads(const ds_infer *local, uint32_t q, dsi_attention_part_attrs *a)
{
    a->n_heads = local->in[q].shape.dims[2] / a->head_dim;
    a->n_kv_heads = local->in[q + 1].shape.dims[2] / a->head_dim;
}

static void part_local(const ds_infer *local, void *attrs)
{
    local_heads(local, Q, attrs);
}

const ds_op dsi_op_attention_part = {
    .version = DS_OP_VERSION,
    .name = "attention_part",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bth bth bth t t bt _ h bth bht bt", .out = "bth bht", .split = "hbt",
                       .adapt = adapt_part, .local = part_local),
    .doc = "q (B,T,H·D), k, v (B,T,KV·D), rows i32 (T), keys i32 (T), [first i32 (B,T)], [rng i64 "
           "(4)], [heads "
           "i32 (H)], [y f32 (B,T,H·D), lse f32 (B,H,T)], [end i32 (B,T)] → y, lse: attention as "
           "of queries numbered "
           "rows over keys numbered keys, each part of `part` queries over the part of keys in its "
           "place, merged with what it has seen before (y, lse), in fp32. last: y is of q's type.",
    .n_in_min = 5,
    .n_in_max = N_IN,
    .n_out = 2,
    .flags = DS_OP_RANDOM,
    .attrs_bytes = sizeof(dsi_attention_part_attrs),
    .attrs = part_attrs,
    .n_attrs = DSI_N(part_attrs),
    .infer = part_infer,
    .cost = part_cost,
};

/* ---- attention_part_backward ----------------------------------------------------------------- */

enum {
    B_DY,
    B_Q,
    B_K,
    B_V,
    B_Y,
    B_LSE,
    B_ROWS,
    B_KEYS,
    B_FIRST,
    B_RNG,
    B_HEADS,
    B_DQ,
    B_DK,
    B_DV,
    B_END,
    B_DLSE,
    B_N
};

static ds_status backward_infer(ds_infer *call)
{
    const dsi_attention_part_attrs *a = call->attrs;
    dims d;
    DS_TRY(check_qkv(call, B_Q, &d));
    DS_TRY(check_numbers(call, B_ROWS, &d));
    const ds_meta q = call->in[B_Q];
    const ds_shape kv = call->in[B_K].shape;
    const ds_dtype sum = dsi_stat_dtype(q.dtype);
    DS_TRY(dsi_op_need(call, B_DY, "dy", q.dtype, q.shape));
    DS_TRY(dsi_op_need(call, B_Y, "y", q.dtype, q.shape));
    DS_TRY(dsi_op_need(call, B_LSE, "lse", sum, ds_shape_3d(d.b, a->n_heads, d.t)));
    DS_TRY(dsi_op_may(call, B_DQ, "dq", sum, q.shape));
    DS_TRY(dsi_op_may(call, B_DK, "dk", sum, kv));
    DS_TRY(dsi_op_may(call, B_DV, "dv", sum, kv));
    DS_TRY(check_end(call, B_END, &d));
    DS_TRY(dsi_op_may(call, B_DLSE, "dlse", sum, call->in[B_LSE].shape));
    if (dsi_op_has(call, B_DK) != dsi_op_has(call, B_DV)) {
        return dsi_op_bad(call, B_DK, "dk", "one where dv is, and none where it is not");
    }
    call->out[0] = dsi_meta_of(a->last != 0 ? q.dtype : sum, q.shape);
    call->out[1] = call->out[2] = dsi_meta_of(sum, kv);
    return DS_OK;
}

static void backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, B_Q, 5.0, cost_out);
    cost_out->again = cost_out->flops / 5.0; /* the scores */
}

static void adapt_backward(ds_place_case *c)
{
    adapt_heads(c, B_FIRST, B_HEADS);
}

static void backward_local(const ds_infer *local, void *attrs)
{
    local_heads(local, B_Q, attrs);
}

const ds_op dsi_op_attention_part_backward = {
    .version = DS_OP_VERSION,
    .name = "attention_part_backward",
    .op_class = DS_CLASS_ATTENTION_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bth bth bth bth bth bht t t bt _ h bth bth bth bt bht",
                       .out = "bth bth bth", .split = "hbt", .adapt = adapt_backward,
                       .local = backward_local),
    .doc = "dy, q, k, v, y, lse of all keys, rows, keys, [first], [rng], [heads], [dq, dk, dv "
           "f32], [end], [dlse f32 (B,H,T)] → dq, "
           "dk, dv: the gradient of attention over the part of the keys that is here, added to "
           "what there was, in fp32. last: dq is of q's type.",
    .n_in_min = 8,
    .n_in_max = B_N,
    .n_out = 3,
    .flags = DS_OP_RANDOM,
    .attrs_bytes = sizeof(dsi_attention_part_attrs),
    .attrs = part_attrs,
    .n_attrs = DSI_N(part_attrs),
    .infer = backward_infer,
    .cost = backward_cost,
};
