/* SPDX-License-Identifier: Apache-2.0 */
/* The accelerator interface: accelerators by name, memory that the host cannot touch, errors of
 * kernels that run late, and generation on sim. Training on it: test_sim_accel.sh. */
#include "accel/accel.h"
#include "common/check.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "exec/exec_state.h"

#include <deepspeed/infer.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static ds_ctx *ctx;
static char *folder;

static dsi_accel_choice choose(const char *text)
{
    dsi_accel_choice choice;
    CHECK_OK(ctx, dsi_accel_choose(ctx, text, &choice));
    return choice;
}

static void accelerators_have_names(void **state)
{
    dsi_accel_choice choice = {0};
    ds_accel_device *device = NULL;
    (void)state;
    assert_ptr_equal(choose(NULL).accel, &dsi_accel_cpu);
    assert_ptr_equal(choose("auto").accel, &dsi_accel_cpu);
    assert_ptr_equal(choose("null").accel, &dsi_accel_null);
    assert_string_equal(choose("sim:seed=7").options, "seed=7");
    CHECK_FAILS(ctx, dsi_accel_choose(ctx, "gpu", &choice), DS_ERR_NOT_FOUND,
                "there is no accelerator \"gpu\"; expected one of auto, cpu, null, sim, cuda");
    CHECK_FAILS(ctx, dsi_accel_choose(ctx, "cpu:fast", &choice), DS_ERR_ARG, "has no options");
    assert_null(choice.accel);
    const char *const bad[][2] = {
        {"seed", "seed=: expected a whole number from 0 to"},
        {"seed=", "seed=: expected a whole number from 0 to"},
        {"seed=x", "seed=x: expected a whole number from 0 to"},
        {"seed=-1", "seed=-1: expected"},
        {"turn=0", "turn=0: expected a whole number from 1 to"},
        {"seed=1 turn=2", "seed=1 turn=2: expected"},
        {"seed=1,copy_gbps=0", "copy_gbps=0: expected a whole number from 1 to"},
        {"copy_gbps=1.5", "copy_gbps=1.5: expected"},
        {"kernel_us=1000000001", "kernel_us=1000000001: expected"},
        {"seed=99999999999999999999999", "seed=99999999999999999999999: expected"},
        {"graphs=2", "graphs=2: expected a whole number from 0 to 1"},
        {"speed=3", "there is no option \"speed\"; expected seed=N, turn=BYTES, copy_gbps="},
        {"seed=1,", "there is no option \"\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
        CHECK_FAILS(ctx, dsi_accel_sim.open(ctx, bad[i][0], &device), DS_ERR_ARG, bad[i][1]);
    }
    assert_null(device);
}

/* What `auto` takes is the best of a list, whatever its order, and a choice says who made it. */
static void the_best_is_taken_unless_one_is_named(void **state)
{
    static const ds_accel better = {.name = "better"};
    const dsi_accel_row last[] = {
        {&dsi_accel_cpu, 1, ""}, {&dsi_accel_sim, 0, ""}, {&better, 2, ""}};
    const dsi_accel_row first[] = {{&better, 2, ""}, {&dsi_accel_cpu, 1, ""}};
    const dsi_accel_row equal[] = {{&better, 1, ""}, {&dsi_accel_cpu, 1, ""}};
    const dsi_accel_row tests[] = {{&dsi_accel_sim, 0, ""}, {&dsi_accel_null, 0, ""}};
    char text[DSI_ACCEL_TEXT];
    uint32_t n = 0;
    (void)state;
    assert_ptr_equal(dsi_accel_auto(last, 3)->accel, &better);
    assert_ptr_equal(dsi_accel_auto(last, 2)->accel, &dsi_accel_cpu);
    assert_ptr_equal(dsi_accel_auto(first, 2)->accel, &better);
    assert_ptr_equal(dsi_accel_auto(equal, 2)->accel, &better);
    assert_null(dsi_accel_auto(tests, 2));
    const dsi_accel_row *rows = dsi_accel_rows(&n);
    assert_ptr_equal(choose("auto").accel, dsi_accel_auto(rows, n)->accel);
    const char *const asked[] = {NULL, "", "auto", "cpu", "sim:seed=7,turn=1", "null"};
    const char *const said[] = {"cpu (auto)", "cpu (auto)",        "cpu (auto)",
                                "cpu",        "sim:seed=7,turn=1", "null"};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; ++i) {
        const dsi_accel_choice choice = choose(asked[i]);
        dsi_accel_say(&choice, text);
        assert_string_equal(text, said[i]);
    }
}

