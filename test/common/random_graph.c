/* SPDX-License-Identifier: Apache-2.0 */
/* Random graphs. See random_graph.h. */
#include "common/random_graph.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "grad/grad.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VALUES = 64, CELLS = 256, INDEX_BELOW = 5 };

uint64_t random_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(random_next(state) >> 33) % n;
}

/* What there is to compute with. */
typedef struct pool {
    ds_ctx *ctx;
    ds_cells *cells;
    ds_graph *graph;
    uint64_t rng;
    bool smooth;
    ds_dtype act;
    int64_t batch, length; /* of a rank's input */
    ds_value value[MOST_VALUES];
    uint32_t n;
    uint32_t n_named;
} pool;

static uint32_t below(pool *p, uint32_t n)
{
    return random_below(&p->rng, n);
}

static int64_t size_of(pool *p)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 4, 6, 8, 8, 12};
    return sizes[below(p, 9)];
}

static ds_value read_cell(pool *p, ds_cell_kind kind, const char *stem, ds_meta meta)
{
    char name[64];
    ds_cell cell = DS_NONE;
    ds_value value = DS_NONE;
    (void)snprintf(name, sizeof name, "%s.%u", stem, p->n_named++);
    const ds_cell_info info = {.name = name, .kind = kind, .meta = meta, .of = DS_NONE};
    CHECK_OK(p->ctx, ds_cells_add(p->cells, &info, &cell));
    CHECK_OK(p->ctx, ds_graph_read(p->graph, cell, &value));
    return value;
}

static ds_value param(pool *p, const char *stem, ds_shape shape)
{
    return read_cell(p, DS_CELL_PARAM, stem, (ds_meta){p->act, shape});
}

static ds_meta meta_of(const pool *p, ds_value v)
{
    return ds_graph_meta(p->graph, v);
}

/* Keeps what an operator made; what its shape rule refuses is not there. */
static bool apply(pool *p, const ds_op *op, const void *attrs, const ds_value *in, uint32_t n_in,
                  ds_value *out)
{
    char scope[64];
    (void)snprintf(scope, sizeof scope, "node.%u.%s", p->graph->n_nodes, op->name);
    CHECK_OK(p->ctx, ds_graph_set_scope(p->graph, scope));
    return ds_graph_apply(p->graph, op, attrs, in, n_in, out) >= 0;
}

static void keep(pool *p, ds_value v)
{
    const ds_meta meta = meta_of(p, v);
    if (p->n < MOST_VALUES && ds_shape_count(meta.shape) > 0 &&
        (meta.dtype == p->act || !p->smooth)) {
        p->value[p->n++] = v;
    }
}

static void make(pool *p, const ds_op *op, const void *attrs, const ds_value *in, uint32_t n_in)
{
    ds_value out[DS_MAX_OUT];
    if (apply(p, op, attrs, in, n_in, out)) {
        keep(p, out[0]);
    }
}

/* One of the values with at least so many dims and the activation's type; the newer the likelier.
 */
static ds_value pick(pool *p, uint32_t least_dims)
{
    for (uint32_t tries = 0; tries < 20; ++tries) {
        const uint32_t back = below(p, 2) == 0 ? below(p, p->n < 3 ? p->n : 3) : below(p, p->n);
        const ds_value v = p->value[p->n - 1 - back];
        const ds_meta meta = meta_of(p, v);
        if (meta.shape.n_dims >= least_dims && meta.dtype == p->act) {
            return v;
        }
    }
    return p->value[0]; /* (B,T,C) */
}

static ds_value pick_like(pool *p, ds_value x)
{
    for (uint32_t i = 0; i < p->n; ++i) {
        const ds_value v = p->value[below(p, p->n)];
        if (v != x && ds_shape_equal(meta_of(p, v).shape, meta_of(p, x).shape) &&
            meta_of(p, v).dtype == meta_of(p, x).dtype) {
            return v;
        }
    }
    return x;
}

/* ---- operators ------------------------------------------------------------------------------- */

