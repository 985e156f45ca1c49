/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that save together over shared memory: kill -9 of any of them at any moment ends the
 * save on the others and leaves a whole checkpoint; so do a full disk and a file size limit of one.
 */
#include "common/check.h"
#include "common/rank_saves.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include "comm/shm.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 24, RANKS = 3, SCALE = 40 };

/* How a child ends. */
enum { ENDED_PEER = 10, ENDED_IO = 11, ENDED_OTHER = 12, ENDED_WRONG_REASON = 13 };

typedef struct child {
    const char *dir, *job;
    uint64_t step; /* of the first save */
    bool forever;
    bool behind;      /* with a saver, and other calls on the communicator meanwhile */
    uint32_t limited; /* this rank may write small files only; UINT32_MAX: none */
    int64_t scale;
    const char *reason; /* of an IO error */
} child;

static void sleep_us(long us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    (void)nanosleep(&t, NULL);
}

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static int ending(ds_ctx *ctx, ds_status status, const child *c)
{
    if (status == DS_ERR_PEER) {
        return ENDED_PEER;
    }
    if (status == DS_ERR_IO) {
        return c->reason != NULL && strstr(ds_ctx_error(ctx), c->reason) != NULL
                   ? ENDED_IO
                   : ENDED_WRONG_REASON;
    }
    (void)fprintf(stderr, "%s: %s\n", ds_status_name(status), ds_ctx_error(ctx));
    return status == DS_OK ? 0 : ENDED_OTHER;
}

static void limit_files(void)
{
    const struct rlimit limit = {20000, 20000};
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &limit);
}

static ds_status talk(dsi_comm *comm)
{
    for (int i = 0; i < 5; ++i) {
        DS_TRY(dsi_comm_barrier(comm, "a step"));
    }
    return DS_OK;
}

static ds_status save_once(ds_ctx *ctx, dsi_comm *comm, const rank_save *save)
{
    DS_TRY(rank_save_run(ctx, comm, save));
    if (save->saver != NULL) {
        DS_TRY(talk(comm));
        DS_TRY(ds_checkpoint_saver_wait(save->saver));
    }
    return DS_OK;
}

/* One save, or saves until killed; a byte a finished one goes to `report`. */
static int child_main(const child *c, uint32_t rank, int report)
{
    const ds_ctx_params params = {.n_threads = 1, .rank = rank, .world_size = RANKS, .log = quiet};
    const dsi_shm_params shm = {.rank = rank, .size = RANKS, .job = c->job, .timeout = 20};
    ds_ctx *ctx = NULL;
    dsi_comm *comm = NULL;
    if (ds_ctx_create(&params, &ctx) < 0 || dsi_comm_shm_open(ctx, &shm, &comm) < 0) {
        return ending(ctx, DS_ERR_PEER, c); /* killed before it came */
    }
    if (write(report, "m", 1) != 1) { /* it has met the others */
        return ENDED_OTHER;
    }
    if (rank == c->limited) {
        limit_files();
    }
    rank_save save = {.dir = c->dir, .step = c->step, .scale = c->scale, .keep_last = 2};
    ds_status status = DS_OK;
    if (c->behind) {
        status = dsi_checkpoint_saver_create_on(ctx, comm, &save.saver);
    }
    while (status == DS_OK) {
        status = save_once(ctx, comm, &save);
        if (status == DS_OK && rank == 0 && write(report, "s", 1) != 1) {
            return ENDED_OTHER;
        }
        ++save.step;
        if (!c->forever) {
            break;
        }
    }
    const int rc = ending(ctx, status, c);
    ds_checkpoint_saver_destroy(&save.saver);
    dsi_comm_destroy(&comm);
    ds_ctx_destroy(&ctx);
    return rc;
}

