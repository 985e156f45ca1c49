/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that fails: transfers that come short, are interrupted, refused or end in an error, on
 * threads and in io_uring; a full disk, a limited file size, a killed process; no io_uring.
 * labels: threads */
#include "common/aio_shim.h"
#include "common/check.h"
#include "common/scratch.h"

#include "io/aio.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { BYTES = 300000, BLOCK = 16384 };

typedef struct fixture {
    ds_ctx *ctx;
    char *folder;
    char lines[4096];
    bool has_uring;
} fixture;

static void keep_line(void *user, ds_log_level level, const char *line)
{
    fixture *f = user;
    const size_t n = strlen(f->lines);
    (void)level;
    (void)snprintf(f->lines + n, sizeof f->lines - n, "%s\n", line);
}

static dsi_aio_params small_params(ds_aio_backend backend, const char *const *folders)
{
    dsi_aio_params params = {.io = ds_aio_params_default(),
                             .folders = folders,
                             .n_folders = folders != NULL ? 1 : 0,
                             .max_files = 4,
                             .max_requests = 8};
    params.io.block_size = BLOCK;
    params.io.backend = backend;
    return params;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    ds_ctx_params params = ds_ctx_params_default();
    dsi_aio *aio = NULL;
    params.n_threads = 1;
    params.log = keep_line;
    params.log_user = f;
    if (ds_ctx_create(&params, &f->ctx) < 0 ||
        asprintf(&f->folder, "%s/ds_test_XXXXXX", DS_BINARY_DIR) < 0 ||
        mkdtemp(f->folder) == NULL) {
        return -1;
    }
    const dsi_aio_params probe = small_params(DS_AIO_URING, NULL);
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
    scratch_remove(f->folder);
    ds_ctx_destroy(&f->ctx);
    free(f);
    return 0;
}

/* ---- each fault, on each backend ---- */

typedef void fault_fn(fixture *f, ds_aio_backend backend, bool single_submit);

static void on_every_backend(void **state, fault_fn *fn)
{
    fixture *f = *state;
    fn(f, DS_AIO_THREADS, false);
    if (f->has_uring) {
        fn(f, DS_AIO_URING, false);
        fn(f, DS_AIO_URING, true);
    }
    shim_clear();
}

typedef struct bench {
    dsi_aio *aio;
    uint32_t file;
    uint8_t *data, *found;
} bench;

static bench set_up(fixture *f, ds_aio_backend backend, bool single_submit)
{
    const char *folders[] = {f->folder};
    dsi_aio_params params = small_params(backend, folders);
    bench b = {0};
    params.io.single_submit = single_submit;
    b.data = aligned_alloc(DSI_AIO_ALIGN, (BYTES + 4095) / 4096 * 4096);
    b.found = aligned_alloc(DSI_AIO_ALIGN, (BYTES + 4095) / 4096 * 4096);
    for (size_t i = 0; i < BYTES; ++i) {
        b.data[i] = (uint8_t)(i * 31 + (i >> 8));
    }
    shim_clear();
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &params, &b.aio));
    CHECK_OK(f->ctx, dsi_aio_add_scratch(b.aio, "faults", BYTES, 0, 1, &b.file));
    return b;
}

static void tear_down(bench *b)
{
    shim_clear();
    dsi_aio_close(&b->aio);
    free(b->data);
    free(b->found);
}

static ds_status write_all(const bench *b)
{
    dsi_aio_ticket ticket = 0;
    DS_TRY(dsi_aio_write(b->aio, b->file, 0, b->data, BYTES, &ticket));
    return dsi_aio_wait(b->aio, ticket);
}

static ds_status read_all(const bench *b)
{
    dsi_aio_ticket ticket = 0;
    memset(b->found, 0, BYTES);
    DS_TRY(dsi_aio_read(b->aio, b->file, 0, b->found, BYTES, &ticket));
    return dsi_aio_wait(b->aio, ticket);
}

static void both_ways(fixture *f, const bench *b)
{
    CHECK_OK(f->ctx, write_all(b));
    CHECK_OK(f->ctx, read_all(b));
    assert_memory_equal(b->found, b->data, BYTES);
}

