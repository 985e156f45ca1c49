/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * Facts of custom operators: what they state is asked, what they do not state has its default, what
 * is malformed is refused by field; and a model with one has the same bits on every ZeRO stage.
 */
#include "comm/sim.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/own_op.h"
#include "common/rank_threads.h"
#include "common/small_run.h"
#include "cost/op_class.h"
#include "ir/op_check.h"
#include "pass/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 24, STEPS = 3 };

/* ---- the same bits --------------------------------------------------------------------------- */

typedef struct run {
    const ds_op *op;
    uint32_t n_ranks, stage;
    bool same_rows; /* on every rank */
    uint64_t hash;  /* out, of rank 0 */
    double loss;    /* out, of the last step */
} run;

static void trace_model(ds_nn *nn, const void *config)
{
    const ds_op *op = ((const run *)config)->op;
    const int64_t n = ds_nn_trace(nn)->batch;
    const ds_linear_params hidden = {.n_out = WIDTH, .bias = true, .init_std = 0.7};
    const ds_linear_params last = {.n_out = 1, .bias = true, .init_std = 0.3};
    const ds_init ones = {.kind = DS_INIT_ONES};
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(n, 3));
    const ds_value y = ds_nn_input(nn, "y", DS_DTYPE_F32, ds_shape_2d(n, 1));
    ds_value in[2] = {ds_nn_linear(nn, "in", x, &hidden)};
    in[1] = ds_nn_param(nn, "scale", ds_shape_1d(WIDTH), ones, false);
    const ds_value h = ds_nn_apply(nn, op, NULL, in, 2);
    const ds_value wrong = ds_nn_sub(nn, ds_nn_linear(nn, "out", h, &last), y);
    ds_nn_output(nn, "loss", ds_nn_mean_all(nn, ds_nn_mul(nn, wrong, wrong)));
}

static void fill(float *x, float *y, int64_t n, uint32_t from)
{
    for (int64_t i = 0; i < n; ++i) {
        const float t = (float)(from + 1) * 0.37f + (float)i * 0.11f;
        for (int k = 0; k < 3; ++k) {
            x[3 * i + k] = sinf(t * (float)(k + 1));
        }
        y[i] = cosf(t);
    }
}

static ds_status train(dsi_comm *comm, void *arg)
{
    run *r = arg;
    ds_ctx *ctx = comm->ctx;
    const ds_model_info info = {.architecture = "own_net"};
    const int64_t n = SMALL_BATCH;
    float x[SMALL_BATCH * 3];
    float y[SMALL_BATCH];
    double loss = 0.0;
    uint64_t hash = 0;
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    spec.train.seq_length = 1;
    spec.zero = (dsi_zero_spec){.stage = r->stage,
                                .reduce_each = true,
                                .comm_dtype = DS_DTYPE_F32,
                                .reduce_bucket = 64,
                                .gather_bucket = 64,
                                .model_persistence = INT64_MAX,
                                .max_live = 64,
                                .max_reuse_distance = 64};
    DS_TRY(ds_model_custom(ctx, &info, trace_model, r, &model));
    const ds_engine_params params = {.model = model, .seq_length = 1, .seed = 5, .comm = comm};
    ds_status status = dsi_engine_create(ctx, &params, &spec, &engine);
    for (uint32_t step = 0; step < STEPS && status >= 0; ++step) {
        fill(x, y, n, step * 8 + (r->same_rows ? 0 : ds_comm_rank(comm)));
        ds_named_tensor tensors[2] = {{"x", {x, {DS_DTYPE_F32, ds_shape_2d(n, 3)}}},
                                      {"y", {y, {DS_DTYPE_F32, ds_shape_2d(n, 1)}}}};
        const ds_batch batch = {tensors, 2};
        DS_TRY_GOTO(status, ds_engine_forward(engine, &batch), done);
        DS_TRY_GOTO(status, ds_engine_backward(engine), done);
        DS_TRY_GOTO(status, ds_engine_step(engine), done);
        loss = ds_engine_loss(engine);
    }
    status = status < 0 ? status : engine_hash(ctx, engine, &hash);
    if (status >= 0 && ds_comm_rank(comm) == 0) {
        r->hash = hash;
        r->loss = loss;
    }
done:
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return status;
}