static void start(const child *c, pid_t *pids, int *report)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    for (uint32_t r = 0; r < RANKS; ++r) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            (void)close(ends[0]);
            _exit(child_main(c, r, ends[1]));
        }
    }
    (void)close(ends[1]);
    *report = ends[0];
}

/* Exit code, or 128 + signal; fails the test when it takes longer than 10 seconds. */
static int finish(pid_t pid)
{
    int status = 0;
    for (int i = 0; i < 10000; ++i) {
        if (waitpid(pid, &status, WNOHANG) == pid) {
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
        sleep_us(1000);
    }
    (void)kill(pid, SIGKILL);
    fail_msg("a rank hangs");
    return -1;
}

static uint64_t check_latest(ds_ctx *ctx, const char *dir, int64_t scale)
{
    ds_checkpoint *c = NULL;
    CHECK_OK(ctx, ds_checkpoint_open(ctx, dir, NULL, &c));
    const uint64_t step = ds_checkpoint_get_info(c)->step;
    CHECK_OK(ctx, ds_checkpoint_verify(c));
    CHECK_OK(ctx, rank_save_check(ctx, c, step, scale, 0, 1));
    ds_checkpoint_close(&c);
    return step;
}

static void a_rank_is_killed(void **state)
{
    char *dir = scratch_make();
    uint64_t done = 1;
    int during = 0;
    rank_save first = {.dir = dir, .step = 1, .scale = SCALE};
    CHECK_OK(*state, rank_save_run(*state, NULL, &first));
    srand(11);
    for (int i = 0; i < KILLS; ++i) {
        char job[64];
        char byte = 0;
        pid_t pids[RANKS];
        int report = -1;
        (void)snprintf(job, sizeof job, "killed-%d-%d", (int)getpid(), i);
        const child c = {.dir = dir,
                         .job = job,
                         .step = done + 1,
                         .forever = true,
                         .behind = i % 2 == 1,
                         .limited = UINT32_MAX,
                         .scale = SCALE};
        start(&c, pids, &report);
        /* all have met, or the others would wait for the victim as long as for a late one; and all
         * but every eighth time a save is done */
        int n_saved = 0;
        for (int n_met = 0; n_met < RANKS || (i % 8 != 0 && n_saved == 0);) {
            assert_int_equal(read(report, &byte, 1), 1);
            n_met += byte == 'm';
            n_saved += byte == 's';
        }
        done += (uint64_t)n_saved;
        sleep_us(rand() % 15000);
        const int victim = i % RANKS;
        assert_int_equal(kill(pids[victim], SIGKILL), 0);
        for (int r = 0; r < RANKS; ++r) {
            assert_int_equal(finish(pids[r]), r == victim ? 128 + SIGKILL : ENDED_PEER);
        }
        while (read(report, &byte, 1) == 1) {
            ++done;
        }
        (void)close(report);
        const uint64_t step = check_latest(*state, dir, SCALE);
        if (step < done || step > done + 1) {
            fail_msg("kill %d: step %llu, expected %llu or the next", i, (unsigned long long)step,
                     (unsigned long long)done);
        }
        done = step;
        during += scratch_count(dir) > 3;
    }
    print_message("%d of %d kills left a folder of a save half done\n", during, KILLS);
    assert_true(during > 0);
    rank_save last = {.dir = dir, .step = done + 1, .scale = SCALE, .keep_last = 1};
    CHECK_OK(*state, rank_save_run(*state, NULL, &last));
    assert_int_equal(scratch_count(dir), 2);
    scratch_remove(dir);
}

static void expect_io_failure(ds_ctx *ctx, const child *c)
{
    pid_t pids[RANKS];
    int report = -1;
    start(c, pids, &report);
    for (int r = 0; r < RANKS; ++r) {
        assert_int_equal(finish(pids[r]), ENDED_IO);
    }
    (void)close(report);
    assert_int_equal(check_latest(ctx, c->dir, 1), 1);
    assert_int_equal(scratch_count(c->dir), 2);
}

static void one_rank_may_not_write(void **state)
{
    char *dir = scratch_make();
    rank_save first = {.dir = dir, .step = 1};
    CHECK_OK(*state, rank_save_run(*state, NULL, &first));
    for (uint32_t r = 0; r < RANKS; ++r) {
        char job[64];
        char reason[64];
        (void)snprintf(job, sizeof job, "limited-%d-%u", (int)getpid(), r);
        (void)snprintf(reason, sizeof reason, "rank %u on ", r);
        const child c = {
            .dir = dir, .job = job, .step = 2, .limited = r, .scale = SCALE, .reason = reason};
        expect_io_failure(*state, &c);
    }
    scratch_remove(dir);
}

static void full_disk(void **state)
{
    char *dir = scratch_make();
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", dir, "tmpfs", 0, "size=1m") != 0) {
        print_message("no right to mount a small tmpfs: not tested\n");
        scratch_remove(dir);
        return;
    }
    char job[64];
    (void)snprintf(job, sizeof job, "full-%d", (int)getpid());
    rank_save first = {.dir = dir, .step = 1};
    CHECK_OK(*state, rank_save_run(*state, NULL, &first));
    const child c = {.dir = dir,
                     .job = job,
                     .step = 2,
                     .limited = UINT32_MAX,
                     .scale = SCALE,
                     .reason = "No space left on device; free some space"};
    expect_io_failure(*state, &c);
    assert_int_equal(umount(dir), 0);
    scratch_remove(dir);
}

