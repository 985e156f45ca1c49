/* SPDX-License-Identifier: Apache-2.0 */
/* The gated delta rule (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024) with the decay of
 * its state, the gradients, and delta_rule_step and paged_delta_rule, which go on from the state in
 * a cell: rules. */
#include "op/op_place.h"
#include "op/op_util.h"
#include "op/paged_state.h"

/* ---- decay ---------------------------------------------------------------------------------- */
/* a at `at`, then a_log and dt_bias. */
static ds_status check_decay(const ds_infer *call, uint32_t at)
{
    DS_TRY(dsi_op_need_float(call, at, "a", 1));
    const ds_meta a = call->in[at];
    const ds_shape heads = ds_shape_1d(ds_shape_last(a.shape));
    DS_TRY(dsi_op_need(call, at + 1, "a_log", a.dtype, heads));
    return dsi_op_need(call, at + 2, "dt_bias", a.dtype, heads);
}

static ds_status decay_infer(ds_infer *call)
{
    DS_TRY(check_decay(call, 0));
    call->out[0] = dsi_meta_of(dsi_stat_dtype(call->in[0].dtype), call->in[0].shape);
    return DS_OK;
}

static ds_status decay_backward_infer(ds_infer *call)
{
    DS_TRY(check_decay(call, 1));
    const ds_meta a = call->in[1];
    const ds_dtype stat = dsi_stat_dtype(a.dtype);
    DS_TRY(dsi_op_need(call, 0, "dg", stat, a.shape));
    call->out[0] = a;
    call->out[1] = call->out[2] = dsi_meta_of(stat, call->in[2].shape);
    return DS_OK;
}

static ds_status decay_grad(ds_grad *call)
{
    const ds_value in[4] = {call->d_out[0], call->in[0], call->in[1], call->in[2]};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_emit(call, &dsi_op_decay_backward, NULL, in, 4, out));
    for (uint32_t i = 0; i < 3; ++i) {
        DS_TRY(dsi_grad_give(call, i, out[i]));
    }
    return DS_OK;
}

const ds_op dsi_op_decay = {
    .version = DS_OP_VERSION,
    .name = "decay",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "*_ _ _", .out = "*_", .split = "*"),
    .doc = "a (..,H), a_log (H), dt_bias (H) → f32 (..,H): -exp(a_log)·softplus(a + dt_bias), the "
           "logarithm of what delta_rule multiplies a head's state by.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .infer = decay_infer,
    .grad = decay_grad,
    .cost = dsi_cost_elementwise,
};

const ds_op dsi_op_decay_backward = {
    .version = DS_OP_VERSION,
    .name = "decay_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place =
        DSI_PLACE(.in = "*_ *_ _ _", .out = "*_ _ _", .split = "*", .sums = "*", .linear = "0"),
    .doc = "dg f32 (..,H), a (..,H), a_log (H), dt_bias (H) → da (..,H), da_log f32 (H), ddt_bias "
           "f32 (H), summed in the order of rows.",
    .n_in_min = 4,
    .n_in_max = 4,
    .n_out = 3,
    .infer = decay_backward_infer,
    .cost = dsi_cost_elementwise,
};

/* ---- delta_rule ----------------------------------------------------------------------------- */
typedef struct dims {
    int64_t b, t, v; /* v: width of a head of values */
    ds_dtype act;
} dims;

static ds_status check_attrs(const ds_infer *call)
{
    enum { MOST = 1 << 20 }; /* of heads and of a head's width: products stay far from overflow */
    const dsi_delta_attrs *a = call->attrs;
    if (a->n_heads < 1 || a->n_heads > MOST || a->n_key_heads < 1 ||
        a->n_heads % a->n_key_heads != 0 || a->key_dim < 1 || a->key_dim > MOST) {
        return dsi_op_bad_attr(call,
                               "n_heads %lld, n_key_heads %lld, key_dim %lld, expected positive "
                               "numbers and n_heads a multiple of n_key_heads",
                               (long long)a->n_heads, (long long)a->n_key_heads,
                               (long long)a->key_dim);
    }
    if (!(a->scale > 0.0 && a->scale <= 1e6) || !(a->eps > 0.0 && a->eps <= 1.0)) {
        return dsi_op_bad_attr(call, "scale is %g, eps %g, expected above 0", a->scale, a->eps);
    }
    return DS_OK;
}

