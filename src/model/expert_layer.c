/* SPDX-License-Identifier: Apache-2.0 */
/* The feed-forward layer of experts. See expert_layer.h. */
#include "model/expert_layer.h"

#include "nn/nn_experts.h"
#include "op/constants.h"

static ds_value weight(ds_nn *nn, const ds_experts_params *p, const char *name, int64_t n_out,
                       int64_t n_in)
{
    return ds_nn_param(nn, name, ds_shape_3d(p->n_experts, n_out, n_in),
                       (ds_init){DS_INIT_NORMAL, p->init_std}, false);
}

static ds_value product(ds_nn *nn, ds_value rows, ds_value w, ds_value offsets,
                        const dsi_grouped_attrs *how)
{
    const ds_value in[3] = {rows, w, offsets};
    return ds_nn_apply(nn, &dsi_op_grouped_linear, how, in, 3);
}

/* f32 (), the number. */
static ds_value number(ds_nn *nn, double value)
{
    const dsi_constants_attrs attrs = {.n = 1, .v = {value}};
    return ds_nn_reshape(nn, ds_nn_apply(nn, &dsi_op_constants, &attrs, NULL, 0),
                         (ds_shape){.n_dims = 0});
}

/* Rows times each expert's matrix, plus its bias: the bias of a row's expert is a product of 1 with
 * a matrix of one column. */
static ds_value product_with_bias(ds_nn *nn, const ds_experts_params *p, ds_value rows,
                                  const char *name, const char *bias, int64_t n_out,
                                  ds_value offsets, const dsi_grouped_attrs *how)
{
    const int64_t n_in = ds_shape_last(ds_nn_meta(nn, rows).shape);
    dsi_grouped_attrs turned = *how;
    turned.transposed = p->transposed ? 1 : 0;
    const ds_value w =
        p->transposed ? weight(nn, p, name, n_in, n_out) : weight(nn, p, name, n_out, n_in);
    const ds_value y = product(nn, rows, w, offsets, &turned);
    if (bias == NULL || ds_nn_status(nn) < 0) {
        return y;
    }
    const ds_value like[2] = {ds_nn_slice(nn, rows, -1, 0, 1), number(nn, 1.0)};
    const ds_value ones = ds_nn_apply(nn, &dsi_op_fill, NULL, like, 2); /* (R,1) */
    const ds_value b = ds_nn_param(nn, bias, ds_shape_2d(p->n_experts, n_out),
                                   (ds_init){.kind = DS_INIT_ZEROS}, true);
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    const ds_shape column = ds_shape_3d(p->n_experts, n_out, 1);
    return ds_nn_add(nn, y, product(nn, ones, ds_nn_reshape(nn, b, column), offsets, how));
}

/* x where it is within the bounds, else the bound, and no gradient. */
static ds_value at_most(ds_nn *nn, ds_value x, double bound)
{
    return ds_nn_masked_fill(nn, x, ds_nn_compare_to(nn, x, DS_GREATER, bound), bound);
}

static ds_value at_least(ds_nn *nn, ds_value x, double bound)
{
    return ds_nn_masked_fill(nn, x, ds_nn_compare_to(nn, x, DS_LESS, bound), bound);
}

static ds_value limited_glu(ds_nn *nn, const ds_experts_params *p, ds_value gate, ds_value up)
{
    gate = at_most(nn, gate, p->limit);
    up = at_least(nn, at_most(nn, up, p->limit), -p->limit);
    return ds_nn_mul(nn, ds_nn_add(nn, up, number(nn, 1.0)),
                     ds_nn_mul(nn, gate, ds_nn_sigmoid(nn, ds_nn_scale(nn, gate, p->alpha))));
}

