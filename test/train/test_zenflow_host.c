/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * ZenFlow's updates by the processor, where their states live, beside an accelerator with memory of
 * its own: what waits, the rest (in the step, or concurrent with the next ones), chosen columns in
 * host memory. The bits of the processor's run in memory; an update that fails. Over the stand-in
 * of a GPU: test_cuda_zenflow.c, test_cuda_ranks.sh. */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "exec/exec_state.h"
#include "op/ops.h"
#include "train/engine.h"

#include <string.h>

enum { STEPS = 6 };

static ds_ctx *ctx;
static char *folder;

typedef struct row {
    const char *accel;
    ds_dtype dtype;
    bool late, weighs;    /* the rest: concurrent with the next steps; due when it weighs enough */
    bool params, chosen;  /* in host memory, too */
    int64_t accumulation; /* micro-batches */
    double decay_of_adam; /* not AdamW's */
} row;

static const row rows[] = {
    {"sim:seed=1", DS_DTYPE_BF16, false, false, false, false, 1, 0.0},
    {"sim:seed=2,turn=64", DS_DTYPE_F32, false, false, true, false, 1, 0.0},
    {"sim:graphs=0", DS_DTYPE_F32, false, true, false, true, 2, 0.0},
    {"sim:seed=3", DS_DTYPE_BF16, true, false, false, false, 1, 0.0},
    {"sim:seed=4,turn=64", DS_DTYPE_F32, true, false, true, true, 2, 0.0},
    {"sim:seed=5,graphs=0", DS_DTYPE_BF16, true, true, true, false, 1, 0.01},
    {"sim:seed=6", DS_DTYPE_F16, true, false, false, true, 1, 0.0},
    {"cpu", DS_DTYPE_BF16, true, false, true, true, 1, 0.0},
};

static dsi_engine_spec make_spec(const row *r, bool away)
{
    dsi_engine_spec spec = small_spec(r->dtype);
    CHECK_OK(ctx, dsi_accel_choose(ctx, away ? r->accel : "cpu", &spec.accel));
    spec.train.max_norm = 0.1;
    spec.train.accumulation = r->accumulation;
    spec.train.decoupled_decay = r->decay_of_adam == 0.0;
    spec.weight_decay = r->decay_of_adam > 0.0 ? r->decay_of_adam : spec.weight_decay;
    spec.train.zenflow = (dsi_zenflow_spec){.on = true,
                                            .ratio = 0.25,
                                            .weighs = r->weighs,
                                            .auto_ratio = 0.5,
                                            .update_every = 2,
                                            .select_every = 4,
                                            .warm_up = 1,
                                            .overlap = r->late};
    spec.host_cores = 1.0;
    if (away) {
        spec.offload = small_away(folder, DSI_RESIDENCY_HOST,
                                  r->params ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE);
        spec.offload.chosen = r->chosen ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE;
        spec.offload.how.host = true;
    }
    return spec;
}

/* Steps of an operator in a phase; *on_host_out: that the processor runs. */
static uint32_t count(const dsi_plan *plan, const ds_op *op, ds_phase phase, uint32_t *on_host_out)
{
    uint32_t n = 0;
    *on_host_out = 0;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const bool is = plan->steps[s].op == op && plan->steps[s].kind != DSI_STEP_WAIT;
        n += is ? 1 : 0;
        *on_host_out += is && plan->steps[s].on_host ? 1 : 0;
    }
    return n;
}

static void expect_on_host(const ds_engine *engine, const row *r)
{
    const dsi_train_phases *phases = &engine->own.phases;
    const dsi_plan *plan = engine->train_plan;
    uint32_t host = 0;
    assert_true(count(plan, &dsi_op_postpone, phases->zenflow.postpone, &host) > 0);
    assert_int_equal(host, count(plan, &dsi_op_postpone, phases->zenflow.postpone, &host));
    assert_true(count(plan, &dsi_op_adam, phases->zenflow.rest, &host) > 0);
    assert_int_equal(host, count(plan, &dsi_op_adam, phases->zenflow.rest, &host));
    const uint32_t n = count(plan, &dsi_op_adam, phases->update, &host);
    assert_true(host > 0 && (host == n) == r->chosen); /* what is no matrix, at least */
    assert_true((plan->side != DS_NONE) == r->late);
    for (uint32_t s = plan->phase_begin[phases->zenflow.rest];
         s < plan->phase_begin[phases->zenflow.rest + 1]; ++s) { /* states do not move */
        const dsi_step *step = &plan->steps[s];
        const bool number = step->op->role == DS_ROLE_SWAP_OUT || step->on_host;
        assert_true(number || !r->late);
    }
}

static uint64_t train(const row *r, bool away)
{
    small_batch data;
    uint64_t hash = 0;
    const dsi_engine_spec spec = make_spec(r, away);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &data);
        for (int64_t micro = 0; micro < r->accumulation; ++micro) {
            CHECK_OK(ctx, ds_engine_forward(engine, &batch));
            CHECK_OK(ctx, ds_engine_backward(engine));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
    }
    if (away) {
        expect_on_host(engine, r);
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return hash;
}

static void the_bits_of_the_run_in_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        if (check_long_row(i) && train(&rows[i], true) != train(&rows[i], false)) {
            fail_msg("row %zu: other bits than in memory", i);
        }
    }
}

static ds_status fail_kernel(const ds_kernel_call *call)
{
    return ds_fail(call->ctx, DS_ERR_ARG, "the test's kernel fails");
}

/* Of the rest, in the step or beside the next ones: it is named, and breaks the engine. */
static void a_failed_update_is_named(void **state)
{
    (void)state;
    for (int late = 0; late < 2; ++late) {
        row r = rows[3];
        r.late = late == 1;
        const dsi_engine_spec spec = make_spec(&r, true);
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        dsi_plan *plan = engine->train_plan;
        small_batch data;
        uint32_t s = plan->phase_begin[engine->own.phases.zenflow.rest];
        while (!plan->steps[s].on_host) {
            ++s;
        }
        ds_kernel broken = *plan->steps[s].kernel;
        broken.run = fail_kernel;
        plan->steps[s].kernel = &broken;
        dsi_exec_relink(engine->exec);
        ds_status status = DS_OK;
        for (int32_t step = 0; step < STEPS && status >= 0; ++step) {
            const ds_batch batch = small_feed(step, &data);
            status = ds_engine_forward(engine, &batch);
            status = status < 0 ? status : ds_engine_backward(engine);
            status = status < 0 ? status : ds_engine_step(engine);
        }
        assert_int_equal(status, DS_ERR_ARG);
        assert_non_null(strstr(ds_ctx_error(ctx), "(adam/"));
        assert_non_null(strstr(ds_ctx_error(ctx), "the test's kernel fails"));
        const ds_batch batch = small_feed(0, &data);
        CHECK_FAILS(ctx, ds_engine_forward(engine, &batch), DS_ERR_STATE, "load a checkpoint");
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_the_run_in_memory),
        cmocka_unit_test(a_failed_update_is_named),
    };
    ctx = check_ctx(2);
    folder = scratch_make();
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
