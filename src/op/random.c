/* SPDX-License-Identifier: Apache-2.0 */
/* What draws by sample and element: dropout and noise; and where later samples draw. The gradient
 * of either is itself, with the same counters, where it depends on x at all. */
#include "op/op_place.h"
#include "op/op_util.h"

#include <math.h>
#include <string.h>

/* x, rng, [rows]: the inputs of both. */
static ds_status random_infer(ds_infer *call, int64_t site, int64_t n_rows)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 1));
    DS_TRY(dsi_op_need(call, 1, "rng", DS_DTYPE_I64, ds_shape_1d(4)));
    if (site < 0 || site > UINT32_MAX) {
        return dsi_op_bad_attr(call, "site is %lld, expected a 32-bit number", (long long)site);
    }
    call->out[0] = call->in[0];
    if (!dsi_op_has(call, 2)) {
        return n_rows == 0 ? DS_OK
                           : dsi_op_bad_attr(call, "n_rows is %lld without rows, expected 0",
                                             (long long)n_rows);
    }
    const ds_shape x = call->in[0].shape;
    if (x.n_dims < 2 || n_rows < x.dims[1]) {
        return dsi_op_bad_attr(call, "n_rows is %lld, expected at least dim 1 of x",
                               (long long)n_rows);
    }
    return dsi_op_need(call, 2, "rows", DS_DTYPE_I32, ds_shape_1d(x.dims[1]));
}

/* The same draw of dy in place of x. */
static ds_status random_grad(ds_grad *call)
{
    ds_value out[DS_MAX_OUT];
    const bool has_rows = call->n_in > 2 && call->in[2] != DS_NONE;
    const bool has_columns = call->n_in > 3 && call->in[3] != DS_NONE;
    const ds_value in[4] = {call->d_out[0], call->in[1], has_rows ? call->in[2] : DS_NONE,
                            has_columns ? call->in[3] : DS_NONE};
    DS_TRY(dsi_emit(call, call->op, call->attrs, in, has_columns ? 4 : has_rows ? 3 : 2, out));
    return dsi_grad_give(call, 0, out[0]);
}

static void by_sample(ds_place_case *c)
{
    const bool has_rows = dsi_place_has(c, 2);
    c->split[c->split[0] == '\0' ? 0 : has_rows ? 2 : 1] = '\0'; /* samples are the first dim */
    if (has_rows) {                                              /* of the second dim */
        c->numbered[0] = c->in[2][0] = 'B';
    }
    c->flags |= DS_PLACE_SAMPLES;
    c->hint = "random numbers are drawn by sample, so only dim 0 may be cut, on axes where the "
              "random state counts from the rank's own first sample";
}

/* ---- dropout -----------------------------------------------------------------------------------
 */
static ds_status dropout_infer(ds_infer *call)
{
    const dsi_dropout_attrs *a = call->attrs;
    if (!(a->p >= 0.0 && a->p < 1.0)) {
        return dsi_op_bad_attr(call, "p is %g, expected in [0,1)", a->p);
    }
    DS_TRY(random_infer(call, a->site, a->n_rows));
    const ds_shape x = call->in[0].shape;
    const int64_t width = x.n_dims > 1 ? ds_shape_last(x) : 0;
    if (dsi_op_has(call, 3) ? width == 0 || a->n_columns < width : a->n_columns != 0) {
        return dsi_op_bad_attr(call,
                               "n_columns is %lld, expected at least the last dim of x with "
                               "columns, else 0",
                               (long long)a->n_columns);
    }
    return dsi_op_may(call, 3, "columns", DS_DTYPE_I32, ds_shape_1d(width));
}

static ds_status dropout_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    return call->d_out[0] == DS_NONE ? DS_OK : random_grad(call);
}

static const ds_attr dropout_attrs[] = {
    DSI_ATTR_REAL(dsi_dropout_attrs, p),
    DSI_ATTR_INT(dsi_dropout_attrs, site),
    DSI_ATTR_INT(dsi_dropout_attrs, n_rows),
    DSI_ATTR_INT(dsi_dropout_attrs, n_columns),
};

/* Numbered columns are cut as numbered rows are. */
static void adapt_dropout(ds_place_case *c)
{
    const dsi_dropout_attrs *a = c->attrs;
    if (a->p > 0.0) {
        by_sample(c);
    }
    if (a->p > 0.0 && dsi_place_has(c, 3)) {
        const uint32_t last = c->in_meta[0].shape.n_dims - 1;
        const size_t n = strlen(c->numbered);
        c->split[strlen(c->split) + 1] = '\0';
        c->split[strlen(c->split)] = 'z';
        c->numbered[n] = 'z';
        c->numbered[n + 1] = '\0';
        c->in[0][last] = c->out[0][last] = c->in[3][0] = 'z';
    }
}

