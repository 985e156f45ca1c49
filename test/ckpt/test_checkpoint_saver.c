/* SPDX-License-Identifier: Apache-2.0 */
/* Saving behind training: what is written is what there was at the commit, whatever changes after;
 * a failure shows at the next call; the caller's communicator is free meanwhile.
 * labels: threads */
#include "common/check.h"
#include "common/rank_threads.h"
#include "common/scratch.h"

#include "ckpt/checkpoint_on.h"
#include "io/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 30011, STEPS = 6 };

typedef struct run {
    const char *dir;
    bool break_it;  /* the temporary folder is removed between begin and commit of step 2 */
    uint32_t asker; /* … this rank polls, the others only begin */
    bool give_up;   /* the last rank aborts step 2 */
} run;

static float value(uint64_t step, int64_t i)
{
    return (float)step * 65536.0f + (float)i;
}

static void remove_temporary(ds_ctx *ctx, const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    CHECK_OK(ctx, dsi_folder_list(ctx, dir, &names, &n));
    for (size_t i = 0; i < n; ++i) {
        if (strstr(names[i], ".ds_tmp.") != NULL) {
            char *path = dsi_path_join(dir, names[i]);
            CHECK_OK(ctx, dsi_folder_remove(ctx, path));
            free(path);
        }
    }
    dsi_names_free(names, n);
}

static ds_status begin(ds_ctx *ctx, const run *r, dsi_comm *comm, ds_checkpoint_saver *saver,
                       uint64_t step, const float *own, int64_t first, int64_t n,
                       const float *whole)
{
    const ds_checkpoint_params params = {.dir = r->dir, .step = step, .keep_last = 3};
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(COUNT)};
    const ds_extent extent = ds_extent_flat(first, n);
    const ds_checkpoint_slice slices[] = {
        {.kind = "master", .name = "w", .meta = meta, .extent = &extent, .data = own},
        {.kind = "param", .name = "w", .meta = meta, .data = whole, .replicated = true}};
    const uint32_t rank = comm != NULL ? comm->rank : 0;
    ds_checkpoint_writer *w = NULL;
    DS_TRY(ds_checkpoint_saver_begin(saver, &params, &w));
    CHECK_OK(ctx, ds_checkpoint_writer_add(w, &slices[0]));
    CHECK_OK(ctx, ds_checkpoint_writer_add(w, &slices[1]));
    const ds_checkpoint_slice wrong = {.kind = "UPPER", .name = "w", .meta = meta, .data = whole};
    CHECK_FAILS(ctx, ds_checkpoint_writer_add(w, &wrong), DS_ERR_ARG, "'UPPER/w' cannot be");
    if (r->give_up && step == 2 && comm->rank + 1 == comm->size) {
        ds_checkpoint_writer_abort(&w);
        return DS_ERR_INTERRUPTED;
    }
    if (r->break_it && step == 2 && rank == 0) {
        remove_temporary(ctx, r->dir);
    }
    return ds_checkpoint_saver_commit(saver, &w);
}

static ds_status train(dsi_comm *comm, ds_ctx *ctx, const run *r)
{
    const uint32_t rank = comm != NULL ? comm->rank : 0;
    const uint32_t size = comm != NULL ? comm->size : 1;
    const int64_t slice = (COUNT + size - 1) / size;
    const int64_t first = slice * rank;
    const int64_t n = COUNT - first < slice ? COUNT - first : slice;
    float *own = malloc(COUNT * sizeof *own);
    float *whole = malloc(COUNT * sizeof *whole);
    ds_checkpoint_saver *saver = NULL;
    ds_status status = DS_OK;
    CHECK_OK(ctx, dsi_checkpoint_saver_create_on(ctx, comm, &saver));
    CHECK_OK(ctx, ds_checkpoint_saver_reserve(saver, 1000));
    for (uint64_t step = 1; step <= STEPS && status == DS_OK; ++step) {
        for (int64_t i = 0; i < COUNT; ++i) {
            own[i] = value(step, first + i);
            whole[i] = value(step, i);
        }
        DS_TRY_GOTO(status, begin(ctx, r, comm, saver, step, own, first, n, whole), done);
        memset(own, 0xff, COUNT * sizeof *own); /* training goes on */
        memset(whole, 0xff, COUNT * sizeof *whole);
        for (int i = 0; i < 20 && comm != NULL; ++i) {
            float sum = 1.0f;
            const dsi_comm_part part = {.in = &sum, .out = &sum, .count = 1};
            CHECK_OK(ctx, dsi_comm_run(comm, &(dsi_comm_call){.kind = DS_COMM_ALL_REDUCE,
                                                              .dtype = DS_DTYPE_F32,
                                                              .factor = 1.0f,
                                                              .parts = &part,
                                                              .n_parts = 1}));
            assert_true(sum == (float)size);
        }
        while (rank == r->asker && (status = ds_checkpoint_saver_poll(saver)) == DS_IN_PROGRESS) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
        if (status < 0 && size > 1) {
            status = DS_OK; /* the others learn it at their next begin: meet them there */
        }
    }
    if (status == DS_OK) {
        status = ds_checkpoint_saver_wait(saver);
    }
    if (status == DS_OK && !r->break_it) {
        const ds_checkpoint_saver_info *info = ds_checkpoint_saver_get_info(saver);
        assert_true(info->n_saves == STEPS && info->copy_bytes >= (size_t)n * sizeof(float));
        assert_true(info->stall_seconds > 0 && info->write_seconds > 0);
    }
done:
    ds_checkpoint_saver_destroy(&saver);
    free(own);
    free(whole);
    return status;
}

