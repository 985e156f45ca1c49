/* SPDX-License-Identifier: Apache-2.0 */
/* Updates on the host before the norm is known (super_offload): the bits of updates that wait,
 * whatever becomes of the step; states that nobody may read meanwhile; what fails before the
 * decision, and behind it.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "exec/exec_state.h"
#include "op/ops.h"
#include "train/engine.h"

#include <deepspeed/engine_states.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 2 };

static ds_ctx *ctx;
static char *folder;

static dsi_engine_spec make_spec(ds_dtype dtype, const char *accel, bool away, bool params)
{
    return small_host_spec(ctx, folder, dtype, accel, away, params);
}

/* ---- what becomes of them -------------------------------------------------------------------- */

typedef struct decision {
    const char *name;
    double max_norm;       /* none is clipped, some or all are */
    double scale;          /* of the loss in fp16, 0: bf16 */
    bool new_rate;         /* between backward and step */
    uint64_t undone, done; /* steps in which updates are undone; that are applied */
} decision;

static const decision decisions[] = {
    {"none is clipped", 1e6, 0.0, false, 0, STEPS},
    {"all are clipped", 1e-3, 0.0, false, STEPS, STEPS},
    {"skipped", 1e6, 1e30, false, STEPS, 0},
    {"another rate", 1e6, 0.0, true, STEPS, STEPS},
};

static uint64_t train_deciding(ds_engine *engine, const decision *d)
{
    small_batch data;
    uint64_t hash = 0;
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, d->new_rate ? ds_engine_set_lr(engine, 1e-3 * (step + 2)) : DS_OK);
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    return hash;
}

static void decide(const decision *d, ds_dtype dtype, const char *accel, bool params)
{
    uint64_t hash[2];
    ds_model *model = small_model(ctx, folder, small_gpt2);
    for (int ahead = 0; ahead < 2; ++ahead) {
        dsi_engine_spec spec = make_spec(dtype, ahead ? accel : "cpu", ahead == 1, params);
        spec.train.max_norm = d->max_norm;
        spec.train.speculative = ahead == 1;
        if (d->scale > 0.0) {
            spec.loss_scale = dsi_loss_scale_static(d->scale);
        }
        ds_engine *engine = small_engine(ctx, model, &spec);
        hash[ahead] = train_deciding(engine, d);
        if (ahead == 1) {
            const dsi_plan *plan = engine->train_plan;
            const uint32_t s = plan->phase_begin[DS_PHASE_BACKWARD];
            uint32_t n = 0;
            for (uint32_t i = s; i < plan->phase_begin[DS_PHASE_BACKWARD + 1]; ++i) {
                n += plan->steps[i].on_host && plan->steps[i].op == &dsi_op_adam ? 1 : 0;
            }
            assert_true(n > 10);
            assert_int_equal(engine->undone_updates, d->undone);
            assert_int_equal(STEPS - engine->skipped_steps, d->done);
        }
        ds_engine_destroy(&engine);
    }
    ds_model_destroy(&model);
    if (hash[0] != hash[1]) {
        fail_msg("%s, %s: other bits than updates that wait", d->name, accel);
    }
}

static void what_comes_too_early_is_undone(void **state)
{
    static const char *const accels[] = {"cpu", "sim:seed=8", "sim:seed=9,turn=64,graphs=0"};
    (void)state;
    for (size_t i = 0; i < sizeof decisions / sizeof decisions[0]; ++i) {
        const decision *d = &decisions[i];
        for (size_t a = 0; a < sizeof accels / sizeof accels[0]; ++a) {
            const ds_dtype wide = d->scale > 0.0 ? DS_DTYPE_F16 : DS_DTYPE_F32;
            decide(d, wide, accels[a], a % 2 == 1);
            decide(d, d->scale > 0.0 ? DS_DTYPE_F16 : DS_DTYPE_BF16, accels[a], a % 2 == 0);
        }
    }
}

