/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators over MPI and UCX, with real processes. The program is driver and rank: called with
 * "rank SCENARIO" it is one rank of a job, whose place it reads from the environment.
 *
 * A part that is not installed is skipped; 77 when all are. labels: slow */
#include "comm/net.h"

#include "base/clock.h"
#include "comm/rendezvous.h"
#include "common/check.h"
#include "common/comm_conform.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- one rank ---- */

typedef struct rank_world {
    ds_ctx *ctx;
    dsi_comm_world place;
    dsi_comm *comm;
} rank_world;

/* Whether the call failed as a peer's fault with all of the words in the message. */
static int expect_peer(const rank_world *w, ds_status status, const char *a, const char *b)
{
    const char *text = ds_ctx_error(w->ctx);
    if (status == DS_ERR_PEER && strstr(text, a) != NULL && strstr(text, b) != NULL) {
        (void)printf("rank %u learned: %s\n", w->place.rank, text);
        (void)fflush(stdout);
        return 0;
    }
    (void)fprintf(stderr, "rank %u: %s, \"%s\"; expected \"%s\" and \"%s\"\n", w->place.rank,
                  ds_status_name(status), text, a, b);
    return 1;
}

static int rank_conform(rank_world *w)
{
    return conform_all(w->comm, 42, false) == 0 ? 0 : 1;
}

static int rank_planted(rank_world *w)
{
    return conform_all(w->comm, 42, true) > 10 ? 0 : 1;
}

static int rank_random(rank_world *w)
{
    uint32_t n_failed = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        conform t = {.comm = w->comm, .seed = seed};
        conform_random(&t, 6);
        n_failed += t.n_failed;
    }
    return n_failed == 0 ? 0 : 1;
}

static ds_status barriers(dsi_comm *comm, int n, const char *what)
{
    for (int i = 0; i < n; ++i) {
        DS_TRY(dsi_comm_barrier(comm, what));
    }
    return DS_OK;
}

static int rank_killed(rank_world *w)
{
    if (barriers(w->comm, 3, "step 1") != DS_OK) {
        return 1;
    }
    if (w->place.rank == 1) { /* once the others are out of the barrier too */
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        (void)raise(SIGKILL);
    }
    const double begin = dsi_clock_seconds();
    const ds_status status = barriers(w->comm, 3, "step 2");
    if (dsi_clock_seconds() - begin > 5.0) {
        (void)fprintf(stderr, "it took too long\n");
        return 1;
    }
    return expect_peer(w, status, "rank 1", "");
}

static int rank_late(rank_world *w)
{
    w->comm->timeout = 1.0;
    if (barriers(w->comm, 3, "together") != DS_OK) {
        return 1;
    }
    if (w->place.rank == 1) { /* long enough that the others give up first */
        (void)nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
        return expect_peer(w, barriers(w->comm, 1, "the meeting"), "missing: rank 1", "");
    }
    return expect_peer(w, barriers(w->comm, 1, "the meeting"), "missing: rank 1", "the meeting");
}

static int rank_disagree(rank_world *w)
{
    float x[4] = {0};
    const dsi_comm_part part = {.in = x, .out = x, .count = w->place.rank == 1 ? 3 : 4};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_REDUCE,
                                .dtype = DS_DTYPE_F32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "gradient of w"};
    /* After a barrier, so that none fails while it joins; a late one may learn of it in there. */
    ds_status status = barriers(w->comm, 1, "all are here");
    if (status == DS_OK) {
        status = dsi_comm_run(w->comm, &call);
    }
    const bool flat = getenv("TEST_PER_NODE") == NULL; /* else the pieces disagree first */
    return expect_peer(w, status, flat ? "rank 1 calls all_reduce of 3 f32" : "gradient of w",
                       "ranks disagree");
}

/* ---- two threads of each rank ---- */

typedef struct twin_job {
    dsi_comm *comm;
    uint32_t rank, n_failed;
} twin_job;