static ds_value project(pool *p, ds_value x, int64_t width)
{
    const int64_t k = ds_shape_last(meta_of(p, x).shape);
    const dsi_linear_attrs attrs = {.transposed = below(p, 2),
                                    .activation = below(p, 6) == 0 ? DSI_ACT_GELU_TANH : 0};
    const ds_shape shape = attrs.transposed != 0 ? ds_shape_2d(k, width) : ds_shape_2d(width, k);
    ds_value in[4] = {x, param(p, "weight", shape), DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    if (below(p, 2) == 0) {
        in[2] = param(p, "bias", ds_shape_1d(width));
    }
    for (uint32_t i = 0; i < p->n && below(p, 3) == 0; ++i) {
        const ds_meta r = meta_of(p, p->value[i]);
        ds_shape y = meta_of(p, x).shape;
        y.dims[y.n_dims - 1] = width;
        in[3] = r.dtype == p->act && ds_shape_equal(r.shape, y) ? p->value[i] : in[3];
    }
    if (!apply(p, &dsi_op_linear, &attrs, in, 4, out)) {
        return DS_NONE;
    }
    keep(p, out[0]);
    return out[0];
}

static void binary(pool *p)
{
    static const ds_op *const ops[] = {&dsi_op_add, &dsi_op_sub, &dsi_op_mul, &dsi_op_add};
    const ds_value x = pick(p, 1);
    const uint32_t how = below(p, 4);
    ds_value in[2] = {x, DS_NONE};
    in[1] = how < 2    ? pick_like(p, x)
            : how == 2 ? param(p, "row", ds_shape_1d(ds_shape_last(meta_of(p, x).shape)))
                       : read_cell(p, DS_CELL_SCALAR, "factor", (ds_meta){DS_DTYPE_F32, {0}});
    make(p, how == 3 && below(p, 2) == 0 ? &dsi_op_div : ops[below(p, 4)], NULL, in, 2);
}

static void unary(pool *p)
{
    static const ds_op *const ops[] = {&dsi_op_neg,    &dsi_op_tanh, &dsi_op_sigmoid,
                                       &dsi_op_square, &dsi_op_exp,  &dsi_op_relu};
    const ds_value x = pick(p, 1);
    const uint32_t which = below(p, p->smooth ? 8 : 9);
    const dsi_scale_attrs scale = {.factor = -0.37};
    const dsi_act_attrs act = {.kind = 1 + (int64_t)below(p, 3)};
    ds_value bounded[DS_MAX_OUT] = {x};
    if (which == 5) { /* what exp, log and sqrt see is near to 1 */
        static const ds_op *const careful[] = {&dsi_op_exp, &dsi_op_log, &dsi_op_sqrt};
        (void)apply(p, &dsi_op_sigmoid, NULL, &x, 1, bounded);
        make(p, careful[below(p, 3)], NULL, bounded, 1);
    } else if (which < 4) {
        make(p, ops[which], NULL, &x, 1);
    } else if (which == 6) {
        make(p, &dsi_op_whole, NULL, &x, 1);
    } else if (which < 7) {
        make(p, &dsi_op_scale, &scale, &x, 1);
    } else {
        make(p, which == 7 ? &dsi_op_activation : &dsi_op_relu, which == 7 ? &act : NULL, &x, 1);
    }
}

static void normalize(pool *p)
{
    const dsi_norm_attrs attrs = {.eps = 0.03};
    const ds_value x = pick(p, 2);
    const ds_shape row = ds_shape_1d(ds_shape_last(meta_of(p, x).shape));
    const ds_value in[3] = {x, param(p, "norm", row), param(p, "norm_bias", row)};
    const bool layer = below(p, 2) == 0;
    make(p, layer ? &dsi_op_layer_norm : &dsi_op_rms_norm, &attrs, in, layer ? 2 + below(p, 2) : 2);
}

static void reduce_one(pool *p)
{
    const ds_value x = pick(p, 2);
    make(p, below(p, 2) == 0 ? &dsi_op_sum_last : &dsi_op_sum_rows, NULL, &x, 1);
}

static void reshape(pool *p, ds_value x)
{
    const ds_shape s = meta_of(p, x).shape;
    dsi_reshape_attrs a = {.n_dims = s.n_dims};
    memcpy(a.dims, s.dims, sizeof a.dims);
    const uint32_t d = below(p, s.n_dims);
    if (below(p, 2) == 0 && s.n_dims > 1 && d + 1 < s.n_dims) { /* joins d and d + 1 */
        a.dims[d] *= a.dims[d + 1];
        for (uint32_t i = d + 1; i + 1 < s.n_dims; ++i) {
            a.dims[i] = a.dims[i + 1];
        }
        a.n_dims -= 1;
    } else if (s.n_dims < 5 && s.dims[d] % 2 == 0) { /* splits d */
        for (uint32_t i = s.n_dims; i > d + 1; --i) {
            a.dims[i] = a.dims[i - 1];
        }
        a.dims[d + 1] = below(p, 2) == 0 ? 2 : s.dims[d] / 2;
        a.dims[d] /= a.dims[d + 1];
        a.n_dims += 1;
    }
    make(p, &dsi_op_reshape, &a, &x, 1);
}

static void permute(pool *p, ds_value x)
{
    dsi_permute_attrs a = {.n_dims = meta_of(p, x).shape.n_dims};
    for (int64_t i = 0; i < a.n_dims; ++i) {
        const uint32_t at = below(p, (uint32_t)i + 1);
        a.order[i] = a.order[at];
        a.order[at] = i;
    }
    make(p, &dsi_op_permute, &a, &x, 1);
}

static void cut_and_join(pool *p, ds_value x)
{
    const ds_shape s = meta_of(p, x).shape;
    const int64_t dim = below(p, s.n_dims);
    const int64_t n = s.dims[dim];
    const uint32_t which = below(p, 4);
    if (which == 0) {
        const int64_t start = below(p, (uint32_t)n);
        const dsi_slice_attrs a = {dim, start, 1 + (int64_t)below(p, (uint32_t)(n - start))};
        make(p, &dsi_op_slice, &a, &x, 1);
    } else if (which == 1) {
        const dsi_pad_attrs a = {dim, below(p, 2), 1 + (int64_t)below(p, 2)};
        make(p, &dsi_op_pad, &a, &x, 1);
    } else if (which == 2) {
        const dsi_concat_attrs a = {dim};
        const ds_value in[3] = {x, pick_like(p, x), x};
        make(p, &dsi_op_concat, &a, in, 2 + below(p, 2));
    } else if (n >= 2) {
        const dsi_split_attrs a = {dim, n / 2 + n % 2};
        ds_value out[DS_MAX_OUT];
        if (apply(p, &dsi_op_split, &a, &x, 1, out)) {
            keep(p, out[0]);
            keep(p, out[1]);
        }
    }
}

static void gated(pool *p)
{
    const dsi_act_attrs a = {.kind = 1 + (int64_t)below(p, 3)};
    const ds_value x = pick(p, 2);
    const int64_t width = size_of(p);
    const ds_value in[2] = {project(p, x, width), project(p, x, width)};
    if (in[0] != DS_NONE && in[1] != DS_NONE) {
        make(p, &dsi_op_glu, &a, in, 2);
    }
}

static ds_value rotate(pool *p, ds_value x, int64_t head_dim)
{
    const dsi_rope_table_attrs table = {.head_dim = head_dim, .theta = 100.0};
    const dsi_rope_attrs attrs = {.head_dim = head_dim};
    const ds_meta positions = {DS_DTYPE_I32, ds_shape_2d(p->batch, p->length)};
    const ds_value at = read_cell(p, DS_CELL_INPUT, "positions", positions);
    ds_value out[DS_MAX_OUT];
    ds_value in[2] = {x, DS_NONE};
    if (!apply(p, &dsi_op_rope_table, &table, &at, 1, out)) {
        return x;
    }
    in[1] = out[0];
    return apply(p, &dsi_op_rope, &attrs, in, 2, out) ? out[0] : x;
}

/* On the rank's own (B,T,·). */
static void attend(pool *p)
{
    const ds_value x = pick(p, 3);
    const ds_shape s = meta_of(p, x).shape;
    const int64_t kv = 1 + (int64_t)below(p, 2);
    const dsi_attention_attrs a = {.n_heads = kv * (1 + (int64_t)below(p, 2)),
                                   .n_kv_heads = kv,
                                   .head_dim = 2,
                                   .causal = 1,
                                   .scale = 0.6};
    if (s.n_dims != 3) {
        return;
    }
    ds_value in[3] = {project(p, x, a.n_heads * 2), project(p, x, kv * 2), project(p, x, kv * 2)};
    if (in[0] == DS_NONE || in[1] == DS_NONE || in[2] == DS_NONE) {
        return;
    }
    if (s.dims[0] == p->batch && s.dims[1] == p->length && below(p, 2) == 0) {
        in[0] = rotate(p, in[0], 2);
        in[1] = rotate(p, in[1], 2);
    }
    make(p, &dsi_op_attention, &a, in, 3);
}

static void drop(pool *p)
{
    const dsi_dropout_attrs a = {.p = 0.3, .site = p->graph->n_nodes};
    const dsi_noise_attrs n = {.amount = 0.1, .site = p->graph->n_nodes};
    ds_value in[2] = {pick(p, 2), DS_NONE};
    if (!p->smooth) { /* a cut batch needs states that count from the rank's own first sample */
        in[1] = read_cell(p, DS_CELL_INPUT, "rng", (ds_meta){DS_DTYPE_I64, ds_shape_1d(4)});
        const bool noisy = p->graph->n_nodes % 2 != 0;
        make(p, noisy ? &dsi_op_noise : &dsi_op_dropout, noisy ? (const void *)&n : &a, in, 2);
    }
}

static void recast(pool *p)
{
    ds_value x = pick(p, 1);
    const dsi_cast_attrs there = {.dtype = p->act == DS_DTYPE_F32 && !p->smooth ? DS_DTYPE_BF16
                                                                                : DS_DTYPE_F32};
    const dsi_cast_attrs back = {.dtype = p->act};
    ds_value out[DS_MAX_OUT];
    if (apply(p, &dsi_op_cast, &there, &x, 1, out)) {
        make(p, &dsi_op_cast, &back, out, 1);
    }
}

static void step(pool *p)
{
    static void (*const nodes[])(pool *) = {binary, binary, unary, unary,  normalize,
                                            gated,  attend, drop,  recast, reduce_one};
    const uint32_t which = below(p, 16);
    ds_value x = DS_NONE;
    if (which < 10) {
        nodes[which](p);
    } else if (which < 12) {
        x = pick(p, 2);
        (void)project(p, x, size_of(p));
    } else if (which == 12) {
        x = pick(p, 2);
        make(p, &dsi_op_softmax, NULL, &x, 1);
    } else {
        x = pick(p, 1);
        which == 13 ? reshape(p, x) : which == 14 ? permute(p, x) : cut_and_join(p, x);
    }
}

/* ---- the loss -------------------------------------------------------------------------------- */

static ds_value targets_of(pool *p, ds_shape rows)
{
    rows.n_dims -= 1;
    return read_cell(p, DS_CELL_INPUT, "targets", (ds_meta){DS_DTYPE_I32, rows});
}

/* The count of targets as a value of its own, on which the loss then depends; or DS_NONE. */
static ds_value count_of(pool *p, ds_value targets, dsi_ce_attrs *attrs)
{
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    if (below(p, 3) == 0 && apply(p, &dsi_op_count_targets, attrs, &targets, 1, out)) {
        attrs->counted = 1;
    }
    return out[0];
}

/* logits, targets and their count, beside a teacher's logits that the caller gives. */
static bool distil(pool *p, const ds_value *in, const dsi_ce_attrs *ce, ds_value *out)
{
    const dsi_distillation_attrs attrs = {
        .ce = *ce, .weight = 0.5, .temperature = 1.5, .mix = 0.5 * below(p, 3)};
    const ds_meta meta = {DS_DTYPE_F32, meta_of(p, in[0]).shape};
    const ds_value teacher = read_cell(p, DS_CELL_INPUT, "teacher", meta);
    const ds_value all[4] = {in[0], teacher, in[1], in[2]};
    return apply(p, &dsi_op_distillation, &attrs, all, ce->counted != 0 ? 4 : 3, out);
}

static ds_value loss_of(pool *p)
{
    const ds_value x = pick(p, 1);
    const ds_shape s = meta_of(p, x).shape;
    dsi_ce_attrs plain = {.ignore_index = -100};
    dsi_linear_ce_attrs linear = {.ce = plain, .keep = below(p, 2)};
    ds_value out[DS_MAX_OUT];
    ds_value in[4] = {x, DS_NONE, DS_NONE, DS_NONE};
    const uint32_t which = s.n_dims < 2 ? 2 + below(p, 2) : below(p, 6);
    bool made = false;
    if (which == 0 && ds_shape_last(s) >= INDEX_BELOW) {
        in[1] = targets_of(p, s);
        in[2] = count_of(p, in[1], &plain);
        made = below(p, 2) == 0
                   ? apply(p, &dsi_op_cross_entropy, &plain, in, plain.counted != 0 ? 3 : 2, out)
                   : distil(p, in, &plain, out);
    } else if (which == 1 || which == 4) {
        in[1] = param(p, "head", ds_shape_2d(INDEX_BELOW + 1, ds_shape_last(s)));
        in[2] = targets_of(p, s);
        in[3] = count_of(p, in[2], &linear.ce);
        made = apply(p, &dsi_op_linear_cross_entropy, &linear, in, linear.ce.counted != 0 ? 4 : 3,
                     out);
    }
    if (!made) {
        ds_value square[DS_MAX_OUT];
        if (which == 5) {
            ds_value logp[DS_MAX_OUT];
            in[1] = param(p, "head", ds_shape_2d(INDEX_BELOW + 1, ds_shape_last(s)));
            in[2] = targets_of(p, s);
            in[0] = apply(p, &dsi_op_linear_logprob, &plain, in, 3, logp) ? logp[0] : x;
        }
        assert_true(apply(p, &dsi_op_square, NULL, in, 1, square));
        assert_true(
            apply(p, which == 2 ? &dsi_op_sum_all : &dsi_op_mean_all, NULL, square, 1, out));
    }
    CHECK_OK(p->ctx, ds_graph_output(p->graph, "loss", out[0]));
    return out[0];
}

/* ---- gradients, norm, update ------------------------------------------------------------------
 */

typedef struct finish {
    ds_value gradient[CELLS]; /* complete, per parameter's cell */
    uint32_t n_params;
    bool early; /* used up at once, no cell */
    ds_phase norm, update;
} finish;

static ds_value state_of(pool *p, ds_cell_kind kind, ds_cell of, ds_dtype dtype)
{
    const ds_cell_info info = *ds_cells_get(p->cells, of);
    const ds_cell_info state = {
        .name = info.name, .kind = kind, .meta = {dtype, info.meta.shape}, .of = of};
    ds_cell cell = DS_NONE;
    ds_value value = DS_NONE;
    CHECK_OK(p->ctx, ds_cells_add(p->cells, &state, &cell));
    CHECK_OK(p->ctx, ds_graph_read(p->graph, cell, &value));
    return value;
}

static void store_gradients(pool *p, finish *f)
{
    const ds_op *op = below(p, 2) == 0 ? &dsi_op_store : &dsi_op_accumulate;
    f->early = below(p, 4) == 0;
    for (ds_cell c = 0; c < f->n_params; ++c) {
        ds_value in[2] = {DS_NONE, f->gradient[c]};
        ds_value out[DS_MAX_OUT];
        if (in[1] == DS_NONE) {
            continue;
        }
        CHECK_OK(p->ctx, ds_graph_set_scope(p->graph, ds_cells_get(p->cells, c)->name));
        if (f->early) {
            CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_gradient, NULL, &in[1], 1, out));
        } else {
            in[0] = state_of(p, DS_CELL_GRAD, c, DS_DTYPE_F32);
            CHECK_OK(p->ctx, ds_graph_apply(p->graph, op, NULL, in, 2, out));
        }
        f->gradient[c] = out[0];
    }
}