/* Gate (0) or up (1) of both (R,2F). */
static ds_value half(ds_nn *nn, const ds_experts_params *p, ds_value both, int64_t which)
{
    if (!p->alternate || ds_nn_status(nn) < 0) {
        return ds_nn_slice(nn, both, -1, which * p->width, p->width);
    }
    const int64_t n = ds_nn_meta(nn, both).shape.dims[0];
    const ds_value pairs = ds_nn_reshape(nn, both, ds_shape_3d(n, p->width, 2));
    return ds_nn_reshape(nn, ds_nn_slice(nn, pairs, -1, which, 1), ds_shape_2d(n, p->width));
}

/* rows (R,C) sorted by expert → (R,C). */
static ds_value expert_mlp(ds_nn *nn, ds_value rows, ds_value offsets, const dsi_grouped_attrs *how,
                           const void *params)
{
    const ds_experts_params *p = params;
    const int64_t width = ds_shape_last(ds_nn_meta(nn, rows).shape);
    ds_value gate;
    ds_value up;
    if (p->gate_up != NULL) {
        const ds_value both =
            product_with_bias(nn, p, rows, p->gate_up, p->gate_up_bias, 2 * p->width, offsets, how);
        gate = half(nn, p, both, 0);
        up = half(nn, p, both, 1);
    } else {
        gate = product(nn, rows, weight(nn, p, p->gate, p->width, width), offsets, how);
        up = product(nn, rows, weight(nn, p, p->up, p->width, width), offsets, how);
    }
    const ds_value made =
        p->limit > 0.0 ? limited_glu(nn, p, gate, up) : ds_nn_glu(nn, gate, up, p->activation);
    return product_with_bias(nn, p, made, p->down, p->down_bias, width, offsets, how);
}

static ds_value dense_weight(ds_nn *nn, const ds_experts_params *p, const char *name, int64_t n_out,
                             int64_t n_in)
{
    return ds_nn_param(nn, name, ds_shape_2d(n_out, n_in), (ds_init){DS_INIT_NORMAL, p->init_std},
                       false);
}

/* The part of the shared expert that its gate lets through, as wide as y (..,C). */
static ds_value shared_part(ds_nn *nn, const ds_experts_params *p, ds_value x, ds_value y)
{
    const ds_shape shape = ds_nn_meta(nn, x).shape;
    const ds_value part =
        ds_nn_matmul(nn, x, dense_weight(nn, p, p->shared_gate, 1, ds_shape_last(shape)), false,
                     DS_DTYPE_F32); /* (..,1) */
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    ds_shape lead = shape;
    lead.dims[--lead.n_dims] = 0;
    const ds_value expand[2] = {ds_nn_sigmoid(nn, ds_nn_reshape(nn, part, lead)), y};
    return ds_nn_apply(nn, &dsi_op_expand_last, NULL, expand, 2);
}

/* What the shared expert makes of x (..,C), times its own gate. */
static ds_value shared_expert(ds_nn *nn, const ds_experts_params *p, ds_value x)
{
    const int64_t width = ds_shape_last(ds_nn_meta(nn, x).shape);
    const int64_t inner = p->shared_width;
    const ds_value gate =
        ds_nn_matmul(nn, x, dense_weight(nn, p, p->shared[0], inner, width), false, 0);
    const ds_value up =
        ds_nn_matmul(nn, x, dense_weight(nn, p, p->shared[1], inner, width), false, 0);
    const ds_value y = ds_nn_matmul(nn, ds_nn_glu(nn, gate, up, p->activation),
                                    dense_weight(nn, p, p->shared[2], width, inner), false, 0);
    return p->shared_gate != NULL ? ds_nn_mul(nn, y, shared_part(nn, p, x, y)) : y;
}

static ds_value sum_of(ds_nn *nn, ds_value before, ds_value more)
{
    return before == DS_NONE ? more : ds_nn_add(nn, before, more);
}