static void *run_twin(void *arg)
{
    twin_job *job = arg;
    for (uint64_t seed = 100; seed < 115; ++seed) {
        conform t = {.comm = job->comm, .seed = seed};
        if (seed % 3 == job->rank % 3) { /* now one rank's thread is late, now another's */
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
        conform_random(&t, 6);
        job->n_failed += t.n_failed;
    }
    return NULL;
}

/* A second thread of each rank exchanges over a twin, in an order of its own. */
static int rank_twin(rank_world *w)
{
    twin_job job = {.rank = w->place.rank};
    ds_ctx *ctx = NULL;
    pthread_t thread;
    uint32_t n_failed = 0;
    const ds_ctx_params params = {.n_threads = 1};
    if (ds_ctx_create(&params, &ctx) != DS_OK || dsi_comm_twin(w->comm, ctx, &job.comm) != DS_OK ||
        pthread_create(&thread, NULL, run_twin, &job) != 0) {
        (void)fprintf(stderr, "rank %u: %s\n", w->place.rank, ds_ctx_error(w->ctx));
        return 1;
    }
    for (uint64_t seed = 0; seed < 15; ++seed) {
        conform t = {.comm = w->comm, .seed = seed};
        if (seed % 4 == w->place.rank % 4) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
        conform_random(&t, 6);
        n_failed += t.n_failed;
    }
    (void)pthread_join(thread, NULL);
    n_failed += job.n_failed;
    dsi_comm_destroy(&job.comm);
    ds_ctx_destroy(&ctx);
    return n_failed == 0 ? 0 : 1;
}

/* The twin's thread waits for ever, until the other thread of rank 0 gives up: all threads of all
 * ranks learn why, each in its own context. */
static void *wait_for_nobody(void *arg)
{
    twin_job *job = arg;
    job->n_failed = dsi_comm_barrier(job->comm, "of the twin") == DS_ERR_PEER &&
                            strstr(ds_ctx_error(job->comm->ctx), "the fuse blew") != NULL
                        ? 0
                        : 1;
    return NULL;
}

static int rank_twin_fails(rank_world *w)
{
    twin_job job = {.rank = w->place.rank};
    ds_ctx *ctx = NULL;
    pthread_t thread;
    int failed = 0;
    const ds_ctx_params params = {.n_threads = 1};
    if (ds_ctx_create(&params, &ctx) != DS_OK || dsi_comm_twin(w->comm, ctx, &job.comm) != DS_OK) {
        return 1;
    }
    if (w->place.rank == 0) { /* its other thread never comes */
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        dsi_comm_abort(w->comm, "the fuse blew");
    } else if (pthread_create(&thread, NULL, wait_for_nobody, &job) != 0) {
        return 1;
    } else {
        const ds_status status = dsi_comm_barrier(w->comm, "of training");
        failed = expect_peer(w, status, "rank 0", "the fuse blew");
        (void)pthread_join(thread, NULL);
    }
    dsi_comm_destroy(&job.comm);
    ds_ctx_destroy(&ctx);
    return failed != 0 || job.n_failed != 0;
}

static int rank_abort(rank_world *w)
{
    if (barriers(w->comm, 2, "all are here") != DS_OK) {
        return 1;
    }
    if (w->place.rank == 0) { /* once the others are out of the barrier too */
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        dsi_comm_abort(w->comm, "the disk is full");
        return 0;
    }
    return expect_peer(w, dsi_comm_barrier(w->comm, "save"), "rank 0 gives up: the disk is full",
                       "");
}

typedef struct scenario {
    const char *name;
    int (*run)(rank_world *w);
} scenario;

static const scenario scenarios[] = {
    {"conform", rank_conform},   {"planted", rank_planted}, {"random", rank_random},
    {"killed", rank_killed},     {"late", rank_late},       {"abort", rank_abort},
    {"disagree", rank_disagree}, {"twin", rank_twin},       {"twin fails", rank_twin_fails},
};

static int rank_main(const char *name)
{
    rank_world w = {0};
    int failed = 1;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &w.ctx) != DS_OK || dsi_comm_world_read(w.ctx, &w.place) != DS_OK) {
        return 1;
    }
    w.place.transport = getenv("TEST_TRANSPORT");
    const char *per_node = getenv("TEST_PER_NODE"); /* several "nodes" on this one */
    if (per_node != NULL) {
        const uint32_t n = (uint32_t)atoi(per_node);
        w.place.node = w.place.rank / n;
        w.place.n_nodes = (w.place.size + n - 1) / n;
        w.place.local_rank = w.place.rank % n;
        w.place.local_size = n;
    }
    w.place.timeout = 20.0;
    if (dsi_comm_open_net(w.ctx, &w.place, &w.comm) != DS_OK) {
        (void)fprintf(stderr, "rank %u: %s\n", w.place.rank, ds_ctx_error(w.ctx));
        return 3;
    }
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; ++i) {
        if (strcmp(scenarios[i].name, name) == 0) {
            failed = scenarios[i].run(&w);
        }
    }
    dsi_comm_destroy(&w.comm);
    ds_ctx_destroy(&w.ctx);
    return failed;
}

/* ---- the driver ---- */

enum { OUT_BYTES = 1 << 16, MAX_RANKS = 8 };

static char out[OUT_BYTES];

static const char *self(void)
{
    static char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = '\0';
    return path;
}

static pid_t spawn(char *const *argv, int out_fd)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(out_fd, 1);
        (void)dup2(out_fd, 2);
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    return child;
}

