/* SPDX-License-Identifier: Apache-2.0 */
/* relative_bias and its gradient (Raffel et al., "Exploring the Limits of Transfer Learning with a
 * Unified Text-to-Text Transformer", 2020): rules. What a score gets by the distance of key and
 * query, a number for each range of distances and each head, and what hides the keys that a query
 * does not see. */
#include "op/op_place.h"
#include "op/op_util.h"
#include "op/relative_buckets.h"

static ds_status check_attrs(const ds_infer *call, int64_t n_buckets)
{
    const dsi_relative_attrs *a = call->attrs;
    const int64_t ranges = a->both != 0 ? n_buckets / 2 : n_buckets;
    if (ranges < 2 || n_buckets > DSI_MOST_BUCKETS || a->max_distance <= ranges / 2 ||
        a->max_distance > DSI_MOST_DISTANCE || a->n_keys < 0) {
        return dsi_op_bad_attr(call,
                               "%lld buckets, both %lld, max_distance %lld, n_keys %lld; expected "
                               "2 to %d buckets to each side, a max_distance above half of them "
                               "and at most %d",
                               (long long)n_buckets, (long long)a->both, (long long)a->max_distance,
                               (long long)a->n_keys, DSI_MOST_BUCKETS, DSI_MOST_DISTANCE);
    }
    return DS_OK;
}

/* first, end and offset at `at`. */
static ds_status check_bounds(const ds_infer *call, uint32_t at, ds_shape rows)
{
    const dsi_relative_attrs *a = call->attrs;
    if (dsi_op_has(call, at + 1) != (a->both != 0) ||
        (dsi_op_has(call, at + 2) ? a->both != 0 || a->n_keys == 0 : a->n_keys != 0)) {
        return dsi_op_bad_attr(call, "both %lld goes with `end`, n_keys %lld with `offset`",
                               (long long)a->both, (long long)a->n_keys);
    }
    DS_TRY(dsi_op_need(call, at, "first", DS_DTYPE_I32, rows));
    DS_TRY(dsi_op_may(call, at + 1, "end", DS_DTYPE_I32, rows));
    return dsi_op_may(call, at + 2, "offset", DS_DTYPE_I32, ds_shape_1d(rows.dims[0]));
}

static ds_status relative_infer(ds_infer *call)
{
    const dsi_relative_attrs *a = call->attrs;
    const ds_meta table = dsi_op_in(call, 0);
    const ds_meta first = dsi_op_in(call, 1);
    DS_TRY(dsi_op_need_float(call, 0, "table", 2));
    if (table.shape.n_dims != 2 || first.shape.n_dims != 2) {
        return table.shape.n_dims != 2 ? dsi_op_bad(call, 0, "table", "a float tensor (N,H)")
                                       : dsi_op_bad(call, 1, "first", "i32 (B,T)");
    }
    DS_TRY(check_attrs(call, table.shape.dims[0]));
    DS_TRY(check_bounds(call, 1, first.shape));
    const int64_t t = first.shape.dims[1];
    call->out[0] = dsi_meta_of(table.dtype, ds_shape_4d(first.shape.dims[0], table.shape.dims[1], t,
                                                        a->n_keys > 0 ? a->n_keys : t));
    return DS_OK;
}

static ds_status relative_backward_infer(ds_infer *call)
{
    const dsi_relative_attrs *a = call->attrs;
    const ds_meta dy = dsi_op_in(call, 0);
    DS_TRY(dsi_op_need_float(call, 0, "dy", 4));
    if (dy.shape.n_dims != 4 || dy.shape.dims[2] != dy.shape.dims[3] || a->n_keys != 0) {
        return dsi_op_bad(call, 0, "dy", "a float tensor (B,H,T,T), without n_keys");
    }
    DS_TRY(check_attrs(call, a->n_buckets));
    DS_TRY(check_bounds(call, 1, ds_shape_2d(dy.shape.dims[0], dy.shape.dims[2])));
    call->out[0] =
        dsi_meta_of(dsi_stat_dtype(dy.dtype), ds_shape_2d(a->n_buckets, dy.shape.dims[1]));
    return DS_OK;
}

static ds_status relative_grad(ds_grad *call)
{
    const ds_value end = call->n_in > 2 ? call->in[2] : DS_NONE;
    const ds_value in[3] = {call->d_out[0], call->in[1], end};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] == DS_NONE) {
        return DS_OK;
    }
    if (call->n_in > 3 && call->in[3] != DS_NONE) {
        return ds_fail(ds_graph_ctx(call->graph), DS_ERR_UNSUPPORTED,
                       "relative_bias: no gradient with an offset (input 3), which is for "
                       "generation");
    }
    DS_TRY(dsi_emit(call, &dsi_op_relative_bias_backward, call->attrs, in, end != DS_NONE ? 3 : 2,
                    out));
    return dsi_grad_give(call, 0, out[0]);
}

static const ds_attr relative_attrs[] = {
    DSI_ATTR_INT(dsi_relative_attrs, n_buckets), DSI_ATTR_INT(dsi_relative_attrs, max_distance),
    DSI_ATTR_INT(dsi_relative_attrs, both), DSI_ATTR_INT(dsi_relative_attrs, n_keys)};

const ds_op dsi_op_relative_bias = {
    .version = DS_OP_VERSION,
    .name = "relative_bias",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_h b_ b_ b", .out = "bh__", .split = "bh"),
    .doc = "table (N,H), first i32 (B,T), [end i32 (B,T)], [offset i32 (B)] → (B,H,T,K): what the "
           "score of query i and key j gets, the row of the table for the range of j - i "
           "(docs/internals/attention.md), and a number far below any score where i does not see "
           "j: keys first ≤ j < end, or without `end` those up to i, which is at offset + i.",
    .n_in_min = 2,
    .n_in_max = 4,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_relative_attrs),
    .attrs = relative_attrs,
    .n_attrs = DSI_N(relative_attrs),
    .infer = relative_infer,
    .grad = relative_grad,
    .cost = dsi_cost_elementwise,
};

const ds_op dsi_op_relative_bias_backward = {
    .version = DS_OP_VERSION,
    .name = "relative_bias_backward",
    .op_class = DS_CLASS_REDUCE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "bh__ b_ b_", .out = "_h", .split = "bh", .sums = "b", .linear = "0"),
    .doc = "dy (B,H,T,T), first, [end] i32 (B,T) → dtable f32 (N,H), summed in the order of "
           "samples, queries and keys.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_relative_attrs),
    .attrs = relative_attrs,
    .n_attrs = DSI_N(relative_attrs),
    .infer = relative_backward_infer,
    .cost = dsi_cost_elementwise,
};
