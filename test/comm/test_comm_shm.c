/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory communicator: conformance with processes, equality with sim, faults.
 * labels: slow */
#include "base/clock.h"
#include "comm/shm_impl.h"
#include "common/check.h"
#include "common/comm_conform.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 8, TEXT_BYTES = 1200 };

typedef struct shared_results {
    char text[MAX_RANKS][TEXT_BYTES];
    double seconds[MAX_RANKS];
} shared_results;

typedef int (*rank_body)(dsi_comm *comm, char *text);

static unsigned n_jobs; /* names the meetings of this process */
static bool no_pull;    /* of the ranks that are started: large operands go through staging */

static void make_name(char *name, size_t n)
{
    (void)snprintf(name, n, "test %d %u", (int)getpid(), n_jobs++);
}

static int rank_main(const char *name, uint32_t rank, uint32_t size, double timeout, int pipe_end,
                     rank_body body)
{
    ds_ctx *ctx;
    dsi_comm *comm;
    char text[TEXT_BYTES] = "";
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 99;
    }
    const dsi_shm_params shm = {
        .rank = rank, .size = size, .job = name, .timeout = timeout, .no_pull = no_pull};
    int code = 98;
    if (dsi_comm_shm_open(ctx, &shm, &comm) < 0) {
        (void)snprintf(text, sizeof text, "%s", ds_ctx_error(ctx));
    } else {
        code = body(comm, text);
        dsi_comm_destroy(&comm);
    }
    (void)!write(pipe_end, text, sizeof text);
    ds_ctx_destroy(&ctx);
    return code;
}

/* Runs body in `size` processes; codes[r]: exit status, or 256 + signal. */
static void run_processes(uint32_t size, double timeout, rank_body body, int *codes,
                          char (*texts)[TEXT_BYTES])
{
    pid_t pids[MAX_RANKS];
    int pipes[MAX_RANKS][2];
    char name[64];
    make_name(name, sizeof name);
    for (uint32_t r = 0; r < size; ++r) {
        assert_int_equal(pipe(pipes[r]), 0);
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            _exit(rank_main(name, r, size, timeout, pipes[r][1], body));
        }
        (void)close(pipes[r][1]);
    }
    for (uint32_t r = 0; r < size; ++r) {
        int status;
        char text[TEXT_BYTES] = "";
        size_t used = 0;
        ssize_t n;
        while (used < sizeof text && (n = read(pipes[r][0], text + used, sizeof text - used)) > 0) {
            used += (size_t)n;
        }
        (void)close(pipes[r][0]);
        if (texts != NULL) {
            memcpy(texts[r], text, sizeof text);
        }
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        codes[r] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    }
}

static int body_all(dsi_comm *comm, char *text)
{
    (void)text;
    return conform_all(comm, 42, false) == 0 ? 0 : 1;
}

static void test_conformance(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 2, 3, 4, 8};
    for (uint32_t i = 0; i < 5; ++i) {
        int codes[MAX_RANKS];
        run_processes(sizes[i], 20.0, body_all, codes, NULL);
        for (uint32_t r = 0; r < sizes[i]; ++r) {
            assert_int_equal(codes[r], 0);
        }
    }
}

static int body_large(dsi_comm *comm, char *text)
{
    (void)text;
    void *shared;
    conform t = {.comm = comm, .seed = 7, .shared_bytes = 64 << 20};
    if (dsi_comm_symmetric(comm, t.shared_bytes, &shared) < 0) {
        return 2;
    }
    t.shared = shared;
    conform_large(&t, comm->size == 2 ? 300001 : 100003);
    return t.n_failed == 0 ? 0 : 1;
}

static void test_large(void **state)
{
    (void)state;
    const uint32_t sizes[] = {2, 3, 5};
    for (uint32_t i = 0; i < 3; ++i) {
        int codes[MAX_RANKS];
        run_processes(sizes[i], 20.0, body_large, codes, NULL);
        for (uint32_t r = 0; r < sizes[i]; ++r) {
            assert_int_equal(codes[r], 0);
        }
    }
}