static void short_once(fixture *f, ds_aio_backend backend, bool single_submit)
{
    static const size_t most[] = {4096, 5000, 1000};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; ++i) {
        bench b = set_up(f, backend, single_submit);
        const bool is_direct = dsi_aio_is_direct(b.aio, b.file);
        shim.most = most[i];
        both_ways(f, &b);
        assert_int_equal(dsi_aio_is_direct(b.aio, b.file), is_direct); /* short is no refusal */
        tear_down(&b);
    }
}

static void short_transfers_are_continued(void **state)
{
    on_every_backend(state, short_once);
}

static void interrupt(fixture *f, ds_aio_backend backend, bool single_submit)
{
    static const int reasons[] = {EINTR, EAGAIN};
    for (int i = 0; i < 2; ++i) {
        bench b = set_up(f, backend, single_submit);
        shim.reason = reasons[i];
        shim.n_failures = 20;
        both_ways(f, &b);
        assert_int_equal(shim.n_fired, 20);
        tear_down(&b);
    }
}

static void interruptions_are_repeated(void **state)
{
    on_every_backend(state, interrupt);
}

/* The n-th transfer of a request fails, for each n: the error has its offset, the neighbours in
 * other requests are right, and the next try is. */
static void fail_each(fixture *f, ds_aio_backend backend, bool single_submit)
{
    bench b = set_up(f, backend, single_submit);
    const int n_pieces = (BYTES + BLOCK - 1) / BLOCK + 1; /* the last block and the tail */
    CHECK_OK(f->ctx, write_all(&b));
    for (int n = 1; n <= n_pieces; ++n) {
        shim.reason = n % 2 == 0 ? EIO : ENOSPC;
        shim.countdown = n;
        shim.n_failures = 1;
        const ds_status status = n % 2 == 0 ? read_all(&b) : write_all(&b);
        assert_int_equal(status, DS_ERR_IO);
        assert_int_equal(shim.n_fired, 1);
        const char *text = ds_ctx_error(f->ctx);
        const char *at = strstr(text, ": at offset ");
        assert_non_null(at);
        assert_int_equal(strtoul(at + 12, NULL, 10) % BLOCK % 4096, 0);
        assert_non_null(strstr(text, n % 2 == 0 ? "cannot read 300000 bytes at offset 0 of "
                                                : "cannot write 300000 bytes at offset 0 of "));
        assert_non_null(strstr(text, f->folder));
        assert_non_null(strstr(text, n % 2 == 0 ? "Input/output error; the disk or the network"
                                                : "No space left on device; free some space"));
        shim_clear();
        both_ways(f, &b);
    }
    tear_down(&b);
}

static void errors_name_file_offset_and_reason(void **state)
{
    on_every_backend(state, fail_each);
}

/* Several pieces of one request fail: the error is that of the lowest offset. */
static void fail_three(fixture *f, ds_aio_backend backend, bool single_submit)
{
    bench b = set_up(f, backend, single_submit);
    shim.reason = EIO;
    shim.countdown = 3;
    shim.n_failures = 3;
    if (backend == DS_AIO_URING && !single_submit) { /* else the second may never be cut */
        CHECK_FAILS(f->ctx, write_all(&b), DS_ERR_IO, ": at offset 32768: Input/output error");
        assert_int_equal(shim.n_fired, 3);
    }
    tear_down(&b);
}

static void the_lowest_error_is_told(void **state)
{
    on_every_backend(state, fail_three);
}

/* One of several requests fails: the others do not. */
static void fail_one_of_many(fixture *f, ds_aio_backend backend, bool single_submit)
{
    enum { N = 6, EACH = BYTES / N };
    bench b = set_up(f, backend, single_submit);
    dsi_aio_ticket tickets[N];
    int n_failed = 0;
    CHECK_OK(f->ctx, write_all(&b));
    memset(b.found, 0, BYTES);
    shim.reason = EIO;
    shim.countdown = 7;
    shim.n_failures = 1;
    for (size_t i = 0; i < N; ++i) {
        CHECK_OK(f->ctx,
                 dsi_aio_read(b.aio, b.file, i * EACH, b.found + i * EACH, EACH, &tickets[i]));
    }
    for (size_t i = 0; i < N; ++i) {
        if (dsi_aio_wait(b.aio, tickets[i]) < 0) {
            ++n_failed;
        } else {
            assert_memory_equal(b.found + i * EACH, b.data + i * EACH, EACH);
        }
    }
    assert_int_equal(n_failed, 1);
    tear_down(&b);
}

static void one_request_fails_alone(void **state)
{
    on_every_backend(state, fail_one_of_many);
}

