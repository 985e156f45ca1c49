/* SPDX-License-Identifier: Apache-2.0 */
/* plan/: the checker refuses plans that are broken on purpose, equal graphs give equal digests,
 * graph text says what is there, and the memory pass packs without overlap. */
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "common/plan_digest.h"
#include "op/ops.h"
#include "pass/memory.h"
#include "plan/plan.h"

#include <deepspeed/nn.h>
#include <stdlib.h>
#include <string.h>

/* y = tanh(x·Wᵀ) · V ᵀ with a residual: a few steps, scratch and reuse. */
static ds_graph *small_graph(ds_ctx *ctx, ds_cells **cells_out)
{
    const ds_trace trace = {.mode = DS_TRACE_EVAL, .dtype = DS_DTYPE_F32, .batch = 1};
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    CHECK_OK(ctx, ds_cells_create(ctx, 64, cells_out));
    CHECK_OK(ctx, ds_graph_create(ctx, *cells_out, &graph));
    CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
    ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_2d(8, 16));
    for (int i = 0; i < 4; ++i) {
        ds_nn_push(nn, "layers.%d", i);
        const ds_value h = ds_nn_apply(nn, &dsi_op_tanh, NULL, &x, 1);
        const ds_value y = ds_nn_linear(nn, "fc", h, &(ds_linear_params){.n_out = 16});
        x = ds_nn_add(nn, x, ds_nn_softmax(nn, y));
        ds_nn_pop(nn);
    }
    ds_nn_output(nn, "y", x);
    CHECK_OK(ctx, ds_nn_status(nn));
    ds_nn_destroy(&nn);
    CHECK_OK(ctx, dsi_graph_check(graph));
    return graph;
}

static const dsi_plan_env reference = {
    .n_threads = 1, .isa = DS_ISA_REF, .choose = dsi_cpu_kernel_choose};

static void expect_broken(ds_ctx *ctx, const dsi_plan *plan, const char *what)
{
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, what);
}

