/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table and rope: rules. */
#include "op/op_place.h"
#include "op/op_util.h"

static ds_status check_scaling(const ds_infer *call, const dsi_rope_table_attrs *a)
{
    if (a->scaling < DSI_ROPE_NONE || a->scaling > DSI_ROPE_LLAMA3) {
        return dsi_op_bad_attr(call, "scaling is %lld, expected 0 to %d", (long long)a->scaling,
                               DSI_ROPE_LLAMA3);
    }
    if (a->scaling != DSI_ROPE_NONE && !(a->factor > 0.0)) {
        return dsi_op_bad_attr(call, "factor is %g, expected above 0", a->factor);
    }
    if (a->scaling >= DSI_ROPE_DYNAMIC && a->original_max_positions < 1) {
        return dsi_op_bad_attr(call, "original_max_positions is %lld, expected at least 1",
                               (long long)a->original_max_positions);
    }
    if (a->scaling == DSI_ROPE_DYNAMIC && a->head_dim < 4) {
        return dsi_op_bad_attr(call, "head_dim is %lld; dynamic scaling needs at least 4",
                               (long long)a->head_dim);
    }
    if (a->scaling == DSI_ROPE_LLAMA3 &&
        (!(a->low_freq_factor > 0.0) || !(a->high_freq_factor > 0.0))) {
        return dsi_op_bad_attr(call, "low_freq_factor %g and high_freq_factor %g, expected above 0",
                               a->low_freq_factor, a->high_freq_factor);
    }
    if (a->scaling == DSI_ROPE_YARN && (!(a->beta_fast > 0.0) || !(a->beta_slow > 0.0))) {
        return dsi_op_bad_attr(call, "beta_fast %g and beta_slow %g, expected above 0",
                               a->beta_fast, a->beta_slow);
    }
    return DS_OK;
}

static ds_status rope_table_infer(ds_infer *call)
{
    const dsi_rope_table_attrs *a = call->attrs;
    const ds_meta positions = dsi_op_in(call, 0);
    if (positions.dtype != DS_DTYPE_I32 || positions.shape.n_dims != 2) {
        return dsi_op_bad(call, 0, "positions", "i32 (B,T)");
    }
    if (a->head_dim < 1 || (a->head_dim % 2 != 0 && a->scaling == DSI_ROPE_YARN)) {
        return dsi_op_bad_attr(call, "head_dim is %lld, expected above 0, even with scaling %d",
                               (long long)a->head_dim, DSI_ROPE_YARN);
    }
    if (!(a->theta > 0.0)) {
        return dsi_op_bad_attr(call, "theta is %g, expected above 0", a->theta);
    }
    DS_TRY(check_scaling(call, a));
    if (dsi_op_has(call, 1)) {
        DS_TRY(dsi_op_need(call, 1, "lengths", DS_DTYPE_I32,
                           dsi_op_in(call, 1).shape.n_dims == 2
                               ? positions.shape
                               : ds_shape_1d(positions.shape.dims[0])));
    }
    if (dsi_op_has(call, 2) && a->scaling != DSI_ROPE_NONE) {
        return dsi_op_bad_attr(call, "scaling is %lld, expected 0 with divisors",
                               (long long)a->scaling);
    }
    const int64_t n_frequencies = (a->head_dim + 1) / 2;
    DS_TRY(dsi_op_may(call, 2, "divisors", DS_DTYPE_F32, ds_shape_1d(n_frequencies)));
    ds_shape shape = positions.shape;
    shape.dims[shape.n_dims++] = 2 * n_frequencies;
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, shape);
    return DS_OK;
}

static const ds_attr rope_table_attrs[] = {
    DSI_ATTR_INT(dsi_rope_table_attrs, head_dim),
    DSI_ATTR_REAL(dsi_rope_table_attrs, theta),
    DSI_ATTR_INT(dsi_rope_table_attrs, scaling),
    DSI_ATTR_REAL(dsi_rope_table_attrs, factor),
    DSI_ATTR_REAL(dsi_rope_table_attrs, low_freq_factor),
    DSI_ATTR_REAL(dsi_rope_table_attrs, high_freq_factor),
    DSI_ATTR_INT(dsi_rope_table_attrs, original_max_positions),
    DSI_ATTR_REAL(dsi_rope_table_attrs, beta_fast),
    DSI_ATTR_REAL(dsi_rope_table_attrs, beta_slow),
    DSI_ATTR_REAL(dsi_rope_table_attrs, attention_factor),
    DSI_ATTR_REAL(dsi_rope_table_attrs, mscale),
    DSI_ATTR_REAL(dsi_rope_table_attrs, mscale_all_dim),
    DSI_ATTR_INT(dsi_rope_table_attrs, truncate),
};

