/* SPDX-License-Identifier: Apache-2.0 */
/* attention and attention_backward: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

typedef struct dims {
    int64_t b, tq, tk;
} dims;

static ds_status check_attrs(const ds_infer *call)
{
    enum { MOST = 1 << 20 }; /* of heads and of a head's width: products stay far from overflow */
    const dsi_attention_attrs *a = call->attrs;
    if (a->n_heads < 1 || a->n_heads > MOST || a->n_kv_heads < 1 ||
        a->n_heads % a->n_kv_heads != 0 || a->head_dim < 1 || a->head_dim > MOST) {
        return dsi_op_bad_attr(call,
                               "n_heads %lld, n_kv_heads %lld, head_dim %lld, expected "
                               "positive numbers and n_heads a multiple of n_kv_heads",
                               (long long)a->n_heads, (long long)a->n_kv_heads,
                               (long long)a->head_dim);
    }
    if (a->window < 0) {
        return dsi_op_bad_attr(call, "window is %lld, expected 0 (none) or more",
                               (long long)a->window);
    }
    if (!(a->cap >= 0.0 && a->cap <= 1e6) || !(a->alibi >= 0.0 && a->alibi <= 1e3)) {
        return dsi_op_bad_attr(call, "cap is %g, alibi %g, expected 0 (none) or more", a->cap,
                               a->alibi);
    }
    if ((a->cap > 0.0 || a->alibi > 0.0) && !(a->scale > 0.0)) {
        return dsi_op_bad_attr(call, "scale is %g, expected above 0 with cap or alibi", a->scale);
    }
    if (a->alibi > 0.0 && a->causal == 0) {
        return dsi_op_bad_attr(call, "alibi is of causal attention");
    }
    if (a->alibi_rounded != 0 && a->alibi_rounded != 1) {
        return dsi_op_bad_attr(call, "alibi_rounded is %lld, expected 0 or 1",
                               (long long)a->alibi_rounded);
    }
    if (!(a->dropout >= 0.0 && a->dropout < 1.0)) {
        return dsi_op_bad_attr(call, "dropout is %g, expected in [0,1)", a->dropout);
    }
    return DS_OK;
}

/* Checks q (or packed), k and v at inputs at, at+1, at+2. */
static ds_status check_qkv(const ds_infer *call, uint32_t at, dims *d)
{
    const dsi_attention_attrs *a = call->attrs;
    const int64_t kv = a->n_kv_heads * a->head_dim;
    const int64_t width = a->n_heads * a->head_dim + (a->packed != 0 ? 2 * kv : 0);
    const ds_meta q = dsi_op_in(call, at);
    const char *name = a->packed != 0 ? "packed" : "q";
    if (!dsi_dtype_is_float(q.dtype) || q.shape.n_dims != 3 || q.shape.dims[2] != width) {
        return dsi_op_bad(call, at, name, "a float tensor (B,T,%lld)", (long long)width);
    }
    *d = (dims){q.shape.dims[0], q.shape.dims[1], q.shape.dims[1]};
    if (a->packed != 0) {
        for (uint32_t i = 1; i <= 2; ++i) {
            if (dsi_op_has(call, at + i)) {
                return dsi_op_bad(call, at + i, i == 1 ? "k" : "v", "none, since packed is 1");
            }
        }
        return DS_OK;
    }
    const ds_meta k = dsi_op_in(call, at + 1);
    if (k.dtype != q.dtype || k.shape.n_dims != 3 || k.shape.dims[0] != d->b ||
        k.shape.dims[2] != kv) {
        return dsi_op_bad(call, at + 1, "k", "%s[%lld,Tk,%lld]", ds_dtype_name(q.dtype),
                          (long long)d->b, (long long)kv);
    }
    d->tk = k.shape.dims[1];
    return dsi_op_need(call, at + 2, "v", q.dtype, k.shape);
}

static ds_status check_rng(const ds_infer *call, uint32_t i)
{
    const dsi_attention_attrs *a = call->attrs;
    if (a->dropout > 0.0 || dsi_op_has(call, i)) {
        return dsi_op_need(call, i, "rng", DS_DTYPE_I64, ds_shape_1d(4));
    }
    return DS_OK;
}

/* heads, rows and keys at inputs at, at+1 and at+2: which of all heads, queries and keys these are;
 * end at at+3. */
