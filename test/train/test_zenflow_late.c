/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * ZenFlow's rest updated concurrently with the next steps (overlap_step): the same bits whenever
 * the update ends, on any stage, number of ranks, residency and number of threads, and through
 * checkpoints; what the host reads and sets meanwhile; an update that fails. */
#include "common/aio_shim.h"
#include "common/check.h"
#include "common/scratch.h"
#include "common/zenflow_net.h"
#include "plan/plan_check.h"

#include <deepspeed/engine_states.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = ZENFLOW_BATCH, N_IN = ZENFLOW_N_IN, HIDDEN = ZENFLOW_HIDDEN, N_OUT = ZENFLOW_N_OUT };

static ds_ctx *ctx;
static const ds_dtype dtypes[2] = {DS_DTYPE_F32, DS_DTYPE_BF16};

static zenflow_setting late(ds_dtype dtype, uint32_t n_ranks)
{
    zenflow_setting s = {.dtype = dtype,
                         .bias = true,
                         .zenflow = zenflow_steps_of(2, 5, 1),
                         .max_norm = 0.5,
                         .n_ranks = n_ranks};
    s.zenflow.weighs = n_ranks == 2;
    s.zenflow.overlap = true;
    return s;
}

/* ---- the determinism law --------------------------------------------------------------------- */

static void stages_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= ZENFLOW_MAX_RANKS; ++n) {
        for (int d = 0; d < 2; ++d) {
            zenflow_setting s = late(dtypes[d], n);
            s.accumulation = 1 + d;
            const uint64_t want = zenflow_run_all(&s).hash;
            for (s.stage = 1; s.stage <= 3; ++s.stage) {
                if (zenflow_run_all(&s).hash != want) {
                    fail_msg("%s, %u ranks: stage %u gives other bits", ds_dtype_name(s.dtype), n,
                             s.stage);
                }
            }
            s.stage = 0;
            s.zenflow.overlap = false;
            assert_true(zenflow_run_all(&s).hash != want); /* it is late */
        }
    }
}

static void residences_give_the_same_bits(void **state)
{
    char *folder = scratch_make();
    (void)state;
    for (uint32_t n = 1; n <= 2; ++n) {
        for (int d = 0; d < 2; ++d) {
            zenflow_setting s = late(dtypes[d], n);
            s.stage = 3;
            const uint64_t want = zenflow_run_all(&s).hash;
            for (int how = 0; how < 4; ++how) {
                s.offload = zenflow_away(how, folder);
                if (zenflow_run_all(&s).hash != want) {
                    fail_msg("%s, %u ranks: residency %d gives other bits", ds_dtype_name(s.dtype),
                             n, how);
                }
            }
        }
    }
    scratch_remove(folder);
}

/* The update ends before the next step begins, or when it likes, on few threads or many. */
static void its_end_does_not_matter(void **state)
{
    (void)state;
    zenflow_setting s = late(DS_DTYPE_BF16, 1);
    const uint64_t want = zenflow_run_all(&s).hash;
    s.finishes = true;
    assert_true(zenflow_run_all(&s).hash == want);
    for (int i = 0; i < 8; ++i) {
        s.finishes = false;
        s.threads = 1 + (uint32_t)i % 4;
        s.reserved = (double)i / 8.0;
        assert_true(zenflow_run_all(&s).hash == want);
    }
}

/* At every step of the schedule, by another stage, from files of other residencies. */
static void resuming_gives_the_same_bits(void **state)
{
    char *disk = scratch_make();
    (void)state;
    for (int d = 0; d < 2; ++d) {
        zenflow_setting s = late(dtypes[d], 1 + (uint32_t)d);
        s.stage = (uint32_t)d;
        s.steps = 9;
        const uint64_t want = zenflow_run_all(&s).hash;
        for (int at = 1; at < 9; ++at) {
            char *folder = scratch_make();
            zenflow_setting before = s;
            zenflow_setting after = s;
            before.steps = at;
            before.save = folder;
            before.offload = zenflow_away(at % 2, disk);
            after.steps = 9 - at;
            after.resume = folder;
            after.stage = 3;
            (void)zenflow_run_all(&before);
            if (zenflow_run_all(&after).hash != want) {
                fail_msg("%s: %d steps, saved, resumed: other bits", ds_dtype_name(s.dtype), at);
            }
            scratch_remove(folder);
        }
    }
    scratch_remove(disk);
}

/* Saving between steps does not change what comes after. */
static void saving_changes_nothing(void **state)
{
    char *folder = scratch_make();
    (void)state;
    for (int decoupled = 0; decoupled < 2; ++decoupled) {
        for (int on = 0; on < 2; ++on) {
            zenflow_setting s = late(DS_DTYPE_BF16, 1);
            s.zenflow.overlap = on == 1;
            s.coupled_decay = decoupled == 0;
            const uint64_t want = zenflow_run_all(&s).hash;
            s.save_each = folder;
            assert_true(zenflow_run_all(&s).hash == want);
        }
    }
    scratch_remove(folder);
}

