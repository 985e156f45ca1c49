/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads long slow
 * Generation whose layers several ranks share: the logits of one rank, within rounding; layers on
 * several stages: the same bits as on one; the same
 * bits in whatever order messages come; a part of the weights on each; ranks that are used wrongly.
 */
#include "comm/comm.h"
#include "common/parity.h"
#include "common/rank_threads.h"
#include "common/scratch.h"
#include "io/file.h"

#include <deepspeed/infer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_IDS = 24, STEPS = 6 };

typedef struct job {
    const char *name;
    const char *checkpoint; /* NULL: the weights of the folder */
    uint32_t ids[MOST_IDS];
    size_t n_ids;
    float *logits;      /* [STEPS + 1][vocab] of rank 0; given NULL: not wanted */
    double step_bytes;  /* of rank 0 */
    uint32_t other;     /* rank whose model is another one; UINT32_MAX: none */
    bool follower_asks; /* rank 1 asks for a token */
    const char *copy;   /* NULL, or the model folder of rank 1 */
    uint32_t stages;    /* 0: 1 */
} job;

/* A case of parity/, whose vocabularies no number of ranks divides, or another model of golden/. */
static void open_model(ds_ctx *ctx, const char *name, parity_case *p)
{
    char path[PARITY_PATH + 32];
    if (strchr(name, '/') == NULL) {
        parity_open(ctx, name, p);
        return;
    }
    memset(p, 0, sizeof *p);
    golden_path(p->folder, sizeof p->folder, "%s", name);
    (void)snprintf(path, sizeof path, "%s/config.json", p->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &p->model));
    p->vocab = ds_model_get_info(p->model)->vocab_size;
}

static uint64_t draw(uint64_t *seed, uint64_t below)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % below;
}

static ds_status generate(ds_generator *g, job *j)
{
    const ds_sampling greedy = {0};
    int64_t vocab = 0;
    j->step_bytes = ds_generator_step_bytes(g);
    DS_TRY(ds_generator_prompt(g, j->ids, j->n_ids));
    for (uint32_t i = 0; i <= STEPS; ++i) {
        const float *logits = ds_generator_logits(g, &vocab);
        if (j->logits != NULL) {
            memcpy(j->logits + (size_t)(i * vocab), logits, (size_t)vocab * sizeof *logits);
        }
        uint32_t id = 0;
        if (i < STEPS) {
            DS_TRY(ds_generator_next(g, &greedy, &id));
        }
    }
    return DS_OK;
}

/* comm NULL: one rank. */
static ds_status run_rank(dsi_comm *comm, ds_ctx *ctx, job *j)
{
    parity_case p;
    ds_generator *g = NULL;
    const bool is_second = comm != NULL && comm->rank == 1;
    const bool odd = comm != NULL && comm->rank == j->other;
    open_model(ctx, odd ? "gpt2" : j->name, &p);
    ds_generator_params params = {.model = p.model,
                                  .weights = j->checkpoint != NULL          ? NULL
                                             : is_second && j->copy != NULL ? j->copy
                                                                            : p.folder,
                                  .checkpoint = j->checkpoint,
                                  .dtype = DS_DTYPE_F32,
                                  .max_length = 32,
                                  .comm = comm,
                                  .stages = comm != NULL ? j->stages : 0};
    if (comm != NULL && comm->rank > 0) { /* rank 0's are taken */
        params.max_length = 20;
        params.dtype = DS_DTYPE_BF16;
    }
    ds_status status = ds_generator_create(ctx, &params, &g);
    if (status >= 0 && comm != NULL && comm->rank > 0) {
        status = j->follower_asks ? ds_generator_prompt(g, j->ids, 1) : ds_generator_follow(g);
    } else if (status >= 0) {
        status = generate(g, j);
    }
    if (status < 0 && comm != NULL) {
        dsi_comm_abort(comm, ds_ctx_error(ctx));
    }
    ds_generator_destroy(&g);
    parity_close(&p);
    return status;
}

static ds_status run_thread(dsi_comm *comm, void *arg)
{
    job *all = arg;
    return run_rank(comm, comm->ctx, &all[comm->rank]);
}

static void run_ranks(uint32_t n, uint64_t seed, const job *one, float *logits,
                      rank_results *results, job *jobs)
{
    const dsi_comm_sim_options options = {.seed = seed};
    for (uint32_t r = 0; r < n; ++r) {
        jobs[r] = *one;
        jobs[r].logits = r == 0 ? logits : NULL;
    }
    (void)rank_threads_run(n, &options, run_thread, jobs, results);
}

