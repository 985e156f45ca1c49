/* SPDX-License-Identifier: Apache-2.0 */
/* Which experts a token goes to, and where its rows stand once they are sorted by expert: rules.
 * Mixture of experts (Shazeer et al. 2017) as in Mixtral (Jiang et al. 2024), and with groups and
 * a bias of the choice as in DeepSeek-V3 (2024). */
#include "op/op_place.h"
#include "op/op_util.h"

enum { MOST_GROUPS = 64 };

/* ---- route -------------------------------------------------------------------------------------
 */
static ds_status check_groups(const ds_infer *call, int64_t n_experts)
{
    const dsi_route_attrs *a = call->attrs;
    if (a->n_groups <= 1) {
        return DS_OK;
    }
    if (a->n_groups > MOST_GROUPS || n_experts % a->n_groups != 0) {
        return dsi_op_bad_attr(call,
                               "n_groups is %lld, expected at most %d, and a divisor of the %lld "
                               "experts",
                               (long long)a->n_groups, MOST_GROUPS, (long long)n_experts);
    }
    const int64_t each = n_experts / a->n_groups;
    if (a->top_groups < 1 || a->top_groups > a->n_groups || a->n_chosen > a->top_groups * each) {
        return dsi_op_bad_attr(call,
                               "top_groups is %lld, expected 1 to %lld groups that have n_chosen "
                               "%lld experts",
                               (long long)a->top_groups, (long long)a->n_groups,
                               (long long)a->n_chosen);
    }
    if (a->group_by < 0 || a->group_by >= DSI_GROUP_COUNT) {
        return dsi_op_bad_attr(call, "group_by is %lld, expected 0 to %d", (long long)a->group_by,
                               DSI_GROUP_COUNT - 1);
    }
    return DS_OK;
}

static ds_status check_route(const ds_infer *call, uint32_t input)
{
    const dsi_route_attrs *a = call->attrs;
    DS_TRY(dsi_op_need_float(call, input, "logits", 1));
    const int64_t n_experts = ds_shape_last(call->in[input].shape);
    if (a->n_chosen < 1 || a->n_chosen > n_experts) {
        return dsi_op_bad_attr(call, "n_chosen is %lld, expected 1 to the %lld experts",
                               (long long)a->n_chosen, (long long)n_experts);
    }
    if (a->score < 0 || a->score >= DSI_SCORE_COUNT) {
        return dsi_op_bad_attr(call, "score is %lld, expected 0 to %d", (long long)a->score,
                               DSI_SCORE_COUNT - 1);
    }
    return check_groups(call, n_experts);
}

static ds_status route_infer(ds_infer *call)
{
    const dsi_route_attrs *a = call->attrs;
    DS_TRY(check_route(call, 0));
    const ds_meta logits = call->in[0];
    const ds_dtype stat = dsi_stat_dtype(logits.dtype);
    DS_TRY(dsi_op_may(call, 1, "bias", stat, ds_shape_1d(ds_shape_last(logits.shape))));
    DS_TRY(dsi_op_may(call, 2, "noisy", logits.dtype, logits.shape));
    const bool has_noisy = dsi_op_has(call, 2);
    if (has_noisy && (dsi_op_has(call, 1) || a->n_groups > 1)) {
        return dsi_op_bad(call, 2, "noisy", "none beside a bias or groups");
    }
    if (a->noisy_from < 0 || a->noisy_from >= (has_noisy ? a->n_chosen : 1)) {
        return dsi_op_bad_attr(call, "noisy_from is %lld, expected 0%s", (long long)a->noisy_from,
                               has_noisy ? " to n_chosen - 1" : ": there is no noisy");
    }
    call->out[0] = dsi_meta_of(stat, dsi_shape_with_last(logits.shape, a->n_chosen));
    call->out[1] = dsi_meta_of(DS_DTYPE_I32, call->out[0].shape);
    return DS_OK;
}

static void route_cost(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_route_attrs *a = call->attrs;
    const uint32_t logits = call->op == &dsi_op_route ? 0 : 1;
    cost_out->flops = (12.0 + (double)a->n_chosen) * dsi_op_count(call->in[logits]);
    cost_out->bytes = dsi_op_bytes(call);
}

