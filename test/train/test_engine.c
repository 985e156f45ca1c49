/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * The engine: order of calls, resume bit for bit, evaluation in between, frozen parameters,
 * gradients from outputs, loss scaling, memory plans. Models: the parity goldens. */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_step(ds_ctx *ctx, ds_engine *engine, const parity_case *p)
{
    for (int64_t i = 0; i < ds_engine_accumulation(engine); ++i) {
        CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
}

/* Every parameter, master and moment of two engines has the same bits. */
static void check_same_state(const ds_engine *a, const ds_engine *b)
{
    const ds_cells *cells = ds_engine_cells(a);
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *info = ds_cells_get(cells, c);
        const ds_cell other = ds_cells_find(ds_engine_cells(b), info->kind, info->name);
        if (info->kind > DS_CELL_MOMENTUM || info->kind == DS_CELL_GRAD) {
            continue;
        }
        assert_int_not_equal(other, DS_NONE);
        if (memcmp(dsi_exec_host_view(a->exec, c), dsi_exec_host_view(b->exec, other),
                   ds_meta_bytes(info->meta)) != 0) {
            fail_msg("%s %s differs", ds_cell_kind_name(info->kind), info->name);
        }
    }
}

static void calls_out_of_order(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    CHECK_FAILS(ctx, ds_engine_backward(engine), DS_ERR_STATE, "idle");
    CHECK_FAILS(ctx, ds_engine_step(engine), DS_ERR_STATE, "idle");
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
    CHECK_FAILS(ctx, ds_engine_forward(engine, &p.batch), DS_ERR_STATE, "backward expected");
    CHECK_FAILS(ctx, ds_engine_step(engine), DS_ERR_STATE, "backward expected");
    CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, "/nowhere", NULL, NULL), DS_ERR_STATE,
                "between optimizer steps");
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_FAILS(ctx, ds_engine_backward(engine), DS_ERR_STATE, "step expected");
    CHECK_OK(ctx, ds_engine_step(engine));
    assert_int_equal(ds_engine_global_steps(engine), 1);
    assert_true(ds_engine_was_step_applied(engine));
    ds_engine_destroy(&engine);
    parity_close(&p);
}

static void bad_batches(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    const ds_batch three = {p.tensors, 3};
    CHECK_FAILS(ctx, ds_engine_forward(engine, &three), DS_ERR_ARG, "first");
    ds_named_tensor wrong[4];
    memcpy(wrong, p.tensors, sizeof wrong);
    wrong[1].tensor.meta.shape.dims[0] = 1;
    const ds_batch misshapen = {wrong, 4};
    CHECK_FAILS(ctx, ds_engine_forward(engine, &misshapen), DS_ERR_SHAPE, "targets");
    int32_t ids[64];
    memcpy(ids, p.tensors[0].tensor.data, (size_t)(p.n_batch * p.n_seq) * sizeof *ids);
    ids[5] = 100000;
    memcpy(wrong, p.tensors, sizeof wrong);
    wrong[0].tensor.data = ids;
    CHECK_FAILS(ctx, ds_engine_forward(engine, &(ds_batch){wrong, 4}), DS_ERR_ARG, "100000");
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch)); /* the engine is still usable */
    ds_engine_destroy(&engine);
    parity_close(&p);
}

/* Evaluating between forward and backward changes nothing. */
static void evaluation_in_between(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "llama3", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
    ds_engine *a = parity_engine(ctx, &p, &spec);
    ds_engine *b = parity_engine(ctx, &p, &spec);
    run_step(ctx, a, &p);
    double loss = 0.0;
    double count = 0.0;
    CHECK_OK(ctx, ds_engine_forward(b, &p.batch));
    const double trained = ds_engine_loss(b);
    CHECK_OK(ctx, ds_engine_eval_batch(b, &p.batch, &loss, &count));
    assert_true(loss == trained);
    assert_true(count > 0.0);
    CHECK_OK(ctx, ds_engine_backward(b));
    CHECK_OK(ctx, ds_engine_eval_batch(b, &p.batch, &loss, &count));
    CHECK_OK(ctx, ds_engine_step(b));
    check_same_state(a, b);
    ds_engine_destroy(&a);
    ds_engine_destroy(&b);
    parity_close(&p);
}

typedef struct resume_case {
    const char *model;
    ds_dtype dtype;
    int64_t accumulation;
    ds_optimizer_kind optimizer;
} resume_case;