static ds_status check_numbers(const ds_infer *call, uint32_t at, const dims *d)
{
    const dsi_attention_attrs *a = call->attrs;
    if (dsi_op_has(call, at) ? a->all_heads < a->n_heads : a->all_heads != 0) {
        return dsi_op_bad_attr(call,
                               "all_heads is %lld, expected n_heads or more with heads, else 0",
                               (long long)a->all_heads);
    }
    const bool has_keys = dsi_op_has(call, at + 2);
    if ((has_keys && !dsi_op_has(call, at + 1)) ||
        (has_keys ? a->all_keys < d->tk : a->all_keys != 0)) {
        return dsi_op_bad_attr(call,
                               "all_keys is %lld, expected %lld or more with keys, which go with "
                               "rows, else 0",
                               (long long)a->all_keys, (long long)d->tk);
    }
    DS_TRY(dsi_op_may(call, at, "heads", DS_DTYPE_I32, ds_shape_1d(a->n_heads)));
    DS_TRY(dsi_op_may(call, at + 1, "rows", DS_DTYPE_I32, ds_shape_1d(d->tq)));
    DS_TRY(dsi_op_may(call, at + 2, "keys", DS_DTYPE_I32, ds_shape_1d(d->tk)));
    return dsi_op_may(call, at + 3, "end", DS_DTYPE_I32, ds_shape_2d(d->b, d->tq));
}

static ds_shape lse_shape(const ds_infer *call, const dims *d)
{
    const dsi_attention_attrs *a = call->attrs;
    return ds_shape_3d(d->b, a->n_heads, d->tq);
}

static ds_status attention_infer(ds_infer *call)
{
    const dsi_attention_attrs *a = call->attrs;
    dims d;
    DS_TRY(check_attrs(call));
    DS_TRY(check_qkv(call, 0, &d));
    DS_TRY(dsi_op_may(call, 3, "first", DS_DTYPE_I32, ds_shape_2d(d.b, d.tq)));
    DS_TRY(dsi_op_may(call, 4, "offset", DS_DTYPE_I32, ds_shape_1d(d.b)));
    DS_TRY(check_rng(call, 5));
    DS_TRY(check_numbers(call, 6, &d));
    const ds_dtype act = call->in[0].dtype;
    call->out[0] = dsi_meta_of(act, ds_shape_3d(d.b, d.tq, a->n_heads * a->head_dim));
    call->out[1] = dsi_meta_of(dsi_stat_dtype(act), lse_shape(call, &d));
    return DS_OK;
}

double dsi_attention_visible(bool causal, int64_t window, int64_t n)
{
    const double q = (double)n;
    const double w = window > 0 && window < n ? (double)window : q;
    const double below = w * (w + 1.0) / 2.0 + (q - w) * w; /* the query's own key among them */
    return causal ? below : 2.0 * below - q;
}

/* Visible (query, key) pairs of one head, ignoring document masks and offsets. */
static double visible_pairs(const dsi_attention_attrs *a, int64_t tq, int64_t tk)
{
    return tq == tk ? dsi_attention_visible(a->causal != 0, a->window, tq)
                    : (double)tq * (double)tk;
}

static void cost_of(const ds_infer *call, uint32_t at, double products, ds_cost *cost_out)
{
    const dsi_attention_attrs *a = call->attrs;
    const ds_meta q = call->in[at];
    const int64_t tk = a->packed != 0 ? q.shape.dims[1] : call->in[at + 1].shape.dims[1];
    const double pairs = visible_pairs(a, q.shape.dims[1], tk);
    const double heads = (double)q.shape.dims[0] * (double)a->n_heads;
    cost_out->flops = 2.0 * products * heads * pairs * (double)a->head_dim;
    cost_out->bytes = dsi_op_bytes(call);
    cost_out->m = ds_shape_rows(q.shape) * a->n_heads;
    cost_out->n = tk;
    cost_out->k = a->head_dim;
}

static void attention_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 0, 2.0, cost_out);
}

static void attention_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 1, 5.0, cost_out);
    cost_out->again = cost_out->flops / 5.0; /* the scores */
}

static ds_value input(const ds_grad *call, uint32_t i)
{
    return i < call->n_in ? call->in[i] : DS_NONE;
}

