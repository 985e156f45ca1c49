/* SPDX-License-Identifier: Apache-2.0 */
/* The public handle: whole and background transfers of files by path, several handles at once, and
 * what is refused.
 * labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/aio.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 500003, BLOCK = 65536 };

typedef struct fixture {
    ds_ctx *ctx;
    ds_aio_handle *io;
    char *folder;
    uint8_t *data;
    void *found;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ds_aio_params params = ds_aio_params_default();
    params.block_size = BLOCK;
    params.intra_op_parallelism = 2;
    f->data = malloc(BYTES);
    for (size_t i = 0; i < BYTES; ++i) {
        f->data[i] = (uint8_t)(i % 251);
    }
    *state = f;
    return ds_ctx_create(NULL, &f->ctx) < 0 ||
                   asprintf(&f->folder, "%s/ds_test_XXXXXX", DS_BINARY_DIR) < 0 ||
                   mkdtemp(f->folder) == NULL ||
                   ds_aio_handle_create(f->ctx, &params, &f->io) < 0 ||
                   ds_aio_buffer_create(f->ctx, BYTES, false, &f->found) < 0
               ? -1
               : 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ds_aio_buffer_destroy(&f->found, BYTES);
    ds_aio_buffer_destroy(&f->found, BYTES);
    ds_aio_handle_destroy(&f->io);
    ds_aio_handle_destroy(&f->io);
    scratch_remove(f->folder);
    ds_ctx_destroy(&f->ctx);
    free(f->data);
    free(f);
    return 0;
}

static void defaults_are_those_of_the_section(void **state)
{
    fixture *f = *state;
    ds_aio_handle *io = NULL;
    CHECK_OK(f->ctx, ds_aio_handle_create(f->ctx, NULL, &io));
    const ds_aio_params params = ds_aio_handle_params(io);
    assert_int_equal(params.block_size, 1048576);
    assert_int_equal(params.queue_depth, 8);
    assert_int_equal(params.intra_op_parallelism, 1);
    assert_false(params.single_submit);
    assert_true(params.overlap_events);
    assert_int_not_equal(params.backend, DS_AIO_AUTO);
    ds_aio_handle_destroy(&io);
}

static void whole_files_come_back(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folder, "whole");
    static const size_t sizes[] = {BYTES, 0, 1, 4096, BLOCK + 1, 5000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        size_t n = 0;
        CHECK_OK(f->ctx, ds_aio_write(f->io, f->data, sizes[i], path)); /* larger and smaller */
        char *plain = scratch_read(path, &n);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(plain, f->data, n);
        free(plain);
        memset(f->found, 0, BYTES);
        CHECK_OK(f->ctx, ds_aio_read(f->io, f->found, sizes[i], path));
        assert_memory_equal(f->found, f->data, sizes[i]);
    }
    CHECK_FAILS(f->ctx, ds_aio_read(f->io, f->found, 4999, path), DS_ERR_SHAPE,
                "buffer of 4999 bytes: the file has 5000");
}

static void parts_stand_at_their_offsets(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folder, "parts");
    size_t n = 0;
    CHECK_OK(f->ctx, ds_aio_pwrite(f->io, f->data + 1000, BYTES - 1000, path, 1000));
    CHECK_OK(f->ctx, ds_aio_pwrite(f->io, f->data, 1000, path, 0)); /* the rest stays */
    char *plain = scratch_read(path, &n);
    assert_int_equal(n, BYTES);
    assert_memory_equal(plain, f->data, n);
    free(plain);
    CHECK_OK(f->ctx, ds_aio_pread(f->io, (uint8_t *)f->found + 3, 200000, path, 12345));
    assert_memory_equal((uint8_t *)f->found + 3, f->data + 12345, 200000);
}

static void background_transfers_are_waited_for_together(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folder, "background");
    const char *other = scratch_path(f->folder, "background2");
    size_t n = 0;
    CHECK_OK(f->ctx, ds_aio_wait(f->io, &n));
    assert_int_equal(n, 0);
    CHECK_OK(f->ctx, ds_aio_async_pwrite(f->io, f->data, 100001, path, 0));
    CHECK_OK(f->ctx, ds_aio_async_pwrite(f->io, f->data + 100001, BYTES - 100001, path, 100001));
    CHECK_OK(f->ctx, ds_aio_async_pwrite(f->io, f->data, BYTES, other, 0));
    CHECK_OK(f->ctx, ds_aio_wait(f->io, &n));
    assert_int_equal(n, 3);
    memset(f->found, 0, BYTES);
    CHECK_OK(f->ctx, ds_aio_async_pread(f->io, f->found, 7, path, 0));
    CHECK_OK(f->ctx, ds_aio_async_pread(f->io, (uint8_t *)f->found + 7, BYTES - 7, other, 7));
    CHECK_OK(f->ctx, ds_aio_wait(f->io, &n));
    assert_int_equal(n, 2);
    assert_memory_equal(f->found, f->data, BYTES);
}