static void check_resume(ds_ctx *ctx, const resume_case *c)
{
    char folder[] = "/tmp/ds_resume_XXXXXX";
    parity_case p;
    char *cursor = NULL;
    assert_non_null(mkdtemp(folder));
    parity_open(ctx, c->model, &p);
    dsi_engine_spec spec = parity_spec(&p, c->dtype, dsi_cpu_isa());
    spec.train.accumulation = c->accumulation;
    spec.train.optimizer = c->optimizer;
    spec.train.momentum = true;
    spec.train.max_norm = 1.0;
    if (c->dtype == DS_DTYPE_F16) {
        spec.loss_scale = dsi_loss_scale_dynamic(65536.0 * 16.0, 3, 1.0, 2, false);
    }
    ds_engine *whole = parity_engine(ctx, &p, &spec);
    ds_engine *first = parity_engine(ctx, &p, &spec);
    for (int i = 0; i < 8; ++i) {
        run_step(ctx, whole, &p);
    }
    for (int i = 0; i < 5; ++i) {
        run_step(ctx, first, &p);
    }
    CHECK_OK(ctx, ds_engine_save_checkpoint(first, folder, NULL, "{\"cursor\":7}"));
    ds_engine_destroy(&first);
    ds_engine *second = parity_engine(ctx, &p, &spec);
    CHECK_OK(ctx, ds_engine_load_checkpoint(second, folder, NULL, &cursor));
    assert_non_null(strstr(cursor, "7"));
    free(cursor);
    assert_int_equal(ds_engine_global_steps(second), 5);
    for (int i = 0; i < 3; ++i) {
        run_step(ctx, second, &p);
    }
    check_same_state(whole, second);
    assert_true(ds_engine_loss(whole) == ds_engine_loss(second));
    assert_true(ds_engine_loss_scale(whole) == ds_engine_loss_scale(second));
    assert_int_equal(ds_engine_skipped_steps(whole), ds_engine_skipped_steps(second));
    ds_engine_destroy(&whole);
    ds_engine_destroy(&second);
    parity_close(&p);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static void resume_bit_for_bit(void **state)
{
    static const resume_case cases[] = {
        {"gpt2", DS_DTYPE_BF16, 1, DS_OPTIMIZER_ADAM},
        {"llama3_tied", DS_DTYPE_F32, 2, DS_OPTIMIZER_LION},
        {"qwen3", DS_DTYPE_F16, 2, DS_OPTIMIZER_ADAM},
        {"mistral", DS_DTYPE_BF16, 3, DS_OPTIMIZER_SGD},
        {"qwen2", DS_DTYPE_BF16, 1, DS_OPTIMIZER_LAMB},
        {"llama2", DS_DTYPE_F32, 1, DS_OPTIMIZER_ADAGRAD},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        check_resume(*state, &cases[i]);
    }
}

/* Frozen parameters have no gradient, no master and no moment, and do not move. */
static void frozen_parameters(void **state)
{
    ds_ctx *ctx = *state;
    static const char *const patterns[] = {"transformer.w?e.weight", "*.mlp.*"};
    static const char *const none[] = {"no.such.*"};
    parity_case p;
    ds_engine *engine = NULL;
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
    ds_engine_params params = {.model = p.model,
                               .seq_length = p.n_seq,
                               .weights = p.folder,
                               .frozen = patterns,
                               .n_frozen = 2};
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    assert_true(ds_engine_n_trainable(engine) < ds_engine_n_parameters(engine));
    const ds_cells *cells = ds_engine_cells(engine);
    const char *frozen = "transformer.h.1.mlp.c_fc.weight";
    for (int kind = DS_CELL_MASTER; kind <= DS_CELL_MOMENTUM; ++kind) {
        assert_int_equal(ds_cells_find(cells, (ds_cell_kind)kind, frozen), DS_NONE);
    }
    const ds_meta meta = ds_cells_get(cells, ds_cells_find(cells, DS_CELL_PARAM, frozen))->meta;
    const size_t n = (size_t)ds_shape_count(meta.shape);
    float *before = malloc(2 * n * sizeof *before);
    assert_non_null(before);
    CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_PARAM, frozen, before, n));
    run_step(ctx, engine, &p);
    CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_PARAM, frozen, before + n, n));
    assert_memory_equal(before, before + n, n * sizeof *before);
    free(before);
    ds_engine_destroy(&engine);
    params.frozen = none;
    params.n_frozen = 1;
    CHECK_FAILS(ctx, dsi_engine_create(ctx, &params, &spec, &engine), DS_ERR_NOT_FOUND,
                "no.such.*");
    parity_close(&p);
}

