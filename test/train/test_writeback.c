/* SPDX-License-Identifier: Apache-2.0 */
/* States that are still on their way to disk when the next step begins: which they are, and that
 * whoever comes in between finds them in their storage. Errors of such transfers: test_offload_io.
 */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "op/ops.h"
#include "plan/plan_check.h"

#include <deepspeed/engine_states.h>

#include <string.h>

enum { STEPS = 4 };

static ds_ctx *ctx;
static char *folder;

/* early: updates in the backward phase; else behind the norm. */
static dsi_engine_spec make_spec(bool early, bool defer)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    spec.train.keep_nonfinite = early;
    spec.offload = small_away(folder, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
    spec.offload.defer = defer;
    return spec;
}

static bool is_deferred(const dsi_plan *plan, uint32_t s)
{
    return plan->steps[s].kind == DSI_STEP_WAIT && plan->steps[s].start > s;
}

/* Of a swap, or the wait for one. */
static bool is_of_state(const dsi_plan *plan, const dsi_step *step)
{
    if (step->kind == DSI_STEP_WAIT) {
        step = &plan->steps[step->start];
    }
    const ds_cell_kind kind = ds_cells_get(plan->cells, plan->refs[step->in_at].cell)->kind;
    return kind == DS_CELL_MASTER || kind == DS_CELL_EXP_AVG || kind == DS_CELL_EXP_AVG_SQ;
}

/* The last step that waits for a state that a phase brings. */
static uint32_t last_state_of(const dsi_plan *plan, ds_phase phase)
{
    uint32_t last = 0;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool in = step->kind == DSI_STEP_WAIT && step->op == &dsi_op_swap_in;
        last = in && is_of_state(plan, step) ? s : last;
    }
    return last;
}

/* The last writes of states, no more of them than may be under way, start when no update of the
 * step waits for the disk any more, and wait in the middle of the forward phase; before it brings
 * states itself. */
static void the_last_states_are_deferred(void **state)
{
    (void)state;
    for (int which = 0; which < 4; ++which) {
        const bool early = which % 2 == 1;
        const bool defer = which / 2 == 1;
        const dsi_engine_spec spec = make_spec(early, defer);
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        const dsi_plan *plan = engine->train_plan;
        uint32_t n = 0;
        size_t bytes = 0;
        for (uint32_t s = 0; s < plan->n_steps; ++s) {
            if (!is_deferred(plan, s)) {
                continue;
            }
            const dsi_step *start = &plan->steps[plan->steps[s].start];
            const dsi_ref *x = &plan->refs[start->in_at + 1];
            assert_true(is_of_state(plan, start));
            assert_int_equal(plan->steps[s].phase, DS_PHASE_FORWARD);
            assert_int_equal(start->phase,
                             early ? DS_PHASE_BACKWARD : dsi_phases_find(&plan->phases, "update"));
            assert_true(plan->steps[s].start > last_state_of(plan, start->phase));
            for (uint32_t t = 0; t < s; ++t) {
                assert_true(plan->steps[t].op != &dsi_op_swap_in ||
                            !is_of_state(plan, &plan->steps[t]));
            }
            bytes += ds_meta_bytes(x->meta);
            ++n;
        }
        assert_true(defer ? n > 3 : n == 0);
        assert_true(bytes <= spec.offload.update_ahead + spec.offload.write_behind);
        assert_true(!defer || bytes > spec.offload.write_behind);
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* Writebacks of states that are in flight when some update begins. */
static uint32_t under_way(const dsi_plan *plan)
{
    uint32_t most = 0;
    uint32_t n = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool back =
            step->op == &dsi_op_swap_out && !is_deferred(plan, s) && is_of_state(plan, step);
        n += back && step->kind == DSI_STEP_START ? 1 : 0;
        n -= back && step->kind == DSI_STEP_WAIT ? 1 : 0;
        most = step->op == &dsi_op_adam && n > most ? n : most;
    }
    return most;
}

/* pipeline_write false: an update's states are written back before the next update begins. */
static void writes_may_come_first(void **state)
{
    (void)state;
    for (int which = 0; which < 4; ++which) {
        const bool first = which / 2 == 1;
        dsi_engine_spec spec = make_spec(which % 2 == 1, !first);
        spec.offload.write_first = first;
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        assert_true(first ? under_way(engine->train_plan) == 0 : under_way(engine->train_plan) > 0);
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* Bytes of states that a step of the plan takes into the pool, or out of it when it is negative: a
 * swap into memory until its wait, behind which the update works on it, and its writeback. */
static long pooled(const dsi_plan *plan, uint32_t s)
{
    const dsi_step *step = &plan->steps[s];
    const dsi_step *start = step->kind == DSI_STEP_WAIT ? &plan->steps[step->start] : step;
    if ((step->op->flags & DS_OP_SWAP) == 0 || step->kind == DSI_STEP_RUN ||
        !is_of_state(plan, start)) {
        return 0;
    }
    const uint32_t at = step->op == &dsi_op_swap_in ? start->out_at : start->in_at + 1;
    const long bytes = (long)ds_meta_bytes(plan->refs[at].meta);
    return step->kind == DSI_STEP_START ? bytes : -bytes;
}

/* States that wait for their update and states in writeback share one pool; reading takes more
 * of it than its own part where there is nothing to write, and leaves writing a half of its own. */
static void reading_and_writing_share_a_pool(void **state)
{
    const dsi_engine_spec spec = make_spec(true, true);
    const long pool = (long)(spec.offload.update_ahead + spec.offload.write_behind);
    const long chunk = 4 * 4096 * 4; /* an update's three states, and its rounding */
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    const dsi_plan *plan = engine->train_plan;
    long now = 0;
    long most = 0;
    (void)state;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        now += is_deferred(plan, s) ? -pooled(plan, s) : 0; /* under way when the step begins */
    }
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        now += pooled(plan, s);
        most = now > most ? now : most;
        assert_true(now >= 0 && now <= pool + chunk);
    }
    assert_true(most > pool - chunk);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

enum { NOBODY, EVALUATES, READS, SAVES, LOADS, TRIES_AGAIN, N_VISITORS };

static void visit(ds_engine *engine, int who, const ds_batch *batch)
{
    double loss = 0.0;
    static float values[SMALL_WIDTH * 4 * SMALL_WIDTH];
    switch (who) {
    case EVALUATES:
        CHECK_OK(ctx, ds_engine_eval_batch(engine, batch, &loss, NULL));
        break;
    case READS:
        CHECK_OK(ctx, ds_engine_get_local_fp32_param(engine, "transformer.h.1.mlp.c_fc.weight",
                                                     values, sizeof values / sizeof values[0]));
        break;
    case SAVES:
    case LOADS:
        CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "there", NULL));
        if (who == LOADS) {
            CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, "there", NULL));
        }
        break;
    case TRIES_AGAIN: { /* a batch that is refused */
        const ds_batch none = {0};
        CHECK_FAILS(ctx, ds_engine_forward(engine, &none), DS_ERR_ARG, "lacks the input");
        break;
    }
    default:
        break;
    }
}

