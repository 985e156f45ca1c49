/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous transfers against a copy in memory: both backends, on a disk and on tmpfs, any size,
 * offset and address, several folders, several threads; and what is refused.
 * labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include "io/aio.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FOLDERS = 3,
    ROUNDS = 3,
    REGIONS = 24,
    REGION = 100352 /* 24.5 blocks */,
    FILE_BYTES = REGIONS * REGION,
    BLOCK = 16384,
    STRIDE = 26 * 4096
};

typedef struct fixture {
    ds_ctx *ctx;
    char *folders[2]; /* on a disk, in memory */
    char last_line[512];
    bool has_uring;
} fixture;

static void keep_line(void *user, ds_log_level level, const char *line)
{
    fixture *f = user;
    (void)level;
    (void)snprintf(f->last_line, sizeof f->last_line, "%s", line);
}

static dsi_aio_params small_params(ds_aio_backend backend, const char *const *folders, uint32_t n)
{
    dsi_aio_params params = {.io = ds_aio_params_default(),
                             .folders = folders,
                             .n_folders = n,
                             .stripe_bytes = 3 * DSI_AIO_ALIGN,
                             .max_files = 4,
                             .max_requests = 2 * REGIONS};
    params.io.block_size = BLOCK;
    params.io.backend = backend;
    return params;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ds_ctx_params params = ds_ctx_params_default();
    char *disk = NULL;
    dsi_aio *aio = NULL;
    params.n_threads = 1;
    params.log = keep_line;
    params.log_user = f;
    if (ds_ctx_create(&params, &f->ctx) < 0 ||
        asprintf(&disk, "%s/ds_test_XXXXXX", DS_BINARY_DIR) < 0 || mkdtemp(disk) == NULL) {
        return -1;
    }
    f->folders[0] = disk;
    f->folders[1] = scratch_make();
    const dsi_aio_params probe = small_params(DS_AIO_URING, NULL, 0);
    f->has_uring = dsi_aio_open(f->ctx, &probe, &aio) >= 0;
    if (!f->has_uring) {
        (void)printf("io_uring is left out: %s\n", ds_ctx_error(f->ctx));
    }
    dsi_aio_close(&aio);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    scratch_remove(f->folders[0]);
    scratch_remove(f->folders[1]);
    ds_ctx_destroy(&f->ctx);
    free(f);
    return 0;
}

/* ---- against a copy in memory ---- */

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

typedef struct model {
    ds_ctx *ctx;
    dsi_aio *aio;
    uint32_t file;
    uint64_t seed;
    uint8_t *shadow; /* what the file must hold */
    uint8_t *memory; /* the user's buffers, one a region, oddly aligned */
    uint64_t first;  /* region of the file that this model owns */
    uint32_t n_regions;
} model;

/* One batch: each region is written, read or left, in a random range; neighbours share blocks of
 * the disk. */
static void batch(model *m)
{
    dsi_aio_ticket tickets[REGIONS] = {0};
    uint64_t from[REGIONS];
    size_t n[REGIONS];
    const uint8_t *got[REGIONS] = {0}; /* of reads */
    for (uint32_t i = 0; i < m->n_regions; ++i) {
        const bool whole = next_random(&m->seed) % 4 == 0;
        const uint64_t start = (m->first + i) * REGION;
        const uint64_t skip = whole ? 0 : next_random(&m->seed) % REGION;
        uint8_t *buffer = m->memory + (size_t)i * STRIDE + next_random(&m->seed) % 3 * 100;
        from[i] = start + skip;
        n[i] = whole ? REGION : (size_t)(next_random(&m->seed) % (REGION - skip + 1));
        if (next_random(&m->seed) % 2 == 0) {
            got[i] = buffer;
            memset(buffer, 0xee, n[i]);
            CHECK_OK(m->ctx, dsi_aio_read(m->aio, m->file, from[i], buffer, n[i], &tickets[i]));
            continue;
        }
        for (size_t k = 0; k < n[i]; ++k) {
            buffer[k] = (uint8_t)(k * 7 + m->seed);
        }
        memcpy(m->shadow + from[i], buffer, n[i]);
        CHECK_OK(m->ctx, dsi_aio_write(m->aio, m->file, from[i], buffer, n[i], &tickets[i]));
    }
    for (uint32_t i = m->n_regions; i-- > 0;) { /* not in the order of submission */
        CHECK_OK(m->ctx, dsi_aio_wait(m->aio, tickets[i]));
        if (got[i] != NULL) {
            assert_memory_equal(got[i], m->shadow + from[i], n[i]);
        }
    }
}