static void errors_of_several_are_counted(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folder, "small");
    size_t n = 0;
    CHECK_OK(f->ctx, ds_aio_write(f->io, f->data, 10, path));
    CHECK_FAILS(f->ctx, ds_aio_async_pread(f->io, f->found, 1, "/no/such/file", 0),
                DS_ERR_NOT_FOUND, "/no/such/file");
    CHECK_OK(f->ctx, ds_aio_async_pread(f->io, f->found, 10, path, 0));
    CHECK_OK(f->ctx, ds_aio_async_pread(f->io, f->found, 11, path, 0));
    CHECK_OK(f->ctx, ds_aio_async_pread(f->io, f->found, 12, path, 4));
    CHECK_FAILS(f->ctx, ds_aio_wait(f->io, &n), DS_ERR_IO, "cannot read 11 bytes at offset 0 of ");
    assert_non_null(strstr(ds_ctx_error(f->ctx), "(2 of 3 transfers failed)"));
    assert_int_equal(n, 1);
    for (int i = 0; i < 256; ++i) {
        CHECK_OK(f->ctx, ds_aio_async_pread(f->io, f->found, 10, path, 0));
    }
    CHECK_FAILS(f->ctx, ds_aio_async_pread(f->io, f->found, 10, path, 0), DS_ERR_LIMIT,
                "call ds_aio_wait");
    CHECK_OK(f->ctx, ds_aio_pread(f->io, f->found, 10, path, 0)); /* beside those in flight */
    CHECK_OK(f->ctx, ds_aio_wait(f->io, &n));
    assert_int_equal(n, 256);
}

/* ---- handles beside one another ---- */

typedef struct worker {
    const fixture *f;
    char path[512];
    uint32_t number;
} worker;

static void *use_own_handle(void *opaque)
{
    const worker *w = opaque;
    ds_aio_params params = ds_aio_params_default();
    ds_aio_handle *io = NULL;
    uint8_t *found = malloc(BYTES);
    params.block_size = 4096u << w->number;
    params.backend = w->number % 2 == 0 ? DS_AIO_THREADS : DS_AIO_AUTO;
    CHECK_OK(w->f->ctx, ds_aio_handle_create(w->f->ctx, &params, &io));
    for (int i = 0; i < 5; ++i) {
        const size_t n = (size_t)(BYTES - i * 777);
        CHECK_OK(w->f->ctx, ds_aio_write(io, w->f->data, n, w->path));
        CHECK_OK(w->f->ctx, ds_aio_async_pread(io, found, n, w->path, 0));
        CHECK_OK(w->f->ctx, ds_aio_wait(io, NULL));
        assert_memory_equal(found, w->f->data, n);
    }
    ds_aio_handle_destroy(&io);
    free(found);
    return NULL;
}

static void handles_work_beside_one_another(void **state)
{
    enum { N = 4 };
    fixture *f = *state;
    pthread_t threads[N];
    worker workers[N];
    for (uint32_t i = 0; i < N; ++i) {
        workers[i] = (worker){.f = f, .number = i};
        (void)snprintf(workers[i].path, sizeof workers[i].path, "%s/handle%u", f->folder, i);
        assert_int_equal(pthread_create(&threads[i], NULL, use_own_handle, &workers[i]), 0);
    }
    for (uint32_t i = 0; i < N; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

static void buffers_are_aligned_zero_and_lockable(void **state)
{
    fixture *f = *state;
    void *buffer = NULL;
    static const uint8_t zeros[10000];
    CHECK_OK(f->ctx, ds_aio_buffer_create(f->ctx, sizeof zeros, true, &buffer));
    assert_int_equal((uintptr_t)buffer % 4096, 0);
    assert_memory_equal(buffer, zeros, sizeof zeros);
    ds_aio_buffer_destroy(&buffer, sizeof zeros);
    assert_null(buffer);
    CHECK_FAILS(f->ctx, ds_aio_buffer_create(f->ctx, SIZE_MAX, false, &buffer), DS_ERR_NOMEM,
                "out of memory");
    const struct rlimit none = {0, 0};
    if (geteuid() != 0 && setrlimit(RLIMIT_MEMLOCK, &none) == 0) {
        CHECK_FAILS(f->ctx, ds_aio_buffer_create(f->ctx, 10000, true, &buffer), DS_ERR_LIMIT,
                    "ulimit -l");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_section),
        cmocka_unit_test(whole_files_come_back),
        cmocka_unit_test(parts_stand_at_their_offsets),
        cmocka_unit_test(background_transfers_are_waited_for_together),
        cmocka_unit_test(errors_of_several_are_counted),
        cmocka_unit_test(handles_work_beside_one_another),
        cmocka_unit_test(buffers_are_aligned_zero_and_lockable),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