/* A disk that never has time ends in an error too. */
static void never(fixture *f, ds_aio_backend backend, bool single_submit)
{
    bench b = set_up(f, backend, single_submit);
    shim.reason = EAGAIN;
    shim.n_failures = 1 << 30;
    if (!single_submit) { /* it lasts a second or two */
        CHECK_FAILS(f->ctx, write_all(&b), DS_ERR_IO, "temporarily unavailable");
    }
    tear_down(&b);
}

static void endless_eagain_ends(void **state)
{
    on_every_backend(state, never);
}

/* A file system that opens with O_DIRECT and then refuses the transfer. */
static void refuse_direct(fixture *f, ds_aio_backend backend, bool single_submit)
{
    bench b = set_up(f, backend, single_submit);
    if (dsi_aio_is_direct(b.aio, b.file)) {
        f->lines[0] = '\0';
        shim.reason = EINVAL;
        shim.direct_only = true;
        shim.n_failures = 1 << 30;
        both_ways(f, &b);
        assert_true(shim.n_fired > 0);
        assert_false(dsi_aio_is_direct(b.aio, b.file));
        assert_non_null(strstr(f->lines, "does not allow O_DIRECT"));
        assert_null(strstr(strstr(f->lines, "O_DIRECT") + 1, "O_DIRECT")); /* said once */
    }
    tear_down(&b);
}

static void late_refusal_of_direct_transfers(void **state)
{
    on_every_backend(state, refuse_direct);
}

/* ---- no io_uring ---- */

static void without_io_uring_threads_do_it(void **state)
{
    fixture *f = *state;
    if (!f->has_uring) {
        skip();
    }
    dsi_aio *aio = NULL;
    const dsi_aio_params any = small_params(DS_AIO_AUTO, NULL);
    const dsi_aio_params strict = small_params(DS_AIO_URING, NULL);
    f->lines[0] = '\0';
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &any, &aio));
    assert_int_equal(dsi_aio_in_force(aio).backend, DS_AIO_URING);
    assert_string_equal(f->lines, "");
    dsi_aio_close(&aio);
    shim.no_uring = EPERM;
    CHECK_OK(f->ctx, dsi_aio_open(f->ctx, &any, &aio));
    assert_int_equal(dsi_aio_in_force(aio).backend, DS_AIO_THREADS);
    assert_non_null(strstr(f->lines, "seccomp"));
    assert_non_null(strstr(f->lines, "pread and pwrite on threads take its place"));
    dsi_aio_close(&aio);
    CHECK_FAILS(f->ctx, dsi_aio_open(f->ctx, &strict, &aio), DS_ERR_UNSUPPORTED, "seccomp");
    shim.no_uring = ENOSYS;
    CHECK_FAILS(f->ctx, dsi_aio_open(f->ctx, &strict, &aio), DS_ERR_UNSUPPORTED, "not implem");
    shim_clear();
}

/* ---- in a process of its own ---- */

/* Exit code: 0 pass, 77 not possible here. */
static int in_child(fixture *f, int (*fn)(fixture *f))
{
    int status = 0;
    (void)fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ds_ctx *ctx = NULL;
        const ds_ctx_params params = {
            .n_threads = 1, .world_size = 1, .log = keep_line, .log_user = f};
        if (ds_ctx_create(&params, &ctx) < 0) {
            _exit(1);
        }
        f->ctx = ctx;
        _exit(fn(f));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status)) {
        return -WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

static int expect_text(const fixture *f, ds_status status, const char *text)
{
    const char *message = ds_ctx_error(f->ctx);
    if (status != DS_ERR_IO || strstr(message, text) == NULL) {
        (void)fprintf(stderr, "expected \"%s\", found %s: %s\n", text, ds_status_name(status),
                      message);
        return 1;
    }
    return 0;
}

/* Writes BYTES * 10 to a named file. */
static ds_status write_named(fixture *f, ds_aio_backend backend)
{
    const dsi_aio_params params = small_params(backend, NULL);
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    dsi_aio_ticket ticket = 0;
    void *data = calloc(10, BYTES);
    DS_TRY(dsi_aio_open(f->ctx, &params, &aio));
    DS_TRY(dsi_aio_add_path(aio, scratch_path(f->folder, "named"), true, &file));
    DS_TRY(dsi_aio_write(aio, file, 0, data, (size_t)10 * BYTES, &ticket));
    const ds_status status = dsi_aio_wait(aio, ticket);
    dsi_aio_close(&aio);
    free(data);
    return status;
}

static ds_status add_large(fixture *f)
{
    const char *folders[] = {f->folder};
    const dsi_aio_params params = small_params(DS_AIO_THREADS, folders);
    dsi_aio *aio = NULL;
    uint32_t file = 0;
    DS_TRY(dsi_aio_open(f->ctx, &params, &aio));
    const ds_status status = dsi_aio_add_scratch(aio, "large", (uint64_t)10 * BYTES, 0, 1, &file);
    dsi_aio_close(&aio);
    return status;
}

static bool put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return false;
    }
    const bool done = fputs(text, file) >= 0;
    return fclose(file) == 0 && done;
}