static run train_on(const ds_op *op, uint32_t n_ranks, uint32_t stage, bool same_rows)
{
    run r = {.op = op, .n_ranks = n_ranks, .stage = stage, .same_rows = same_rows};
    assert_int_equal(rank_threads_run(n_ranks, NULL, train, &r, NULL), DS_OK);
    assert_true(isfinite(r.loss) && r.hash != 0);
    return r;
}

/* Ranks that see the same rows average equal gradients, which changes no bit of them: one result
 * for any power of two of them. Ranks with rows of their own: one result for each number. */
static void the_same_bits(void **state)
{
    (void)state;
    static const ds_op *const ops[] = {&own_scale, &own_plain};
    const run one = train_on(&own_scale, 1, 0, true);
    for (uint32_t n = 1; n <= 4; n *= 2) {
        const run base = train_on(&own_scale, n, 0, false);
        assert_true(n == 1 ? base.hash == one.hash : base.hash != one.hash);
        for (uint32_t stage = 0; stage <= 3; ++stage) {
            for (int o = 0; o < 2; ++o) {
                assert_true(train_on(ops[o], n, stage, true).hash == one.hash);
                assert_true(train_on(ops[o], n, stage, false).hash == base.hash);
            }
        }
    }
}

/* ---- facts are asked ------------------------------------------------------------------------- */

typedef struct built {
    ds_ctx *ctx;
    ds_cells *cells;
    ds_graph *graph;
    ds_value made;
} built;

/* One node in a region, whose value a second one in the region reads. */
static built build(const ds_op *op)
{
    built b = {0};
    ds_value in[2];
    ds_value out[DS_MAX_OUT];
    const ds_shape shapes[2] = {ds_shape_2d(4, 8), ds_shape_1d(8)};
    assert_int_equal(ds_ctx_create(NULL, &b.ctx), DS_OK);
    CHECK_OK(b.ctx, ds_cells_create(b.ctx, 4, &b.cells));
    CHECK_OK(b.ctx, ds_graph_create(b.ctx, b.cells, &b.graph));
    for (int i = 0; i < 2; ++i) {
        const ds_cell_info info = {.name = i == 0 ? "x" : "w",
                                   .kind = DS_CELL_INPUT,
                                   .meta = {DS_DTYPE_F32, shapes[i]},
                                   .of = DS_NONE};
        ds_cell cell = DS_NONE;
        CHECK_OK(b.ctx, ds_cells_add(b.cells, &info, &cell));
        CHECK_OK(b.ctx, ds_graph_read(b.graph, cell, &in[i]));
    }
    ds_graph_set_region(b.graph, 1);
    CHECK_OK(b.ctx, ds_graph_apply(b.graph, op, NULL, in, 2, out));
    b.made = in[0] = out[0];
    CHECK_OK(b.ctx, ds_graph_apply(b.graph, op, NULL, in, 2, out));
    return b;
}

static void close_built(built *b)
{
    ds_graph_destroy(&b->graph);
    ds_cells_destroy(&b->cells);
    ds_ctx_destroy(&b->ctx);
}

static bool is_dropped(const ds_op *op)
{
    built b = build(op);
    bool drop[8] = {false};
    const dsi_recompute selective = {.mode = DS_RECOMPUTE_SELECTIVE};
    CHECK_OK(b.ctx, dsi_policy_recompute(b.graph, &selective, drop));
    const bool dropped = drop[b.made];
    close_built(&b);
    return dropped;
}

static void cheap_ones_run_again(void **state)
{
    (void)state;
    assert_true(is_dropped(&own_scale));
    assert_false(is_dropped(&own_plain)); /* the default: kept */
}

static dsi_work work_of(const ds_op *op)
{
    const ds_meta in[2] = {{DS_DTYPE_BF16, ds_shape_2d(4, 8)}, {DS_DTYPE_F32, ds_shape_1d(8)}};
    const ds_kernel_sig sig = {.op = op, .n_in = 2, .n_out = 1, .in = in, .out = in};
    const ds_cost cost = {.flops = 12.0, .bytes = 7.0, .m = 4, .n = 3, .k = 2};
    return dsi_work_of(&sig, &cost);
}