static ds_status attention_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return dsi_grad_refuse(call, 1, "lse");
    }
    if (input(call, 4) != DS_NONE || input(call, 8) != DS_NONE) {
        return ds_fail(ds_graph_ctx(call->graph), DS_ERR_UNSUPPORTED,
                       "attention: no gradient with an offset (input 4), which is for generation, "
                       "nor with keys (input 8), which are a part of all");
    }
    const ds_value in[13] = {call->d_out[0], input(call, 0), input(call, 1), input(call, 2),
                             call->out[0],   call->out[1],   input(call, 3), input(call, 5),
                             input(call, 6), input(call, 7), DS_NONE,        input(call, 9),
                             call->d_out[1]};
    const uint32_t n = call->d_out[1] != DS_NONE ? 13
                       : call->n_in > 9          ? 12
                       : call->n_in > 6          ? 10
                                                 : 8;
    ds_value outs[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_attention_backward, call->attrs, in, n, outs));
    for (uint32_t i = 0; i < 3; ++i) {
        if (outs[i] != DS_NONE) {
            DS_TRY(dsi_grad_give(call, i, outs[i]));
        }
    }
    return DS_OK;
}

static const ds_attr attention_attrs[] = {
    DSI_ATTR_INT(dsi_attention_attrs, n_heads),  DSI_ATTR_INT(dsi_attention_attrs, n_kv_heads),
    DSI_ATTR_INT(dsi_attention_attrs, head_dim), DSI_ATTR_INT(dsi_attention_attrs, packed),
    DSI_ATTR_INT(dsi_attention_attrs, causal),   DSI_ATTR_INT(dsi_attention_attrs, window),
    DSI_ATTR_REAL(dsi_attention_attrs, scale),   DSI_ATTR_REAL(dsi_attention_attrs, dropout),
    DSI_ATTR_INT(dsi_attention_attrs, site),     DSI_ATTR_INT(dsi_attention_attrs, all_heads),
    DSI_ATTR_REAL(dsi_attention_attrs, cap),     DSI_ATTR_REAL(dsi_attention_attrs, alibi),
    DSI_ATTR_INT(dsi_attention_attrs, all_keys), DSI_ATTR_INT(dsi_attention_attrs, alibi_rounded),
};

/* numbers: where heads and rows are. Queries are cut along the sequence where they say which they
 * are; keys and values are gathered for that. */
static void adapt_heads(ds_place_case *c, uint32_t q, bool has_rng, uint32_t numbers)
{
    const bool has_heads = dsi_place_has(c, numbers);
    const bool has_rows = dsi_place_has(c, numbers + 1);
    const dsi_attention_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = a->n_heads;
    c->units[1] = a->n_kv_heads;
    c->hint = "the ranks that share the heads must divide n_heads and n_kv_heads";
    if (a->packed != 0 && a->n_heads == a->n_kv_heads) {
        c->block_letter = 'h'; /* q, k and v side by side, heads of all */
        c->in[q][2] = 'h';
        c->in_blocks[q] = 3;
    } else if (a->packed != 0) {
        dsi_place_drop(c->split, 'h');
        c->in[q][2] = '_';
        c->hint = "packed q, k, v with fewer heads of keys than of queries cannot be cut by heads; "
                  "give them as three tensors";
    }
    if (has_rows) {
        c->gathered = 3u << (q + 1); /* keys and values */
    } else {
        dsi_place_drop(c->split, 't');
    }
    if (a->alibi > 0.0 && !has_heads) { /* slopes go by the number of a head */
        dsi_place_drop(c->split, 'h');
    }
    if (has_rng && a->dropout > 0.0) {
        if (!has_heads) {
            dsi_place_drop(c->split, 'h');
        }
        c->numbered[0] = 't'; /* where it may be cut at all */
        c->numbered[1] = 'h';
        c->flags |= DS_PLACE_SAMPLES;
        c->hint = "dropout draws by sample, so only samples may be cut, on axes where the random "
                  "state counts from the rank's own first sample";
    }
}

static void adapt_attention(ds_place_case *c)
{
    adapt_heads(c, 0, dsi_place_has(c, 5), 6);
}

/* A rank's heads. */
static void heads_local(const ds_infer *local, uint32_t q, dsi_attention_attrs *a)
{
    if (a->packed != 0 && a->n_heads == a->n_kv_heads) {
        a->n_heads = a->n_kv_heads = local->in[q].shape.dims[2] / (3 * a->head_dim);
    } else if (a->packed == 0) {
        a->n_heads = local->in[q].shape.dims[2] / a->head_dim;
        a->n_kv_heads = local->in[q + 1].shape.dims[2] / a->head_dim;
    }
}

static void attention_local(const ds_infer *local, void *attrs)
{
    heads_local(local, 0, attrs);
}