/* A run without overlap goes on from a checkpoint of one with it, and the other way round: the
 * update that is under way is in the masters, so nothing is lost. */
static void turning_it_on_and_off(void **state)
{
    static float with[HIDDEN * N_IN];
    static float without[HIDDEN * N_IN];
    const zenflow_mlp config = {true};
    (void)state;
    for (int d = 0; d < 2; ++d) {
        for (int kind = 0; kind < 3; ++kind) { /* overlap, none, no ZenFlow */
            char *folder = scratch_make();
            zenflow_setting s = late(dtypes[d], 1);
            s.zenflow = zenflow_steps_of(2, 0, 0);
            s.zenflow.overlap = true;
            s.steps = 4; /* the newest update is not taken yet */
            s.save = folder;
            (void)zenflow_run_all(&s);
            ds_model *model = zenflow_open_model(ctx, &config);
            ds_engine *first = zenflow_open_engine(ctx, &s, model, NULL);
            s.zenflow.overlap = kind == 0;
            s.zenflow.on = kind != 2;
            ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
            CHECK_OK(ctx, ds_engine_load_checkpoint(first, folder, NULL, NULL));
            CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
            assert_true(first->zenflow.late);
            assert_true(engine->zenflow.late == (kind == 0));
            CHECK_OK(ctx, ds_engine_get_full_fp32_param(first, "0.weight", with, HIDDEN * N_IN));
            CHECK_OK(ctx,
                     ds_engine_get_full_fp32_param(engine, "0.weight", without, HIDDEN * N_IN));
            assert_memory_equal(with, without, sizeof with);
            ds_engine_destroy(&first);
            ds_engine_destroy(&engine);
            ds_model_destroy(&model);
            scratch_remove(folder);
        }
    }
}

/* ---- what the host sets and reads ------------------------------------------------------------ */

static void step_once(ds_engine *engine, int step)
{
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    zenflow_fill_batch(step, 0, x, y);
    zenflow_run_batch(ctx, engine, x, y);
    CHECK_OK(ctx, ds_engine_step(engine));
}

/* While an update is under way: what was set is there, now and when the update is taken. */
static void weights_may_be_set(void **state)
{
    static float w[HIDDEN * N_IN];
    static float seen[HIDDEN * N_IN];
    const zenflow_mlp config = {false};
    (void)state;
    for (int d = 0; d < 2; ++d) {
        zenflow_setting s = {.dtype = dtypes[d], .zenflow = zenflow_steps_of(2, 0, 0)};
        s.zenflow.overlap = true;
        ds_model *model = zenflow_open_model(ctx, &config);
        ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
        step_once(engine, 0);
        step_once(engine, 1);
        assert_true(engine->zenflow.late);
        for (int i = 0; i < HIDDEN * N_IN; ++i) {
            w[i] = 0.5f + (float)i;
        }
        CHECK_OK(ctx, ds_engine_set_full_fp32_param(engine, "0.weight", w, HIDDEN * N_IN));
        CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
        assert_memory_equal(seen, w, sizeof w);
        for (int step = 2; step < 4; ++step) {
            step_once(engine, step);
            CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
            for (int i = 0; i < HIDDEN * N_IN; ++i) { /* updates of lr and decay away */
                const float off = seen[i] > w[i] ? seen[i] - w[i] : w[i] - seen[i];
                assert_true(off < 0.05f + 3e-3f * w[i]);
            }
        }
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* ---- the plan's checker ---------------------------------------------------------------------- */

static dsi_ref *find_ref(const dsi_plan *plan, ds_phase phase, dsi_space space)
{
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            dsi_ref *ref = i < step->n_in ? &plan->refs[step->in_at + i]
                                          : &plan->refs[step->out_at + i - step->n_in];
            if (ref->space == space && ds_meta_bytes(ref->meta) > 0) {
                return ref;
            }
        }
    }
    fail_msg("phase %d has no such operand", (int)phase);
    return NULL;
}

static void is_seen(const dsi_plan *plan)
{
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "plan invariant 10");
}

/* A cell that shares the storage of a master that the concurrent update writes: behind it nothing
 * meets, within it is a race, though the two have other numbers. */
static void shared_storage_is_seen(const dsi_plan *plan, ds_cell master, ds_cell other)
{
    const ds_cell parent = plan->cell_parent[other];
    const size_t offset = plan->cell_offset[other];
    const size_t bytes = ds_meta_bytes(ds_cells_get(plan->cells, master)->meta);
    assert_true(master != other && plan->cell_parent[master] == DS_NONE);
    plan->cell_parent[other] = master;
    plan->cell_offset[other] = bytes;
    CHECK_OK(ctx, dsi_plan_check_side(plan));
    plan->cell_offset[other] = bytes - 1;
    CHECK_FAILS(ctx, dsi_plan_check_side(plan), DS_ERR_GRAPH, "plan invariant 10");
    plan->cell_parent[other] = parent;
    plan->cell_offset[other] = offset;
}