static void add_load(ds_nn *nn, ds_router_load *load, ds_value logits, ds_value offsets)
{
    const ds_value chances = ds_nn_softmax(nn, logits);
    const dsi_parts_attrs parts = {.parts = dsi_nn_parts(nn)};
    load->sizes =
        sum_of(nn, load->sizes, ds_nn_apply(nn, &dsi_op_group_sizes, &parts, &offsets, 1));
    load->chances = sum_of(nn, load->chances, ds_nn_apply(nn, &dsi_op_sum_rows, NULL, &chances, 1));
    load->n_tokens += ds_shape_rows(ds_nn_meta(nn, logits).shape);
}

/* f32 whatever the model's precision, and frozen: what it holds is set while a model is trained
 * from the load of its experts, which is not built. */
static ds_value choice_bias(ds_nn *nn, const ds_experts_params *p)
{
    char path[DSI_NN_PATH_BYTES];
    dsi_nn_path(nn, p->choice_bias, path, sizeof path);
    return dsi_nn_cell(nn, &(ds_cell_info){.name = path,
                                           .kind = DS_CELL_PARAM,
                                           .meta = {DS_DTYPE_F32, ds_shape_1d(p->n_experts)},
                                           .init = {.kind = DS_INIT_ZEROS},
                                           .of = DS_NONE,
                                           .no_decay = true,
                                           .frozen = true});
}

/* In fp32: a rounded logit may choose another expert. */
static ds_value router_logits(ds_nn *nn, const ds_experts_params *p, ds_value x)
{
    const int64_t width = ds_shape_last(ds_nn_meta(nn, x).shape);
    const dsi_linear_attrs attrs = {.out_dtype = DS_DTYPE_F32};
    const ds_value in[3] = {x, dense_weight(nn, p, p->router, p->n_experts, width),
                            p->router_bias != NULL
                                ? ds_nn_param(nn, p->router_bias, ds_shape_1d(p->n_experts),
                                              (ds_init){DS_INIT_NORMAL, p->init_std}, true)
                                : DS_NONE};
    return ds_nn_apply(nn, &dsi_op_linear, &attrs, in, p->router_bias != NULL ? 3 : 2);
}

/* Whether the trace's routing has room in these experts. */
static bool check_routing(ds_nn *nn, const ds_experts_params *p)
{
    const int64_t each = p->n_groups > 1 ? p->n_experts / p->n_groups : p->n_experts;
    const int64_t least = p->n_groups > 1 && p->group_by_two ? 2 : 1;
    const int64_t most = p->n_groups > 1 ? p->top_groups * each : p->n_experts;
    if (p->n_groups > 1 && (p->n_experts % p->n_groups != 0 || each < least)) {
        ds_nn_fail(nn, DS_ERR_CONFIG,
                   "expert_parallel.num_expert_groups: expected a divisor of the %lld experts of a "
                   "layer, with %lld or more a group, found %lld",
                   (long long)p->n_experts, (long long)least, (long long)p->n_groups);
    } else if (p->n_chosen > most) {
        ds_nn_fail(nn, DS_ERR_CONFIG,
                   "expert_parallel.top_k: expected at most the %lld experts %s, found %lld",
                   (long long)most, p->n_groups > 1 ? "of num_limited_groups groups" : "of a layer",
                   (long long)p->n_chosen);
    }
    return ds_nn_status(nn) >= 0;
}

/* The layer with what the trace says of its router. */
static ds_experts_params routed(const ds_routing *r, const ds_experts_params *own)
{
    ds_experts_params p = *own;
    p.n_chosen = r->n_chosen > 0 ? r->n_chosen : p.n_chosen;
    p.normalise = r->normalise != 0 ? r->normalise > 0 : p.normalise;
    p.sigmoid = r->sigmoid != 0 ? r->sigmoid > 0 : p.sigmoid;
    p.weighs_first = r->weighs_first != 0 ? r->weighs_first > 0 : p.weighs_first;
    p.factor = r->factor > 0.0                       ? r->factor
               : r->scale > 0.0 && own->n_groups < 1 ? r->scale
                                                     : p.factor;
    if (r->n_groups > 0) {
        p.group_by_two = own->n_groups > 1 ? own->group_by_two : true;
        p.n_groups = r->n_groups;
        p.top_groups = r->top_groups;
    }
    return p;
}

