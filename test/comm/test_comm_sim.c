/* SPDX-License-Identifier: Apache-2.0 */
/* The self and the simulated communicators: conformance, faults, random schedules.
 * labels: threads long slow */
#include "comm/sim.h"
#include "common/check.h"
#include "common/comm_conform.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 8 };

typedef struct rank_job {
    dsi_comm *comm;
    void (*body)(struct rank_job *job);
    uint64_t seed;
    bool planted;
    uint32_t n_failed;
    ds_status status;
} rank_job;

static void *rank_main(void *opaque)
{
    rank_job *job = opaque;
    job->body(job);
    return NULL;
}

/* Runs body on each of `size` simulated ranks; the jobs hold the results, the messages are in
 * texts. */
static void run_ranks(uint32_t size, const dsi_comm_sim_options *options, rank_job model,
                      rank_job *jobs, char (*texts)[512])
{
    ds_ctx *ctxs[MAX_RANKS];
    dsi_comm *comms[MAX_RANKS];
    pthread_t threads[MAX_RANKS];
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    for (uint32_t r = 0; r < size; ++r) {
        assert_int_equal(ds_ctx_create(&params, &ctxs[r]), DS_OK);
    }
    assert_int_equal(dsi_comm_sim_create(ctxs, size, options, comms), DS_OK);
    for (uint32_t r = 0; r < size; ++r) {
        jobs[r] = model;
        jobs[r].comm = comms[r];
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &jobs[r]), 0);
    }
    for (uint32_t r = 0; r < size; ++r) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    }
    for (uint32_t r = 0; r < size; ++r) {
        if (texts != NULL) {
            (void)snprintf(texts[r], sizeof texts[r], "%s", ds_ctx_error(ctxs[r]));
        }
        dsi_comm_destroy(&comms[r]);
    }
    for (uint32_t r = 0; r < size; ++r) {
        ds_ctx_destroy(&ctxs[r]);
    }
}

static void body_all(rank_job *job)
{
    job->n_failed = conform_all(job->comm, 42, job->planted);
}

static void test_self(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm *comm;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_int_equal(dsi_comm_self(ctx, &comm), DS_OK);
    assert_int_equal(conform_all(comm, 42, false), 0);
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
}

static void test_conformance(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 2, 3, 4, 8};
    for (uint32_t i = 0; i < 5; ++i) {
        rank_job jobs[MAX_RANKS];
        const dsi_comm_sim_options options = {.seed = i, .reorder = i % 2 == 1};
        run_ranks(sizes[i], &options, (rank_job){.body = body_all}, jobs, NULL);
        for (uint32_t r = 0; r < sizes[i]; ++r) {
            assert_int_equal(jobs[r].n_failed, 0);
        }
    }
}

/* A left fold instead of the tree must be seen: the test can fail. */
static void test_planted_fold(void **state)
{
    (void)state;
    rank_job jobs[MAX_RANKS];
    (void)fprintf(stderr, "differences are expected here:\n");
    run_ranks(4, NULL, (rank_job){.body = body_all, .planted = true}, jobs, NULL);
    assert_true(jobs[0].n_failed > 10);
}

static void body_random(rank_job *job)
{
    conform t = {.comm = job->comm, .seed = job->seed};
    conform_random(&t, 6);
    job->n_failed = t.n_failed;
}

/* Thousands of random schedules with delays; DS_SIM_SCHEDULES asks for another number. */
static void test_schedules(void **state)
{
    (void)state;
    const char *asked = getenv("DS_SIM_SCHEDULES");
    const uint32_t n = asked != NULL ? (uint32_t)strtoul(asked, NULL, 10) : 400;
    for (uint32_t s = 0; s < n; ++s) {
        rank_job jobs[MAX_RANKS];
        const uint32_t size = 2 + s % 4;
        const dsi_comm_sim_options options = {
            .seed = s, .max_delay = s % 8 == 0 ? 0.0002 : 0.0, .reorder = s % 3 != 0};
        run_ranks(size, &options, (rank_job){.body = body_random, .seed = s}, jobs, NULL);
        for (uint32_t r = 0; r < size; ++r) {
            assert_int_equal(jobs[r].n_failed, 0);
        }
    }
}

static void body_barriers(rank_job *job)
{
    for (uint32_t i = 0; i < 10 && job->status == DS_OK; ++i) {
        job->status = dsi_comm_barrier(job->comm, "step of the test");
    }
}

