/* SPDX-License-Identifier: Apache-2.0 */
/* Captured graphs of `sim`, and the executor's use of them: which phases are captured, that they
 * give the bits of cpu, and that a capture holds what it saw. */
#include "accel/sim/sim_device.h"
#include "common/check.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "exec/exec_state.h"

#include <string.h>

enum { BYTES = 5000 };

static ds_ctx *ctx;
static char *folder;

typedef struct bench {
    ds_accel_device *device;
    ds_accel_stream *stream[2];
    ds_accel_event *event[2]; /* of each stream */
    unsigned char *memory;
} bench;

static const ds_accel_streams *t;
static const ds_accel_graphs *g;

static bench begin(const char *options)
{
    bench b = {0};
    void *memory = NULL;
    CHECK_OK(ctx, dsi_accel_sim.open(ctx, options, &b.device));
    CHECK_OK(ctx, dsi_accel_sim.memory->alloc(b.device, ctx, BYTES, "a test", &memory));
    b.memory = memory;
    for (int i = 0; i < 2; ++i) {
        CHECK_OK(ctx, t->create(b.device, ctx, &b.stream[i]));
        CHECK_OK(ctx, t->event_create(b.device, ctx, &b.event[i]));
    }
    return b;
}

static void end(bench *b)
{
    for (int i = 0; i < 2; ++i) {
        t->destroy(&b->stream[i]);
        t->event_destroy(&b->event[i]);
    }
    dsi_accel_sim.memory->release(b->device, b->memory, BYTES);
    dsi_accel_sim.close(&b->device);
}

/* What a byte of the memory is when all has run. */
static int byte_at(const bench *b, size_t at)
{
    const ds_kernel_call *failed = NULL;
    unsigned char byte = 0;
    CHECK_OK(ctx, t->synchronize(b->stream[0], &failed));
    CHECK_OK(ctx, t->synchronize(b->stream[1], &failed));
    CHECK_OK(ctx, dsi_accel_sim.memory->copy(b->device, &byte, b->memory + at, 1));
    return byte;
}

static void fork_streams(const bench *b)
{
    CHECK_OK(ctx, t->record(b->stream[0], b->event[0]));
    CHECK_OK(ctx, t->wait(b->stream[1], b->event[0]));
}

static void join_streams(const bench *b)
{
    CHECK_OK(ctx, t->record(b->stream[1], b->event[1]));
    CHECK_OK(ctx, t->wait(b->stream[0], b->event[1]));
}

static void captured_work_runs_when_it_is_launched(void **state)
{
    ds_accel_graph *graph = NULL;
    (void)state;
    bench b = begin("seed=3,turn=100");
    CHECK_OK(ctx, g->begin(b.stream[0]));
    fork_streams(&b);
    CHECK_OK(ctx, t->fill(b.stream[1], b.memory, 5, BYTES));
    join_streams(&b);
    CHECK_OK(ctx, t->fill(b.stream[0], b.memory + 1, 6, 1));
    CHECK_OK(ctx, g->end(b.stream[0], &graph));
    CHECK_OK(ctx, t->fill(b.stream[1], b.memory + 2, 1, 1)); /* queued as always */
    assert_int_equal(byte_at(&b, 0), 0);
    assert_int_equal(byte_at(&b, 2), 1);
    for (int k = 0; k < 3; ++k) {
        CHECK_OK(ctx, t->fill(b.stream[0], b.memory, 9, BYTES));
        CHECK_OK(ctx, g->launch(b.stream[0], graph));
        CHECK_OK(ctx, t->copy(b.stream[0], b.memory + 3, b.memory + 1, 1));
    }
    assert_int_equal(byte_at(&b, 0), 5);
    assert_int_equal(byte_at(&b, 1), 6);
    assert_int_equal(byte_at(&b, 3), 6);
    g->destroy(&graph);
    end(&b);
}