const ds_op dsi_op_attention = {
    .version = DS_OP_VERSION,
    .name = "attention",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bth bsh bsh bt b _ h t s bt", .out = "bth bht", .split = "hbt",
                       .adapt = adapt_attention, .local = attention_local),
    .doc =
        "q (B,Tq,H·D) or packed q,k,v (B,T,(H+2·KV)·D), [k, v (B,Tk,KV·D)], [first i32 (B,Tq)], "
        "[offset i32 (B)], [rng i64 (4)], [heads i32 (H)], [rows i32 (Tq)], [keys i32 (Tk)], [end "
        "i32 "
        "(B,Tq)] → y "
        "(B,Tq,H·D), lse f32 (B,H,Tq): softmax(scale·q·kᵀ)·v "
        "over the keys that causality, window, first and end leave visible; a query that sees none "
        "gives 0. A score s becomes cap·tanh(s/cap), and with alibi less by its head's slope a "
        "position, or with alibi_rounded more by scale times the key's bias, rounded to bf16. "
        "heads, rows, keys: which of all_heads, of all queries and of all_keys these are, "
        "ascending "
        "by one.",
    .n_in_min = 1,
    .n_in_max = 10,
    .n_out = 2,
    .flags = DS_OP_RANDOM,
    .attrs_bytes = sizeof(dsi_attention_attrs),
    .attrs = attention_attrs,
    .n_attrs = DSI_N(attention_attrs),
    .infer = attention_infer,
    .grad = attention_grad,
    .cost = attention_cost,
};

static ds_status attention_backward_infer(ds_infer *call)
{
    const dsi_attention_attrs *a = call->attrs;
    dims d;
    DS_TRY(check_attrs(call));
    DS_TRY(check_qkv(call, 1, &d));
    const ds_dtype act = call->in[1].dtype;
    const ds_shape y = ds_shape_3d(d.b, d.tq, a->n_heads * a->head_dim);
    DS_TRY(dsi_op_need(call, 0, "dy", act, y));
    DS_TRY(dsi_op_need(call, 4, "y", act, y));
    DS_TRY(dsi_op_need(call, 5, "lse", dsi_stat_dtype(act), lse_shape(call, &d)));
    DS_TRY(dsi_op_may(call, 6, "first", DS_DTYPE_I32, ds_shape_2d(d.b, d.tq)));
    DS_TRY(check_rng(call, 7));
    DS_TRY(check_numbers(call, 8, &d));
    DS_TRY(dsi_op_may(call, 12, "dlse", dsi_stat_dtype(act), lse_shape(call, &d)));
    for (uint32_t i = 0; i < (a->packed != 0 ? 1U : 3U); ++i) {
        call->out[i] = call->in[1 + i];
    }
    return DS_OK;
}

static void adapt_attention_backward(ds_place_case *c)
{
    const dsi_attention_attrs *a = c->attrs;
    adapt_heads(c, 1, dsi_place_has(c, 7), 8);
    if (dsi_place_has(c, 12)) { /* linear in dy and dlse together */
        c->group[0] |= 1u << 12;
    }
    if (a->packed != 0) {
        c->out[0][2] = c->in[1][2];
        c->out_blocks[0] = c->in_blocks[1];
    }
}

static void attention_backward_local(const ds_infer *local, void *attrs)
{
    heads_local(local, 1, attrs);
}

const ds_op dsi_op_attention_backward = {
    .version = DS_OP_VERSION,
    .name = "attention_backward",
    .op_class = DS_CLASS_ATTENTION_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bth bth bsh bsh bth bht bt _ h t s bt bht", .out = "bth bsh bsh",
                       .split = "hbt", .sums = "t", .linear = "0",
                       .adapt = adapt_attention_backward, .local = attention_backward_local),
    .doc = "dy, q or packed, [k], [v], y, lse, [first], [rng], [heads], [rows], [keys], [end], "
           "[dlse f32 "
           "(B,H,Tq)] → dq or dpacked, [dk], [dv]: the "
           "gradient of attention; attributes as there.",
    .n_in_min = 6,
    .n_in_max = 13,
    .n_out = 3,
    .flags = DS_OP_RANDOM,
    .attrs_bytes = sizeof(dsi_attention_attrs),
    .attrs = attention_attrs,
    .n_attrs = DSI_N(attention_attrs),
    .infer = attention_backward_infer,
    .cost = attention_backward_cost,
};