/* The factor of the gradients: of their norm, or a number. */
static ds_value norm_of(pool *p, const finish *f)
{
    const ds_meta scalar = {DS_DTYPE_F32, {0}};
    const dsi_clip_attrs clip = {.max_norm = 0.5};
    ds_value tops[DS_MAX_IN];
    ds_value sums[DS_MAX_IN];
    ds_value in[3];
    ds_value out[DS_MAX_OUT];
    uint32_t n = 0;
    const ds_value inverse = read_cell(p, DS_CELL_SCALAR, "inverse_scale", scalar);
    if (f->early || below(p, 3) == 0) {
        return inverse;
    }
    ds_graph_set_phase(p->graph, f->norm);
    for (ds_cell c = 0; c < f->n_params && n < DS_MAX_IN; ++c) {
        if (f->gradient[c] != DS_NONE) {
            CHECK_OK(p->ctx,
                     ds_graph_apply(p->graph, &dsi_op_abs_max, NULL, &f->gradient[c], 1, out));
            tops[n++] = out[0];
        }
    }
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_max_of, NULL, tops, n, out));
    in[1] = out[0];
    n = 0;
    for (ds_cell c = 0; c < f->n_params && n < DS_MAX_IN; ++c) {
        const ds_value pair[2] = {f->gradient[c], in[1]};
        if (f->gradient[c] != DS_NONE) {
            CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_sum_squares, NULL, pair, 2, out));
            sums[n++] = out[0];
        }
    }
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_sum_parts, NULL, sums, n, out));
    in[0] = out[0];
    in[2] = inverse;
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_clip_factor, &clip, in, 3, out));
    CHECK_OK(p->ctx, ds_graph_output(p->graph, "norm", out[0]));
    return out[1];
}

