/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 at random moments of a loop of saves: `latest` always opens, every checksum holds, and
 * the step is never older than the last save that was reported done. */
#include "common/check.h"
#include "common/saves.h"
#include "common/scratch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KILLS = 70, VALUES = 200000 };

static void sleep_us(long us)
{
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    (void)nanosleep(&t, NULL);
}

/* Saves until killed; tells each finished step. */
static void child(const char *dir, const char *tag, uint64_t step, bool allow_exchange, int report)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.n_threads = 1, .world_size = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        _exit(3);
    }
    for (;; ++step) {
        if (saves_save(ctx, dir, tag, step, VALUES, allow_exchange) < 0) {
            (void)fprintf(stderr, "save failed: %s\n", ds_ctx_error(ctx));
            _exit(4);
        }
        if (write(report, &step, sizeof step) != (ssize_t)sizeof step) {
            _exit(5);
        }
    }
}

static void kill_loop(ds_ctx *ctx, const char *tag, bool allow_exchange)
{
    char *dir = scratch_make();
    uint64_t done = 1;
    int during = 0; /* kills that left a save half done */
    CHECK_OK(ctx, saves_save(ctx, dir, tag, done, VALUES, allow_exchange));
    srand(7);
    for (int i = 0; i < KILLS; ++i) {
        int report[2];
        assert_int_equal(pipe(report), 0);
        const pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            (void)close(report[0]);
            child(dir, tag, done + 1, allow_exchange, report[1]);
        }
        (void)close(report[1]);
        sleep_us(rand() % 12000);
        assert_int_equal(kill(pid, SIGKILL), 0);
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        uint64_t step = 0;
        while (read(report[0], &step, sizeof step) == (ssize_t)sizeof step) {
            done = step;
        }
        (void)close(report[0]);
        CHECK_OK(ctx, saves_check(ctx, dir, NULL, &step));
        if (step < done || step > done + 1) {
            fail_msg("kill %d: step %llu, expected %llu or the next", i, (unsigned long long)step,
                     (unsigned long long)done);
        }
        done = step;
        during += scratch_count(dir) > 2;
        if (tag == NULL) {
            CHECK_OK(ctx, ds_checkpoint_keep(ctx, dir, 1));
        }
    }
    assert_true(during > 0); /* else the kills came too early or too late to test anything */
    CHECK_OK(ctx, saves_save(ctx, dir, tag, done + 1, VALUES, allow_exchange));
    CHECK_OK(ctx, ds_checkpoint_keep(ctx, dir, 1));
    assert_int_equal(scratch_count(dir), 2); /* the next save clears what the killed ones left */
    scratch_remove(dir);
}

static void new_tags(void **state)
{
    kill_loop(*state, NULL, true);
}

static void one_tag_exchanged(void **state)
{
    kill_loop(*state, "best", true);
}

static void one_tag_step_by_step(void **state)
{
    kill_loop(*state, "best", false);
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
        cmocka_unit_test(new_tags),
        cmocka_unit_test(one_tag_exchanged),
        cmocka_unit_test(one_tag_step_by_step),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
