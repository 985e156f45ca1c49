/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's layer of experts. See nn.h; the gates are those of its sharded_moe.py. */
#include "base/reserved.h"
#include "nn/nn_experts.h"

#include <math.h>
#include <stdio.h>

typedef struct moe {
    const ds_moe_params *p;
    const char *name;
    int64_t width; /* C, of x */
} moe;

static ds_value weight(ds_nn *nn, const moe *m, const char *name, ds_shape shape)
{
    char path[DSI_NN_PATH_BYTES];
    const double std = m->p->init_std > 0.0 ? m->p->init_std : 0.02;
    (void)snprintf(path, sizeof path, "%s.%s", m->name, name);
    return ds_nn_param(nn, path, shape, (ds_init){DS_INIT_NORMAL, std}, false);
}

#define EXPERTS "deepspeed_moe.experts.deepspeed_experts.*."

/* An expert's matrix (E,O,I). */
static ds_value product(ds_nn *nn, const moe *m, const char *name, ds_value rows, ds_value offsets,
                        int64_t n_out, const dsi_grouped_attrs *how)
{
    const int64_t n_in = ds_shape_last(ds_nn_meta(nn, rows).shape);
    const ds_value in[3] = {rows, weight(nn, m, name, ds_shape_3d(m->p->n_experts, n_out, n_in)),
                            offsets};
    return ds_nn_apply(nn, &dsi_op_grouped_linear, how, in, 3);
}

static ds_value experts(ds_nn *nn, ds_value rows, ds_value offsets, const dsi_grouped_attrs *how,
                        const void *user)
{
    const moe *m = user;
    const int64_t width = m->p->width;
    const ds_value up = product(nn, m, EXPERTS "up_proj.weight", rows, offsets, width, how);
    const ds_value inner =
        m->p->gated
            ? ds_nn_glu(nn, product(nn, m, EXPERTS "gate_proj.weight", rows, offsets, width, how),
                        up, m->p->activation)
            : ds_nn_activation(nn, up, m->p->activation);
    return product(nn, m, EXPERTS "down_proj.weight", inner, offsets, m->width, how);
}

/* The dense layer of the residual form. */
static ds_value dense(ds_nn *nn, const moe *m, ds_value x)
{
    const int64_t width = m->p->width;
    const ds_shape in = ds_shape_2d(width, m->width);
    const ds_value up = ds_nn_matmul(nn, x, weight(nn, m, "mlp.up_proj.weight", in), false, 0);
    const ds_value inner =
        m->p->gated
            ? ds_nn_glu(nn,
                        ds_nn_matmul(nn, x, weight(nn, m, "mlp.gate_proj.weight", in), false, 0),
                        up, m->p->activation)
            : ds_nn_activation(nn, up, m->p->activation);
    return ds_nn_matmul(
        nn, inner, weight(nn, m, "mlp.down_proj.weight", ds_shape_2d(m->width, width)), false, 0);
}

/* x (..,C) times share i of (..,2). */
static ds_value times_share(ds_nn *nn, ds_value x, ds_value shares, int64_t i)
{
    const ds_value one = ds_nn_slice(nn, shares, -1, i, 1);
    ds_shape lead = ds_nn_meta(nn, one).shape;
    lead.dims[--lead.n_dims] = 0;
    const ds_value in[2] = {ds_nn_reshape(nn, one, lead), x};
    return ds_nn_mul(nn, x, ds_nn_apply(nn, &dsi_op_expand_last, NULL, in, 2));
}

static ds_value add_dense(ds_nn *nn, const moe *m, ds_value x, ds_value y)
{
    const ds_value coefficient = weight(nn, m, "coefficient.weight", ds_shape_2d(2, m->width));
    const ds_value shares =
        ds_nn_softmax(nn, ds_nn_matmul(nn, x, coefficient, false, DS_DTYPE_F32));
    const ds_value mlp = dense(nn, m, x);
    if (ds_nn_status(nn) < 0) {
        return DS_NONE;
    }
    return ds_nn_add(nn, times_share(nn, y, shares, 0), times_share(nn, mlp, shares, 1));
}

