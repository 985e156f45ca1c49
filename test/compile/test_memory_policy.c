/* SPDX-License-Identifier: Apache-2.0 */
/* What memory is spent on: the list of choices, the first that fits, and that none changes a bit.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/rank_threads.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/rank_plan.h"
#include "train/engine.h"

#include <stdio.h>
#include <string.h>

enum { STEPS = 2, RANKS = 2 };

static ds_ctx *ctx;
static char *folder;

/* ---- the list -------------------------------------------------------------------------------- */

static uint32_t count_choices(ds_recompute asked, size_t limit, size_t room, bool offload,
                              dsi_memory_choice *choices)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    spec.recompute.mode = asked;
    spec.device_memory = limit;
    spec.room = room;
    spec.offload.states = offload ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_DEVICE;
    return dsi_memory_choices(&spec, choices);
}

static void what_is_left_open(void **state)
{
    dsi_memory_choice c[DSI_MEMORY_CHOICES];
    (void)state;
    /* nothing to compare with: one choice */
    assert_int_equal(count_choices(DS_RECOMPUTE_NONE, 0, 0, true, c), 1);
    assert_int_equal(c[0].logits, DSI_LOGITS_FEW);
    assert_int_equal(count_choices(DS_RECOMPUTE_FULL, 0, 1, true, c), 1);
    assert_int_equal(c[0].logits, DSI_LOGITS_NONE);
    /* room: more is kept */
    assert_int_equal(count_choices(DS_RECOMPUTE_NONE, 0, 1, true, c), 2);
    assert_int_equal(c[0].logits, DSI_LOGITS_ALL);
    /* a limit: what was asked for stays, transfers may become fewer */
    assert_int_equal(count_choices(DS_RECOMPUTE_NONE, 1, 0, false, c), 3);
    assert_int_equal(count_choices(DS_RECOMPUTE_NONE, 1, 0, true, c), 6);
    assert_int_equal(c[5].recompute, DS_RECOMPUTE_NONE);
    assert_int_equal(count_choices(DS_RECOMPUTE_SELECTIVE, 1, 0, true, c), 4);
    const uint32_t n = count_choices(DS_RECOMPUTE_AUTO, 1, 0, true, c);
    assert_int_equal(n, 8);
    for (uint32_t i = 0; i < n; ++i) { /* each gives up more than the one before */
        assert_true(c[i].recompute <= DS_RECOMPUTE_FULL);
        assert_true(i == 0 ||
                    (c[i].recompute >= c[i - 1].recompute && c[i].logits <= c[i - 1].logits &&
                     c[i].transfers >= c[i - 1].transfers && c[i].hold <= c[i - 1].hold));
    }
    assert_int_equal(c[n - 1].transfers, DSI_TRANSFERS_LEAST);
    assert_false(c[n - 1].hold);
}

static void what_a_choice_limits(void **state)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    (void)state;
    spec.offload.read_ahead = 1600;
    spec.prefetch = 320;
    spec.zero.reduce_bucket = 8;
    spec.zero.gather_bucket = 0; /* each tensor alone already */
    spec.zero.max_reuse_distance = 9;
    dsi_memory_choice c = {.transfers = DSI_TRANSFERS_FEW, .hold = true};
    dsi_engine_spec got = dsi_memory_obey(&spec, &c);
    assert_int_equal(got.offload.read_ahead, 100);
    assert_int_equal(got.prefetch, 20);
    assert_int_equal(got.zero.reduce_bucket, 1);
    assert_int_equal(got.zero.gather_bucket, 0);
    assert_int_equal(got.zero.max_reuse_distance, 9);
    c = (dsi_memory_choice){.transfers = DSI_TRANSFERS_LEAST};
    got = dsi_memory_obey(&spec, &c);
    assert_int_equal(got.offload.read_ahead, 0);
    assert_int_equal(got.prefetch, 0);
    assert_int_equal(got.zero.max_reuse_distance, 0);
}

/* ---- over ranks ------------------------------------------------------------------------------ */

typedef struct job {
    const char *config;
    char path[256]; /* of config.json */
    dsi_engine_spec spec;
    uint64_t memory[RANKS]; /* that a rank says it has */
    /* of rank 0 */
    dsi_memory_choice choice;
    uint32_t n_kept;
    size_t need, room;
    uint64_t hash;
} job;

/* The plan of the engine's own request once more: its choice. */
static void note_choice(job *j, const ds_engine *engine, const ds_model *model)
{
    dsi_rank_plan plan;
    dsi_engine_spec spec = j->spec;
    spec.zero = engine->spec.zero;
    spec.room = j->room = engine->spec.room;
    const dsi_rank_request request = {.model = model, .spec = &spec, .n_threads = 1};
    CHECK_OK(engine->ctx, dsi_rank_plan_build(engine->ctx, &request, &plan));
    j->choice = plan.choice;
    j->n_kept = plan.n_kept;
    j->need = dsi_rank_mapped_bytes(&plan);
    dsi_rank_plan_free(&plan);
}