static void checker_refuses(void **state)
{
    ds_ctx *ctx = *state;
    ds_cells *cells = NULL;
    dsi_plan *plan = NULL;
    ds_graph *graph = small_graph(ctx, &cells);
    CHECK_OK(ctx, dsi_plan_build(graph, &reference, &plan));
    CHECK_OK(ctx, dsi_plan_check(plan));
    dsi_ref *first_out = &plan->refs[plan->steps[0].out_at];
    const size_t offset = first_out->offset;
    first_out->offset = plan->arena_bytes; /* outside of the arena */
    expect_broken(ctx, plan, "invariant 2");
    first_out->offset = offset + 4096 < plan->arena_bytes ? offset + 64 : offset - 64;
    expect_broken(ctx, plan, "invariant");
    first_out->offset = offset;
    CHECK_OK(ctx, dsi_plan_check(plan));
    const ds_phase phase = plan->steps[1].phase;
    plan->steps[1].phase = DS_PHASE_STEP;
    expect_broken(ctx, plan, "invariant 1");
    plan->steps[1].phase = phase;
    dsi_step *last = &plan->steps[plan->n_steps - 1];
    for (uint32_t s = 0; s + 1 < plan->n_steps; ++s) { /* scratch over a live input */
        const dsi_ref *in = &plan->refs[last->in_at];
        last->work_offset = in->offset;
        last->work_bytes = 64;
    }
    expect_broken(ctx, plan, "invariant 5");
    last->work_bytes = 0;
    CHECK_OK(ctx, dsi_plan_check(plan));
    dsi_ref *output = &plan->outputs[0].ref;
    output->offset += 64; /* the named output is not there */
    expect_broken(ctx, plan, "invariant 6");
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

/* Every operand moved onto every other place is either refused or the same plan. */
static void checker_finds_each_overlap(void **state)
{
    ds_ctx *ctx = *state;
    ds_cells *cells = NULL;
    dsi_plan *plan = NULL;
    ds_graph *graph = small_graph(ctx, &cells);
    dsi_plan_env env = reference;
    env.no_reuse = true;
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    uint32_t n_refused = 0;
    for (uint32_t s = 0; s + 1 < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        dsi_ref *out = &plan->refs[step->out_at];
        const dsi_ref *other = &plan->refs[plan->steps[s + 1].out_at];
        const size_t offset = out->offset;
        if (out->space != DSI_SPACE_ARENA || other->space != DSI_SPACE_ARENA) {
            continue;
        }
        out->offset = other->offset;
        n_refused += dsi_plan_check(plan) < 0 ? 1 : 0;
        out->offset = offset;
        CHECK_OK(ctx, dsi_plan_check(plan));
    }
    assert_true(n_refused >= 8);
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static void equal_graphs_equal_digests(void **state)
{
    ds_ctx *ctx = *state;
    uint64_t digests[3];
    for (int i = 0; i < 3; ++i) {
        ds_cells *cells = NULL;
        dsi_plan *plan = NULL;
        char *text = NULL;
        ds_graph *graph = small_graph(ctx, &cells);
        dsi_plan_env env = reference;
        env.n_threads = i == 2 ? 2 : 1;
        CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
        CHECK_OK(ctx, plan_digest(plan, &digests[i]));
        CHECK_OK(ctx, dsi_plan_print(plan, &text));
        assert_non_null(strstr(text, "layers.3"));
        free(text);
        CHECK_OK(ctx, ds_graph_print(graph, &text));
        assert_non_null(strstr(text, "\"layers.0.fc.weight\"@param"));
        free(text);
        dsi_plan_destroy(&plan);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
    assert_true(digests[0] == digests[1]);
    assert_true(digests[0] != digests[2]); /* threads shape the work: part of the digest */
}

static bool is_in_use(const dsi_memory_item *item, uint32_t step)
{
    return item->first <= item->last ? item->first <= step && step <= item->last
                                     : step >= item->first || step <= item->last;
}

static bool meet_in_time(const dsi_memory_item *a, const dsi_memory_item *b)
{
    bool meet = false;
    for (uint32_t step = 0; step < 120 && !meet; ++step) {
        meet = is_in_use(a, step) && is_in_use(b, step);
    }
    return meet;
}

static bool share_bytes(const dsi_memory_item *a, size_t at, const dsi_memory_item *b)
{
    return at < b->offset + b->bytes && b->offset < at + a->bytes;
}

/* Item i lies as low as those that are placed before it, the larger ones, let it: at 0 or right
 * behind one of them, and at no lower such place. */
static bool is_lowest(const dsi_memory_item *items, int n, int i)
{
    size_t lowest = SIZE_MAX;
    for (int k = -1; k < n; ++k) { /* a place: 0, or the end of item k */
        const size_t padded =
            k < 0 ? 0 : (items[k].bytes + DSI_MEMORY_ALIGN - 1) / DSI_MEMORY_ALIGN;
        const size_t at = k < 0 ? 0 : items[k].offset + padded * DSI_MEMORY_ALIGN;
        bool is_free = at < lowest;
        for (int j = 0; j < n && is_free; ++j) {
            const bool before =
                items[j].bytes > items[i].bytes || (items[j].bytes == items[i].bytes && j < i);
            is_free = !before || !share_bytes(&items[i], at, &items[j]) ||
                      !meet_in_time(&items[i], &items[j]);
        }
        lowest = is_free ? at : lowest;
    }
    return items[i].offset == lowest;
}

/* Random intervals, some of them long, some over the end: no two that meet in time share bytes,
 * each lies as low as it can; reuse needs less than no reuse. */
static void memory_never_overlaps(void **state)
{
    enum { N = 200 };
    dsi_memory_item items[N];
    uint64_t seed = 12345;
    for (int round = 0; round < 20; ++round) {
        size_t total = 0;
        size_t sum = 0;
        for (int i = 0; i < N; ++i) {
            seed = seed * 6364136223846793005ull + 1442695040888963407ull;
            const uint32_t first = (uint32_t)(seed >> 40) % 100;
            items[i] = (dsi_memory_item){
                .bytes = (size_t)(seed >> 20) % 5000,
                .first = first,
                .last = (first + (uint32_t)(seed >> 50) % (i % 8 == 0 ? 90 : 20)) % 110};
            sum += items[i].bytes;
        }
        CHECK_OK(*state, dsi_memory_assign(*state, items, N, true, &total));
        assert_true(total < sum / 2);
        for (int i = 0; i < N; ++i) {
            assert_true(items[i].offset + items[i].bytes <= total);
            assert_true(items[i].bytes == 0 || is_lowest(items, N, i));
            for (int j = 0; j < i; ++j) {
                assert_false(meet_in_time(&items[i], &items[j]) &&
                             share_bytes(&items[i], items[i].offset, &items[j]));
            }
        }
    }
}

/* A version of a cell that was overwritten cannot be read any more. */
static void old_versions_are_refused(void **state)
{
    ds_ctx *ctx = *state;
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_cell cell = DS_NONE;
    ds_value v = DS_NONE;
    ds_value out[DS_MAX_OUT];
    const ds_cell_info info = {
        .name = "c", .kind = DS_CELL_STATE, .meta = {DS_DTYPE_F32, ds_shape_1d(4)}, .of = DS_NONE};
    CHECK_OK(ctx, ds_cells_create(ctx, 4, &cells));
    CHECK_OK(ctx, ds_cells_add(cells, &info, &cell));
    CHECK_FAILS(ctx, ds_cells_add(cells, &info, &cell), DS_ERR_ARG, "two state cells named c");
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_graph_read(graph, cell, &v));
    const ds_value in[2] = {v, v};
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_accumulate, NULL, in, 2, out));
    CHECK_FAILS(ctx, ds_graph_apply(graph, &dsi_op_neg, NULL, &v, 1, out), DS_ERR_GRAPH,
                "old version of cell c");
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static int make_ctx(void **state)
{
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    *state = ctx;
    return 0;
}

static int drop_ctx(void **state)
{
    ds_ctx *ctx = *state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* w is a slice: gathered, used, and what came of it reduced to a slice in a cell. */
static ds_graph *graph_of_two_ranks(ds_ctx *ctx, ds_cells **cells_out)
{
    const ds_cell_info slice = {
        .name = "w", .kind = DS_CELL_PARAM, .meta = {DS_DTYPE_F32, ds_shape_1d(8)}, .of = DS_NONE};
    const ds_cell_info kept = {
        .name = "g", .kind = DS_CELL_STATE, .meta = {DS_DTYPE_F32, ds_shape_1d(8)}, .of = DS_NONE};
    const dsi_comm_attrs gather = {
        .n_ranks = 2, .bucket = -1, .factor = 1.0, .n_dims = 1, .dims = {16}};
    const dsi_comm_attrs reduce = {.n_ranks = 2, .bucket = 0, .factor = 0.5};
    ds_graph *graph = NULL;
    ds_cell cell[2];
    ds_value in[2];
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_cells_create(ctx, 8, cells_out));
    CHECK_OK(ctx, ds_cells_add(*cells_out, &slice, &cell[0]));
    CHECK_OK(ctx, ds_cells_add(*cells_out, &kept, &cell[1]));
    CHECK_OK(ctx, ds_graph_create(ctx, *cells_out, &graph));
    CHECK_OK(ctx, ds_graph_set_scope(graph, "ranks"));
    CHECK_OK(ctx, ds_graph_read(graph, cell[0], &in[0]));
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_all_gather, &gather, in, 1, out));
    in[0] = out[0];
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_tanh, NULL, in, 1, out));
    in[0] = out[0];
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_reduce_scatter, &reduce, in, 1, out));
    in[1] = out[0];
    CHECK_OK(ctx, ds_graph_read(graph, cell[1], &in[0]));
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_store, NULL, in, 2, out));
    return graph;
}