static void no_failure(const rank_results *results, uint32_t n)
{
    for (uint32_t r = 0; r < n; ++r) {
        if (results->status[r] < 0) {
            fail_msg("rank %u: %s", r, results->message[r]);
        }
    }
}

static double difference(const float *a, const float *b, size_t n)
{
    double most = 0.0;
    for (size_t i = 0; i < n; ++i) {
        most = fmax(most, fabs((double)a[i] - b[i]));
    }
    return most;
}

static void like_one(ds_ctx *ctx, const char *name, const char *checkpoint, uint64_t *seed)
{
    enum { MOST = 4 };
    parity_case p;
    open_model(ctx, name, &p);
    const size_t n = (size_t)(p.vocab * (STEPS + 1));
    float *want = calloc(3 * n, sizeof *want);
    assert_non_null(want);
    for (uint32_t ranks = 2; ranks <= MOST; ++ranks) {
        job jobs[MOST];
        rank_results results;
        job one = {.name = name, .checkpoint = checkpoint, .logits = want, .other = UINT32_MAX};
        one.n_ids = 1 + (size_t)draw(seed, MOST_IDS);
        for (size_t i = 0; i < one.n_ids; ++i) {
            one.ids[i] = (uint32_t)draw(seed, (uint64_t)p.vocab);
        }
        CHECK_OK(ctx, run_rank(NULL, ctx, &one));
        run_ranks(ranks, 1, &one, want + n, &results, jobs);
        no_failure(&results, ranks);
        run_ranks(ranks, 2, &one, want + 2 * n, &results, jobs);
        no_failure(&results, ranks);
        assert_memory_equal(want + n, want + 2 * n, n * sizeof *want);
        const double most = difference(want, want + n, n);
        if (most > 2e-5) {
            fail_msg("%s on %u ranks: logits differ by %g", name, ranks, most);
        }
        print_message("%s, %u ranks: logits within %.1e, %.2f of the bytes on a rank\n", name,
                      ranks, most, jobs[0].step_bytes / one.step_bytes);
        if (ranks == 2) { /* of an even vocabulary the head too */
            const double least = strchr(name, '/') == NULL ? 0.9 : 0.65;
            assert_true(jobs[0].step_bytes < least * one.step_bytes);
        }
    }
    free(want);
    parity_close(&p);
}

static void folders(void **state)
{
    uint64_t seed = 11;
    for (uint32_t i = 0; i < PARITY_N; ++i) {
        like_one(*state, parity_variants[i], NULL, &seed);
    }
    like_one(*state, "adapter/models/llama", NULL, &seed);
    like_one(*state, "adapter/models/gpt2", NULL, &seed); /* tied */
}

/* Stages alone: the bits of one rank; with shared layers: of as many ranks that share them. */
static void stages_of(ds_ctx *ctx, const char *name, const char *checkpoint, uint64_t *seed)
{
    static const uint32_t cases[][2] = {{2, 2}, {4, 2}}; /* ranks, stages */
    parity_case p;
    open_model(ctx, name, &p);
    const size_t n = (size_t)(p.vocab * (STEPS + 1));
    float *want = calloc(2 * n, sizeof *want);
    assert_non_null(want);
    for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t sharing = cases[i][0] / cases[i][1];
        job jobs[4];
        rank_results results;
        job one = {.name = name, .checkpoint = checkpoint, .logits = want, .other = UINT32_MAX};
        one.n_ids = 1 + (size_t)draw(seed, MOST_IDS);
        for (size_t k = 0; k < one.n_ids; ++k) {
            one.ids[k] = (uint32_t)draw(seed, (uint64_t)p.vocab);
        }
        if (sharing == 1) {
            CHECK_OK(ctx, run_rank(NULL, ctx, &one));
        } else {
            run_ranks(sharing, 1, &one, want, &results, jobs);
            no_failure(&results, sharing);
            one.step_bytes = jobs[0].step_bytes;
        }
        one.stages = cases[i][1];
        run_ranks(cases[i][0], 1, &one, want + n, &results, jobs);
        no_failure(&results, cases[i][0]);
        if (memcmp(want, want + n, n * sizeof *want) != 0) {
            fail_msg("%s on %u ranks in %u stages has other logits", name, cases[i][0],
                     cases[i][1]);
        }
        assert_true(jobs[0].step_bytes < 0.9 * one.step_bytes); /* a stage has its own alone */
    }
    free(want);
    parity_close(&p);
}