/* A gradient of 1/k given to the output "loss" k times equals the plain backward pass. */
static void gradients_from_outputs(void **state)
{
    ds_ctx *ctx = *state;
    static const char *const outputs[] = {"loss"};
    parity_case p;
    ds_engine *given = NULL;
    parity_open(ctx, "llama2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    ds_engine *plain = parity_engine(ctx, &p, &spec);
    spec.train.gradient_outputs = outputs;
    spec.train.n_gradient_outputs = 1;
    const ds_engine_params params = {.model = p.model, .seq_length = p.n_seq, .weights = p.folder};
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &given));
    float two = 2.0f;
    const ds_named_tensor gradient = {"loss", {&two, {DS_DTYPE_F32, {0}}}};
    CHECK_OK(ctx, ds_engine_forward(plain, &p.batch));
    CHECK_OK(ctx, ds_engine_backward(plain));
    CHECK_OK(ctx, ds_engine_forward(given, &p.batch));
    CHECK_OK(ctx, ds_engine_backward_outputs(given, &gradient, 1)); /* 1 from the loss, 2 from it */
    const char *name = "model.layers.0.self_attn.q_proj.weight";
    const ds_meta meta =
        ds_cells_get(given->cells, ds_cells_find(given->cells, DS_CELL_PARAM, name))->meta;
    const size_t n = (size_t)ds_shape_count(meta.shape);
    float *a = malloc(2 * n * sizeof *a);
    assert_non_null(a);
    CHECK_OK(ctx, ds_engine_get(plain, DS_CELL_GRAD, name, a, n));
    CHECK_OK(ctx, ds_engine_get(given, DS_CELL_GRAD, name, a + n, n));
    for (size_t i = 0; i < n; ++i) {
        a[i] *= 3.0f;
    }
    assert_true(check_relative_difference(a + n, a, n) < 1e-6);
    free(a);
    ds_engine_destroy(&plain);
    ds_engine_destroy(&given);
    parity_close(&p);
}

/* Static memory against one buffer a value: same bits after three steps. */
static void memory_plan_keeps_bits(void **state)
{
    ds_ctx *ctx = *state;
    static const char *const models[] = {"gpt2", "qwen3", "packed_llama"};
    for (int i = 0; i < 3; ++i) {
        parity_case p;
        parity_open(ctx, models[i], &p);
        dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
        ds_engine *a = parity_engine(ctx, &p, &spec);
        spec.no_reuse = true;
        ds_engine *b = parity_engine(ctx, &p, &spec);
        assert_true(a->train_plan->arena_bytes < b->train_plan->arena_bytes / 2);
        for (int s = 0; s < 3; ++s) {
            run_step(ctx, a, &p);
            run_step(ctx, b, &p);
        }
        check_same_state(a, b);
        ds_engine_destroy(&a);
        ds_engine_destroy(&b);
        parity_close(&p);
    }
}

/* A save killed at any moment leaves the checkpoint before it, or the new one, whole. */
static void killed_saves(void **state)
{
    ds_ctx *ctx = *state;
    char folder[] = "/tmp/ds_killed_XXXXXX";
    parity_case p;
    assert_non_null(mkdtemp(folder));
    parity_open(ctx, "gpt2", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_BF16, dsi_cpu_isa());
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    run_step(ctx, engine, &p);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, NULL, NULL));
    for (int i = 0; i < 12; ++i) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) { /* saving uses no pool threads, which a fork does not have */
            for (uint64_t step = 2;; ++step) {
                engine->global_steps = step;
                if (ds_engine_save_checkpoint(engine, folder, NULL, NULL) < 0) {
                    _exit(1);
                }
            }
        }
        (void)usleep((useconds_t)(1000 + 3700 * i));
        (void)kill(child, 9);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        ds_engine *reader = parity_engine(ctx, &p, &spec);
        CHECK_OK(ctx, ds_engine_load_checkpoint(reader, folder, NULL, NULL));
        ds_engine_destroy(&reader);
    }
    ds_engine_destroy(&engine);
    parity_close(&p);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

static int make_ctx(void **state)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    params.level = DS_LOG_ERROR;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    *state = ctx;
    return 0;
}

static int drop_ctx(void **state)
{
    ds_ctx *ctx = *state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_out_of_order),     cmocka_unit_test(bad_batches),
        cmocka_unit_test(evaluation_in_between),  cmocka_unit_test(resume_bit_for_bit),
        cmocka_unit_test(frozen_parameters),      cmocka_unit_test(gradients_from_outputs),
        cmocka_unit_test(memory_plan_keeps_bits), cmocka_unit_test(killed_saves),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