static void check_whole(model *m, size_t bytes)
{
    uint8_t *found = malloc(bytes);
    dsi_aio_ticket ticket = 0;
    const uint64_t start = m->first * REGION;
    CHECK_OK(m->ctx, dsi_aio_read(m->aio, m->file, start, found, bytes, &ticket));
    CHECK_OK(m->ctx, dsi_aio_wait(m->aio, ticket));
    assert_memory_equal(found, m->shadow + start, bytes);
    free(found);
}

static void run_model(fixture *f, const dsi_aio_params *params, uint64_t seed)
{
    model m = {.ctx = f->ctx, .seed = seed, .n_regions = REGIONS};
    m.shadow = calloc(1, FILE_BYTES);
    m.memory = aligned_alloc(DSI_AIO_ALIGN, (size_t)REGIONS * STRIDE);
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, params, &m.aio));
    CHECK_OK(f->ctx,
             dsi_aio_add_scratch(m.aio, "model", FILE_BYTES, 0, params->n_folders, &m.file));
    for (int i = 0; i < ROUNDS; ++i) {
        batch(&m);
        check_whole(&m, FILE_BYTES);
    }
    const dsi_aio_stats stats = dsi_aio_get_stats(m.aio);
    assert_true(stats.n_copied < stats.n_pieces || !dsi_aio_is_direct(m.aio, m.file));
    assert_true(stats.read_bytes > (uint64_t)ROUNDS * FILE_BYTES);
    dsi_aio_close(&m.aio);
    assert_null(m.aio);
    free(m.memory);
    free(m.shadow);
}

static void any_range_on(void **state, ds_aio_backend backend)
{
    fixture *f = *state;
    if (backend == DS_AIO_URING && !f->has_uring) {
        skip();
    }
    for (int place = 0; place < 2; ++place) {
        const char *folders[FOLDERS] = {f->folders[place], f->folders[place], f->folders[place]};
        for (uint32_t n = 1; n <= FOLDERS; n += 2) {
            dsi_aio_params params = small_params(backend, folders, n);
            run_model(f, &params, n);
            params.io.intra_op_parallelism = 3;
            params.io.queue_depth = 2;
            params.io.single_submit = true;
            run_model(f, &params, n + 10);
            params.io.overlap_events = false;
            params.io.single_submit = false;
            params.io.queue_depth = 5;
            run_model(f, &params, n + 20);
        }
        assert_int_equal(scratch_count(f->folders[place]), 0); /* scratch files have no name */
    }
}

static void any_range_on_threads(void **state)
{
    any_range_on(state, DS_AIO_THREADS);
}

static void any_range_on_io_uring(void **state)
{
    any_range_on(state, DS_AIO_URING);
}

/* ---- several threads on one file, each in its own part ---- */

static void *work_alone(void *opaque)
{
    model *m = opaque;
    for (int i = 0; i < ROUNDS; ++i) {
        batch(m);
        check_whole(m, (size_t)m->n_regions * REGION);
    }
    return NULL;
}