static ds_status route_grad(ds_grad *call)
{
    dsi_grad_clear(call);
    if (call->d_out[0] == DS_NONE || !dsi_grad_wants(call, 0)) {
        return DS_OK;
    }
    const ds_value in[3] = {call->d_out[0], call->in[0], call->out[1]};
    ds_value out[DS_MAX_OUT];
    DS_TRY(dsi_emit(call, &dsi_op_route_backward, call->attrs, in, 3, out));
    return dsi_grad_give(call, 0, out[0]);
}

static const ds_attr route_attrs[] = {
    DSI_ATTR_INT(dsi_route_attrs, n_chosen),  DSI_ATTR_INT(dsi_route_attrs, score),
    DSI_ATTR_INT(dsi_route_attrs, normalise), DSI_ATTR_REAL(dsi_route_attrs, factor),
    DSI_ATTR_INT(dsi_route_attrs, n_groups),  DSI_ATTR_INT(dsi_route_attrs, top_groups),
    DSI_ATTR_INT(dsi_route_attrs, group_by),  DSI_ATTR_INT(dsi_route_attrs, noisy_from),
};

const ds_op dsi_op_route = {
    .version = DS_OP_VERSION,
    .name = "route",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ _ *_", .out = "*_ *_", .split = "*"),
    .doc =
        "logits (..,E), [bias f32 (E)], [noisy (..,E)] → weights f32 (..,K), experts i32 (..,K): "
        "the n_chosen "
        "experts whose score (softmax or sigmoid of the logits) plus bias is largest, the "
        "largest first and of equal ones the lowest first; weights are their scores without "
        "bias, divided by their sum if normalise, times factor. Choices from noisy_from on go by "
        "noisy, where it is given.",
    .n_in_min = 1,
    .n_in_max = 3,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_route_attrs),
    .attrs = route_attrs,
    .n_attrs = DSI_N(route_attrs),
    .infer = route_infer,
    .grad = route_grad,
    .cost = route_cost,
};

static ds_status route_backward_infer(ds_infer *call)
{
    const dsi_route_attrs *a = call->attrs;
    DS_TRY(check_route(call, 1));
    const ds_meta logits = call->in[1];
    const ds_shape chosen = dsi_shape_with_last(logits.shape, a->n_chosen);
    DS_TRY(dsi_op_need(call, 0, "dweights", dsi_stat_dtype(logits.dtype), chosen));
    DS_TRY(dsi_op_need(call, 2, "experts", DS_DTYPE_I32, chosen));
    call->out[0] = logits;
    return DS_OK;
}

const ds_op dsi_op_route_backward = {
    .version = DS_OP_VERSION,
    .name = "route_backward",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_ *_ *_", .out = "*_", .split = "*", .linear = "0"),
    .doc = "dweights f32 (..,K), logits (..,E), experts i32 (..,K) → dlogits; the choice itself "
           "has no gradient.",
    .n_in_min = 3,
    .n_in_max = 3,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_route_attrs),
    .attrs = route_attrs,
    .n_attrs = DSI_N(route_attrs),
    .infer = route_backward_infer,
    .cost = route_cost,
};

/* ---- group_rows, group_sizes -------------------------------------------------------------------
 */