static uint32_t find_step(const dsi_plan *plan, const ds_op *op, dsi_step_kind kind)
{
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        if (plan->steps[s].op == op && plan->steps[s].kind == kind) {
            return s;
        }
    }
    fail_msg("the plan has no such step of %s", op->name);
    return 0;
}

/* Invariants 7 and 8: what is sent can be read by peers, and nobody touches it before the wait. */
static void checker_follows_collectives(void **state)
{
    ds_ctx *ctx = *state;
    ds_cells *cells = NULL;
    dsi_plan *plan = NULL;
    ds_graph *graph = graph_of_two_ranks(ctx, &cells);
    dsi_plan_env env = reference;
    env.overlap = true;
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    CHECK_OK(ctx, dsi_plan_check(plan));
    const uint32_t gather = find_step(plan, &dsi_op_all_gather, DSI_STEP_START);
    const uint32_t reduce = find_step(plan, &dsi_op_reduce_scatter, DSI_STEP_START);
    const uint32_t wait = find_step(plan, &dsi_op_all_gather, DSI_STEP_WAIT);
    const uint32_t user = find_step(plan, &dsi_op_tanh, DSI_STEP_RUN);
    assert_true(gather < wait && wait < user && user < reduce);
    assert_int_equal(plan->refs[plan->steps[reduce].in_at].space, DSI_SPACE_SHARED);

    plan->cell_shared[plan->refs[plan->steps[gather].in_at].cell] = false;
    expect_broken(ctx, plan, "invariant 7");
    plan->cell_shared[plan->refs[plan->steps[gather].in_at].cell] = true;
    CHECK_OK(ctx, dsi_plan_check(plan));

    const dsi_step kept = plan->steps[wait];
    plan->steps[wait] = plan->steps[user]; /* used before the wait */
    plan->steps[user] = kept;
    expect_broken(ctx, plan, "invariant 8");
    plan->steps[user] = plan->steps[wait];
    plan->steps[wait] = kept;
    CHECK_OK(ctx, dsi_plan_check(plan));

    plan->steps[wait].start = reduce; /* waits for another one */
    expect_broken(ctx, plan, "invariant 8");
    plan->steps[wait].start = gather;
    const uint32_t last = find_step(plan, &dsi_op_reduce_scatter, DSI_STEP_WAIT);
    assert_int_equal(last, plan->n_steps - 1);
    plan->n_steps -= 1; /* never waited for */
    for (ds_phase phase = 0; phase <= DS_MAX_PHASES; ++phase) {
        plan->phase_begin[phase] -= plan->phase_begin[phase] > plan->n_steps ? 1 : 0;
    }
    expect_broken(ctx, plan, "invariant 8");
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

/* Two values wait in one cell, one behind the other; what has been fetched of the first is read
 * behind the second. */
static ds_graph *graph_of_shared_cell(ds_ctx *ctx, ds_cells **cells_out, ds_cell *waiting_out)
{
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(64)};
    const ds_cell_info made = {.name = "w", .kind = DS_CELL_PARAM, .meta = meta, .of = DS_NONE};
    const ds_cell_info waits = {
        .name = "chunk/0", .kind = DS_CELL_STATE, .meta = meta, .of = DS_NONE};
    ds_graph *graph = NULL;
    ds_cell param = DS_NONE;
    ds_value x = DS_NONE;
    ds_value in[2];
    ds_value fetched[2];
    ds_value out[DS_MAX_OUT];
    CHECK_OK(ctx, ds_cells_create(ctx, 8, cells_out));
    CHECK_OK(ctx, ds_cells_add(*cells_out, &made, &param));
    CHECK_OK(ctx, ds_cells_add(*cells_out, &waits, waiting_out));
    CHECK_OK(ctx, ds_graph_create(ctx, *cells_out, &graph));
    CHECK_OK(ctx, ds_graph_set_scope(graph, "turns"));
    CHECK_OK(ctx, ds_graph_read(graph, param, &x));
    for (int turn = 0; turn < 2; ++turn) {
        CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_tanh, NULL, &x, 1, out));
        x = in[1] = out[0];
        CHECK_OK(ctx, ds_graph_read(graph, *waiting_out, &in[0]));
        CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_swap_out, NULL, in, 2, out));
        CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_swap_in, NULL, out, 1, &fetched[turn]));
    }
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_add, NULL, fetched, 2, out));
    CHECK_OK(ctx, ds_graph_output(graph, "y", out[0]));
    return graph;
}