static void read_out(int fd)
{
    size_t used = 0;
    ssize_t n;
    do {
        n = read(fd, out + used, OUT_BYTES - 1 - used);
        used += n > 0 ? (size_t)n : 0;
    } while (n > 0 && used < OUT_BYTES - 1);
    out[used] = '\0';
}

static void set_number(const char *name, long value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%ld", value);
    (void)setenv(name, text, 1);
}

/* Ranks as processes of our own, over UCX. codes[size]: exit codes, or minus the signal. */
static void run_ucx(uint32_t size, const char *name, const char *odd_secret, int *codes)
{
    pid_t ranks[MAX_RANKS];
    int ends[2];
    uint16_t port = 0;
    const char *program = self();
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    CHECK_OK(NULL, dsi_rdv_free_port(NULL, &port));
    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
    set_number("WORLD_SIZE", size);
    set_number("LOCAL_WORLD_SIZE", size);
    (void)setenv("UCX_TLS", "tcp,self", 1);
    (void)setenv("UCX_NET_DEVICES", "lo", 1);
    (void)setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
    for (uint32_t r = 0; r < size; ++r) {
        set_number("RANK", r);
        set_number("LOCAL_RANK", r);
        (void)setenv("DS_JOB_SECRET", r == 1 && odd_secret != NULL ? odd_secret : "of the test", 1);
        char *const argv[] = {(char *)(uintptr_t)program, "rank", (char *)(uintptr_t)name, NULL};
        ranks[r] = spawn(argv, ends[1]);
    }
    (void)close(ends[1]);
    read_out(ends[0]);
    (void)close(ends[0]);
    for (uint32_t r = 0; r < size; ++r) {
        int status = 0;
        assert_int_equal(waitpid(ranks[r], &status, 0), ranks[r]);
        codes[r] = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    }
    (void)unsetenv("RANK");
    (void)unsetenv("WORLD_SIZE");
    (void)unsetenv("LOCAL_RANK");
    (void)unsetenv("LOCAL_WORLD_SIZE");
}

static void ucx_ranks_pass(uint32_t size, const char *name)
{
    int codes[MAX_RANKS];
    run_ucx(size, name, NULL, codes);
    for (uint32_t r = 0; r < size; ++r) {
        if (codes[r] != 0) {
            fail_msg("ucx, %u ranks, %s: rank %u ends with %d: %s", size, name, r, codes[r], out);
        }
    }
}

/* Runs under an mpirun; returns its exit code. */
static int run_mpi(const char *mpirun, uint32_t size, const char *name)
{
    const bool open_mpi = strstr(mpirun, "openmpi") != NULL;
    int ends[2];
    char n[16];
    int status = 0;
    (void)snprintf(n, sizeof n, "%u", size);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    (void)setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    (void)setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    (void)setenv("OMPI_MCA_pml", "ob1", 1);
    (void)setenv("OMPI_MCA_btl", "tcp,self", 1);
    char *const many[] = {(char *)(uintptr_t)mpirun,
                          "--oversubscribe",
                          "-n",
                          n,
                          (char *)(uintptr_t)self(),
                          "rank",
                          (char *)(uintptr_t)name,
                          NULL};
    char *const few[] = {(char *)(uintptr_t)mpirun, "-n", n, (char *)(uintptr_t)self(), "rank",
                         (char *)(uintptr_t)name,   NULL};
    const pid_t child = spawn(open_mpi ? many : few, ends[1]);
    (void)close(ends[1]);
    read_out(ends[0]);
    (void)close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool module_is_there(const char *file)
{
    char path[4200];
    (void)snprintf(path, sizeof path, "%s", self());
    (void)snprintf(strrchr(path, '/') + 1, 64, "%s", file);
    return access(path, R_OK) == 0;
}

static bool program_is_there(const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof path, "/usr/bin/%s", name);
    return access(path, X_OK) == 0;
}

static bool has_ucx(void)
{
    return module_is_there("libdeepspeed_ucx.so");
}

static bool has_mpi(const char *which)
{
    char file[64];
    char program[64];
    (void)snprintf(file, sizeof file, "libdeepspeed_mpi_%s.so", which);
    (void)snprintf(program, sizeof program, "mpirun.%s", which);
    return module_is_there(file) && program_is_there(program);
}

static const uint32_t sizes[] = {2, 3, 4, 8};