static ds_status group_rows_infer(ds_infer *call)
{
    const dsi_group_attrs *a = call->attrs;
    const ds_meta experts = dsi_op_in(call, 0);
    if (experts.dtype != DS_DTYPE_I32 || experts.shape.n_dims < 1) {
        return dsi_op_bad(call, 0, "experts", "i32 (..,K)");
    }
    if (ds_shape_count(experts.shape) > INT32_MAX) {
        return dsi_op_bad(call, 0, "experts", "at most %d elements", INT32_MAX);
    }
    if (a->n_experts < 1 || a->n_experts >= INT32_MAX) {
        return dsi_op_bad_attr(call, "n_experts is %lld, expected 1 or more",
                               (long long)a->n_experts);
    }
    if (a->take < 0 || a->take >= DSI_TAKE_COUNT) {
        return dsi_op_bad_attr(call, "take is %lld, expected 0 to %d", (long long)a->take,
                               DSI_TAKE_COUNT - 1);
    }
    const int64_t parts = a->parts > 1 ? a->parts : 1;
    if (parts > 1 && (experts.shape.n_dims != 3 || experts.shape.dims[1] % parts != 0)) {
        return dsi_op_bad(call, 0, "experts", "i32 (B,T,K), T a multiple of the %lld parts",
                          (long long)parts);
    }
    if (a->take == DSI_TAKE_SCORES) {
        DS_TRY(dsi_op_need(call, 1, "scores", dsi_op_in(call, 1).dtype, experts.shape));
        DS_TRY(dsi_op_need_float(call, 1, "scores", 1));
    }
    if (a->capacity < 0) {
        return dsi_op_bad_attr(call, "capacity is %lld, expected 0 (none) or more",
                               (long long)a->capacity);
    }
    call->out[0] = experts;
    call->out[1] = dsi_meta_of(DS_DTYPE_I32, ds_shape_1d(parts * (a->n_experts + 1)));
    return DS_OK;
}

static const ds_attr group_attrs[] = {
    DSI_ATTR_INT(dsi_group_attrs, n_experts),
    DSI_ATTR_INT(dsi_group_attrs, capacity),
    DSI_ATTR_INT(dsi_group_attrs, take),
    DSI_ATTR_INT(dsi_group_attrs, parts),
};

/* Parts of T, each with offsets of its own, are cut along T. */
static void adapt_group(ds_place_case *c)
{
    const dsi_group_attrs *a = c->attrs;
    if (a->parts > 1) {
        c->out[1][0] = 'B';
        c->split[0] = 'B';
        c->split[1] = '\0';
    }
}

static void local_group(const ds_infer *local, void *attrs)
{
    dsi_group_attrs *a = attrs;
    a->parts = local->out[1].shape.dims[0] / (a->n_experts + 1);
}

const ds_op dsi_op_group_rows = {
    .version = DS_OP_VERSION,
    .name = "group_rows",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "*_", .out = "*_ _", .adapt = adapt_group, .local = local_group),
    .doc = "experts i32 (..,K), [scores f32 (..,K)] → place i32 (..,K), offsets i32 (E+1): where "
           "each pair's row is "
           "once rows are sorted by expert, equal ones in their order; expert e has the rows "
           "offsets[e] to offsets[e+1] - 1. With a capacity, what is beyond it comes behind "
           "offsets[E]. An expert out of range is an error that names it.",
    .n_in_min = 1,
    .n_in_max = 2,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_group_attrs),
    .attrs = group_attrs,
    .n_attrs = DSI_N(group_attrs),
    .infer = group_rows_infer,
    .cost = dsi_cost_elementwise,
};

static ds_status group_sizes_infer(ds_infer *call)
{
    const dsi_parts_attrs *a = call->attrs;
    const int64_t parts = a->parts > 1 ? a->parts : 1;
    const ds_meta offsets = dsi_op_in(call, 0);
    if (offsets.dtype != DS_DTYPE_I32 || offsets.shape.n_dims != 1 ||
        offsets.shape.dims[0] < 2 * parts || offsets.shape.dims[0] % parts != 0) {
        return dsi_op_bad(call, 0, "offsets", "i32 (E+1), or such a list for each part");
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, ds_shape_1d(offsets.shape.dims[0] / parts - 1));
    return DS_OK;
}

static const ds_attr parts_attrs[] = {DSI_ATTR_INT(dsi_parts_attrs, parts)};

static void adapt_sizes(ds_place_case *c)
{
    const dsi_parts_attrs *a = c->attrs;
    if (a->parts > 1) {
        c->in[0][0] = 'r';
        c->split[0] = c->sums[0] = 'r';
        c->split[1] = c->sums[1] = '\0';
    }
}