/* in: operands of an update. */
static void lamb(pool *p, const dsi_optim_attrs *attrs, const ds_value *in)
{
    const ds_value moments[6] = {in[5], in[1], in[2], in[3], DS_NONE, in[6]};
    ds_value made[DS_MAX_OUT];
    ds_value sums[DS_MAX_OUT];
    ds_value out[DS_MAX_OUT];
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_lamb_moments, attrs, moments, 6, made));
    const ds_value parts[4] = {made[0], made[2], in[4] != DS_NONE ? in[4] : in[0], in[2]};
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_lamb_sums, attrs, parts, 4, sums));
    const ds_value next[7] = {in[0], sums[0], in[2], DS_NONE, in[4], made[0], made[2]};
    CHECK_OK(p->ctx, ds_graph_apply(p->graph, &dsi_op_lamb, attrs, next, 7, out));
}

static void update(pool *p, const finish *f)
{
    static const struct {
        const ds_op *op;
        uint32_t n_states;
    } rows[] = {{&dsi_op_sgd, 1},
                {&dsi_op_adam, 2},
                {&dsi_op_lamb, 2},
                {&dsi_op_lion, 1},
                {&dsi_op_adagrad, 1}};
    const uint32_t row = p->smooth ? 0 : below(p, 5);
    const dsi_optim_attrs attrs = {.eps = 1e-3, .adamw = 1, .max_coeff = 10.0, .min_coeff = 0.01};
    const ds_value factor = norm_of(p, f);
    const ds_value hyper = read_cell(p, DS_CELL_SCALAR, "hyper",
                                     (ds_meta){DS_DTYPE_F32, ds_shape_1d(DSI_HYPER_COUNT)});
    ds_graph_set_phase(p->graph, f->early ? DS_PHASE_BACKWARD : f->update);
    for (ds_cell c = 0; c < f->n_params; ++c) {
        ds_value in[7] = {DS_NONE, f->gradient[c], hyper, factor, DS_NONE, DS_NONE, DS_NONE};
        ds_value out[DS_MAX_OUT];
        if (f->gradient[c] == DS_NONE) {
            continue;
        }
        CHECK_OK(p->ctx, ds_graph_set_scope(p->graph, ds_cells_get(p->cells, c)->name));
        CHECK_OK(p->ctx, ds_graph_read(p->graph, c, &in[0]));
        if (p->act != DS_DTYPE_F32) {
            in[4] = state_of(p, DS_CELL_MASTER, c, DS_DTYPE_F32);
        }
        for (uint32_t i = 0; i < rows[row].n_states; ++i) {
            const ds_cell_kind kind = row == 0            ? DS_CELL_MOMENTUM
                                      : i == 0 && row < 4 ? DS_CELL_EXP_AVG
                                                          : DS_CELL_EXP_AVG_SQ;
            in[5 + i] = state_of(p, kind, c, DS_DTYPE_F32);
        }
        if (rows[row].op == &dsi_op_lamb) {
            lamb(p, &attrs, in);
            continue;
        }
        CHECK_OK(p->ctx,
                 ds_graph_apply(p->graph, rows[row].op, &attrs, in, 5 + rows[row].n_states, out));
    }
}