/* q, k, v, g, beta from `at` on. */
static ds_status check(const ds_infer *call, uint32_t at, dims *d)
{
    enum { MOST = 1 << 20 };
    const dsi_delta_attrs *a = call->attrs;
    DS_TRY(check_attrs(call));
    const ds_meta q = dsi_op_in(call, at);
    const int64_t width = a->n_key_heads * a->key_dim;
    if (!dsi_dtype_is_float(q.dtype) || q.shape.n_dims != 3 || q.shape.dims[2] != width) {
        return dsi_op_bad(call, at, "q", "a float tensor (B,T,%lld)", (long long)width);
    }
    *d = (dims){.b = q.shape.dims[0], .t = q.shape.dims[1], .act = q.dtype};
    DS_TRY(dsi_op_need(call, at + 1, "k", q.dtype, q.shape));
    const ds_meta v = dsi_op_in(call, at + 2);
    if (v.dtype != q.dtype || v.shape.n_dims != 3 || v.shape.dims[0] != d->b ||
        v.shape.dims[1] != d->t || v.shape.dims[2] < 1 || v.shape.dims[2] % a->n_heads != 0 ||
        v.shape.dims[2] / a->n_heads > MOST) {
        return dsi_op_bad(call, at + 2, "v", "%s[%lld,%lld,%lld·V]", ds_dtype_name(q.dtype),
                          (long long)d->b, (long long)d->t, (long long)a->n_heads);
    }
    d->v = v.shape.dims[2] / a->n_heads;
    const ds_shape heads = ds_shape_3d(d->b, d->t, a->n_heads);
    DS_TRY(dsi_op_need(call, at + 3, "g", dsi_stat_dtype(q.dtype), heads));
    return dsi_op_need(call, at + 4, "beta", q.dtype, heads);
}

/* (B,H,N,D,V) */
static ds_meta states_meta(const ds_infer *call, const dims *d)
{
    const dsi_delta_attrs *a = call->attrs;
    const int64_t n = (d->t + DSI_DELTA_CHUNK - 1) / DSI_DELTA_CHUNK;
    return dsi_meta_of(dsi_stat_dtype(d->act),
                       (ds_shape){.n_dims = 5, .dims = {d->b, a->n_heads, n, a->key_dim, d->v}});
}

static ds_status delta_infer(ds_infer *call)
{
    dims d;
    DS_TRY(check(call, 0, &d));
    DS_TRY(dsi_op_may(call, 5, "first", DS_DTYPE_I32, ds_shape_2d(d.b, d.t)));
    call->out[0] = call->in[2];
    call->out[1] = states_meta(call, &d);
    return DS_OK;
}

static ds_status delta_backward_infer(ds_infer *call)
{
    dims d;
    DS_TRY(check(call, 1, &d));
    const ds_meta states = states_meta(call, &d);
    DS_TRY(dsi_op_need(call, 0, "dy", d.act, call->in[3].shape));
    DS_TRY(dsi_op_need(call, 6, "states", states.dtype, states.shape));
    DS_TRY(dsi_op_may(call, 7, "first", DS_DTYPE_I32, ds_shape_2d(d.b, d.t)));
    for (uint32_t i = 0; i < 5; ++i) {
        call->out[i] = call->in[1 + i];
    }
    return DS_OK;
}

static ds_status delta_step_infer(ds_infer *call)
{
    const dsi_delta_attrs *a = call->attrs;
    dims d;
    DS_TRY(check(call, 0, &d));
    DS_TRY(dsi_op_need(call, 5, "cell", dsi_stat_dtype(d.act),
                       ds_shape_4d(d.b, a->n_heads, a->key_dim, d.v)));
    DS_TRY(dsi_op_need(call, 6, "offset", DS_DTYPE_I32, ds_shape_1d(d.b)));
    DS_TRY(dsi_op_need(call, 7, "last", DS_DTYPE_I32, ds_shape_1d(d.b)));
    call->out[0] = call->in[2];
    call->out[1] = call->in[5];
    return DS_OK;
}

static ds_status paged_delta_infer(ds_infer *call)
{
    const dsi_delta_attrs *a = call->attrs;
    dims d;
    DS_TRY(check(call, 0, &d));
    DS_TRY(dsi_op_need_tokens(call, 0, "q", 6));
    const ds_shape held =
        ds_shape_4d(dsi_op_in(call, 5).shape.dims[0], a->n_heads, a->key_dim, d.v);
    DS_TRY(dsi_op_need(call, 5, "cell", dsi_stat_dtype(d.act), held));
    call->out[0] = call->in[2];
    call->out[1] = call->in[5];
    return DS_OK;
}

/* passes: of all of a head's state, a position. */
static void cost_of(const ds_infer *call, uint32_t v, double passes, ds_cost *cost_out)
{
    const dsi_delta_attrs *a = call->attrs;
    cost_out->flops = 2.0 * passes * dsi_op_count(call->in[v]) * (double)a->key_dim;
    cost_out->bytes = dsi_op_bytes(call);
    cost_out->m = ds_shape_rows(call->in[v].shape) * a->n_heads;
    cost_out->n = ds_shape_last(call->in[v].shape) / a->n_heads;
    cost_out->k = a->key_dim;
}

static void delta_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 2, 3.5, cost_out);
}

static void delta_backward_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_of(call, 3, 10.5, cost_out);
    cost_out->again = cost_out->flops / 4.2; /* the states */
}

