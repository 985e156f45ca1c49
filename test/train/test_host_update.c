/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that the processor runs where their states live, while the device goes on: the bits of
 * the run in memory, whatever the order, optimizer, precision and part; the checker's rules for
 * them; the keys of a configuration; a kernel that fails. Before the norm is known:
 * test_super_offload.c. Over the stand-in of a GPU: test_cuda_accel.c; waits taken out:
 * test_cuda_waits.sh.
 * labels: slow */
#include "common/bad_token.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/run_spec.h"
#include "exec/exec_state.h"
#include "op/ops.h"
#include "train/engine.h"

#include <deepspeed/engine_states.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 2 };

static ds_ctx *ctx;
static char *folder;

static dsi_engine_spec make_spec(ds_dtype dtype, const char *accel, bool away, bool params)
{
    return small_host_spec(ctx, folder, dtype, accel, away, params);
}

static uint32_t count_host(const dsi_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        n += plan->steps[s].on_host && plan->steps[s].kind == DSI_STEP_START ? 1 : 0;
    }
    return n;
}

static uint64_t train(ds_engine *engine)
{
    small_batch data;
    uint64_t hash = 0;
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &data);
        for (int64_t micro = 0; micro < engine->spec.train.accumulation; ++micro) {
            CHECK_OK(ctx, ds_engine_forward(engine, &batch));
            CHECK_OK(ctx, ds_engine_backward(engine));
            CHECK_OK(ctx, ds_engine_step(engine));
        }
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    return hash;
}

/* *host_out: its steps of the host's. */
static uint64_t run(const char *config, const dsi_engine_spec *spec, uint32_t *host_out)
{
    ds_model *model = small_model(ctx, folder, config);
    ds_engine *engine = small_engine(ctx, model, spec);
    const uint64_t hash = train(engine);
    *host_out = count_host(engine->train_plan);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return hash;
}

static void expect(const char *config, const dsi_engine_spec *spec, uint64_t wanted,
                   const char *what)
{
    uint32_t n = 0;
    const uint64_t got = run(config, spec, &n);
    if (got != wanted) {
        fail_msg("%s: other bits than in memory", what);
    }
    if (n == 0) {
        fail_msg("%s: no update on the host", what);
    }
}

static void every_order_gives_the_bits_of_memory(void **state)
{
    static const char *const accels[] = {"cpu", "sim:seed=1", "sim:seed=2,turn=64",
                                         "sim:seed=3,graphs=0"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    (void)state;
    for (int d = 0; d < 3; ++d) {
        uint32_t n = 0;
        const dsi_engine_spec kept = make_spec(dtypes[d], "cpu", false, false);
        const uint64_t wanted = run(small_llama, &kept, &n);
        assert_int_equal(n, 0);
        for (size_t a = 0; a < sizeof accels / sizeof accels[0]; ++a) {
            for (int params = 0; params < 2; ++params) {
                const dsi_engine_spec spec = make_spec(dtypes[d], accels[a], true, params == 1);
                expect(small_llama, &spec, wanted, accels[a]);
            }
        }
    }
}

static void no_setting_changes_a_bit(void **state)
{
    uint32_t n = 0;
    (void)state;
    for (int i = 0; i < 8; ++i) {
        char what[40];
        dsi_engine_spec kept = make_spec(DS_DTYPE_BF16, "cpu", false, false);
        dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, "sim:seed=4", true, i % 2 == 1);
        spec.offload.how.chunk = i == 0 ? 0 : i == 1 ? 1 : 4096;
        spec.offload.update_ahead = i == 2 ? 0 : i == 3 ? SIZE_MAX : 60000;
        spec.offload.write_behind = i == 4 ? 0 : 60000;
        spec.offload.ratio = i == 5 ? 0.4 : 1.0;
        spec.no_reuse = i == 6;
        spec.train.accumulation = kept.train.accumulation = i == 7 ? 2 : 1;
        (void)snprintf(what, sizeof what, "setting %d", i);
        expect(small_gpt2, &spec, run(small_gpt2, &kept, &n), what);
    }
}

/* Updates that wait for nothing: their gradients have no cells. */
static void early_updates_too(void **state)
{
    uint32_t n = 0;
    (void)state;
    for (int d = 0; d < 2; ++d) {
        const ds_dtype dtype = d == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16;
        dsi_engine_spec kept = make_spec(dtype, "cpu", false, false);
        kept.train.max_norm = 0.0;
        kept.train.keep_nonfinite = true;
        assert_true(dsi_train_is_early(&kept.train));
        const uint64_t wanted = run(small_llama, &kept, &n);
        for (int params = 0; params < 2; ++params) {
            dsi_engine_spec spec = make_spec(dtype, "sim:seed=5", true, params == 1);
            spec.train.max_norm = 0.0;
            spec.train.keep_nonfinite = true;
            expect(small_llama, &spec, wanted, "early updates");
        }
    }
}