static void backward(pool *p, ds_value loss)
{
    const ds_meta scalar = {DS_DTYPE_F32, {0}};
    const ds_value seed = read_cell(p, DS_CELL_SCALAR, "loss_seed", scalar);
    finish f = {.n_params = ds_cells_count(p->cells)};
    bool any = false;
    assert_true(f.n_params < CELLS);
    CHECK_OK(p->ctx, ds_graph_add_phase(p->graph, "norm", 0, &f.norm));
    CHECK_OK(p->ctx, ds_graph_add_phase(p->graph, "update", 0, &f.update));
    CHECK_OK(p->ctx, dsi_grad_build(p->graph, &loss, &seed, 1, f.gradient));
    for (ds_cell c = 0; c < f.n_params; ++c) {
        any = any || f.gradient[c] != DS_NONE;
    }
    if (any) {
        ds_graph_set_phase(p->graph, DS_PHASE_BACKWARD);
        store_gradients(p, &f);
        if (below(p, 3) != 0) {
            update(p, &f);
        }
    }
}

void random_graph_make(ds_ctx *ctx, const random_graph_params *params, ds_cells **cells_out,
                       ds_graph **graph_out)
{
    pool p = {.ctx = ctx, .rng = params->seed, .smooth = params->smooth};
    CHECK_OK(ctx, ds_cells_create(ctx, 4 * CELLS, &p.cells));
    CHECK_OK(ctx, ds_graph_create(ctx, p.cells, &p.graph));
    p.act = p.smooth || below(&p, 2) == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16;
    p.batch = size_of(&p);
    p.length = 1 + (int64_t)below(&p, 6);
    const ds_shape three = ds_shape_3d(p.batch, p.length, size_of(&p));
    keep(&p, read_cell(&p, DS_CELL_INPUT, "x", (ds_meta){p.act, three}));
    if (below(&p, 2) == 0) {
        ds_value in[2] = {param(&p, "table", ds_shape_2d(INDEX_BELOW, ds_shape_last(three))),
                          DS_NONE};
        const ds_meta ids = {DS_DTYPE_I32, ds_shape_2d(p.batch, p.length)};
        in[1] = read_cell(&p, DS_CELL_INPUT, "ids", ids);
        make(&p, &dsi_op_embedding, NULL, in, 2);
    }
    for (uint32_t n = 2 + below(&p, 9); n > 0; --n) {
        step(&p);
    }
    backward(&p, loss_of(&p));
    CHECK_OK(ctx, dsi_graph_check(p.graph));
    *cells_out = p.cells;
    *graph_out = p.graph;
}