/* Whether a process that reads (or writes) the byte lives. */
static bool survives(unsigned char *at, bool write)
{
    int code = 0;
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)signal(SIGSEGV, SIG_DFL);
        if (write) {
            *(volatile unsigned char *)at = 1;
        }
        _exit(*(volatile unsigned char *)at == 255 ? 1 : 0);
    }
    assert_true(child > 0 && waitpid(child, &code, 0) == child);
    return WIFEXITED(code);
}

static void a_touch_of_the_host_faults(void **state)
{
    ds_accel_device *device = NULL;
    void *memory = NULL;
    unsigned char seen[300];
    unsigned char data[300];
    (void)state;
    CHECK_OK(ctx, dsi_accel_sim.open(ctx, "", &device));
    CHECK_OK(ctx, dsi_accel_sim.memory->alloc(device, ctx, 10000, "a test", &memory));
    memset(data, 7, sizeof data);
    CHECK_OK(ctx, dsi_accel_sim.memory->copy(device, (unsigned char *)memory + 33, data, 300));
    CHECK_OK(ctx, dsi_accel_sim.memory->copy(device, seen, (unsigned char *)memory + 33, 300));
    assert_memory_equal(seen, data, 300);
    assert_true(survives(seen, true));
    for (int write = 0; write < 2; ++write) {
        assert_false(survives(memory, write == 1));
        assert_false(survives((unsigned char *)memory + 9999, write == 1));
    }
    dsi_accel_sim.memory->release(device, memory, 10000);
    dsi_accel_sim.close(&device);
}

static ds_engine *open_engine(const ds_model *model, const char *accelerator)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    spec.accel = choose(accelerator);
    return small_engine(ctx, model, &spec);
}

/* A kernel that fails runs when the phase is over: the next call that needs the device names its
 * step, once, and the engine goes on. */
static void a_late_failure_names_its_step(void **state)
{
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = open_engine(model, "sim:seed=4,turn=1");
    small_batch room;
    (void)state;
    ds_batch batch = small_feed(0, &room);
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, NULL, NULL));
    room.data[0][5] = SMALL_VOCABULARY; /* no such id */
    ds_status status = ds_engine_eval_batch(engine, &batch, NULL, NULL);
    double loss = 0.0;
    batch = small_feed(0, &room);
    if (status >= 0) {
        status = ds_engine_eval_batch(engine, &batch, &loss, NULL);
    }
    assert_true(status < 0);
    assert_non_null(strstr(ds_ctx_error(ctx), "step "));
    assert_non_null(strstr(ds_ctx_error(ctx), "embedding"));
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &loss, NULL));
    ds_engine *plain = open_engine(model, "cpu");
    double expected = 0.0;
    CHECK_OK(ctx, ds_engine_eval_batch(plain, &batch, &expected, NULL));
    assert_true(loss == expected && loss > 0.0);
    ds_engine_destroy(&plain);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* The engine's losses, an output and its exported weights. */