static ds_value experts(ds_nn *nn, ds_value x, const ds_experts_params *p, ds_router_load *load)
{
    const dsi_route_attrs route = {.n_chosen = p->n_chosen,
                                   .score = p->sigmoid ? DSI_SCORE_SIGMOID : DSI_SCORE_SOFTMAX,
                                   .normalise = p->normalise,
                                   .factor = p->factor,
                                   .n_groups = p->n_groups,
                                   .top_groups = p->top_groups,
                                   .group_by = p->group_by_two ? DSI_GROUP_TOP2 : DSI_GROUP_MAX};
    const dsi_group_attrs group = {.n_experts = p->n_experts, .parts = dsi_nn_parts(nn)};
    const dsi_parts_attrs parts = {.parts = dsi_nn_parts(nn)};
    ds_value chosen[DS_MAX_OUT];
    ds_value grouped[DS_MAX_OUT];
    if (p->jitter > 0.0 && dsi_nn_draws(nn)) {
        x = dsi_nn_noise(nn, x, DSI_NOISE_FACTOR, p->jitter);
    }
    const ds_value logits = router_logits(nn, p, x);
    const ds_value routed[2] = {logits, p->choice_bias != NULL ? choice_bias(nn, p) : DS_NONE};
    dsi_nn_apply_all(nn, &dsi_op_route, &route, routed, p->choice_bias != NULL ? 2 : 1, chosen);
    chosen[0] = dsi_nn_split_tokens(nn, chosen[0]);
    chosen[1] = dsi_nn_split_tokens(nn, chosen[1]);
    dsi_nn_apply_all(nn, &dsi_op_group_rows, &group, &chosen[1], 1, grouped);
    const ds_value spread[3] = {dsi_nn_split_tokens(nn, x), grouped[0], chosen[0]};
    const ds_value rows =
        ds_nn_apply(nn, &dsi_op_spread_rows, &parts, spread, p->weighs_first ? 3 : 2);
    const dsi_experts_of of = {.n_experts = p->n_experts, .n_chosen = p->n_chosen};
    const ds_value made = dsi_nn_experts(nn, &of, rows, grouped[1], expert_mlp, p);
    const ds_value combine[3] = {made, grouped[0], chosen[0]};
    ds_value y = dsi_nn_join_tokens(
        nn, ds_nn_apply(nn, &dsi_op_combine_rows, &parts, combine, p->weighs_first ? 2 : 3));
    if (p->shared[0] != NULL) {
        y = ds_nn_add(nn, y, shared_expert(nn, p, x));
    }
    if (load != NULL && ds_nn_status(nn) >= 0) {
        add_load(nn, load, logits, grouped[1]);
    }
    return y;
}

ds_value ds_model_experts(ds_nn *nn, ds_value x, const ds_experts_params *p, ds_router_load *load)
{
    const ds_routing *routing = ds_nn_trace(nn)->routing;
    if (routing == NULL || dsi_nn_teaches(nn)) {
        return experts(nn, x, p, load);
    }
    const ds_experts_params other = routed(routing, p);
    return check_routing(nn, &other) ? experts(nn, x, &other, load) : DS_NONE;
}

ds_value ds_model_balance_loss(ds_nn *nn, const ds_router_load *load)
{
    const ds_value both = ds_nn_mul(nn, load->sizes, load->chances);
    const double n = (double)load->n_tokens;
    const double n_experts = (double)ds_shape_last(ds_nn_meta(nn, both).shape);
    return ds_nn_scale(nn, ds_nn_sum_all(nn, both), n_experts / (n * n));
}