static void test_lost_rank(void **state)
{
    (void)state;
    rank_job jobs[MAX_RANKS];
    char texts[MAX_RANKS][512];
    const dsi_comm_sim_options options = {.drop_rank = 2, .drop_at = 4};
    run_ranks(4, &options, (rank_job){.body = body_barriers}, jobs, texts);
    for (uint32_t r = 0; r < 4; ++r) {
        assert_int_equal(jobs[r].status, r == 2 ? DS_ERR_INTERRUPTED : DS_ERR_PEER);
        assert_non_null(strstr(texts[r], "rank 2"));
    }
    assert_non_null(strstr(texts[0], "call 4"));
    assert_non_null(strstr(texts[0], "step of the test"));
}

static void body_late(rank_job *job)
{
    job->comm->timeout = 0.1;
    if (job->comm->rank != 1) {
        job->status = dsi_comm_barrier(job->comm, "the meeting");
    } else {
        dsi_comm_ticket ticket;
        const dsi_comm_call call = {.kind = DS_COMM_RECV, .dtype = DS_DTYPE_F32, .peer = 0};
        job->status = dsi_comm_start(job->comm, &call, &ticket);
        job->status = dsi_comm_wait(job->comm, ticket, NULL);
    }
}

static void test_timeout_names_the_missing(void **state)
{
    (void)state;
    rank_job jobs[MAX_RANKS];
    char texts[MAX_RANKS][512];
    run_ranks(3, NULL, (rank_job){.body = body_late}, jobs, texts);
    for (uint32_t r = 0; r < 3; ++r) {
        assert_int_equal(jobs[r].status, DS_ERR_PEER);
    }
    assert_true(strstr(texts[0], "missing: rank 1") != NULL ||
                strstr(texts[0], "missing: rank 0") != NULL);
}

static void body_disagree(rank_job *job)
{
    float x[4] = {0};
    const dsi_comm_part part = {.in = x, .out = x, .count = job->comm->rank == 1 ? 3 : 4};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "gradient of w"};
    job->status = dsi_comm_run(job->comm, &call);
}

static void body_abort(rank_job *job)
{
    if (job->comm->rank == 0) {
        dsi_comm_abort(job->comm, "the disk is full");
        job->status = DS_ERR_PEER;
    } else {
        job->status = dsi_comm_barrier(job->comm, "save");
    }
}

static void test_disagreement_and_abort(void **state)
{
    (void)state;
    rank_job jobs[MAX_RANKS];
    char texts[MAX_RANKS][512];
    run_ranks(3, NULL, (rank_job){.body = body_disagree}, jobs, texts);
    for (uint32_t r = 0; r < 3; ++r) {
        assert_int_equal(jobs[r].status, DS_ERR_PEER);
        assert_non_null(strstr(texts[r], "rank 1 calls all_reduce of 3 f32"));
    }
    run_ranks(3, NULL, (rank_job){.body = body_abort}, jobs, texts);
    for (uint32_t r = 1; r < 3; ++r) {
        assert_int_equal(jobs[r].status, DS_ERR_PEER);
        assert_non_null(strstr(texts[r], "rank 0 gives up: the disk is full"));
    }
}

static void test_refusals(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm *comm;
    float x[4] = {0};
    dsi_comm_ticket ticket;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_int_equal(dsi_comm_self(ctx, &comm), DS_OK);
    const dsi_comm_part part = {.in = x, .out = x, .count = 4};
    const dsi_comm_call good = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1};
    dsi_comm_call bad = good;
    bad.factor = 0.0f;
    assert_int_equal(dsi_comm_start(comm, &bad, &ticket), DS_ERR_ARG);
    bad = good;
    bad.dtype = DS_DTYPE_I32;
    bad.factor = 0.5f;
    assert_int_equal(dsi_comm_start(comm, &bad, &ticket), DS_ERR_ARG);
    bad = good;
    bad.dtype = DS_DTYPE_NONE;
    assert_int_equal(dsi_comm_start(comm, &bad, &ticket), DS_ERR_ARG);
    bad = good;
    bad.kind = DS_COMM_BROADCAST;
    bad.peer = 1;
    assert_int_equal(dsi_comm_start(comm, &bad, &ticket), DS_ERR_ARG);
    bad = good;
    const dsi_comm_part none = {.count = 4};
    bad.parts = &none;
    assert_int_equal(dsi_comm_start(comm, &bad, &ticket), DS_ERR_ARG);
    assert_int_equal(dsi_comm_wait(comm, 77, NULL), DS_ERR_ARG);
    void *memory;
    assert_int_equal(dsi_comm_symmetric(comm, 100, &memory), DS_OK);
    assert_int_equal(dsi_comm_symmetric(comm, 100, &memory), DS_ERR_STATE);
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_conformance),
        cmocka_unit_test(test_planted_fold),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_timeout_names_the_missing),
        cmocka_unit_test(test_disagreement_and_abort),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