static void outputs_and_losses_are_those_of_cpu(void **state)
{
    ds_model *model = small_model(ctx, folder, small_llama);
    ds_engine *engines[2] = {open_engine(model, "cpu"), open_engine(model, "sim:seed=9")};
    small_batch room;
    (void)state;
    for (int32_t step = 0; step < 3; ++step) {
        double losses[2];
        for (int e = 0; e < 2; ++e) {
            const ds_batch batch = small_feed(step, &room);
            CHECK_OK(ctx, ds_engine_forward(engines[e], &batch));
            losses[e] = ds_engine_loss(engines[e]);
            CHECK_OK(ctx, ds_engine_backward(engines[e]));
            assert_true(ds_engine_loss(engines[e]) == losses[e]);
            CHECK_OK(ctx, ds_engine_step(engines[e]));
            assert_true(ds_engine_loss(engines[e]) == losses[e]);
        }
        assert_true(losses[0] == losses[1] && losses[0] > 0.0);
        assert_true(ds_engine_grad_norm(engines[0]) == ds_engine_grad_norm(engines[1]));
    }
    ds_engine_destroy(&engines[0]);
    ds_engine_destroy(&engines[1]);
    ds_model_destroy(&model);
}

static void generation_gives_the_same_tokens(void **state)
{
    enum { PROMPT = 21, NEW = 12 };
    ds_model *model = small_model(ctx, folder, small_llama);
    ds_engine *engine = open_engine(model, "cpu");
    const char *const names[] = {"cpu", "sim:seed=1", "sim:seed=2,turn=64"};
    uint32_t prompt[PROMPT];
    uint32_t tokens[3][NEW];
    float last[3][SMALL_VOCABULARY];
    (void)state;
    for (uint32_t i = 0; i < PROMPT; ++i) {
        prompt[i] = i * 31 % SMALL_VOCABULARY;
    }
    for (int k = 0; k < 3; ++k) {
        const ds_generator_params params = {
            .engine = engine, .max_length = 48, .accelerator = names[k]};
        const ds_sampling sampling = {.temperature = 0.8, .seed = 3};
        ds_generator *generator = NULL;
        int64_t n = 0;
        CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
        CHECK_OK(ctx, ds_generator_prompt(generator, prompt, PROMPT));
        for (int i = 0; i < NEW; ++i) {
            CHECK_OK(ctx, ds_generator_next(generator, &sampling, &tokens[k][i]));
        }
        memcpy(last[k], ds_generator_logits(generator, &n), sizeof last[k]);
        assert_int_equal(n, SMALL_VOCABULARY);
        ds_generator_destroy(&generator);
    }
    for (int k = 1; k < 3; ++k) {
        assert_memory_equal(tokens[k], tokens[0], sizeof tokens[0]);
        assert_memory_equal(last[k], last[0], sizeof last[0]);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

static int open_all(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
}

static int close_all(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

/* Where the device itself moves what is on disk, and ranks are shown its memory by peer_view. */
static void ranks_and_disks_see_memory_in_their_own_ways(void **state)
{
    enum { BYTES = 4096 };
    static const dsi_aio_mover mover;
    dsi_exec exec = {.accel = &dsi_accel_sim};
    void *memory = NULL;
    (void)state;
    CHECK_OK(ctx, dsi_accel_sim.open(ctx, "", &exec.device));
    CHECK_OK(ctx, dsi_accel_sim.memory->alloc(exec.device, ctx, BYTES, "a test", &memory));
    void *seen = dsi_exec_peer_view(&exec, memory);
    assert_ptr_not_equal(seen, memory);
    assert_ptr_equal(dsi_exec_disk_view(&exec, memory), seen);
    exec.swap_params.mover = &mover;
    assert_ptr_equal(dsi_exec_peer_view(&exec, memory), seen);
    assert_ptr_equal(dsi_exec_disk_view(&exec, memory), memory);
    dsi_accel_sim.memory->release(exec.device, memory, BYTES);
    dsi_accel_sim.close(&exec.device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accelerators_have_names),
        cmocka_unit_test(the_best_is_taken_unless_one_is_named),
        cmocka_unit_test(a_touch_of_the_host_faults),
        cmocka_unit_test(a_late_failure_names_its_step),
        cmocka_unit_test(outputs_and_losses_are_those_of_cpu),
        cmocka_unit_test(generation_gives_the_same_tokens),
        cmocka_unit_test(ranks_and_disks_see_memory_in_their_own_ways),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