static void states_are_not_read_meanwhile(void **state)
{
    small_batch data;
    float values[SMALL_WIDTH] = {0.0f};
    ds_gathered *gathered = NULL;
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, "sim", true, false);
    (void)state;
    spec.train.speculative = true;
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    const ds_batch batch = small_feed(0, &data);
    const char *name = "transformer.ln_f.weight";
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_FAILS(ctx, ds_engine_get(engine, DS_CELL_EXP_AVG, name, values, SMALL_WIDTH),
                DS_ERR_STATE, "super_offload");
    CHECK_FAILS(ctx, ds_engine_gather(engine, &name, 1, -1, &gathered), DS_ERR_STATE,
                "super_offload");
    CHECK_FAILS(ctx, ds_engine_set(engine, DS_CELL_PARAM, name, values, SMALL_WIDTH), DS_ERR_STATE,
                "super_offload");
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_gather(engine, &name, 1, 0, &gathered));
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_FAILS(ctx, ds_gathered_end(&gathered), DS_ERR_STATE, "super_offload");
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_EXP_AVG, name, values, SMALL_WIDTH));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Up to the norm, and what the host decides then: other updates and that those ahead are accepted
 * are one piece. Some states, or all, are the host's. */
static void an_accepted_step_is_two_launches(void **state)
{
    (void)state;
    for (int i = 0; i < 4; ++i) {
        int32_t step = 0;
        uint64_t hash[2];
        dsi_buf text = dsi_buf_make(4096);
        ds_model *model = small_model(ctx, folder, small_gpt2);
        for (int joined = 0; joined < 2; ++joined) {
            dsi_engine_spec spec =
                make_spec(DS_DTYPE_BF16, joined == 1 ? "sim:seed=14" : "cpu", joined == 1, false);
            spec.train.max_norm = i < 2 ? 1e6 : 1e-3;
            spec.train.speculative = joined == 1;
            spec.offload.defer = false;
            spec.offload.ratio = i % 2 == 0 ? 0.5 : 1.0;
            ds_engine *engine = small_engine(ctx, model, &spec);
            step = 0;
            CHECK_OK(ctx, ds_engine_train_batch(engine, small_next, &step, NULL));
            const uint64_t before = engine->exec->n_launches;
            CHECK_OK(ctx, ds_engine_train_batch(engine, small_next, &step, NULL));
            if (joined == 1 && i < 2) {
                assert_int_equal(engine->undone_updates, 0);
                assert_int_equal(engine->exec->n_launches - before, 2);
            }
            if (joined == 1 && i == 0) {
                dsi_exec_captured_text(engine->exec, engine->train_id, &text);
                assert_non_null(strstr(dsi_buf_text(&text), "as one launch: update + accept"));
            }
            CHECK_OK(ctx, engine_hash(ctx, engine, &hash[joined]));
            ds_engine_destroy(&engine);
        }
        ds_model_destroy(&model);
        dsi_buf_free(&text);
        assert_true(hash[0] == hash[1]);
    }
}

/* ---- what fails ------------------------------------------------------------------------------ */

static ds_status fail_action(void *user)
{
    return ds_fail(((const ds_engine *)user)->ctx, DS_ERR_IO, "the test's action fails");
}

static ds_status try_step(ds_engine *engine, int32_t step, bool bad)
{
    small_batch data;
    const ds_batch batch = small_feed(step, &data);
    data.data[0][5] = bad ? SMALL_VOCABULARY : data.data[0][5];
    DS_TRY(ds_engine_forward(engine, &batch));
    DS_TRY(ds_engine_backward(engine));
    return ds_engine_step(engine);
}

/* Blocks the folder of the flops profiler's report, so that it cannot be written. */
static void block_report(const dsi_engine_spec *spec)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s", spec->flops.output_file);
    *strrchr(path, '/') = '\0';
    (void)unlink(spec->flops.output_file);
    assert_int_equal(rmdir(path), 0);
    scratch_write(path, "x", 1);
}