static void classes_reach_the_cost(void **state)
{
    (void)state;
    ds_op product = own_scale;
    product.op_class = DS_CLASS_LINEAR;
    const dsi_work w = work_of(&product);
    assert_true(w.op_class == DS_CLASS_LINEAR && w.m == 4 && w.n == 3 && w.k == 2);
    assert_true(w.dtype == DS_DTYPE_BF16 && w.flops == 12.0 && w.bytes == 7.0);
    assert_true(work_of(&own_scale_dw).op_class == DS_CLASS_REDUCE);
    assert_true(work_of(&own_plain).op_class == DS_CLASS_ELEMENTWISE); /* the default */
    assert_true(work_of(&own_plain).m == 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void expect_bad(ds_ctx *ctx, const ds_op *op, const char *words)
{
    CHECK_FAILS(ctx, dsi_op_check(ctx, op), DS_ERR_ARG, words);
}

static void bad_facts_are_named(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    ds_op op = own_scale;
    op.role = DS_ROLE_SWAP_IN;
    expect_bad(ctx, &op, "operator own_scale: role: ");
    op = own_scale;
    op.op_class = DS_CLASS_VIEW;
    expect_bad(ctx, &op, "operator own_scale: op_class: ");
    op.op_class = (ds_op_class)99;
    expect_bad(ctx, &op, "operator own_scale: op_class: ");
    op = own_scale;
    op.again = (ds_op_again)7;
    expect_bad(ctx, &op, "operator own_scale: again: ");
    op = own_scale;
    op.reserved[3] = 1;
    expect_bad(ctx, &op, "ds_op");
    static const struct {
        ds_place_rule rule;
        const char *words;
    } rows[] = {
        {{.in = "*c c x", .out = "*c"}, "place.in"},
        {{.in = "", .out = "*c"}, "place.in"},
        {{.in = "*c  c", .out = "*c"}, "place.in"},
        {{.in = "*C c", .out = "*c"}, "place.in"},
        {{.in = "**c c", .out = "*c"}, "place.in"},
        {{.in = "*c<0 c", .out = "*c"}, "place.in"},
        {{.in = "abcdefghij c", .out = "*c"}, "place.in"},
        {{.in = "*c c", .out = "*c *c"}, "place.out"},
        {{.in = "*c c"}, "place.out"},
        {{.in = "*c c", .out = "*c<2"}, "place.out"},
        {{.in = "*c c", .out = "*c<0+g"}, "place.out"},
        {{.in = "*c c", .out = "*c", .split = "d"}, "place.split"},
        {{.in = "*c c", .out = "*c", .split = "_"}, "place.split"},
        {{.in = "*c c", .out = "*c", .split = "cc"}, "place.split"},
        {{.in = "*c c", .out = "*c", .split = "*", .sums = "c"}, "place.sums"},
        {{.in = "*c c", .out = "*c", .linear = "0|1|0|1"}, "place.linear"},
        {{.in = "*c c", .out = "*c", .linear = "0|"}, "place.linear"},
        {{.in = "*c c", .out = "*c", .linear = "2"}, "place.linear"},
        {{.in = "*c c", .out = "*c", .means = "1"}, "place.means"},
        {{.in = "*c c", .out = "*c", .flags = 1u << 30}, "place.flags"},
        {{.in = "*c c", .out = "*c", .flags = 1u << 16}, "place.flags"},
        {{.in = "*c c", .out = "*c", .reserved = {1}}, "ds_place_rule"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        op = own_scale;
        op.place = &rows[i].rule;
        expect_bad(ctx, &op, rows[i].words);
    }
    CHECK_OK(ctx, dsi_op_check(ctx, &own_scale));
    CHECK_OK(ctx, dsi_op_check(ctx, &own_plain));
    ds_ctx_destroy(&ctx);
}

/* A graph refuses such an operator when it is applied, not a pass much later. */
static void graphs_refuse_bad_facts(void **state)
{
    (void)state;
    built b = build(&own_scale);
    ds_op op = own_scale;
    ds_value in[2] = {b.made, DS_NONE};
    ds_value out[DS_MAX_OUT];
    op.role = DS_ROLE_UPDATE;
    CHECK_FAILS(b.ctx, ds_graph_apply(b.graph, &op, NULL, in, 2, out), DS_ERR_ARG,
                "operator own_scale: role: a custom operator computes");
    close_built(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits),           cmocka_unit_test(cheap_ones_run_again),
        cmocka_unit_test(classes_reach_the_cost),  cmocka_unit_test(bad_facts_are_named),
        cmocka_unit_test(graphs_refuse_bad_facts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
