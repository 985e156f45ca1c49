/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that is slow is named in the log and changes nothing; one that does not answer ends the
 * wait, and neither the next call nor closing waits for it; when it answers after all, all goes on.
 * labels: threads */
#include "common/aio_shim.h"
#include "common/check.h"
#include "common/scratch.h"

#include "base/clock.h"
#include "io/aio.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { BYTES = 40 * 4096, BLOCK = 4096 };

typedef struct fixture {
    ds_ctx *ctx;
    char *folder;
    char lines[8192];
    bool has_uring;
    dsi_aio *aio;
    uint32_t file;
    uint8_t *data, *found;
} fixture;

static void keep_line(void *user, ds_log_level level, const char *line)
{
    fixture *f = user;
    const size_t n = strlen(f->lines);
    (void)level;
    (void)snprintf(f->lines + n, sizeof f->lines - n, "%s\n", line);
}

static ds_status open_aio(fixture *f, ds_aio_backend backend, double patience)
{
    const char *folders[] = {f->folder};
    dsi_aio_params params = {.io = ds_aio_params_default(),
                             .folders = folders,
                             .n_folders = 1,
                             .max_files = 1,
                             .max_requests = 4,
                             .patience = patience};
    params.io.block_size = BLOCK;
    params.io.queue_depth = 2;
    params.io.backend = backend;
    f->lines[0] = '\0';
    DS_TRY(dsi_aio_open(f->ctx, &params, &f->aio));
    return dsi_aio_add_scratch(f->aio, "states", BYTES, 0, 1, &f->file);
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.log = keep_line;
    params.log_user = f;
    f->folder = scratch_make();
    f->data = aligned_alloc(DSI_AIO_ALIGN, BYTES);
    f->found = aligned_alloc(DSI_AIO_ALIGN, BYTES);
    for (size_t i = 0; i < BYTES; ++i) {
        f->data[i] = (uint8_t)(i * 31 + (i >> 8));
    }
    if (ds_ctx_create(&params, &f->ctx) < 0) {
        return -1;
    }
    f->has_uring = open_aio(f, DS_AIO_URING, 0.0) >= 0;
    dsi_aio_close(&f->aio);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    scratch_remove(f->folder);
    ds_ctx_destroy(&f->ctx);
    free(f->data);
    free(f->found);
    free(f);
    return 0;
}

static ds_status move(fixture *f, bool write)
{
    dsi_aio_ticket ticket = 0;
    DS_TRY(write ? dsi_aio_write(f->aio, f->file, 0, f->data, BYTES, &ticket)
                 : dsi_aio_read(f->aio, f->file, 0, f->found, BYTES, &ticket));
    return dsi_aio_wait(f->aio, ticket);
}

static void move_both_ways(fixture *f)
{
    memset(f->found, 0, BYTES);
    CHECK_OK(f->ctx, move(f, true));
    CHECK_OK(f->ctx, move(f, false));
    assert_memory_equal(f->found, f->data, BYTES);
}

typedef void slow_fn(fixture *f, ds_aio_backend backend);

static void on_every_backend(void **state, slow_fn *fn)
{
    fixture *f = *state;
    fn(f, DS_AIO_THREADS);
    if (f->has_uring) {
        fn(f, DS_AIO_URING);
    }
    shim_clear();
}

static void expect_line(const fixture *f, const char *part)
{
    if (strstr(f->lines, part) == NULL) {
        fail_msg("no \"%s\" in:\n%s", part, f->lines);
    }
}

static void slow(fixture *f, ds_aio_backend backend)
{
    CHECK_OK(f->ctx, open_aio(f, backend, 2.0)); /* the first warning after 0.2 s */
    shim.pause = 15000;                          /* 40 transfers, at most two at a time */
    move_both_ways(f);
    expect_line(f, "slow disk: waiting for");
    expect_line(f, "the write of 163840 bytes at offset 0 of");
    expect_line(f, "the read of 163840 bytes at offset 0 of");
    expect_line(f, f->folder);
    expect_line(f, "MB/s, the last ");
    assert_true(dsi_aio_get_stats(f->aio).wait_seconds > 0.5);
    shim_clear();
    dsi_aio_close(&f->aio);
}

static void a_slow_disk_is_named(void **state)
{
    on_every_backend(state, slow);
}

static void quick(fixture *f, ds_aio_backend backend)
{
    CHECK_OK(f->ctx, open_aio(f, backend, 100.0));
    move_both_ways(f);
    assert_string_equal(f->lines, "");
    dsi_aio_close(&f->aio);
}

static void nothing_is_said_of_a_quick_one(void **state)
{
    on_every_backend(state, quick);
}

static void lose_patience(fixture *f)
{
    shim.stuck_at = 20;
    CHECK_FAILS(f->ctx, move(f, true), DS_ERR_IO, "the disk does not answer: the write of 163840");
    assert_non_null(strstr(ds_ctx_error(f->ctx), f->folder));
    assert_non_null(strstr(ds_ctx_error(f->ctx), "no progress for "));
    expect_line(f, "slow disk: waiting for");
    const double begin = dsi_clock_seconds();
    CHECK_FAILS(f->ctx, move(f, false), DS_ERR_IO, "still does not answer");
    assert_false(dsi_aio_drain(f->aio));
    assert_true(dsi_clock_seconds() - begin < 5.0);
}

static void answer_late(fixture *f, ds_aio_backend backend)
{
    CHECK_OK(f->ctx, open_aio(f, backend, 0.4));
    lose_patience(f);
    shim_clear();
    assert_true(dsi_aio_drain(f->aio));
    move_both_ways(f);
    dsi_aio_close(&f->aio);
}

static void a_disk_that_answers_late_is_used_again(void **state)
{
    on_every_backend(state, answer_late);
}

/* In a process of its own: the workers stay where they are. */
static void never_answer(fixture *f, ds_aio_backend backend)
{
    const pid_t child = fork();
    if (child == 0) {
        CHECK_OK(f->ctx, open_aio(f, backend, 0.4));
        lose_patience(f);
        const double begin = dsi_clock_seconds();
        dsi_aio_close(&f->aio);
        ds_ctx_destroy(&f->ctx);
        _exit(f->aio != NULL || dsi_clock_seconds() - begin > 5.0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(scratch_count(f->folder), 0);
}

static void closing_does_not_wait_for_ever(void **state)
{
    on_every_backend(state, never_answer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_disk_is_named),
        cmocka_unit_test(nothing_is_said_of_a_quick_one),
        cmocka_unit_test(a_disk_that_answers_late_is_used_again),
        cmocka_unit_test(closing_does_not_wait_for_ever),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