/* Memory or cells of the update that others touch while it may run. */
static void the_checker_sees_who_meets_it(void **state)
{
    char *folder = scratch_make();
    const zenflow_mlp config = {false};
    zenflow_setting s = {.dtype = DS_DTYPE_BF16, .zenflow = zenflow_steps_of(3, 0, 0), .stage = 3};
    (void)state;
    s.zenflow.overlap = true;
    s.offload = zenflow_away(0, folder);
    ds_model *model = zenflow_open_model(ctx, &config);
    ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
    const dsi_plan *plan = engine->train_plan;
    CHECK_OK(ctx, dsi_plan_check(plan));
    dsi_ref *const places[2] = {
        find_ref(plan, dsi_phases_find(&plan->phases, "rest"), DSI_SPACE_ARENA),
        find_ref(plan, DS_PHASE_BACKWARD, DSI_SPACE_ARENA)};
    for (int i = 0; i < 2; ++i) {
        const dsi_ref kept = *places[i];
        places[i]->offset = i == 0 ? 0 : plan->side_range.offset;
        is_seen(plan);
        *places[i] = kept;
    }
    static const ds_cell_kind kinds[] = {DS_CELL_MASTER, DS_CELL_EXP_AVG};
    dsi_ref *const cell = find_ref(plan, dsi_phases_find(&plan->phases, "update"), DSI_SPACE_CELL);
    const dsi_ref kept = *cell;
    for (int i = 0; i < 2; ++i) { /* what it writes */
        cell->cell = ds_cells_find(engine->local, kinds[i], "2.weight[0:100]");
        cell->cell =
            cell->cell != DS_NONE ? cell->cell : ds_cells_find(engine->local, kinds[i], "2.weight");
        is_seen(plan);
        *cell = kept;
    }
    shared_storage_is_seen(plan, ds_cells_find(engine->local, DS_CELL_MASTER, "2.weight"),
                           kept.cell);
    CHECK_OK(ctx, dsi_plan_check(plan));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    scratch_remove(folder);
}

/* ---- an update that fails -------------------------------------------------------------------- */

/* At the take-over, and for good. */
static void breaks_at_the_next_update(ds_engine *engine)
{
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    step_once(engine, 3);
    step_once(engine, 4);
    zenflow_fill_batch(5, 0, x, y);
    zenflow_run_batch(ctx, engine, x, y);
    CHECK_FAILS(ctx, ds_engine_step(engine), DS_ERR_IO, "the update concurrent with");
    CHECK_FAILS(ctx, ds_engine_forward(engine, &(ds_batch){0}), DS_ERR_STATE, "load a checkpoint");
}

/* The failure is said where the update is waited for, and the engine goes on from a checkpoint. */
static void a_failure_is_said(void **state)
{
    char *folder = scratch_make();
    static float data[HIDDEN * N_IN];
    const zenflow_mlp config = {false};
    zenflow_setting s = {.dtype = DS_DTYPE_BF16, .zenflow = zenflow_steps_of(3, 0, 0), .stage = 3};
    uint32_t n_beside = 0;
    (void)state;
    s.zenflow.overlap = true;
    s.offload = zenflow_away(1, folder);
    ds_model *model = zenflow_open_model(ctx, &config);
    ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "start", NULL));
    for (int at = 1; at < 200 && n_beside < 5; ++at) {
        CHECK_OK(ctx, ds_engine_load_checkpoint(engine, folder, NULL, NULL));
        step_once(engine, 0);
        step_once(engine, 1);
        float x[BATCH * N_IN];
        float y[BATCH * N_OUT];
        zenflow_fill_batch(2, 0, x, y);
        zenflow_run_batch(ctx, engine, x, y);
        shim.reason = EIO;
        shim.countdown = at;
        shim.n_failures = 1;
        const ds_status step = ds_engine_step(engine); /* starts the update */
        const ds_status end = dsi_zenflow_finish(engine);
        shim_clear();
        if (step == DS_OK && end < 0) {
            ++n_beside;
            assert_int_equal(end, DS_ERR_IO);
            assert_non_null(strstr(ds_ctx_error(ctx), "overlap_step: the update concurrent with"));
            assert_non_null(strstr(ds_ctx_error(ctx), strerror(EIO)));
            CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, folder, "bad", NULL), DS_ERR_IO,
                        "load a checkpoint");
            CHECK_FAILS(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", data, HIDDEN * N_IN),
                        DS_ERR_IO, "load a checkpoint");
            breaks_at_the_next_update(engine);
        }
    }
    print_message("%u failures beside the steps\n", n_beside);
    assert_true(n_beside == 5);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(residences_give_the_same_bits),
        cmocka_unit_test(its_end_does_not_matter),
        cmocka_unit_test(resuming_gives_the_same_bits),
        cmocka_unit_test(saving_changes_nothing),
        cmocka_unit_test(turning_it_on_and_off),
        cmocka_unit_test(weights_may_be_set),
        cmocka_unit_test(the_checker_sees_who_meets_it),
        cmocka_unit_test(a_failure_is_said),
    };
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