static int body_planted(dsi_comm *comm, char *text)
{
    (void)text;
    return conform_all(comm, 42, true) > 10 ? 0 : 1;
}

static void test_planted_fold(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    (void)fprintf(stderr, "differences are expected here:\n");
    run_processes(3 + 1, 20.0, body_planted, codes, NULL);
    assert_int_equal(codes[0], 0);
}

static int body_random(dsi_comm *comm, char *text)
{
    (void)text;
    void *shared;
    conform t = {.comm = comm, .seed = 99, .shared_bytes = 1 << 20};
    if (dsi_comm_symmetric(comm, t.shared_bytes, &shared) < 0) {
        return 2;
    }
    t.shared = shared;
    conform_random(&t, 400);
    return t.n_failed == 0 ? 0 : 1;
}

static void test_random(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 4; ++size) {
        int codes[MAX_RANKS];
        run_processes(size, 20.0, body_random, codes, NULL);
        for (uint32_t r = 0; r < size; ++r) {
            assert_int_equal(codes[r], 0);
        }
    }
}

static void test_without_pull(void **state)
{
    no_pull = true;
    test_conformance(state);
    test_large(state);
    test_random(state);
    no_pull = false;
}

/* Whether memory is pulled is what the ranks asked for, all of them, and what the system allows. */
static int body_pulls(dsi_comm *comm, char *text)
{
    const bool pulls = ((const shm_comm *)comm)->job->pull;
    (void)snprintf(text, TEXT_BYTES, "%d", pulls ? 1 : 0);
    return pulls == (((const shm_comm *)comm)->scratch != NULL) ? 0 : 1;
}

static void test_pulls(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    for (int round = 0; round < 2; ++round) {
        no_pull = round == 1;
        run_processes(3, 20.0, body_pulls, codes, texts);
        no_pull = false;
        for (uint32_t r = 0; r < 3; ++r) {
            assert_int_equal(codes[r], 0);
            assert_string_equal(texts[r], texts[0]);
        }
        if (round == 1) {
            assert_string_equal(texts[0], "0");
        } else if (texts[0][0] == '0') {
            print_message("process_vm_readv is not allowed here: nothing was pulled\n");
        }
    }
}

static int fault(dsi_comm *comm, char *text, ds_status status)
{
    (void)snprintf(text, TEXT_BYTES, "%s", ds_ctx_error(comm->ctx));
    return status == DS_ERR_PEER ? 50 : 51;
}

static int body_killed(dsi_comm *comm, char *text)
{
    if (dsi_comm_barrier(comm, "the step before") < 0) {
        return 1;
    }
    if (comm->rank == 1) {
        (void)kill(getpid(), SIGKILL);
    }
    const double begin = dsi_clock_seconds();
    const ds_status status = dsi_comm_barrier(comm, "gradient of layer 3");
    return dsi_clock_seconds() - begin > 1.0 ? 3 : fault(comm, text, status);
}

static void test_killed(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(3, 20.0, body_killed, codes, texts);
    for (uint32_t r = 0; r < 3; ++r) {
        assert_int_equal(codes[r], r == 1 ? 256 + SIGKILL : 50);
        assert_true(r == 1 || strstr(texts[r], "rank 1 (process ") != NULL);
        assert_true(r == 1 || strstr(texts[r], "is dead") != NULL);
        assert_true(r == 1 || strstr(texts[r], "gradient of layer 3") != NULL);
        assert_true(r == 1 || strstr(texts[r], "the step before") != NULL);
    }
}

/* Killed between the announcement and the work of a large call. */
static int body_killed_inside(dsi_comm *comm, char *text)
{
    const size_t n = 1 << 20;
    float *x = calloc(n, sizeof *x);
    const dsi_comm_part part = {.in = x, .out = x, .count = n};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "the large one"};
    dsi_comm_ticket ticket;
    ds_status status = dsi_comm_start(comm, &call, &ticket);
    if (comm->rank == 0) {
        (void)kill(getpid(), SIGKILL);
    }
    status = status == DS_OK ? dsi_comm_wait(comm, ticket, NULL) : status;
    free(x);
    return fault(comm, text, status);
}