static int64_t capacity_of(const ds_nn *nn, const ds_moe_params *p, int64_t n_tokens)
{
    const double factor =
        nn->trace.mode == DS_TRACE_TRAIN ? p->capacity_factor : p->eval_capacity_factor;
    const int64_t min = p->min_capacity > 0 ? p->min_capacity : 4;
    if (factor <= 0.0) {
        return 0;
    }
    /* in fp32, as there */
    const float share = (float)n_tokens / (float)p->n_experts;
    const int64_t n = (int64_t)ceilf(share * (float)(factor * (double)p->n_chosen));
    return n > min ? n : min;
}

/* Pairs that count for the balance: before any is dropped. */
static ds_value balance(ds_nn *nn, const ds_moe_params *p, ds_value logits, ds_value chosen)
{
    const dsi_group_attrs group = {.n_experts = p->n_experts, .parts = dsi_nn_parts(nn)};
    const dsi_parts_attrs parts = {.parts = dsi_nn_parts(nn)};
    const ds_value counted = p->n_chosen == 2 ? ds_nn_slice(nn, chosen, -1, 0, 1) : chosen;
    const ds_value chances = ds_nn_softmax(nn, logits);
    ds_value grouped[DS_MAX_OUT];
    dsi_nn_apply_all(nn, &dsi_op_group_rows, &group, &counted, 1, grouped);
    const ds_value sizes = ds_nn_apply(nn, &dsi_op_group_sizes, &parts, &grouped[1], 1);
    const ds_value sums = ds_nn_apply(nn, &dsi_op_sum_rows, NULL, &chances, 1);
    const double n = (double)ds_shape_rows(ds_nn_meta(nn, logits).shape);
    const double k = p->n_chosen > 2 ? (double)p->n_chosen : 1.0;
    return ds_nn_scale(nn, ds_nn_sum_all(nn, ds_nn_mul(nn, sizes, sums)),
                       (double)p->n_experts / (n * n * k));
}

/* Chosen experts and their weights, from the router's logits. */
static void choose(ds_nn *nn, const ds_moe_params *p, bool normalise, ds_value logits,
                   ds_value *chosen_out)
{
    const bool all = dsi_nn_draws(nn) && p->noise == DS_MOE_GUMBEL;
    const bool second = dsi_nn_draws(nn) && p->sample_second;
    const dsi_route_attrs route = {.n_chosen = p->n_chosen,
                                   .score = DSI_SCORE_SOFTMAX,
                                   .normalise = normalise,
                                   .factor = 1.0,
                                   .noisy_from = second ? 1 : 0};
    const ds_value noisy =
        all || second ? dsi_nn_noise(nn, logits, DSI_NOISE_GUMBEL, 0.0) : DS_NONE;
    const ds_value in[3] = {logits, DS_NONE, noisy};
    dsi_nn_apply_all(nn, &dsi_op_route, &route, in, noisy == DS_NONE ? 1 : 3, chosen_out);
}

static bool check(ds_nn *nn, const ds_moe_params *p)
{
    if (!dsi_nn_ok(nn, DSI_RESERVED_CHECK(ds_graph_ctx(nn->graph), "ds_moe_params", p))) {
        return false;
    }
    const bool drops = p->capacity_factor > 0.0 || p->eval_capacity_factor > 0.0;
    if (p->n_experts < 1 || p->n_chosen < 1 || p->n_chosen > p->n_experts || p->width < 1 ||
        p->activation == DS_ACT_NONE || p->min_capacity < 0 || !(p->capacity_factor >= 0.0) ||
        !(p->eval_capacity_factor >= 0.0)) {
        ds_nn_fail(
            nn, DS_ERR_ARG,
            "ds_nn_moe: expected an activation, a width of at least 1, 1 to n_experts chosen "
            "experts and capacities of at least 0");
    } else if (p->noise < DS_MOE_NO_NOISE || p->noise > DS_MOE_GUMBEL ||
               (p->noise == DS_MOE_GUMBEL && p->n_chosen != 1) ||
               (p->sample_second && p->n_chosen != 2) ||
               (p->random_tokens &&
                (p->n_chosen != 1 || p->drop_by_score || p->capacity_factor <= 0.0))) {
        ds_nn_fail(nn, DS_ERR_ARG,
                   "ds_nn_moe: DS_MOE_GUMBEL is of one chosen expert, sample_second of two, and "
                   "random_tokens of one with a capacity_factor and without drop_by_score");
    } else if (drops && nn->trace.sequence_ranks > 1) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "ds_nn_moe: a capacity is of whole sequences; with sequence_parallel_size %lld "
                   "it is not built: set one of them to none",
                   (long long)nn->trace.sequence_ranks);
    } else if (drops && nn->trace.token_ranks > 1) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "ds_nn_moe: a capacity is of whole sequences; with experts folded over "
                   "tensor_parallel.autotp_size %lld it is not built: set "
                   "expert_parallel.expert_tensor_parallel_size to that number, or the capacity to "
                   "none",
                   (long long)nn->trace.token_ranks);
    }
    return ds_nn_status(nn) >= 0;
}