static void every_elementwise_optimizer(void **state)
{
    static const ds_optimizer_kind kinds[] = {DS_OPTIMIZER_SGD, DS_OPTIMIZER_LION,
                                              DS_OPTIMIZER_ADAGRAD, DS_OPTIMIZER_LAMB};
    (void)state;
    for (int i = 0; i < 4; ++i) {
        uint32_t n = 0;
        uint64_t hash[2];
        for (int away = 0; away < 2; ++away) {
            dsi_engine_spec spec =
                make_spec(DS_DTYPE_BF16, away ? "sim:seed=6" : "cpu", away == 1, false);
            spec.train.optimizer = kinds[i];
            spec.train.momentum = true;
            spec.train.max_coeff = 10.0;
            spec.train.min_coeff = 0.01;
            hash[away] = run(small_gpt2, &spec, &n);
        }
        assert_true(hash[0] == hash[1]);
        assert_true((kinds[i] == DS_OPTIMIZER_LAMB) == (n == 0)); /* its norms are the device's */
    }
}

/* ---- launched together ----------------------------------------------------------------------- */

/* By one call a batch, the phases of a step are joined; the losses are those of three calls. */
static void joined_phases_give_the_same_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 12; ++i) {
        const int64_t accumulation = i % 2 == 0 ? 1 : 2;
        uint64_t hash[2];
        double losses[2][STEPS];
        ds_model *model = small_model(ctx, folder, small_gpt2);
        for (int joined = 0; joined < 2; ++joined) {
            int32_t step = 0;
            dsi_engine_spec spec =
                make_spec(DS_DTYPE_BF16, joined ? "sim:seed=10" : "cpu", joined && i >= 6, false);
            spec.train.accumulation = accumulation;
            spec.train.keep_nonfinite = i % 6 / 2 != 0;
            spec.train.max_norm = i % 6 / 2 == 2 ? 0.0 : 0.1;
            ds_engine *engine = small_engine(ctx, model, &spec);
            for (int k = 0; k < STEPS; ++k) {
                CHECK_OK(ctx, ds_engine_train_batch(engine, small_next, &step, &losses[joined][k]));
            }
            CHECK_OK(ctx, engine_hash(ctx, engine, &hash[joined]));
            ds_engine_destroy(&engine);
        }
        ds_model_destroy(&model);
        if (hash[0] != hash[1] || memcmp(losses[0], losses[1], sizeof losses[0]) != 0) {
            fail_msg("row %d: other bits when phases are launched together", i);
        }
    }
}

/* Launches of a step: what is captured is called once for each. */
static void a_step_is_one_launch_where_the_host_decides_nothing(void **state)
{
    static const struct {
        bool keep;
        int64_t accumulation;
        const char *says;
    } rows[] = {
        {true, 1,
         "as one launch: forward + backward; as one launch: forward + backward + norm; "
         "as one launch: forward + backward + norm + update"},
        {false, 1, "as one launch: forward + backward; as one launch: forward + backward + norm"},
        {true, 2,
         "as one launch: forward + backward; as one launch: forward + backward + norm; "
         "as one launch: forward + backward + norm + update"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        int32_t step = 0;
        double loss = 0.0;
        dsi_buf text = dsi_buf_make(4096);
        ds_model *model = small_model(ctx, folder, small_llama);
        dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, "sim", true, false);
        spec.train.keep_nonfinite = rows[i].keep;
        spec.train.accumulation = rows[i].accumulation;
        spec.offload.defer = false;
        ds_engine *engine = small_engine(ctx, model, &spec);
        dsi_exec_captured_text(engine->exec, engine->train_id, &text);
        assert_non_null(strstr(dsi_buf_text(&text), "captured: forward, backward, norm, update"));
        if (strstr(dsi_buf_text(&text), rows[i].says) == NULL) {
            fail_msg("row %zu: %s", i, dsi_buf_text(&text));
        }
        CHECK_OK(ctx, ds_engine_train_batch(engine, small_next, &step, &loss));
        const uint64_t before = engine->exec->n_launches;
        CHECK_OK(ctx, ds_engine_train_batch(engine, small_next, &step, &loss));
        const uint64_t wanted = (uint64_t)rows[i].accumulation + (rows[i].keep ? 0 : 1);
        assert_int_equal(engine->exec->n_launches - before, wanted);
        dsi_buf_free(&text);
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* ---- the checker ----------------------------------------------------------------------------- */

static void the_checker_holds_them_to_host_memory(void **state)
{
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16, "cpu", true, false);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    dsi_plan *plan = engine->train_plan;
    uint32_t s = 0;
    (void)state;
    CHECK_OK(ctx, dsi_plan_check(plan));
    while (!plan->steps[s].on_host) {
        ++s;
    }
    dsi_step *step = &plan->steps[s];
    assert_int_equal(plan->streams[step->stream].role, DSI_PLAN_STREAM_HOST);
    assert_string_equal(plan->streams[step->stream].name, "host");
    const ds_cell cell = plan->refs[step->in_at + 1].cell;
    plan->cell_on_host[cell] = false; /* as if it were on disk */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "invariant 9");
    plan->cell_on_host[cell] = true;
    step->on_host = false; /* the device would run it */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "invariant");
    step->on_host = true;
    const uint32_t n_waits = step->n_waits;
    assert_true(n_waits > 0);
    step->n_waits = 0; /* for the factor, which comes in the same phase */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "invariant 8");
    step->n_waits = n_waits;
    CHECK_OK(ctx, dsi_plan_check(plan));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* ---- failures -------------------------------------------------------------------------------- */