static void test_killed_inside(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(3, 20.0, body_killed_inside, codes, texts);
    for (uint32_t r = 1; r < 3; ++r) {
        assert_int_equal(codes[r], 50);
        assert_non_null(strstr(texts[r], "rank 0 (process "));
        assert_non_null(strstr(texts[r], "the large one"));
    }
}

static int body_stopped(dsi_comm *comm, char *text)
{
    comm->timeout = 0.5;
    if (comm->rank == 2) {
        const pid_t self = getpid();
        if (fork() == 0) { /* wakes it when the others have given up */
            const struct timespec span = {1, 500000000};
            (void)nanosleep(&span, NULL);
            (void)kill(self, SIGCONT);
            _exit(0);
        }
        (void)kill(self, SIGSTOP);
        return 0;
    }
    return fault(comm, text, dsi_comm_barrier(comm, "norm of gradients"));
}

static void test_stopped(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(3, 20.0, body_stopped, codes, texts);
    for (uint32_t r = 0; r < 2; ++r) {
        assert_int_equal(codes[r], 50);
        assert_non_null(strstr(texts[r], "norm of gradients"));
        assert_non_null(strstr(texts[r], "missing: rank 2"));
        assert_non_null(strstr(texts[r], "stopped by a signal"));
        assert_null(strstr(texts[r], "rank 2 (process 0"));
    }
}

/* Rank 2 waits for somebody else meanwhile, once for longer than the others' patience. */
static int body_away(dsi_comm *comm, char *text)
{
    const struct timespec span = {0, 700000000};
    comm->timeout = 0.3;
    for (int round = 0; round < 2; ++round) {
        if (comm->rank == 2) {
            dsi_comm_away(comm, dsi_clock_seconds() + (round == 0 ? 10.0 : 0.1));
            (void)nanosleep(&span, NULL);
            dsi_comm_away(comm, 0.0);
        }
        const ds_status status = dsi_comm_barrier(comm, round == 0 ? "the first" : "the second");
        if (status < 0) {
            return fault(comm, text, status);
        }
    }
    return 0;
}

static void test_away(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(3, 20.0, body_away, codes, texts);
    for (uint32_t r = 0; r < 2; ++r) {
        assert_int_equal(codes[r], 50);
        assert_non_null(strstr(texts[r], "the second"));
        assert_non_null(strstr(texts[r], "missing: rank 2"));
    }
}

static int body_mismatch(dsi_comm *comm, char *text)
{
    float x[8] = {0};
    const dsi_comm_part part = {.in = x, .out = x, .count = 8};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = comm->rank == 1 ? DS_DTYPE_BF16 : DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = comm->rank == 1 ? "bias" : "weight"};
    return fault(comm, text, dsi_comm_run(comm, &call));
}

static void test_mismatch(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(2, 20.0, body_mismatch, codes, texts);
    for (uint32_t r = 0; r < 2; ++r) {
        assert_int_equal(codes[r], 50);
        assert_non_null(strstr(texts[r], "rank 1 calls all_reduce of 8 bf16"));
        assert_non_null(strstr(texts[r], "rank 0 calls all_reduce of 8 f32"));
        assert_non_null(strstr(texts[r], "\"bias\""));
    }
}

static int body_abort(dsi_comm *comm, char *text)
{
    dsi_comm *half;
    if (dsi_comm_split(comm, comm->rank / 2, 0, &half) < 0) {
        return 1;
    }
    if (comm->rank == 3) {
        dsi_comm_abort(half, "disk full at step 12");
        dsi_comm_destroy(&half);
        return 50;
    }
    const double begin = dsi_clock_seconds();
    const ds_status status =
        comm->rank == 2 ? dsi_comm_barrier(half, "group") : dsi_comm_barrier(comm, "world");
    dsi_comm_destroy(&half);
    return dsi_clock_seconds() - begin > 1.0 ? 3 : fault(comm, text, status);
}

static void test_abort(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(4, 20.0, body_abort, codes, texts);
    for (uint32_t r = 0; r < 3; ++r) {
        assert_int_equal(codes[r], 50);
        assert_non_null(strstr(texts[r], "rank 3 gives up: disk full at step 12"));
    }
}