ds_value ds_nn_moe(ds_nn *nn, const char *name, ds_value x, const ds_moe_params *params,
                   ds_value *balance_out)
{
    if (ds_nn_status(nn) < 0 || !check(nn, params)) {
        return DS_NONE;
    }
    const ds_moe_params *p = params;
    const ds_shape shape = ds_nn_meta(nn, x).shape;
    const moe m = {p, name, ds_shape_last(shape)};
    const int64_t parts = dsi_nn_parts(nn);
    const int64_t capacity = capacity_of(nn, p, ds_shape_rows(shape));
    const bool divides = p->n_chosen > 1; /* by the sum of those that took the token */
    const bool shuffles = dsi_nn_draws(nn) && p->random_tokens;
    const dsi_group_attrs group = {.n_experts = p->n_experts,
                                   .capacity = capacity,
                                   .take = p->drop_by_score || shuffles ? DSI_TAKE_SCORES
                                           : p->n_chosen == 2           ? DSI_TAKE_CHOICES
                                                                        : DSI_TAKE_TOKENS,
                                   .parts = parts};
    const dsi_parts_attrs in_parts = {.parts = parts};
    const dsi_kept_attrs kept = {.normalise = divides};
    const dsi_experts_of of = {p->n_experts, p->n_chosen, capacity};
    ds_value chosen[DS_MAX_OUT];
    ds_value grouped[DS_MAX_OUT];
    const ds_value read = dsi_nn_draws(nn) && p->noise == DS_MOE_JITTER
                              ? dsi_nn_noise(nn, x, DSI_NOISE_FACTOR, 0.01)
                              : x;
    const ds_value logits = ds_nn_matmul(
        nn, read,
        weight(nn, &m, "deepspeed_moe.gate.wg.weight", ds_shape_2d(p->n_experts, m.width)), false,
        DS_DTYPE_F32); /* in fp32: a rounded logit may choose another */
    choose(nn, p, divides && capacity == 0, logits, chosen);
    const ds_value lots =
        shuffles ? dsi_nn_noise(nn, chosen[0], DSI_NOISE_UNIFORM, 0.0) : chosen[0];
    chosen[0] = dsi_nn_split_tokens(nn, chosen[0]);
    chosen[1] = dsi_nn_split_tokens(nn, chosen[1]);
    const ds_value pairs[2] = {chosen[1], lots};
    dsi_nn_apply_all(nn, &dsi_op_group_rows, &group, pairs, group.take == DSI_TAKE_SCORES ? 2 : 1,
                     grouped);
    const ds_value keep[3] = {chosen[0], grouped[0], grouped[1]};
    const ds_value weights =
        capacity > 0 ? ds_nn_apply(nn, &dsi_op_kept_weights, &kept, keep, 3) : chosen[0];
    const ds_value spread[2] = {dsi_nn_split_tokens(nn, x), grouped[0]};
    const ds_value rows = ds_nn_apply(nn, &dsi_op_spread_rows, &in_parts, spread, 2);
    const ds_value combine[3] = {dsi_nn_experts(nn, &of, rows, grouped[1], experts, &m), grouped[0],
                                 weights};
    ds_value y =
        dsi_nn_join_tokens(nn, ds_nn_apply(nn, &dsi_op_combine_rows, &in_parts, combine, 3));
    if (balance_out != NULL && ds_nn_status(nn) >= 0) {
        *balance_out = balance(nn, p, logits, chosen[1]);
    }
    return p->residual ? add_dense(nn, &m, x, y) : y;
}