static void mpi_conforms(const char *which)
{
    char mpirun[64];
    if (!has_mpi(which)) {
        print_message("%s: module or mpirun is not installed\n", which);
        skip();
    }
    (void)snprintf(mpirun, sizeof mpirun, "mpirun.%s", which);
    (void)setenv("TEST_TRANSPORT", "mpi", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        if (run_mpi(mpirun, sizes[i], "conform") != 0) {
            fail_msg("%s, %u ranks: %s", mpirun, sizes[i], out);
        }
    }
    if (run_mpi(mpirun, 4, "planted") != 0 || run_mpi(mpirun, 3, "random") != 0 ||
        run_mpi(mpirun, 3, "twin") != 0) {
        fail_msg("%s: %s", mpirun, out);
    }
    /* After a failure ranks do not finalize, since MPI would wait for the others: what mpirun says
     * then differs. */
    const char *const names[] = {"late", "disagree", "abort", "twin fails"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        (void)run_mpi(mpirun, 3, names[i]);
        if (strstr(out, " learned: ") == NULL) {
            fail_msg("%s, 3 ranks, %s: %s", mpirun, names[i], out);
        }
    }
    /* mpirun itself ends the others of a killed rank, unless they learn of it and end first. */
    const int code = run_mpi(mpirun, 3, "killed");
    assert_true(code != 0 || strstr(out, " learned: rank 1 ") != NULL);
}

static void test_open_mpi(void **state)
{
    (void)state;
    mpi_conforms("openmpi");
}

static void test_mpich(void **state)
{
    (void)state;
    mpi_conforms("mpich");
}

static void test_ucx(void **state)
{
    (void)state;
    if (!has_ucx()) {
        print_message("ucx: the module is not built\n");
        skip();
    }
    (void)setenv("TEST_TRANSPORT", "ucx", 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        ucx_ranks_pass(sizes[i], "conform");
    }
    ucx_ranks_pass(3, "random");
    ucx_ranks_pass(4, "planted");
    ucx_ranks_pass(3, "twin");
}

static void test_ucx_failures(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    if (!has_ucx()) {
        print_message("ucx: the module is not built\n");
        skip();
    }
    (void)setenv("TEST_TRANSPORT", "ucx", 1);
    ucx_ranks_pass(3, "late");
    ucx_ranks_pass(3, "disagree");
    ucx_ranks_pass(3, "abort");
    ucx_ranks_pass(3, "twin fails");
    run_ucx(3, "killed", NULL, codes);
    if (codes[0] != 0 || codes[1] != -SIGKILL || codes[2] != 0) {
        fail_msg("killed: %d %d %d: %s", codes[0], codes[1], codes[2], out);
    }
}

/* Shared memory in blocks of ranks, a network between: the same bits. */
static void test_blocks(void **state)
{
    (void)state;
    const uint32_t forms[][2] = {{4, 2}, {8, 4}, {6, 2}, {6, 3}}; /* ranks; ranks a node */
    const bool ucx = has_ucx();
    const bool mpi = has_mpi("mpich");
    int codes[MAX_RANKS];
    if (!ucx && !mpi) {
        print_message("neither UCX nor MPICH is there\n");
        skip();
    }
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        set_number("TEST_PER_NODE", forms[i][1]);
        if (ucx) {
            (void)setenv("TEST_TRANSPORT", "shm+ucx", 1);
            ucx_ranks_pass(forms[i][0], "conform");
        } else {
            (void)setenv("TEST_TRANSPORT", "shm+mpi", 1);
            assert_int_equal(run_mpi("mpirun.mpich", forms[i][0], "conform"), 0);
        }
    }
    set_number("TEST_PER_NODE", 2);
    if (ucx) {
        (void)setenv("TEST_TRANSPORT", "shm+ucx", 1);
        const char *const names[] = {"random", "twin", "late", "disagree", "abort", "twin fails"};
        for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
            ucx_ranks_pass(4, names[i]);
        }
        run_ucx(4, "killed", NULL, codes);
        if (codes[0] != 0 || codes[1] != -SIGKILL || codes[2] != 0 || codes[3] != 0) {
            fail_msg("killed: %d %d %d %d: %s", codes[0], codes[1], codes[2], codes[3], out);
        }
    }
    (void)unsetenv("TEST_PER_NODE");
}

static void test_wrong_secret(void **state)
{
    (void)state;
    int codes[MAX_RANKS];
    if (!has_ucx()) {
        print_message("ucx: the module is not built\n");
        skip();
    }
    (void)setenv("TEST_TRANSPORT", "ucx", 1);
    run_ucx(2, "conform", "another", codes);
    assert_int_equal(codes[1], 3);
    assert_int_equal(codes[0], 3);
    assert_non_null(strstr(out, "the secret differs: DS_JOB_SECRET"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_mpi),     cmocka_unit_test(test_mpich),
        cmocka_unit_test(test_ucx),          cmocka_unit_test(test_ucx_failures),
        cmocka_unit_test(test_wrong_secret), cmocka_unit_test(test_blocks),
    };
    if (argc == 3 && strcmp(argv[1], "rank") == 0) {
        return rank_main(argv[2]);
    }
    if (!has_mpi("openmpi") && !has_mpi("mpich") && !has_ucx()) {
        print_message("neither MPI nor UCX is installed\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