/* Ranks wait for calls of two communicators in opposite orders. */
static int body_crossed(dsi_comm *comm, char *text)
{
    dsi_comm *pair;
    dsi_comm_ticket a;
    dsi_comm_ticket b;
    enum { N = 100000 };
    float *x = calloc(N, sizeof *x);
    float *y = calloc(N, sizeof *y);
    const dsi_comm_part of_x = {.in = x, .out = x, .count = N};
    const dsi_comm_part of_y = {.in = y, .out = y, .count = N};
    dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                          .dtype = DS_DTYPE_F32,
                          .factor = 1.0f,
                          .parts = &of_x,
                          .n_parts = 1};
    if (dsi_comm_split(comm, 0, 0, &pair) < 0 || dsi_comm_start(comm, &call, &a) < 0) {
        return 1;
    }
    call.parts = &of_y;
    int code = dsi_comm_start(pair, &call, &b) < 0 ? 2 : 0;
    if (comm->rank == 0) {
        code += dsi_comm_wait(comm, a, NULL) < 0 || dsi_comm_wait(pair, b, NULL) < 0 ? 4 : 0;
    } else {
        code += dsi_comm_wait(pair, b, NULL) < 0 || dsi_comm_wait(comm, a, NULL) < 0 ? 8 : 0;
    }
    (void)snprintf(text, TEXT_BYTES, "%s", ds_ctx_error(comm->ctx));
    dsi_comm_destroy(&pair);
    free(x);
    free(y);
    return code;
}

static void test_crossed_waits(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    char texts[MAX_RANKS][TEXT_BYTES];
    run_processes(2, 5.0, body_crossed, codes, texts);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0);
}

/* Nobody else comes. */
static void test_nobody_comes(void **state)
{
    (void)state;
    ds_ctx *ctx;
    dsi_comm *comm;
    char name[64];
    make_name(name, sizeof name);
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const dsi_shm_params first = {.rank = 0, .size = 3, .job = name, .timeout = 0.3};
    CHECK_FAILS(ctx, dsi_comm_shm_open(ctx, &first, &comm), DS_ERR_PEER, "ranks 1, 2 of 3 on ");
    const dsi_shm_params second = {.rank = 1, .size = 3, .job = name, .timeout = 0.3};
    CHECK_FAILS(ctx, dsi_comm_shm_open(ctx, &second, &comm), DS_ERR_PEER, "rank 0");
    ds_ctx_destroy(&ctx);
}

static int body_wrong_size(dsi_comm *comm, char *text)
{
    (void)comm;
    (void)text;
    return 1;
}

static void test_sizes_differ(void **state)
{
    (void)state;
    char name[64];
    int pipes[2];
    int status;
    make_name(name, sizeof name);
    assert_int_equal(pipe(pipes), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        _exit(rank_main(name, 1, 4, 5.0, pipes[1], body_wrong_size));
    }
    ds_ctx *ctx;
    dsi_comm *comm;
    char text[TEXT_BYTES] = "";
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const dsi_shm_params params = {.rank = 0, .size = 2, .job = name, .timeout = 5.0};
    CHECK_FAILS(ctx, dsi_comm_shm_open(ctx, &params, &comm), DS_ERR_PEER,
                "rank 1 expects 4 ranks on this host, rank 0 expects 2");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 98);
    assert_true(read(pipes[0], text, sizeof text) > 0);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    (void)alarm(200); /* a hang fails */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conformance),   cmocka_unit_test(test_large),
        cmocka_unit_test(test_without_pull),  cmocka_unit_test(test_pulls),
        cmocka_unit_test(test_planted_fold),  cmocka_unit_test(test_random),
        cmocka_unit_test(test_killed),        cmocka_unit_test(test_killed_inside),
        cmocka_unit_test(test_stopped),       cmocka_unit_test(test_away),
        cmocka_unit_test(test_mismatch),      cmocka_unit_test(test_abort),
        cmocka_unit_test(test_crossed_waits), cmocka_unit_test(test_nobody_comes),
        cmocka_unit_test(test_sizes_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