const ds_op dsi_op_dropout = {
    .version = DS_OP_VERSION,
    .name = "dropout",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place =
        DSI_PLACE(.in = "* _ t _", .out = "*", .split = "*", .linear = "0", .adapt = adapt_dropout),
    .doc = "x (B,..), rng i64 (4) {seed, step, first global sample, 0}, [rows i32 (T) of dim 1, of "
           "n_rows in all], [columns i32 (C) of the last dim, of n_columns in all] → x·keep/(1-p); "
           "keep is a pure function of seed, step, site, global sample "
           "and element.",
    .n_in_min = 2,
    .n_in_max = 4,
    .n_out = 1,
    .flags = DS_OP_RANDOM | DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_dropout_attrs),
    .attrs = dropout_attrs,
    .n_attrs = DSI_N(dropout_attrs),
    .infer = dropout_infer,
    .grad = dropout_grad,
    .cost = dsi_cost_elementwise,
};

/* ---- noise -------------------------------------------------------------------------------------
 */
static ds_status noise_infer(ds_infer *call)
{
    const dsi_noise_attrs *a = call->attrs;
    if (a->kind < 0 || a->kind >= DSI_NOISE_COUNT) {
        return dsi_op_bad_attr(call, "kind is %lld, expected 0 to %d", (long long)a->kind,
                               DSI_NOISE_COUNT - 1);
    }
    if (a->kind == DSI_NOISE_FACTOR ? !(a->amount >= 0.0 && a->amount < HUGE_VAL)
                                    : a->amount != 0.0) {
        return dsi_op_bad_attr(call, "amount is %g, expected %s", a->amount,
                               a->kind == DSI_NOISE_FACTOR ? "a finite one of at least 0"
                                                           : "0: it is of the factor alone");
    }
    return random_infer(call, a->site, a->n_rows);
}

static ds_status noise_grad(ds_grad *call)
{
    const dsi_noise_attrs *a = call->attrs;
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE || a->kind == DSI_NOISE_UNIFORM) {
        return DS_OK;
    }
    return a->kind == DSI_NOISE_FACTOR ? random_grad(call) : dsi_grad_give(call, 0, call->d_out[0]);
}

static const ds_attr noise_attrs[] = {
    DSI_ATTR_INT(dsi_noise_attrs, kind),
    DSI_ATTR_REAL(dsi_noise_attrs, amount),
    DSI_ATTR_INT(dsi_noise_attrs, site),
    DSI_ATTR_INT(dsi_noise_attrs, n_rows),
};

const ds_op dsi_op_noise = {
    .version = DS_OP_VERSION,
    .name = "noise",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "* _ t", .out = "*", .split = "*", .adapt = by_sample),
    .doc = "x (B,..), rng i64 (4) and [rows i32 (T)] as in dropout → with u uniform in (0,1): "
           "kind 0, x·(1 + amount·(2u-1)); 1, x - log(-log(u)), Gumbel's; 2, u itself.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .flags = DS_OP_RANDOM | DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_noise_attrs),
    .attrs = noise_attrs,
    .n_attrs = DSI_N(noise_attrs),
    .infer = noise_infer,
    .grad = noise_grad,
    .cost = dsi_cost_elementwise,
};

/* ---- rng_ahead ---------------------------------------------------------------------------------
 */
static ds_status rng_ahead_infer(ds_infer *call)
{
    const dsi_rng_ahead_attrs *a = call->attrs;
    if (a->samples < 0) {
        return dsi_op_bad_attr(call, "samples is %lld, expected 0 or more", (long long)a->samples);
    }
    DS_TRY(dsi_op_need(call, 0, "rng", DS_DTYPE_I64, ds_shape_1d(4)));
    call->out[0] = call->in[0];
    return DS_OK;
}

static const ds_attr rng_ahead_attrs[] = {DSI_ATTR_INT(dsi_rng_ahead_attrs, samples)};

const ds_op dsi_op_rng_ahead = {
    .version = DS_OP_VERSION,
    .name = "rng_ahead",
    .op_class = DS_CLASS_COPY,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_", .out = "_"),
    .doc = "rng i64 (4) → the same for what begins `samples` behind the first sample.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_rng_ahead_attrs),
    .attrs = rng_ahead_attrs,
    .n_attrs = DSI_N(rng_ahead_attrs),
    .infer = rng_ahead_infer,
    .cost = dsi_cost_copy,
};