static ds_status delta_grad(ds_grad *call)
{
    const ds_value first = call->n_in > 5 ? call->in[5] : DS_NONE;
    const ds_value in[8] = {call->d_out[0], call->in[0], call->in[1],  call->in[2],
                            call->in[3],    call->in[4], call->out[1], first};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    DS_TRY(dsi_grad_refuse(call, 1, "states"));
    if (in[0] == DS_NONE) {
        return DS_OK;
    }
    DS_TRY(dsi_emit(call, &dsi_op_delta_rule_backward, call->attrs, in, first != DS_NONE ? 8 : 7,
                    out));
    for (uint32_t i = 0; i < 5; ++i) {
        DS_TRY(dsi_grad_give(call, i, out[i]));
    }
    return DS_OK;
}

static const ds_attr delta_attrs[] = {
    DSI_ATTR_INT(dsi_delta_attrs, n_heads), DSI_ATTR_INT(dsi_delta_attrs, n_key_heads),
    DSI_ATTR_INT(dsi_delta_attrs, key_dim), DSI_ATTR_REAL(dsi_delta_attrs, scale),
    DSI_ATTR_REAL(dsi_delta_attrs, eps),
};

const ds_op dsi_op_delta_rule = {
    .version = DS_OP_VERSION,
    .name = "delta_rule",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b__ b__ b__ b__ b__ b_", .out = "b__ b____", .split = "b"),
    .doc = "q, k (B,T,HK·D), v (B,T,H·V), g f32 (B,T,H), beta (B,T,H), [first i32 (B,T)] → y "
           "(B,T,H·V), states f32 (B,H,N,D,V): with q and k of unit length and q times scale, "
           "S = exp(g)·S, u = beta·(v - Sᵀk), S = S + k·uᵀ, y = Sᵀq from position to position of a "
           "document; states: S ahead of every 64th position.",
    .n_in_min = 5,
    .n_in_max = 6,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_delta_attrs),
    .attrs = delta_attrs,
    .n_attrs = DSI_N(delta_attrs),
    .infer = delta_infer,
    .grad = delta_grad,
    .cost = delta_cost,
};

const ds_op dsi_op_delta_rule_backward = {
    .version = DS_OP_VERSION,
    .name = "delta_rule_backward",
    .op_class = DS_CLASS_ATTENTION_BACKWARD,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b__ b__ b__ b__ b__ b__ b____ b_", .out = "b__ b__ b__ b__ b__",
                       .split = "b", .linear = "0"),
    .doc = "dy (B,T,H·V), q, k, v, g, beta, states, [first] → dq, dk, dv, dg f32, dbeta: the "
           "gradient of delta_rule; attributes as there.",
    .n_in_min = 7,
    .n_in_max = 8,
    .n_out = 5,
    .attrs_bytes = sizeof(dsi_delta_attrs),
    .attrs = delta_attrs,
    .n_attrs = DSI_N(delta_attrs),
    .infer = delta_backward_infer,
    .cost = delta_backward_cost,
};

static const int8_t step_writes[] = {-1, 5};

const ds_op dsi_op_delta_rule_step = {
    .version = DS_OP_VERSION,
    .name = "delta_rule_step",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "b__ b__ b__ b__ b__ b___ b b", .out = "b__ b___", .split = "b"),
    .doc = "q, k, v, g, beta, cell f32 (B,H,D,V), offset i32 (B), last i32 (B) → y (B,T,H·V), the "
           "cell's next version: delta_rule of positions 0 to last from the state in the cell on "
           "(zeros where offset is 0); zeros behind last.",
    .n_in_min = 8,
    .n_in_max = 8,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_delta_attrs),
    .attrs = delta_attrs,
    .n_attrs = DSI_N(delta_attrs),
    .writes = step_writes,
    .infer = delta_step_infer,
    .cost = delta_cost,
};

const ds_op dsi_op_paged_delta_rule = {
    .version = DS_OP_VERSION,
    .name = "paged_delta_rule",
    .op_class = DS_CLASS_ATTENTION,
    .role = DS_ROLE_WRITE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "___ ___ ___ ___ ___ ____ _ __", .out = "___ ____"),
    .doc = "q, k, v, g, beta with B = 1, cell f32 (S,H,D,V), sequence i32 (T), positions i32 (1,T) "
           "→ y (1,T,H·V), the cell's next version: delta_rule_step of many sequences, whose "
           "tokens are neighbours at positions in a row; sequence: each token's row of the cell, "
           "zeros before position 0; -1: none, y is zeros.",
    .n_in_min = 8,
    .n_in_max = 8,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_delta_attrs),
    .attrs = delta_attrs,
    .n_attrs = DSI_N(delta_attrs),
    .writes = step_writes,
    .infer = paged_delta_infer,
    .cost = delta_cost,
};