/* ---- two jobs in one folder ---- */

typedef struct saves {
    rank_save save;
    int n;
} saves;

static ds_status many_job(dsi_comm *comm, void *arg)
{
    const saves *s = arg;
    rank_save save = s->save;
    for (int i = 0; i < s->n; ++i, ++save.step) {
        DS_TRY(rank_save_run(comm->ctx, comm, &save));
    }
    return DS_OK;
}

static void *job_thread(void *arg)
{
    static const ds_status bad = DS_ERR_INTERNAL;
    return rank_threads_run(2, NULL, many_job, arg, NULL) < 0 ? (void *)(uintptr_t)&bad : NULL;
}

static void two_jobs(void **state)
{
    static const char *const tags[][2] = {{"a", "b"}, {"same", "same"}};
    for (size_t k = 0; k < 2; ++k) {
        char *dir = scratch_make();
        saves jobs[2] = {{{.dir = dir, .tag = tags[k][0], .step = 1}, 20},
                         {{.dir = dir, .tag = tags[k][1], .step = 1000}, 20}};
        pthread_t threads[2];
        for (int i = 0; i < 2; ++i) {
            assert_int_equal(pthread_create(&threads[i], NULL, job_thread, &jobs[i]), 0);
        }
        for (int i = 0; i < 2; ++i) {
            void *result = NULL;
            assert_int_equal(pthread_join(threads[i], &result), 0);
            assert_null(result);
        }
        for (size_t i = 0; i < 2; ++i) {
            ds_checkpoint *c = NULL;
            CHECK_OK(*state, ds_checkpoint_open(*state, dir, tags[k][i], &c));
            const uint64_t step = ds_checkpoint_get_info(c)->step;
            assert_true(step == 20 || step == 1019);
            CHECK_OK(*state, ds_checkpoint_verify(c));
            CHECK_OK(*state, rank_save_check(*state, c, step, 1, 0, 1));
            ds_checkpoint_close(&c);
        }
        (void)check_latest(*state, dir, 1);
        assert_int_equal(scratch_count(dir), k == 0 ? 3 : 2);
        scratch_remove(dir);
    }
}

static int set_up(void **state)
{
    const ds_ctx_params params = {.n_threads = 1, .world_size = 1};
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_is_killed),
        cmocka_unit_test(one_rank_may_not_write),
        cmocka_unit_test(two_jobs),
        cmocka_unit_test(full_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
