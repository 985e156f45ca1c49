/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * ZenFlow: the determinism law over ranks, stages and residencies, checkpoints, and what the host
 * sets. */
#include "common/check.h"
#include "common/golden.h"
#include "common/scratch.h"
#include "common/zenflow_net.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BATCH = ZENFLOW_BATCH,
    N_IN = ZENFLOW_N_IN,
    HIDDEN = ZENFLOW_HIDDEN,
    N_OUT = ZENFLOW_N_OUT,
    STEPS = ZENFLOW_STEPS,
    MAX_RANKS = ZENFLOW_MAX_RANKS
};

static ds_ctx *ctx;

static zenflow_setting law(ds_dtype dtype, uint32_t n_ranks)
{
    zenflow_setting s = {.dtype = dtype,
                         .bias = true,
                         .zenflow = zenflow_steps_of(2, 5, 1),
                         .max_norm = 0.5,
                         .n_ranks = n_ranks};
    s.zenflow.weighs = n_ranks == 2;
    return s;
}

static void stages_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MAX_RANKS; ++n) {
        for (int d = 0; d < 2; ++d) {
            zenflow_setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, n);
            s.accumulation = 1 + d;
            const uint64_t want = zenflow_run_all(&s).hash;
            for (s.stage = 1; s.stage <= 3; ++s.stage) {
                if (zenflow_run_all(&s).hash != want) {
                    fail_msg("%s, %u ranks: stage %u gives other bits", ds_dtype_name(s.dtype), n,
                             s.stage);
                }
            }
        }
    }
}

static void residences_give_the_same_bits(void **state)
{
    char *folder = scratch_make();
    (void)state;
    for (uint32_t n = 1; n <= 2; ++n) {
        for (int d = 0; d < 2; ++d) {
            zenflow_setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, n);
            s.stage = 3;
            const zenflow_job want = zenflow_run_all(&s);
            for (int away = 0; away < 4; ++away) {
                s.offload = zenflow_away(away, folder);
                if (zenflow_run_all(&s).hash != want.hash) {
                    fail_msg("%s, %u ranks: residency %d gives other bits", ds_dtype_name(s.dtype),
                             n, away);
                }
            }
        }
    }
    scratch_remove(folder);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* At every step of the schedule: while gradients wait, at a choice, in the warm-up; loaded by
 * another stage on another number of ranks' files. */
static void resuming_gives_the_same_bits(void **state)
{
    (void)state;
    for (int d = 0; d < 2; ++d) {
        zenflow_setting s = law(d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16, 1 + (uint32_t)d);
        s.stage = (uint32_t)d;
        s.steps = 9;
        const uint64_t want = zenflow_run_all(&s).hash;
        for (int at = 1; at < 9; ++at) {
            char *folder = scratch_make();
            zenflow_setting before = s;
            zenflow_setting after = s;
            before.steps = at;
            before.save = folder;
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
}

/* ZenFlow may begin from a checkpoint of a plain run, and a plain run from one of ZenFlow. */
static void turning_it_on_and_off(void **state)
{
    (void)state;
    for (int from = 0; from < 2; ++from) {
        char *folder = scratch_make();
        zenflow_setting s = law(DS_DTYPE_BF16, 1);
        s.zenflow.on = from == 1;
        s.steps = 4;
        s.save = folder;
        (void)zenflow_run_all(&s);
        s.zenflow.on = from == 0;
        s.save = NULL;
        s.resume = folder;
        (void)zenflow_run_all(&s);
        scratch_remove(folder);
    }
}

/* ---- what the host sets and reads ------------------------------------------------------------ */

/* A step after weights were set: of the engine, and of one that is loaded from its checkpoint. */
static void same_after_resuming(ds_engine *engine, const zenflow_setting *s, const ds_model *model)
{
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    char *folder = scratch_make();
    ds_engine *other = zenflow_open_engine(ctx, s, (ds_model *)model, NULL);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "set", NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(other, folder, NULL, NULL));
    zenflow_fill_batch(2, 0, x, y);
    zenflow_run_batch(ctx, engine, x, y);
    zenflow_run_batch(ctx, other, x, y);
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_step(other));
    assert_true(zenflow_hash(ctx, engine) == zenflow_hash(ctx, other));
    ds_engine_destroy(&other);
    scratch_remove(folder);
}

static void weights_may_be_set(void **state)
{
    static float w[HIDDEN * N_IN];
    static float seen[HIDDEN * N_IN];
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    const zenflow_setting s = {.dtype = DS_DTYPE_BF16, .zenflow = zenflow_steps_of(4, 0, 0)};
    const zenflow_mlp config = {false};
    ds_model *model = zenflow_open_model(ctx, &config);
    ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
    (void)state;
    for (int step = 0; step < 2; ++step) {
        zenflow_fill_batch(step, 0, x, y);
        zenflow_run_batch(ctx, engine, x, y);
        if (step == 1) {
            CHECK_FAILS(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN),
                        DS_ERR_STATE, "zero_optimization.zenflow: weights can be read");
        }
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    for (int i = 0; i < HIDDEN * N_IN; ++i) {
        w[i] = 0.5f + (float)i;
    }
    CHECK_OK(ctx, ds_engine_set_full_fp32_param(engine, "0.weight", w, HIDDEN * N_IN));
    CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
    assert_memory_equal(seen, w, sizeof w);
    same_after_resuming(engine, &s, model);
    CHECK_OK(ctx, ds_engine_get_full_fp32_param(engine, "0.weight", seen, HIDDEN * N_IN));
    for (int i = 0; i < HIDDEN * N_IN; ++i) { /* one step of lr and decay away */
        assert_true(fabsf(seen[i] - w[i]) < 0.05f + 1e-3f * w[i]);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* A checkpoint, whole by its checksums, that names columns which no matrix has. */
static void hostile_columns_are_refused(void **state)
{
    static const int32_t bad[] = {N_IN, INT32_MAX, INT32_MIN, -2};
    float x[BATCH * N_IN];
    float y[BATCH * N_OUT];
    const zenflow_setting s = {.dtype = DS_DTYPE_BF16, .zenflow = zenflow_steps_of(4, 0, 0)};
    const zenflow_mlp config = {false};
    ds_model *model = zenflow_open_model(ctx, &config);
    (void)state;
    zenflow_fill_batch(0, 0, x, y);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        char *folder = scratch_make();
        ds_engine *engine = zenflow_open_engine(ctx, &s, model, NULL);
        zenflow_run_batch(ctx, engine, x, y);
        CHECK_OK(ctx, ds_engine_step(engine));
        const ds_cell index = ds_cells_find(engine->cells, DS_CELL_CHOSEN, "0.weight/index");
        *(int32_t *)dsi_exec_host_view(engine->exec, index) = bad[i];
        CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "x", NULL));
        CHECK_FAILS(ctx, ds_engine_load_checkpoint(engine, folder, "x", NULL), DS_ERR_FORMAT,
                    "0.weight/index names column");
        CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, folder, "y", NULL), DS_ERR_STATE,
                    "load a checkpoint");
        ds_engine_destroy(&engine);
        scratch_remove(folder);
    }
    ds_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(residences_give_the_same_bits),
        cmocka_unit_test(resuming_gives_the_same_bits),
        cmocka_unit_test(turning_it_on_and_off),
        cmocka_unit_test(weights_may_be_set),
        cmocka_unit_test(hostile_columns_are_refused),
    };
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