/* Invariant 8: a cell is not written while what it held is still fetched. */
static void checker_follows_swaps(void **state)
{
    ds_ctx *ctx = *state;
    ds_cells *cells = NULL;
    dsi_plan *plan = NULL;
    ds_cell waiting = DS_NONE;
    ds_graph *graph = graph_of_shared_cell(ctx, &cells, &waiting);
    dsi_cell_residency lives[2] = {{.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE},
                                   {.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE}};
    dsi_plan_env env = reference;
    lives[waiting].where = DSI_RESIDENCY_HOST;
    env.residencies = lives;
    env.n_residencies = 2;
    env.overlap = true;
    env.read_ahead = env.update_ahead = env.write_behind = 1 << 20;
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    CHECK_OK(ctx, dsi_plan_check(plan));
    const uint32_t wait = find_step(plan, &dsi_op_swap_in, DSI_STEP_WAIT);
    uint32_t next = wait + 1;
    while (plan->steps[next].op != &dsi_op_swap_out || plan->steps[next].kind != DSI_STEP_START) {
        next += 1;
        assert_true(next < plan->n_steps);
    }
    const uint32_t user = find_step(plan, &dsi_op_add, DSI_STEP_RUN);
    assert_true(wait < next && next < user);

    dsi_plan broken = *plan; /* the wait stands behind what writes the cell */
    broken.steps = malloc(plan->n_steps * sizeof *broken.steps);
    broken.events = malloc(plan->n_events * sizeof *broken.events);
    assert_true(broken.steps != NULL && broken.events != NULL);
    memcpy(broken.steps, plan->steps, plan->n_steps * sizeof *broken.steps);
    memcpy(broken.events, plan->events, plan->n_events * sizeof *broken.events);
    for (uint32_t s = wait; s < next; ++s) {
        broken.steps[s] = plan->steps[s + 1];
    }
    broken.steps[next] = plan->steps[wait];
    for (uint32_t s = wait; s <= next; ++s) {
        if (broken.steps[s].event != DS_NONE) {
            broken.events[broken.steps[s].event] = s;
        }
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const uint32_t start = broken.steps[s].start;
        broken.steps[s].start = start > wait && start <= next ? start - 1 : start;
    }
    broken.steps[next - 1].n_waits = 0; /* it waited for that wait */
    expect_broken(ctx, &broken, "cell chunk/0");
    free(broken.steps);
    free(broken.events);
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_follows_collectives),
        cmocka_unit_test(checker_follows_swaps),
        cmocka_unit_test(checker_refuses),
        cmocka_unit_test(checker_finds_each_overlap),
        cmocka_unit_test(equal_graphs_equal_digests),
        cmocka_unit_test(memory_never_overlaps),
        cmocka_unit_test(old_versions_are_refused),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