static void local_sizes(const ds_infer *local, void *attrs)
{
    dsi_parts_attrs *a = attrs;
    a->parts = local->in[0].shape.dims[0] / (local->out[0].shape.dims[0] + 1);
}

const ds_op dsi_op_group_sizes = {
    .version = DS_OP_VERSION,
    .name = "group_sizes",
    .op_class = DS_CLASS_ELEMENTWISE,
    .role = DS_ROLE_COMPUTE,
    .again = DS_AGAIN_CHEAP,
    .place = DSI_PLACE(.in = "_", .out = "_", .adapt = adapt_sizes, .local = local_sizes),
    .doc = "offsets i32 (E+1), or such lists of parts → f32 (E): how many rows each expert has.",
    .n_in_min = 1,
    .n_in_max = 1,
    .n_out = 1,
    .attrs_bytes = sizeof(dsi_parts_attrs),
    .attrs = parts_attrs,
    .n_attrs = DSI_N(parts_attrs),
    .infer = group_sizes_infer,
    .cost = dsi_cost_elementwise,
};

/* ---- kept_weights ------------------------------------------------------------------------------
 */
static ds_status check_kept(const ds_infer *call, uint32_t first)
{
    const ds_meta weights = dsi_op_in(call, first);
    const ds_meta offsets = dsi_op_in(call, first + 2);
    DS_TRY(dsi_op_need_float(call, first, "weights", 1));
    DS_TRY(dsi_op_need(call, first + 1, "place", DS_DTYPE_I32, weights.shape));
    if (offsets.dtype != DS_DTYPE_I32 || offsets.shape.n_dims != 1 || offsets.shape.dims[0] < 2) {
        return dsi_op_bad(call, first + 2, "offsets", "i32 (E+1)");
    }
    call->out[0] = weights;
    return DS_OK;
}

static ds_status kept_infer(ds_infer *call)
{
    return check_kept(call, 0);
}

static ds_status kept_backward_infer(ds_infer *call)
{
    DS_TRY(check_kept(call, 1));
    return dsi_op_need(call, 0, "dy", call->out[0].dtype, call->out[0].shape);
}

static ds_status kept_grad(ds_grad *call)
{
    const ds_value in[4] = {call->d_out[0], call->in[0], call->in[1], call->in[2]};
    ds_value out[DS_MAX_OUT];
    dsi_grad_clear(call);
    if (in[0] == DS_NONE || !dsi_grad_wants(call, 0)) {
        return DS_OK;
    }
    DS_TRY(dsi_emit(call, &dsi_op_kept_weights_backward, call->attrs, in, 4, out));
    return dsi_grad_give(call, 0, out[0]);
}

static const ds_attr kept_attrs[] = {DSI_ATTR_INT(dsi_kept_attrs, normalise)};

#define KEPT_OP(op_name, n, infer_fn, grad_fn, in_words, linear_in, text)                          \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = (n),               \
        .n_in_max = (n), .n_out = 1, .attrs_bytes = sizeof(dsi_kept_attrs), .attrs = kept_attrs,   \
        .n_attrs = DSI_N(kept_attrs), .infer = (infer_fn), .grad = (grad_fn),                      \
        .op_class = DS_CLASS_ELEMENTWISE, .role = DS_ROLE_COMPUTE, .again = DS_AGAIN_CHEAP,        \
        .place = DSI_PLACE(.in = (in_words), .out = "*_", .linear = (linear_in)),                  \
        .cost = dsi_cost_elementwise,                                                              \
    }

const ds_op dsi_op_kept_weights =
    KEPT_OP("kept_weights", 3, kept_infer, kept_grad, "*_ *_ _", NULL,
            "weights f32 (..,K), place i32 (..,K), offsets i32 (E+1) → f32 (..,K): the weights of "
            "pairs before offsets[E], 0 of the others; divided by their sum if normalise.");
const ds_op dsi_op_kept_weights_backward =
    KEPT_OP("kept_weights_backward", 4, kept_backward_infer, NULL, "*_ *_ *_ _", "0",
            "dy f32 (..,K), weights, place, offsets → dweights f32 (..,K).");