static ds_status train_job(dsi_comm *comm, void *arg)
{
    return train(comm, comm->ctx, arg);
}

static void check_step(ds_ctx *ctx, const char *dir, const char *tag, uint64_t step)
{
    ds_checkpoint *c = NULL;
    float *got = malloc(COUNT * sizeof *got);
    CHECK_OK(ctx, ds_checkpoint_open(ctx, dir, tag, &c));
    assert_true(ds_checkpoint_get_info(c)->step == step);
    CHECK_OK(ctx, ds_checkpoint_verify(c));
    for (size_t k = 0; k < 2; ++k) {
        CHECK_OK(ctx, ds_checkpoint_read(c, ds_checkpoint_at(c, k), NULL, DS_DTYPE_F32, got));
        for (int64_t i = 0; i < COUNT; ++i) {
            assert_true(got[i] == value(step, i));
        }
    }
    free(got);
    ds_checkpoint_close(&c);
}

static void writes_what_there_was(void **state)
{
    for (uint32_t n = 1; n <= 4; ++n) {
        char *dir = scratch_make();
        run r = {.dir = dir, .asker = UINT32_MAX};
        if (n == 1) {
            CHECK_OK(*state, train(NULL, *state, &r));
        } else {
            assert_int_equal(rank_threads_run(n, NULL, train_job, &r, NULL), DS_OK);
        }
        check_step(*state, dir, NULL, STEPS);
        check_step(*state, dir, "global_step4", 4);
        check_step(*state, dir, "global_step5", 5);
        assert_int_equal(scratch_count(dir), 4);
        scratch_remove(dir);
    }
}

static void failure_shows_at_the_next_call(void **state)
{
    for (uint32_t asker = 0; asker < 2; ++asker) {
        char *dir = scratch_make();
        run r = {.dir = dir, .break_it = true, .asker = asker};
        CHECK_FAILS(*state, train(NULL, *state, &r), DS_ERR_NOT_FOUND, "No such file");
        check_step(*state, dir, NULL, 1);
        assert_int_equal(scratch_count(dir), 2);
        scratch_remove(dir);
    }
}

/* One rank has been told already, the others have not: the next begin fails on all but hangs none.
 */
static void ranks_fail_together(void **state)
{
    char *dir = scratch_make();
    run r = {.dir = dir, .break_it = true, .asker = 1};
    rank_results results;
    (void)rank_threads_run(3, NULL, train_job, &r, &results);
    for (uint32_t k = 0; k < 3; ++k) {
        assert_int_equal(results.status[k], DS_ERR_NOT_FOUND);
        assert_non_null(strstr(results.message[k], "No such file"));
    }
    check_step(*state, dir, NULL, 1);
    scratch_remove(dir);
}

static void one_rank_gives_up(void **state)
{
    char *dir = scratch_make();
    run r = {.dir = dir, .give_up = true, .asker = UINT32_MAX};
    rank_results results;
    (void)rank_threads_run(3, NULL, train_job, &r, &results);
    for (uint32_t k = 0; k < 3; ++k) {
        assert_int_equal(results.status[k], DS_ERR_INTERRUPTED);
    }
    assert_non_null(strstr(results.message[0], "gave up saving checkpoint global_step2"));
    check_step(*state, dir, NULL, 1);
    assert_int_equal(scratch_count(dir), 2);
    scratch_remove(dir);
}

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static int set_up(void **state)
{
    const ds_ctx_params params = {.n_threads = 2, .world_size = 1, .log = quiet};
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
        cmocka_unit_test(writes_what_there_was),
        cmocka_unit_test(failure_shows_at_the_next_call),
        cmocka_unit_test(ranks_fail_together),
        cmocka_unit_test(one_rank_gives_up),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