/* The step is done when its report is written: the next ones are those of a run without. */
static void a_report_that_cannot_be_written_breaks_nothing(void **state)
{
    (void)state;
    for (int row = 0; row < 3; ++row) { /* accepted; undone and redone; the last step */
        uint64_t hash[2];
        ds_model *model = small_model(ctx, folder, small_gpt2);
        for (int fails = 0; fails < 2; ++fails) {
            dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, "sim:seed=12", true, row == 1);
            spec.train.speculative = true;
            spec.train.max_norm = row == 1 ? 1e-3 : 1e6;
            spec.flops = (dsi_flops_spec){.enabled = fails == 1,
                                          .profile_step = row == 2 ? STEPS : 0,
                                          .module_depth = -1,
                                          .top_modules = 1};
            (void)snprintf(spec.flops.output_file, sizeof spec.flops.output_file,
                           "%s/report%d/flops.txt", folder, row);
            ds_engine *engine = small_engine(ctx, model, &spec);
            fails == 1 ? block_report(&spec) : (void)0;
            for (int32_t step = 0; step <= STEPS; ++step) {
                const ds_status status = try_step(engine, step, false);
                if (fails == 1 && step == spec.flops.profile_step) {
                    assert_true(status < 0);
                    assert_non_null(strstr(ds_ctx_error(ctx), "flops_profiler.output_file"));
                } else {
                    CHECK_OK(ctx, status);
                }
                CHECK_OK(ctx, dsi_engine_check_whole(engine, "the test"));
            }
            assert_int_equal(engine->global_steps, STEPS + 1);
            CHECK_OK(ctx, engine_hash(ctx, engine, &hash[fails]));
            ds_engine_destroy(&engine);
        }
        ds_model_destroy(&model);
        assert_true(hash[0] == hash[1]);
    }
}

/* Of the training program, by its name. */
static dsi_instr *find_action(ds_engine *engine, const char *name)
{
    for (uint32_t i = 0; i < engine->training.n; ++i) {
        dsi_instr *instr = &engine->training.instrs[i];
        if (instr->kind == DSI_INSTR_DO && strcmp(instr->action->name, name) == 0) {
            return instr;
        }
    }
    fail_msg("the program has no %s", name);
    return NULL;
}

static void what_fails_before_the_decision_breaks_the_engine(void **state)
{
    static const dsi_program_action fails = {"fails", fail_action};
    static const struct {
        const char *action; /* that fails; NULL: the device reports late that a token has no row */
        bool blocked, whole;
    } rows[] = {
        {"begin_step", false, false},   {"judge_gradients", false, false},
        {"judge_updates", true, false}, {NULL, false, false},

        {"report_step", false, true},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof rows / sizeof rows[0]; ++i) {
        const size_t r = i / 2;
        ds_model *model = small_model(ctx, folder, small_gpt2);
        dsi_engine_spec spec =
            make_spec(DS_DTYPE_BF16, i % 2 == 0 ? "sim:seed=13" : "sim:graphs=0", true, false);
        spec.train.speculative = true;
        spec.flops = (dsi_flops_spec){.enabled = rows[r].blocked, .module_depth = -1};
        (void)snprintf(spec.flops.output_file, sizeof spec.flops.output_file, "%s/row%zu/flops.txt",
                       folder, i);
        ds_engine *engine = small_engine(ctx, model, &spec);
        rows[r].blocked ? block_report(&spec) : (void)0;
        if (rows[r].action != NULL) {
            find_action(engine, rows[r].action)->action = &fails;
        }
        const ds_status status = try_step(engine, 0, rows[r].action == NULL);
        assert_int_equal(status, rows[r].action != NULL ? DS_ERR_IO : DS_ERR_ARG);
        assert_non_null(strstr(ds_ctx_error(ctx),
                               rows[r].action != NULL ? "the test's action" : "(embedding/"));
        if (rows[r].whole) {
            CHECK_OK(ctx, dsi_engine_check_whole(engine, "the test"));
        } else {
            CHECK_FAILS(ctx, try_step(engine, 1, false), DS_ERR_STATE, "load a checkpoint");
        }
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_too_early_is_undone),
        cmocka_unit_test(states_are_not_read_meanwhile),
        cmocka_unit_test(an_accepted_step_is_two_launches),
        cmocka_unit_test(a_report_that_cannot_be_written_breaks_nothing),
        cmocka_unit_test(what_fails_before_the_decision_breaks_the_engine),
    };
    ctx = check_ctx(2);
    folder = scratch_make();
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
