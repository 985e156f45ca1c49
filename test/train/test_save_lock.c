/* SPDX-License-Identifier: Apache-2.0 */
/* One process at a time saves into a folder: a second one is refused by name, a killed one leaves
 * no lock, and of many that take and drop it no two ever hold it. */
#include "common/check.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "io/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static ds_ctx *make_context(void)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.level = DS_LOG_ERROR;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    return ctx;
}

/* A process that holds the folder until it is killed. */
static pid_t start_holder(const char *folder)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dsi_folder_lock lock;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves none behind */
        ds_ctx *ctx = make_context();
        if (dsi_folder_lock_take(ctx, folder, &lock) == DS_OK && write(ready[1], "x", 1) == 1) {
            for (;;) {
                (void)pause();
            }
        }
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    (void)close(ready[0]);
    (void)close(ready[1]);
    return pid;
}

static void second_is_refused(void **state)
{
    (void)state;
    char *folder = scratch_make();
    char *save = strdup(scratch_path(folder, "save"));
    char text[64];
    assert_int_equal(mkdir(save, 0777), 0);
    const pid_t pid = start_holder(save);
    ds_ctx *ctx = make_context();
    const dsi_engine_spec spec = small_spec(DS_DTYPE_F32);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    (void)snprintf(text, sizeof text, "process %ld on host", (long)pid);
    CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, save, "a", NULL), DS_ERR_STATE, text);
    assert_int_equal(scratch_count(save), 1); /* the lock alone */
    (void)kill(pid, SIGKILL);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, save, "a", NULL)); /* without waiting for it */
    (void)waitpid(pid, NULL, 0);
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, save, "b", NULL));
    ds_engine *other = small_engine(ctx, model, &spec);
    CHECK_OK(ctx, ds_engine_save_checkpoint(other, save, "c", NULL)); /* of this process */
    ds_engine_destroy(&other);
    ds_engine_destroy(&engine);
    assert_int_equal(scratch_count(save), 4); /* three and `latest` */
    ds_model_destroy(&model);
    ds_ctx_destroy(&ctx);
    free(save);
    scratch_remove(folder);
}

/* Takes and drops the lock; while it holds it, it alone has made the file `inside`. */
static void contend(const char *folder, unsigned seed)
{
    ds_ctx *ctx = make_context();
    const char *inside = scratch_path(folder, "inside");
    for (int i = 0; i < 60; ++i) {
        dsi_folder_lock lock;
        char self[32];
        if (dsi_folder_lock_take(ctx, folder, &lock) < 0) {
            continue;
        }
        const int n = snprintf(self, sizeof self, "%ld", (long)getpid());
        const int fd = open(inside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        char seen[32] = "";
        (void)!write(fd, self, (size_t)n);
        (void)nanosleep(&(struct timespec){.tv_nsec = rand_r(&seed) % 2000000}, NULL);
        const int again = open(inside, O_RDONLY | O_CLOEXEC);
        (void)!read(again, seen, sizeof seen - 1);
        (void)close(again);
        (void)close(fd);
        if (strcmp(seen, self) != 0) {
            _exit(3); /* somebody else was inside, too */
        }
        if (rand_r(&seed) % 20 == 0) {
            (void)raise(SIGKILL);
        }
        dsi_folder_lock_release(&lock);
    }
    _exit(0);
}

static void many_contend(void **state)
{
    (void)state;
    enum { N = 6 };
    pid_t pids[N];
    char *folder = scratch_make();
    for (unsigned i = 0; i < N; ++i) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            contend(folder, 100 + i);
        }
    }
    int killed = 0;
    for (int i = 0; i < N; ++i) {
        int status = 0;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
        killed += WIFSIGNALED(status);
    }
    assert_true(killed > 0);
    dsi_folder_lock lock;
    assert_int_equal(dsi_folder_lock_take(NULL, folder, &lock), DS_OK);
    dsi_folder_lock_release(&lock);
    assert_int_equal(scratch_count(folder), 1); /* the file `inside` */
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_is_refused),
        cmocka_unit_test(many_contend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