static uint64_t run(dsi_engine_spec spec, int who)
{
    uint64_t hash = 0;
    small_batch data;
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        visit(engine, who, &batch);
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return hash;
}

static void whoever_comes_between_changes_no_bit(void **state)
{
    (void)state;
    for (int early = 0; early < 2; ++early) {
        dsi_engine_spec spec = make_spec(early, true);
        spec.offload = small_away(folder, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
        const uint64_t in_memory = run(spec, NOBODY);
        for (int who = 0; who < N_VISITORS; ++who) {
            if (run(make_spec(early, true), who) != in_memory) {
                fail_msg("visitor %d of updates that are %s finds or leaves other bits", who,
                         early ? "early" : "late");
            }
        }
        dsi_engine_spec first = make_spec(early, false);
        first.offload.write_first = true;
        assert_true(run(first, NOBODY) == in_memory);
    }
}

static void expect_hazard(const dsi_plan *plan)
{
    CHECK_FAILS(ctx, dsi_plan_check_streams(plan), DS_ERR_GRAPH, "no event orders it behind that");
}

/* The first step of the plan with an output in the arena, and the last. */
static uint32_t step_that_writes(const dsi_plan *plan, bool last)
{
    uint32_t found = DS_NONE;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const bool writes = step->kernel != NULL && step->n_out > 0 &&
                            plan->refs[step->out_at].space == DSI_SPACE_ARENA;
        found = writes && (last || found == DS_NONE) ? s : found;
    }
    assert_true(found != DS_NONE);
    return found;
}

/* What is in writeback is neither written over nor read, at both ends of the plan. */
static void the_checker_follows_it(void **state)
{
    const dsi_engine_spec spec = make_spec(true, true);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    dsi_plan *plan = engine->train_plan;
    uint32_t wait = 0;
    (void)state;
    while (!is_deferred(plan, wait)) {
        ++wait;
    }
    const dsi_step *start = &plan->steps[plan->steps[wait].start];
    const dsi_ref cell = plan->refs[start->in_at];
    const dsi_ref x = plan->refs[start->in_at + 1];
    CHECK_OK(ctx, dsi_plan_check(plan));
    for (int last = 0; last < 2; ++last) {
        const uint32_t s = step_that_writes(plan, last == 1);
        dsi_step *step = &plan->steps[s];
        assert_true(last == 1 ? s > plan->steps[wait].start : s < wait);
        const dsi_ref kept = plan->refs[step->out_at];
        plan->refs[step->out_at].offset = x.offset;
        expect_hazard(plan);
        plan->refs[step->out_at] = kept;
        const dsi_step whole = *step;
        step->work_offset = x.offset;
        step->work_bytes = 64;
        expect_hazard(plan);
        *step = whole;
        const dsi_ref first = plan->refs[step->in_at];
        plan->refs[step->in_at] = cell;
        expect_hazard(plan);
        plan->refs[step->in_at] = first;
    }
    const uint32_t swap = plan->steps[wait].start;
    plan->steps[wait].start = plan->n_steps; /* for nothing */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "invariant 8");
    plan->steps[wait].start = swap;
    CHECK_OK(ctx, dsi_plan_check(plan));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(NULL, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_states_are_deferred),
        cmocka_unit_test(writes_may_come_first),
        cmocka_unit_test(reading_and_writing_share_a_pool),
        cmocka_unit_test(whoever_comes_between_changes_no_bit),
        cmocka_unit_test(the_checker_follows_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
