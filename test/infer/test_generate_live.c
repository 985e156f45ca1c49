/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * Generation from a live engine: the ids that a generator draws are those of the same weights saved
 * and loaded, before and after more training, on one rank and on ranks that each hold a part. */
#include "accel/cpu/cpu_features.h"
#include "comm/sim.h"
#include "common/parity.h"
#include "common/scratch.h"

#include "infer/generator.h"

#include <deepspeed/serve.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { N_IDS = 24, MAX_RANKS = 3, N_PROMPT = 70 };

typedef struct job {
    ds_ctx *ctx;
    dsi_comm *comm;
    uint32_t stage;
    ds_dtype dtype;
    const char *folder;
    bool share, schedule_free;
} job;

static void draw(ds_ctx *ctx, ds_generator *generator, uint32_t ids[N_IDS])
{
    static const uint32_t prompt[] = {3, 1, 4, 1, 5};
    const ds_sampling sampling = {.temperature = 1.0, .seed = 5};
    CHECK_OK(ctx, ds_generator_prompt(generator, prompt, 5));
    for (int i = 0; i < N_IDS; ++i) {
        CHECK_OK(ctx, ds_generator_next(generator, &sampling, &ids[i]));
    }
}

static void same_as_saved(const job *j, const parity_case *p, ds_engine *engine, ds_generator *live,
                          uint32_t ids[N_IDS])
{
    uint32_t want[N_IDS];
    ds_generator *saved = NULL;
    CHECK_OK(j->ctx, ds_engine_save_checkpoint(engine, j->folder, "now", NULL));
    const ds_generator_params params = {
        .model = p->model, .checkpoint = j->folder, .tag = "now", .dtype = j->dtype};
    CHECK_OK(j->ctx, ds_generator_create(j->ctx, &params, &saved));
    draw(j->ctx, saved, want);
    ds_generator_destroy(&saved);
    draw(j->ctx, live, ids);
    assert_memory_equal(ids, want, sizeof want);
}

static void step(const job *j, ds_engine *engine, const ds_batch *batch)
{
    CHECK_OK(j->ctx, ds_engine_forward(engine, batch));
    CHECK_OK(j->ctx, ds_engine_backward(engine));
    CHECK_OK(j->ctx, ds_engine_step(engine));
}

/* Whole parameters lie once in memory; those that are cut are copied. Old ones are not used. */
static void check_shared(const job *j, const ds_engine *engine, ds_generator *live)
{
    static const uint32_t prompt[] = {3};
    const ds_sampling greedy = {0};
    uint32_t id = 0;
    for (ds_cell c = 0; c < ds_cells_count(live->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(live->cells, c);
        const ds_cell from = ds_cells_find(engine->cells, DS_CELL_PARAM, cell->name);
        if (cell->kind == DS_CELL_PARAM) {
            const bool once =
                dsi_exec_host_view(live->exec, c) == dsi_exec_host_view(engine->exec, from);
            assert_int_equal(once, j->stage < 3 && engine->spec.train.dtype == j->dtype &&
                                       !j->schedule_free);
            assert_int_equal(once, live->shared[c]);
        }
    }
    CHECK_FAILS(j->ctx, ds_generator_prompt(live, prompt, 1), DS_ERR_STATE, "ds_generator_update");
    CHECK_FAILS(j->ctx, ds_generator_next(live, &greedy, &id), DS_ERR_STATE, "trained since");
}

static void *run_rank(void *arg)
{
    const job *j = arg;
    parity_case p;
    uint32_t before[N_IDS];
    uint32_t after[N_IDS];
    ds_engine *engine = NULL;
    ds_generator *live = NULL;
    parity_open(j->ctx, "llama3_tied", &p);
    dsi_engine_spec spec = parity_spec(&p, j->dtype, dsi_cpu_isa());
    spec.lr = 0.05;
    if (j->schedule_free) { /* parameters are where gradients are taken, masters the model */
        spec.train.optimizer = DS_OPTIMIZER_SCHEDULE_FREE;
        spec.train.schedule_free = (dsi_schedule_free_spec){.on = true, .rate_power = 2.0};
    }
    spec.zero = (dsi_zero_spec){.stage = j->stage,
                                .reduce_each = true,
                                .comm_dtype = spec.train.comm_dtype,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    const ds_engine_params params = {
        .model = p.model, .seq_length = p.n_seq, .weights = p.folder, .comm = j->comm};
    CHECK_OK(j->ctx, dsi_engine_create(j->ctx, &params, &spec, &engine));
    step(j, engine, &p.batch);
    const ds_generator_params generation = {.engine = engine, .share = j->share};
    CHECK_OK(j->ctx, ds_generator_create(j->ctx, &generation, &live));
    assert_int_equal(ds_generator_dtype(live), j->dtype);
    same_as_saved(j, &p, engine, live, before);
    step(j, engine, &p.batch);
    if (j->share) {
        check_shared(j, engine, live);
    } else {
        draw(j->ctx, live, after);
        assert_memory_equal(before, after, sizeof after); /* a copy: training does not change it */
    }
    CHECK_OK(j->ctx, ds_generator_update(live));
    const ds_sampling greedy = {0};
    CHECK_FAILS(j->ctx, ds_generator_next(live, &greedy, after), DS_ERR_STATE, "prompt");
    same_as_saved(j, &p, engine, live, after);
    assert_memory_not_equal(before, after, sizeof after);
    ds_generator_destroy(&live);
    ds_engine_destroy(&engine);
    parity_close(&p);
    return NULL;
}

static void run_all(uint32_t n_ranks, uint32_t stage, ds_dtype dtype, bool share,
                    bool schedule_free)
{
    char *folder = scratch_make();
    job jobs[MAX_RANKS];
    ds_ctx *ctxs[MAX_RANKS];
    dsi_comm *comms[MAX_RANKS] = {NULL};
    pthread_t threads[MAX_RANKS];
    for (uint32_t i = 0; i < n_ranks; ++i) {
        const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
        assert_int_equal(ds_ctx_create(&params, &ctxs[i]), DS_OK);
    }
    const dsi_comm_sim_options options = {.seed = 7};
    if (n_ranks > 1) {
        CHECK_OK(ctxs[0], dsi_comm_sim_create(ctxs, n_ranks, &options, comms));
    }
    for (uint32_t i = 0; i < n_ranks; ++i) {
        jobs[i] = (job){ctxs[i], comms[i], stage, dtype, folder, share, schedule_free};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &jobs[i]), 0);
    }
    for (uint32_t i = 0; i < n_ranks; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (uint32_t i = 0; i < n_ranks; ++i) {
        dsi_comm_destroy(&comms[i]);
    }
    for (uint32_t i = 0; i < n_ranks; ++i) {
        ds_ctx_destroy(&ctxs[i]);
    }
    scratch_remove(folder);
}

static void like_saved_and_loaded(void **state)
{
    (void)state;
    for (int share = 0; share < 2; ++share) {
        run_all(1, 0, DS_DTYPE_F32, share, false);
        run_all(1, 0, DS_DTYPE_BF16, share, false);
        run_all(2, 1, DS_DTYPE_BF16, share, false);
        run_all(3, 3, DS_DTYPE_F16, share, false);
        run_all(1, 0, DS_DTYPE_F32, share, true);
        run_all(2, 2, DS_DTYPE_BF16, share, true);
    }
}

/* The text behind a prompt longer than a block of keys; how much of it was computed before. */
static int64_t answer(ds_ctx *ctx, ds_server *server, uint32_t ids[4])
{
    uint32_t prompt[N_PROMPT];
    uint64_t uid = 0;
    int64_t n_cached = -1;
    for (uint32_t i = 0; i < N_PROMPT; ++i) {
        prompt[i] = 3 + i % 7;
    }
    const ds_serve_request request = {.ids = prompt, .n = N_PROMPT, .max_new_tokens = 4};
    CHECK_OK(ctx, ds_serve_submit(server, &request, &uid));
    for (int k = 0; k < 4;) {
        ds_serve_event events[16];
        size_t n = 0;
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t i = 0; i < n; ++i) {
            ids[k++] = events[i].id;
            n_cached = events[i].n_cached;
        }
    }
    return n_cached;
}