static void several_threads_on(void **state, ds_aio_backend backend)
{
    enum { THREADS = 3 };
    fixture *f = *state;
    if (backend == DS_AIO_URING && !f->has_uring) {
        skip();
    }
    const char *folders[] = {f->folders[0], f->folders[0]};
    dsi_aio_params params = small_params(backend, folders, 2);
    params.io.intra_op_parallelism = 2;
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    uint8_t *shadow = calloc(1, FILE_BYTES);
    pthread_t threads[THREADS];
    model models[THREADS];
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
    CHECK_OK(f->ctx, dsi_aio_add_scratch(aio, "shared", FILE_BYTES, 0, 2, &file));
    for (uint32_t i = 0; i < THREADS; ++i) {
        models[i] = (model){.ctx = f->ctx, .aio = aio, .file = file, .seed = i, .shadow = shadow};
        models[i].n_regions = REGIONS / THREADS;
        models[i].first = (uint64_t)i * REGIONS / THREADS;
        models[i].memory = aligned_alloc(DSI_AIO_ALIGN, (size_t)REGIONS * STRIDE);
        assert_int_equal(pthread_create(&threads[i], NULL, work_alone, &models[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        free(models[i].memory);
    }
    dsi_aio_close(&aio);
    free(shadow);
}

static void several_threads_with_threads(void **state)
{
    several_threads_on(state, DS_AIO_THREADS);
}

static void several_threads_with_io_uring(void **state)
{
    several_threads_on(state, DS_AIO_URING);
}

/* ---- files with a name, tickets, refusals ---- */

static void waiting_uses_the_ticket_up(void **state)
{
    fixture *f = *state;
    const char *folders[] = {f->folders[0]};
    const dsi_aio_params params = small_params(DS_AIO_AUTO, folders, 1);
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    dsi_aio_ticket ticket = 0;
    char *data = calloc(1, FILE_BYTES);
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
    CHECK_OK(f->ctx, dsi_aio_add_scratch(aio, "twice", FILE_BYTES, 0, 1, &file));
    CHECK_OK(f->ctx, dsi_aio_write(aio, file, 0, data, FILE_BYTES, &ticket));
    CHECK_OK(f->ctx, dsi_aio_wait(aio, ticket));
    CHECK_FAILS(f->ctx, dsi_aio_wait(aio, ticket), DS_ERR_ARG, "used up");
    CHECK_OK(f->ctx, dsi_aio_wait(aio, 0));
    dsi_aio_close(&aio);
    dsi_aio_close(&aio);
    free(data);
}

/* The handle waits for what nobody waited for. */
static void closing_waits(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folders[0], "closing");
    const dsi_aio_params params = small_params(DS_AIO_AUTO, NULL, 0);
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    dsi_aio_ticket ticket = 0;
    size_t n = 0;
    char *data = malloc(FILE_BYTES);
    memset(data, 'x', FILE_BYTES);
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
    CHECK_OK(f->ctx, dsi_aio_add_path(aio, path, true, &file));
    CHECK_OK(f->ctx, dsi_aio_write(aio, file, 0, data, FILE_BYTES - 3, &ticket));
    dsi_aio_close(&aio);
    char *found = scratch_read(path, &n);
    assert_int_equal(n, FILE_BYTES - 3);
    assert_memory_equal(found, data, n);
    free(found);
    free(data);
    assert_int_equal(unlink(path), 0);
}

static void ceilings_hold(void **state)
{
    fixture *f = *state;
    const char *folders[] = {f->folders[0]};
    const dsi_aio_params params = small_params(DS_AIO_AUTO, folders, 1);
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    uint32_t other = 0;
    dsi_aio_ticket tickets[2 * REGIONS];
    dsi_aio_ticket ticket = 0;
    char byte = 0;
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
    for (uint32_t i = 0; i < params.max_files; ++i) {
        CHECK_OK(f->ctx, dsi_aio_add_scratch(aio, "one", 4097, 0, 1, &file));
    }
    CHECK_FAILS(f->ctx, dsi_aio_add_scratch(aio, "more", 1, 0, 1, &other), DS_ERR_LIMIT,
                "more than 4");
    dsi_aio_remove(aio, 1);
    CHECK_OK(f->ctx, dsi_aio_add_scratch(aio, "again", 1, 0, 1, &other));
    assert_int_equal(other, 1);
    for (uint32_t i = 0; i < params.max_requests; ++i) {
        CHECK_OK(f->ctx, dsi_aio_read(aio, file, 1, &byte, 1, &tickets[i]));
    }
    CHECK_FAILS(f->ctx, dsi_aio_read(aio, file, 1, &byte, 1, &ticket), DS_ERR_LIMIT, "ceiling");
    for (uint32_t i = 0; i < params.max_requests; ++i) {
        CHECK_OK(f->ctx, dsi_aio_wait(aio, tickets[i]));
    }
    CHECK_OK(f->ctx, dsi_aio_read(aio, file, 8191, &byte, 1, &ticket));
    CHECK_OK(f->ctx, dsi_aio_wait(aio, ticket));
    CHECK_FAILS(f->ctx, dsi_aio_read(aio, file, 8191, &byte, 2, &ticket), DS_ERR_ARG, "beyond");
    CHECK_FAILS(f->ctx, dsi_aio_read(aio, file, UINT64_MAX, &byte, 2, &ticket), DS_ERR_ARG, "bey");
    CHECK_FAILS(f->ctx, dsi_aio_read(aio, 77, 0, &byte, 2, &ticket), DS_ERR_ARG, "no file 77");
    CHECK_OK(f->ctx, dsi_aio_read(aio, file, 5, NULL, 0, &ticket));
    assert_int_equal(ticket, 0);
    dsi_aio_close(&aio);
}

static void wrong_values_are_refused(void **state)
{
    fixture *f = *state;
    dsi_aio *aio = NULL;
    const struct {
        uint64_t block;
        uint32_t depth, threads;
        const char *text;
    } cases[] = {
        {0, 1, 1, "aio.block_size"},
        {5000, 1, 1, "multiple of 4096"},
        {UINT64_C(1) << 31, 1, 1, "1073741824"},
        {4096, 0, 1, "aio.queue_depth"},
        {4096, 4097, 1, "1 to 4096"},
        {4096, 1, 0, "aio.intra_op_parallelism"},
        {4096, 1, 65, "1 to 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        dsi_aio_params params = small_params(DS_AIO_THREADS, NULL, 0);
        params.io.block_size = cases[i].block;
        params.io.queue_depth = cases[i].depth;
        params.io.intra_op_parallelism = cases[i].threads;
        CHECK_FAILS(f->ctx, dsi_aio_open(f->ctx, &params, &aio), DS_ERR_ARG, cases[i].text);
    }
    const dsi_aio_params unknown = small_params((ds_aio_backend)3, NULL, 0);
    CHECK_FAILS(f->ctx, dsi_aio_open(f->ctx, &unknown, &aio), DS_ERR_ARG, "no backend 3");
}

static void places_that_are_wrong_are_named(void **state)
{
    fixture *f = *state;
    const char *missing[] = {f->folders[0], "/no/such/folder"};
    dsi_aio_params params = small_params(DS_AIO_AUTO, missing, 2);
    const char *path = scratch_path(f->folders[0], "pipe");
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
    CHECK_FAILS(f->ctx, dsi_aio_add_scratch(aio, "x", 1, 0, 2, &file), DS_ERR_NOT_FOUND,
                "/no/such/folder");
    CHECK_FAILS(f->ctx, dsi_aio_add_scratch(aio, "../x", 1, 0, 2, &file), DS_ERR_ARG, "../x");
    CHECK_FAILS(f->ctx, dsi_aio_add_path(aio, "/no/such/file", false, &file), DS_ERR_NOT_FOUND,
                "/no/such/file");
    CHECK_FAILS(f->ctx, dsi_aio_add_path(aio, f->folders[0], false, &file), DS_ERR_IO,
                "no regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    CHECK_FAILS(f->ctx, dsi_aio_add_path(aio, path, false, &file), DS_ERR_IO, "no regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(scratch_count(f->folders[0]), 0);
    dsi_aio_close(&aio);
}

/* A file that ends inside of the range: the message has the file, the range and the end. */
static void the_end_of_a_file_is_an_error(void **state)
{
    fixture *f = *state;
    const char *path = scratch_path(f->folders[0], "short");
    const dsi_aio_params params = small_params(DS_AIO_AUTO, NULL, 0);
    static const size_t sizes[] = {0, 1, 4095, 4096, BLOCK, BLOCK + 1, 3 * BLOCK - 5};
    char *data = malloc(4 * BLOCK);
    memset(data, 'y', 4 * BLOCK);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        dsi_aio *aio = NULL;
        uint32_t file = 0;
        dsi_aio_ticket ticket = 0;
        char text[128];
        scratch_write(path, data, sizes[i]);
        CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &aio));
        CHECK_OK(f->ctx, dsi_aio_add_path(aio, path, false, &file));
        CHECK_OK(f->ctx, dsi_aio_read(aio, file, 0, data, 4 * BLOCK, &ticket));
        (void)snprintf(text, sizeof text, "cannot read %d bytes at offset 0 of %s: the file ends",
                       4 * BLOCK, path);
        CHECK_FAILS(f->ctx, dsi_aio_wait(aio, ticket), DS_ERR_IO, text);
        CHECK_OK(f->ctx, dsi_aio_read(aio, file, 0, data, sizes[i], &ticket));
        CHECK_OK(f->ctx, dsi_aio_wait(aio, ticket));
        dsi_aio_close(&aio);
    }
    free(data);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_range_on_threads),
        cmocka_unit_test(any_range_on_io_uring),
        cmocka_unit_test(several_threads_with_threads),
        cmocka_unit_test(several_threads_with_io_uring),
        cmocka_unit_test(waiting_uses_the_ticket_up),
        cmocka_unit_test(closing_waits),
        cmocka_unit_test(ceilings_hold),
        cmocka_unit_test(wrong_values_are_refused),
        cmocka_unit_test(places_that_are_wrong_are_named),
        cmocka_unit_test(the_end_of_a_file_is_an_error),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