/* The base of dynamic scaling looks at all positions of a document. */
static void adapt_rope_table(ds_place_case *c)
{
    const dsi_rope_table_attrs *a = c->attrs;
    if (a->scaling == DSI_ROPE_DYNAMIC) {
        dsi_place_drop(c->split, 't');
        c->in[0][1] = c->out[0][1] = '_';
        c->hint = "dynamic rotary scaling needs whole sequences";
    }
    if (dsi_place_has(c, 1) && c->in_meta[1].shape.n_dims == 2) { /* of tokens */
        c->in[1][1] = c->in[0][1];
    }
}

const ds_op dsi_op_rope_table = {
    .version = DS_OP_VERSION,
    .name = "rope_table",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bt b _", .out = "bt_", .split = "bt", .adapt = adapt_rope_table),
    .doc = "positions i32 (B,T) [, lengths i32 (B) or (B,T)] [, divisors f32 (D/2) of frequencies, "
           "with "
           "scaling 0 "
           "(longrope)] → f32 (B,T,D): cosines of D/2 rotary frequencies, "
           "then sines, times the attention factor; scaling 0 none, 1 linear, 2 dynamic NTK by "
           "lengths "
           "or else by each run of rising positions, 3 YaRN, 4 Llama 3. An odd D has (D+1)/2 "
           "frequencies of theta^(-2i/D), and D+1 numbers.",
    .n_in_min = 1,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_rope_table_attrs),
    .attrs = rope_table_attrs,
    .n_attrs = DSI_N(rope_table_attrs),
    .infer = rope_table_infer,
};

static ds_status rope_infer(ds_infer *call)
{
    const dsi_rope_attrs *a = call->attrs;
    const ds_meta x = dsi_op_in(call, 0);
    if (a->head_dim < 2 || a->head_dim % 2 != 0) {
        return dsi_op_bad_attr(call, "head_dim is %lld, expected an even number",
                               (long long)a->head_dim);
    }
    if (!dsi_dtype_is_float(x.dtype) || x.shape.n_dims != 3 || x.shape.dims[2] % a->head_dim != 0) {
        return dsi_op_bad(call, 0, "x", "a float tensor (B,T,H·%lld)", (long long)a->head_dim);
    }
    const ds_meta table = dsi_op_in(call, 1);
    const int64_t rotary = table.shape.n_dims > 0 ? ds_shape_last(table.shape) : 0;
    if (rotary < 2 || rotary > a->head_dim || rotary % 2 != 0) {
        return dsi_op_bad(call, 1, "table", "f32 (B,T,R) with an even R of 2 to %lld",
                          (long long)a->head_dim);
    }
    DS_TRY(dsi_op_need(call, 1, "table", DS_DTYPE_F32, dsi_shape_with_last(x.shape, rotary)));
    if (a->pairs != 0 && a->pairs != 1) {
        return dsi_op_bad_attr(call, "pairs is %lld, expected 0 or 1", (long long)a->pairs);
    }
    call->out[0] = x;
    return DS_OK;
}

static void rope_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 3.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status rope_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE) {
        return DS_OK;
    }
    dsi_rope_attrs attrs = *(const dsi_rope_attrs *)call->attrs;
    attrs.inverse = attrs.inverse == 0;
    ds_value d;
    DS_TRY(dsi_emit2(call, &dsi_op_rope, &attrs, call->d_out[0], call->in[1], &d));
    return dsi_grad_give(call, 0, d);
}

static const ds_attr rope_attrs[] = {
    DSI_ATTR_INT(dsi_rope_attrs, head_dim),
    DSI_ATTR_INT(dsi_rope_attrs, inverse),
    DSI_ATTR_INT(dsi_rope_attrs, pairs),
};

static void adapt_rope(ds_place_case *c)
{
    const dsi_rope_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = c->units[1] = ds_shape_last(c->in_meta[0].shape) / a->head_dim;
}

const ds_op dsi_op_rope = {
    .version = DS_OP_VERSION,
    .name = "rope",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "bth bt_", .out = "bth", .split = "hbt", .linear = "0",
                       .adapt = adapt_rope),
    .doc = "x (B,T,H·D), table f32 (B,T,R) → the first R ≤ D of each head rotated: (a,b) = (x[i], "
           "x[i+R/2]), or with pairs (x[2i], x[2i+1]), become (a·cos-b·sin, b·cos+a·sin); inverse "
           "turns the sign of sin; the rest is as it was.",
    .n_in_min = 2,
    .n_in_max = 2,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_rope_attrs),
    .attrs = rope_attrs,
    .n_attrs = DSI_N(rope_attrs),
    .infer = rope_infer,
    .grad = rope_grad,
    .cost = rope_cost,
};