static void what_a_capture_cannot_hold_is_an_error(void **state)
{
    ds_accel_graph *graph = NULL;
    const ds_kernel_call *failed = NULL;
    (void)state;
    bench b = begin("");
    CHECK_OK(ctx, g->begin(b.stream[0]));
    CHECK_FAILS(ctx, g->begin(b.stream[0]), DS_ERR_STATE, "captured already");
    CHECK_FAILS(ctx, t->synchronize(b.stream[0], &failed), DS_ERR_STATE, "nothing runs");
    fork_streams(&b);
    CHECK_OK(ctx, t->fill(b.stream[1], b.memory, 5, BYTES));
    CHECK_FAILS(ctx, g->end(b.stream[0], &graph), DS_ERR_STATE, "before what another stream");
    assert_null(graph);
    CHECK_OK(ctx, t->record(b.stream[1], b.event[1]));
    CHECK_OK(ctx, g->begin(b.stream[0]));
    CHECK_FAILS(ctx, t->wait(b.stream[0], b.event[1]), DS_ERR_STATE, "outside of the capture");
    fork_streams(&b);
    CHECK_OK(ctx, t->fill(b.stream[1], b.memory, 5, BYTES));
    join_streams(&b);
    CHECK_OK(ctx, t->fill(b.stream[1], b.memory, 6, BYTES)); /* behind the join */
    CHECK_FAILS(ctx, g->end(b.stream[0], &graph), DS_ERR_STATE, "before what another stream");
    CHECK_FAILS(ctx, g->end(b.stream[0], &graph), DS_ERR_STATE, "no capture began");
    assert_int_equal(byte_at(&b, 0), 0);
    end(&b);
    b = begin("graphs=0");
    assert_int_equal(g->begin(b.stream[0]), DS_ERR_UNSUPPORTED);
    end(&b);
}

/* ---- the executor ---------------------------------------------------------------------------- */

static ds_engine *open_engine(const ds_model *model, const char *accelerator)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    CHECK_OK(ctx, dsi_accel_choose(ctx, accelerator, &spec.accel));
    return small_engine(ctx, model, &spec);
}

static uint32_t n_captured(const ds_engine *engine)
{
    const dsi_exec *exec = engine->exec;
    uint32_t n = 0;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_loaded *l = &exec->plans[i];
        for (uint32_t k = 0; l->graphs != NULL && k < l->plan->n_slots * l->plan->phases.n; ++k) {
            n += l->graphs[k] != NULL;
        }
    }
    return n;
}

static double train(ds_engine *engine, int32_t begin_step, int32_t n)
{
    small_batch room;
    for (int32_t step = begin_step; step < begin_step + n; ++step) {
        const ds_batch batch = small_feed(step, &room);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    return ds_engine_loss(engine);
}

static void phases_of_the_device_are_captured(void **state)
{
    static const char *const names[] = {"cpu", "sim:seed=2", "sim:seed=2,graphs=0"};
    ds_model *model = small_model(ctx, folder, small_gpt2);
    double losses[3];
    (void)state;
    for (int k = 0; k < 3; ++k) {
        ds_engine *engine = open_engine(model, names[k]);
        assert_int_equal(n_captured(engine) >= 3, k == 1); /* forward, backward, step */
        assert_int_equal(n_captured(engine) > 0, k == 1);
        losses[k] = train(engine, 0, 4);
        ds_engine_destroy(&engine);
    }
    assert_true(losses[1] == losses[0] && losses[2] == losses[0] && losses[0] > 0.0);
    ds_model_destroy(&model);
}

/* Operands that change behind the executor's back are not seen by what is captured; after a relink
 * they are. */
static void a_capture_has_the_operands_that_it_saw(void **state)
{
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engines[2] = {open_engine(model, "cpu"), open_engine(model, "sim:seed=8")};
    (void)state;
    for (int e = 0; e < 2; ++e) {
        (void)train(engines[e], 0, 1);
    }
    dsi_exec *exec = engines[1]->exec;
    for (uint32_t i = 0; i < exec->n_plans; ++i) {
        const dsi_plan *plan = exec->plans[i].plan;
        memset(exec->plans[i].tensors, 0, plan->n_slots * plan->n_refs * sizeof(ds_tensor));
    }
    assert_true(train(engines[0], 1, 1) == train(engines[1], 1, 1));
    const uint32_t n = n_captured(engines[1]);
    const ds_accel_graph *before = exec->plans[0].graphs[DS_PHASE_FORWARD];
    dsi_exec_relink(exec);
    assert_true(train(engines[0], 2, 2) == train(engines[1], 2, 2));
    assert_int_equal(n_captured(engines[1]), n);
    assert_non_null(before);
    assert_false(exec->graphs_stale);
    ds_engine_destroy(&engines[0]);
    ds_engine_destroy(&engines[1]);
    ds_model_destroy(&model);
}

static int open_all(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    t = dsi_accel_sim.streams;
    g = dsi_accel_sim.graphs;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captured_work_runs_when_it_is_launched),
        cmocka_unit_test(what_a_capture_cannot_hold_is_an_error),
        cmocka_unit_test(phases_of_the_device_are_captured),
        cmocka_unit_test(a_capture_has_the_operands_that_it_saw),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