static ds_status train(dsi_comm *comm, void *arg)
{
    job *j = arg;
    ds_engine *engine = NULL;
    ds_model *model = NULL;
    small_batch data;
    uint64_t hash = 0;
    DS_TRY(ds_model_from_config(comm->ctx, j->path, &model));
    const ds_engine_params params = {.model = model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .comm = comm,
                                     .memory_bytes = j->memory[comm->rank]};
    ds_status status = dsi_engine_create(comm->ctx, &params, &j->spec, &engine);
    for (int32_t step = 0; step < STEPS && status >= 0; ++step) {
        const ds_batch batch = small_feed(step * RANKS + (int32_t)comm->rank, &data);
        status = ds_engine_forward(engine, &batch);
        status = status < 0 ? status : ds_engine_backward(engine);
        status = status < 0 ? status : ds_engine_step(engine);
    }
    status = status < 0 ? status : engine_hash(comm->ctx, engine, &hash);
    if (status >= 0 && comm->rank == 0) {
        j->hash = hash;
        note_choice(j, engine, model);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return status;
}

static void run(job *j)
{
    rank_results results;
    (void)snprintf(j->path, sizeof j->path, "%s/config.json", folder);
    scratch_write(j->path, j->config, strlen(j->config));
    if (rank_threads_run(RANKS, NULL, train, j, &results) < 0) {
        fail_msg("%s / %s", results.message[0], results.message[1]);
    }
}

/* A device that is a byte too small for each choice makes the next one, down to the last. */
static void no_choice_changes_a_bit(void **state)
{
    static const char *const configs[] = {small_gpt2, small_llama};
    (void)state;
    for (uint32_t i = 0; i < 4; ++i) {
        job j = {.config = configs[i % 2],
                 .spec = small_spec(i < 2 ? DS_DTYPE_BF16 : DS_DTYPE_F32)};
        uint32_t n = 0;
        bool fewer = false;
        j.spec.zero = (dsi_zero_spec){.stage = 3,
                                      .comm_dtype = j.spec.train.dtype,
                                      .reduce_bucket = 1 << 14,
                                      .gather_bucket = 1 << 14,
                                      .max_live = 1 << 20,
                                      .max_reuse_distance = 1 << 20};
        j.spec.overlap = true;
        j.spec.prefetch = 1 << 14;
        j.spec.recompute.mode = DS_RECOMPUTE_AUTO;
        j.spec.offload = i % 2 == 0 ? small_away(folder, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK)
                                    : (dsi_offload_spec){0};
        j.spec.device_memory = SIZE_MAX;
        run(&j);
        assert_true(j.n_kept > 0);
        const uint64_t hash = j.hash;
        for (size_t need = j.need; j.choice.hold; ++n) {
            j.spec.device_memory = need - 1;
            run(&j);
            fewer = fewer || j.choice.transfers == DSI_TRANSFERS_FEW;
            if (j.hash != hash) {
                fail_msg("choice %u of run %u gives other bits", n, i);
            }
            assert_true(j.need < need);
            need = j.need;
        }
        print_message("run %u: %u more choices\n", i, n);
        assert_true(fewer && n >= 3);
    }
}

/* The rank that has least counts; with half of its memory a plan may keep logits. */
static void room_is_agreed(void **state)
{
    job j = {.config = small_llama, .spec = small_spec(DS_DTYPE_F32)};
    (void)state;
    j.spec.zero.comm_dtype = DS_DTYPE_F32;
    j.memory[0] = j.memory[1] = 1 << 30;
    run(&j);
    assert_int_equal(j.n_kept, 1);
    const size_t need = j.need;
    const uint64_t hash = j.hash;
    j.memory[0] = 1 << 30;
    j.memory[1] = 2 * need;
    run(&j);
    assert_int_equal(j.room, need);
    assert_int_equal(j.n_kept, 1);
    j.memory[1] = 2 * need - 2;
    run(&j);
    assert_int_equal(j.n_kept, 0); /* of 96 tokens, more than the model is wide */
    assert_true(j.hash == hash && j.need < need);
    j.memory[0] = j.memory[1] = 0; /* nobody says: this machine's, by two */
    run(&j);
    assert_true(j.room >= 1 << 20);
    assert_int_equal(j.n_kept, 1);
}

static int set_up(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
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
        cmocka_unit_test(what_is_left_open),
        cmocka_unit_test(what_a_choice_limits),
        cmocka_unit_test(no_choice_changes_a_bit),
        cmocka_unit_test(room_is_agreed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