static bool own_mounts(void)
{
    char map[64];
    const unsigned user = (unsigned)geteuid();
    if (unshare(CLONE_NEWNS) == 0) {
        return true;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put("/proc/self/setgroups", "deny")) {
        return false;
    }
    (void)snprintf(map, sizeof map, "0 %u 1", user);
    return put("/proc/self/uid_map", map);
}

/* A disk of 1 MiB. */
static int full_disk(fixture *f)
{
    if (!own_mounts()) {
        return 77;
    }
    (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("ds_test", f->folder, "tmpfs", 0, "size=1m") != 0) {
        return 77;
    }
    int rc = expect_text(f, add_large(f), "cannot make room for the 3002368 bytes of large in ");
    rc |= expect_text(f, add_large(f), "No space left on device; 1048576 bytes are free there");
    rc |= expect_text(f, write_named(f, DS_AIO_THREADS), "No space left on device; free some");
    (void)unlink(scratch_path(f->folder, "named"));
    if (f->has_uring) {
        rc |= expect_text(f, write_named(f, DS_AIO_URING), "No space left on device; free some");
    }
    return rc;
}

/* SIGXFSZ has its default action, which would end the process. */
static int file_size_limit(fixture *f)
{
    const struct rlimit limit = {200000, 200000};
    (void)signal(SIGXFSZ, SIG_DFL);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return 1;
    }
    int rc = expect_text(f, add_large(f), "File too large");
    rc |= expect_text(f, add_large(f), "raise `ulimit -f`");
    rc |= expect_text(f, write_named(f, DS_AIO_THREADS), "`ulimit -f` does not allow");
    if (f->has_uring) {
        rc |= expect_text(f, write_named(f, DS_AIO_URING), "`ulimit -f` does not allow");
    }
    return rc;
}

static void a_full_disk(void **state)
{
    const int rc = in_child(*state, full_disk);
    if (rc == 77) {
        skip();
    }
    assert_int_equal(rc, 0);
}

static void a_limited_file_size(void **state)
{
    assert_int_equal(in_child(*state, file_size_limit), 0);
}

/* Killed with swap files of two jobs in the folder and transfers in flight. */
static int killed(fixture *f)
{
    bench b = set_up(f, f->has_uring ? DS_AIO_URING : DS_AIO_THREADS, false);
    bench other = set_up(f, DS_AIO_THREADS, false);
    dsi_aio_ticket ticket = 0;
    both_ways(f, &b);
    both_ways(f, &other);
    if (dsi_aio_write(b.aio, b.file, 0, b.data, BYTES, &ticket) < 0) {
        return 1;
    }
    (void)raise(SIGKILL);
    return 1;
}

static void a_killed_process_leaves_nothing(void **state)
{
    fixture *f = *state;
    (void)unlink(scratch_path(f->folder, "named"));
    assert_int_equal(in_child(f, killed), -SIGKILL);
    assert_int_equal(scratch_count(f->folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_transfers_are_continued),
        cmocka_unit_test(interruptions_are_repeated),
        cmocka_unit_test(errors_name_file_offset_and_reason),
        cmocka_unit_test(the_lowest_error_is_told),
        cmocka_unit_test(one_request_fails_alone),
        cmocka_unit_test(endless_eagain_ends),
        cmocka_unit_test(late_refusal_of_direct_transfers),
        cmocka_unit_test(without_io_uring_threads_do_it),
        cmocka_unit_test(a_full_disk),
        cmocka_unit_test(a_limited_file_size),
        cmocka_unit_test(a_killed_process_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