/* A server of an engine's own memory goes on with the new weights, and none of the old keys. */
static void served_between_steps(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    ds_server *live = NULL;
    uint32_t ids[3][4];
    parity_open(ctx, "llama3_tied", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.lr = 0.05;
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    const job j = {.ctx = ctx};
    const ds_serve_params params = {
        .source = {.engine = engine, .max_length = 2 * N_PROMPT, .share = true}};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &live));
    assert_int_equal(answer(ctx, live, ids[0]), 0);
    assert_int_equal(answer(ctx, live, ids[1]), 64);
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    const uint32_t one = 3;
    const ds_serve_request waits = {.ids = &one, .n = 1, .max_new_tokens = 4};
    uint64_t uid = 0;
    CHECK_OK(ctx, ds_serve_submit(live, &waits, &uid));
    step(&j, engine, &p.batch);
    ds_serve_event events[16];
    size_t n = 0;
    CHECK_FAILS(ctx, ds_serve_step(live, events, &n), DS_ERR_STATE, "ds_serve_update");
    CHECK_FAILS(ctx, ds_serve_update(live), DS_ERR_STATE, "1 sequences");
    CHECK_OK(ctx, ds_serve_cancel(live, uid));
    CHECK_OK(ctx, ds_serve_update(live));
    assert_int_equal(answer(ctx, live, ids[1]), 0);
    ds_serve_destroy(&live);
    const ds_serve_params copy = {.source = {.engine = engine, .max_length = 2 * N_PROMPT}};
    CHECK_OK(ctx, ds_serve_create(ctx, &copy, &live));
    (void)answer(ctx, live, ids[2]);
    assert_memory_equal(ids[1], ids[2], sizeof ids[1]);
    assert_memory_not_equal(ids[0], ids[1], sizeof ids[1]);
    ds_serve_destroy(&live);
    ds_engine_destroy(&engine);
    parity_close(&p);
}

static void bad_sources(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_case other;
    ds_generator *generator = NULL;
    parity_open(ctx, "llama3_tied", &p);
    parity_open(ctx, "gpt2", &other);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    const ds_generator_params wrong = {.engine = engine, .model = other.model};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &wrong, &generator), DS_ERR_ARG, "another one");
    const ds_generator_params two = {.engine = engine, .weights = p.folder};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &two, &generator), DS_ERR_ARG, "an engine alone");
    const ds_generator_params shared = {.model = p.model, .weights = p.folder, .share = true};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &shared, &generator), DS_ERR_ARG, "an engine's");
    const ds_generator_params none = {.model = p.model};
    CHECK_FAILS(ctx, ds_generator_create(ctx, &none, &generator), DS_ERR_ARG, "expected a model");
    const ds_generator_params file = {.model = p.model, .weights = p.folder};
    CHECK_OK(ctx, ds_generator_create(ctx, &file, &generator));
    CHECK_FAILS(ctx, ds_generator_update(generator), DS_ERR_STATE,
                "needs a generator of an engine");
    ds_generator_destroy(&generator);
    ds_engine_destroy(&engine);
    parity_close(&other);
    parity_close(&p);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_saved_and_loaded),
        cmocka_unit_test_prestate(served_between_steps, ctx),
        cmocka_unit_test_prestate(bad_sources, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