/* ---- contents -------------------------------------------------------------------------------- */

static float number(const ds_cell_info *info, uint64_t seed, uint32_t site, int64_t e)
{
    const float noise = dsi_rng_normal(seed, site, (uint64_t)e);
    const bool near_one = info->meta.shape.n_dims == 1 || info->kind == DS_CELL_SCALAR;
    switch (info->kind) {
    case DS_CELL_EXP_AVG_SQ:
        return 0.1f * noise * noise;
    case DS_CELL_GRAD:
    case DS_CELL_EXP_AVG:
    case DS_CELL_MOMENTUM:
        return 0.1f * noise;
    case DS_CELL_INPUT:
        return 0.5f * noise;
    default:
        return near_one ? 1.0f + 0.1f * noise : 0.4f * noise;
    }
}

static float hyper(int64_t e)
{
    static const float values[DSI_HYPER_COUNT] = {0.02f, 0.9f, 0.95f, 0.1f,
                                                  0.19f, 0.3f, 0.0f,  0.0f};
    return values[e];
}

void random_graph_fill(const ds_cells *cells, ds_cell cell, uint64_t seed, uint32_t copy,
                       void *data)
{
    const ds_cell_info *info = ds_cells_get(cells, cell);
    const bool same = info->kind != DS_CELL_INPUT && info->kind != DS_CELL_GRAD;
    const ds_cell like = info->kind == DS_CELL_MASTER ? info->of : cell; /* what rounds to it */
    const uint32_t site = like * 64 + (same ? 0 : copy);
    const int64_t n = ds_shape_count(info->meta.shape);
    for (int64_t e = 0; e < n; ++e) {
        const float x =
            strncmp(info->name, "hyper", 5) == 0
                ? hyper(e)
                : number(info->kind == DS_CELL_MASTER ? ds_cells_get(cells, like) : info, seed,
                         site, e);
        switch (info->meta.dtype) {
        case DS_DTYPE_F32:
            ((float *)data)[e] = strncmp(info->name, "loss_seed", 9) == 0 ? 1.0f : x;
            break;
        case DS_DTYPE_BF16:
            ((uint16_t *)data)[e] = dsi_f32_to_bf16(x);
            break;
        case DS_DTYPE_I64: /* seed, step, first sample */
            ((int64_t *)data)[e] = e == 2 ? (int64_t)copy * 16 : e < 2 ? 7 + e : 0;
            break;
        default:
            ((int32_t *)data)[e] =
                strncmp(info->name, "positions", 9) == 0
                    ? (int32_t)(e % ds_shape_last(info->meta.shape))
                    : (int32_t)dsi_rng_below(seed, site, (uint64_t)e, INDEX_BELOW);
            break;
        }
    }
}