static void stages(void **state)
{
    uint64_t seed = 13;
    for (uint32_t i = 0; i < PARITY_N; ++i) {
        stages_of(*state, parity_variants[i], NULL, &seed);
    }
    stages_of(*state, "adapter/models/llama", NULL, &seed);
    stages_of(*state, "adapter/models/gpt2", NULL, &seed); /* tied */
}

static void checkpoint(void **state)
{
    ds_ctx *ctx = *state;
    uint64_t seed = 12;
    char *folder = scratch_make();
    parity_case p;
    parity_open(ctx, "packed_gpt2", &p);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DS_ISA_REF);
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, folder, "now", NULL));
    ds_engine_destroy(&engine);
    parity_close(&p);
    like_one(ctx, "packed_gpt2", folder, &seed);
    stages_of(ctx, "packed_gpt2", folder, &seed);
    scratch_remove(folder);
}

static char *copy_of(const char *name)
{
    static const char *const files[] = {"config.json", "golden.json", "golden.safetensors",
                                        "grads.safetensors", "model.safetensors"};
    char *folder = scratch_make();
    for (size_t i = 0; i < sizeof files / sizeof *files; ++i) {
        char from[512], to[512];
        (void)snprintf(from, sizeof from, DS_SOURCE_DIR "/test/golden/parity/%s/%s", name,
                       files[i]);
        (void)snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_int_equal(dsi_file_copy(NULL, from, to), DS_OK);
    }
    return folder;
}

/* The last byte, which belongs to the last weight. */
static void change_weight(const char *folder)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "r+be");
    assert_non_null(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    const int last = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_END), 0);
    assert_int_equal(fputc(last ^ 1, file), last ^ 1);
    assert_int_equal(fclose(file), 0);
}

static void used_wrongly(void **state)
{
    ds_ctx *ctx = *state;
    job jobs[2];
    rank_results results;
    job one = {.name = "llama3", .n_ids = 3, .other = UINT32_MAX, .follower_asks = true};
    run_ranks(2, 1, &one, NULL, &results, jobs);
    assert_int_equal(results.status[1], DS_ERR_STATE);
    assert_non_null(strstr(results.message[1], "call ds_generator_follow here"));
    assert_int_equal(results.status[0], DS_ERR_PEER);

    one = (job){.name = "llama3", .n_ids = 3, .other = 1};
    run_ranks(2, 1, &one, NULL, &results, jobs);
    assert_int_equal(results.status[1], DS_ERR_PEER);
    assert_non_null(strstr(results.message[1], "has another model folder than rank 0"));

    one = (job){.name = "llama3", .n_ids = 3, .other = UINT32_MAX, .stages = 2};
    run_ranks(3, 1, &one, NULL, &results, (job[3]){{0}});
    assert_int_equal(results.status[0], DS_ERR_ARG);
    assert_non_null(strstr(results.message[0], "stages 2 is no divisor of the 3 ranks"));

    char *copy = copy_of("llama3");
    one = (job){.name = "llama3", .n_ids = 3, .other = UINT32_MAX, .copy = copy};
    run_ranks(2, 1, &one, NULL, &results, jobs);
    no_failure(&results, 2);
    change_weight(copy);
    run_ranks(2, 1, &one, NULL, &results, jobs);
    assert_int_equal(results.status[0], DS_ERR_PEER);
    assert_int_equal(results.status[1], DS_ERR_PEER);
    assert_non_null(strstr(results.message[1], "model.safetensors"));
    scratch_remove(copy);

    parity_case p;
    ds_generator *g = NULL;
    parity_open(ctx, "llama3", &p);
    const ds_generator_params params = {.model = p.model, .weights = p.folder};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &g));
    CHECK_FAILS(ctx, ds_generator_follow(g), DS_ERR_STATE, "above 0");
    ds_generator_destroy(&g);
    ds_generator_params alone = params;
    alone.stages = 2;
    CHECK_FAILS(ctx, ds_generator_create(ctx, &alone, &g), DS_ERR_ARG, "2 stages of one rank");
    parity_close(&p);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(folders, ctx),
        cmocka_unit_test_prestate(stages, ctx),
        cmocka_unit_test_prestate(checkpoint, ctx),
        cmocka_unit_test_prestate(used_wrongly, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