static ds_status fail_kernel(const ds_kernel_call *call)
{
    return ds_fail(call->ctx, DS_ERR_ARG, "the test's kernel fails");
}

static void a_failed_update_is_named(void **state)
{
    static const char *const accels[] = {"cpu", "sim:seed=7", "sim:graphs=0"};
    (void)state;
    for (int i = 0; i < 6; ++i) {
        const int a = i / 2;
        dsi_engine_spec spec = make_spec(DS_DTYPE_F32, accels[a], true, false);
        spec.train.speculative = i % 2 == 1;
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        dsi_plan *plan = engine->train_plan;
        small_batch data;
        uint32_t s = 0;
        while (!plan->steps[s].on_host || plan->steps[s].op != &dsi_op_adam) {
            ++s;
        }
        ds_kernel broken = *plan->steps[s].kernel;
        broken.run = fail_kernel;
        plan->steps[s].kernel = &broken;
        dsi_exec_relink(engine->exec); /* what is captured has the kernel in it */
        const ds_batch batch = small_feed(0, &data);
        ds_status status = ds_engine_forward(engine, &batch);
        status = status < 0 ? status : ds_engine_backward(engine);
        status = status < 0 ? status : ds_engine_step(engine);
        status = status < 0 ? status : ds_engine_forward(engine, &batch);
        assert_int_equal(status, DS_ERR_ARG);
        assert_non_null(strstr(ds_ctx_error(ctx), "(adam/"));
        assert_non_null(strstr(ds_ctx_error(ctx), "the test's kernel fails"));
        CHECK_FAILS(ctx, ds_engine_forward(engine, &batch), DS_ERR_STATE, "load a checkpoint");
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

static void a_bad_token_is_never_trained_on(void **state)
{
    (void)state;
    for (int i = 0; i < 32; ++i) {
        const bool speculative = i / 8 % 2 == 1;
        char what[20];
        dsi_engine_spec spec =
            make_spec(DS_DTYPE_BF16, i < 16 ? "sim:seed=11" : "sim:graphs=0", speculative, false);
        spec.train.speculative = speculative;
        spec.train.accumulation = 1 + i / 2 % 2;
        spec.train.keep_nonfinite = i / 4 % 2 == 1;
        (void)snprintf(what, sizeof what, "row %d", i);
        bad_token_check(ctx, folder, &spec, i % 2 == 1, what);
    }
}

/* ---- configurations -------------------------------------------------------------------------- */

static dsi_engine_spec read_spec(const char *accelerator, const char *offload)
{
    char text[1024];
    ds_config *config = NULL;
    dsi_engine_spec spec;
    ds_model *model = small_model(ctx, folder, small_gpt2);
    (void)snprintf(text, sizeof text,
                   "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                   "{\"lr\": 1e-3}}, \"zero_optimization\": {\"stage\": 3, "
                   "\"offload_optimizer\": {\"device\": \"cpu\"%s}}}",
                   offload);
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, strlen(text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = SMALL_SEQ, .accelerator = accelerator};
    CHECK_OK(ctx, dsi_engine_read_config(ctx, &params, &spec));
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return spec;
}

static void the_keys_are_in_force(void **state)
{
    (void)state;
    const dsi_engine_spec on_cpu = read_spec("cpu", "");
    assert_false(on_cpu.offload.how.host);
    assert_int_equal(on_cpu.offload.states, DSI_RESIDENCY_DEVICE); /* it is all of host memory */
    const dsi_engine_spec apart = read_spec("sim", "");
    assert_true(apart.offload.how.host);
    assert_int_equal(apart.offload.states, DSI_RESIDENCY_HOST);
    assert_true(apart.host_cores == 0.8);
    const dsi_engine_spec some = read_spec("sim", ", \"cpuadam_cores_perc\": 0.25");
    assert_true(some.offload.how.host && some.host_cores == 0.25);
    const dsi_engine_spec none = read_spec("sim", ", \"cpuadam_cores_perc\": 0");
    assert_false(none.offload.how.host);
    assert_int_equal(none.offload.states, DSI_RESIDENCY_HOST);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_gives_the_bits_of_memory),
        cmocka_unit_test(no_setting_changes_a_bit),
        cmocka_unit_test(early_updates_too),
        cmocka_unit_test(every_elementwise_optimizer),
        cmocka_unit_test(joined_phases_give_the_same_bits),
        cmocka_unit_test(a_step_is_one_launch_where_the_host_decides_nothing),
        cmocka_unit_test(the_checker_holds_them_to_host_memory),
        cmocka_unit_test(a_failed_update_is_named),
        cmocka_unit_test(a_bad_token_is_never_trained_on),
        cmocka_unit_test(the_keys_are_in_force),
    };
    ctx = check_ctx(2);
    folder = scratch_make();
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
