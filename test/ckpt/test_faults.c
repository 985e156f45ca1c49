/* SPDX-License-Identifier: Apache-2.0 */
/* Saves on a disk that fails: each system call of a save fails once in turn, writes come short or
 * are interrupted, the disk is full for real, the folder cannot be written. Each time one clear
 * error, the checkpoint before is whole, and nothing is left behind. */
#include "common/check.h"
#include "common/saves.h"
#include "common/scratch.h"

#include "io/file.h"
#include <deepspeed/hf_export.h>
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- calls that fail on demand: these definitions take the place of libc's ---- */

typedef enum call {
    CALL_NONE,
    CALL_WRITE,
    CALL_FSYNC,
    CALL_RENAME,
    CALL_RENAMEAT2,
    CALL_FALLOCATE
} call;

static struct {
    call which;
    int countdown; /* the call that fails: 1 is the next */
    int reason;
    bool fired;
    size_t most; /* bytes that one write takes; 0: all */
    int interrupts;
} fault;

static bool fails(call which)
{
    if (fault.which == which && fault.countdown > 0 && --fault.countdown == 0) {
        fault.fired = true;
        errno = fault.reason;
        return true;
    }
    return false;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (fails(CALL_WRITE)) {
        return -1;
    }
    if (fault.interrupts > 0) {
        --fault.interrupts;
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_write, fd, data, fault.most > 0 && n > fault.most ? fault.most : n);
}

int fsync(int fd)
{
    return fails(CALL_FSYNC) ? -1 : (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    return fails(CALL_RENAME) ? -1 : (int)syscall(SYS_rename, from, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    return fails(CALL_RENAMEAT2) ? -1
                                 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    return fails(CALL_FALLOCATE) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

/* ---- tests ---- */

enum { VALUES = 3000 };

static void every_call_fails_once(void **state)
{
    static const struct {
        call which;
        int reason;
        const char *text;
    } kinds[] = {
        {CALL_WRITE, ENOSPC, "No space left on device; free some space"},
        {CALL_WRITE, EIO, "Input/output error"},
        {CALL_FSYNC, EIO, "Input/output error"},
        {CALL_RENAME, EACCES, "Permission denied; check the permissions"},
        {CALL_FALLOCATE, ENOSPC, "make room for the "},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        int n = 0;
        for (n = 1; n < 100; ++n) {
            char *dir = scratch_make();
            uint64_t step = 0;
            CHECK_OK(*state, saves_save(*state, dir, NULL, 1, VALUES, true));
            fault.which = kinds[k].which;
            fault.reason = kinds[k].reason;
            fault.countdown = n;
            fault.fired = false;
            const ds_status status = saves_save(*state, dir, NULL, 2, VALUES, true);
            fault.which = CALL_NONE;
            if (fault.fired) {
                assert_true(status < 0);
                assert_non_null(strstr(ds_ctx_error(*state), kinds[k].text));
            } else {
                CHECK_OK(*state, status);
            }
            CHECK_OK(*state, saves_check(*state, dir, NULL, &step));
            if (fault.fired && scratch_count(dir) > 3) {
                fail_msg("call %d of kind %zu left something behind", n, k);
            }
            CHECK_OK(*state, saves_save(*state, dir, NULL, 3, VALUES, true));
            scratch_remove(dir);
            if (!fault.fired) {
                break;
            }
        }
        assert_true(n > 1 && n < 100);
    }
}

/* Each rename of the slow replacement fails once: the old one is back under its tag. */
static void a_failed_replacement_is_undone(void **state)
{
    for (int n = 1; n <= 3; ++n) {
        char *dir = scratch_make();
        uint64_t step = 0;
        CHECK_OK(*state, saves_save(*state, dir, "t", 1, VALUES, false));
        fault.which = CALL_RENAME;
        fault.reason = EIO;
        fault.countdown = n;
        CHECK_FAILS(*state, saves_save(*state, dir, "t", 2, VALUES, false), DS_ERR_IO,
                    "Input/output error");
        fault.which = CALL_NONE;
        CHECK_OK(*state, saves_check(*state, dir, NULL, &step));
        assert_int_equal(step, n < 3 ? 1 : 2); /* the third puts `latest` in place */
        assert_int_equal(scratch_count(dir), 2);
        assert_int_equal(access(scratch_path(dir, "t"), F_OK), 0);
        scratch_remove(dir);
    }
}

/* A file system without the flags of renameat2 goes the long way. */
static void no_renameat2(void **state)
{
    for (int n = 1; n <= 2; ++n) {
        char *dir = scratch_make();
        uint64_t step = 0;
        CHECK_OK(*state, saves_save(*state, dir, "t", 1, VALUES, true));
        fault.which = CALL_RENAMEAT2;
        fault.reason = EINVAL;
        fault.countdown = n;
        CHECK_OK(*state, saves_save(*state, dir, "t", 2, VALUES, true));
        CHECK_OK(*state, saves_check(*state, dir, NULL, &step));
        fault.which = CALL_RENAMEAT2;
        fault.countdown = 1;
        CHECK_OK(*state, saves_save(*state, dir, "u", 3, VALUES, true));
        fault.which = CALL_NONE;
        assert_true(step == 2 && scratch_count(dir) == 3);
        scratch_remove(dir);
    }
}

static void short_and_interrupted_writes(void **state)
{
    char *dir = scratch_make();
    uint64_t step = 0;
    fault.most = 7;
    fault.interrupts = 5;
    CHECK_OK(*state, saves_save(*state, dir, NULL, 4, VALUES, true));
    fault.most = 0;
    CHECK_OK(*state, saves_check(*state, dir, NULL, &step));
    assert_true(step == 4 && fault.interrupts == 0);
    scratch_remove(dir);
}

/* Files that go past the page cache: a thread writes them, and its failures are those of the save.
 * In memory, where O_DIRECT may be refused, and on the disk of the working folder. */
static void large_files(ds_ctx *ctx, const char *dir)
{
    enum { LARGE = 8 * 1024 * 1024 + 333 }; /* 32 MiB and a tail */
    static const struct {
        call which;
        int reason, countdown;
        size_t most;
        int interrupts;
        const char *text; /* NULL: the save succeeds */
    } kinds[] = {
        {CALL_WRITE, ENOSPC, 4, 0, 0, "No space left on device; free some space"},
        {CALL_WRITE, EIO, 10, 0, 0, "cannot write"}, /* the tail */
        {CALL_FSYNC, EIO, 3, 0, 0, "Input/output error"},
        {CALL_WRITE, EINVAL, 4, 0, 0, NULL}, /* the file system took only the flag */
        {CALL_NONE, 0, 0, 100000, 3, NULL},  /* short, not at a boundary */
        {CALL_NONE, 0, 0, 1 << 20, 0, NULL}, /* short, at one */
    };
    uint64_t step = 0;
    CHECK_OK(ctx, saves_save(ctx, dir, NULL, 1, LARGE, true));
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        const uint64_t next = kinds[k].text == NULL ? 2 + k : 1000 + k;
        fault.which = kinds[k].which;
        fault.reason = kinds[k].reason;
        fault.countdown = kinds[k].countdown;
        fault.most = kinds[k].most;
        fault.interrupts = kinds[k].interrupts;
        fault.fired = false;
        const ds_status status = saves_save(ctx, dir, NULL, next, LARGE, true);
        fault.which = CALL_NONE;
        fault.most = 0;
        if (kinds[k].text != NULL) {
            assert_true(fault.fired && status < 0);
            assert_non_null(strstr(ds_ctx_error(ctx), kinds[k].text));
        } else {
            CHECK_OK(ctx, status);
        }
        CHECK_OK(ctx, saves_check(ctx, dir, NULL, &step));
        assert_true(kinds[k].text == NULL ? step == next : step < 1000);
        CHECK_OK(ctx, ds_checkpoint_keep(ctx, dir, 1));
        assert_int_equal(scratch_count(dir), 2);
    }
}

static void large_files_in_memory(void **state)
{
    char *dir = scratch_make();
    large_files(*state, dir);
    scratch_remove(dir);
}

static void large_files_on_disk(void **state)
{
    char dir[] = "test_faults_XXXXXX";
    assert_non_null(mkdtemp(dir));
    large_files(*state, dir);
    CHECK_OK(*state, dsi_folder_remove(*state, dir));
}

/* Runs fn in a process of its own; its exit code: 0 pass, 77 not possible here. */
static void in_child(int (*fn)(const char *dir))
{
    char *dir = scratch_make();
    assert_int_equal(chmod(dir, 0777), 0);
    (void)fflush(NULL);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        _exit(fn(dir));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    scratch_remove(dir);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

static ds_ctx *own_ctx(void)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.n_threads = 1, .world_size = 1};
    return ds_ctx_create(&params, &ctx) == DS_OK ? ctx : NULL;
}

/* Whether the save fails with that text and step 1 is still there and alone. */
static int fails_and_loses_nothing(ds_ctx *ctx, const char *dir, int64_t values, const char *text)
{
    uint64_t step = 0;
    const ds_status status = saves_save(ctx, dir, NULL, 2, values, true);
    const char *message = ds_ctx_error(ctx);
    if (status != DS_ERR_IO || strstr(message, text) == NULL) {
        (void)fprintf(stderr, "unexpected: %s: %s\n", ds_status_name(status), message);
        return 1;
    }
    (void)fprintf(stderr, "as it should: %s\n", message);
    if (saves_check(ctx, dir, NULL, &step) < 0 || step != 1 || scratch_count(dir) != 2) {
        (void)fprintf(stderr, "lost: %s\n", ds_ctx_error(ctx));
        return 1;
    }
    return 0;
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

/* A mount space of our own: as root, or as root of a user space of our own. */
static bool own_mounts(void)
{
    char map[64];
    const unsigned user = (unsigned)geteuid();
    const unsigned group = (unsigned)getegid();
    if (unshare(CLONE_NEWNS) == 0) {
        return true;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || !put("/proc/self/setgroups", "deny")) {
        return false;
    }
    (void)snprintf(map, sizeof map, "0 %u 1", user);
    const bool users = put("/proc/self/uid_map", map);
    (void)snprintf(map, sizeof map, "0 %u 1", group);
    return users && put("/proc/self/gid_map", map);
}

/* A disk of 1 MiB. */
static int full_disk(const char *dir)
{
    ds_ctx *ctx = own_ctx();
    if (!own_mounts()) {
        return 77;
    }
    (void)mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("ds_test", dir, "tmpfs", 0, "size=1m") != 0) {
        return 77;
    }
    if (saves_save(ctx, dir, NULL, 1, VALUES, true) < 0) {
        return 1;
    }
    int rc = fails_and_loses_nothing(ctx, dir, 1 << 20, "No space left on device");
    fault.which = CALL_FALLOCATE; /* and where the file system cannot reserve */
    fault.countdown = 1;
    fault.reason = EOPNOTSUPP;
    rc |= fails_and_loses_nothing(ctx, dir, 1 << 20, "No space left on device");
    return rc;
}

static int file_size_limit(const char *dir)
{
    ds_ctx *ctx = own_ctx();
    const struct rlimit limit = {200000, 200000};
    (void)signal(SIGXFSZ, SIG_IGN);
    if (saves_save(ctx, dir, NULL, 1, VALUES, true) < 0 || setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return 1;
    }
    return fails_and_loses_nothing(ctx, dir, 1 << 20, "File too large");
}

static int unwritable_folder(const char *dir)
{
    ds_ctx *ctx = own_ctx();
    if (saves_save(ctx, dir, NULL, 1, VALUES, true) < 0 || chmod(dir, 0555) != 0) {
        return 1;
    }
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setegid(65534) != 0 || seteuid(65534) != 0)) {
        return 77;
    }
    const int rc = fails_and_loses_nothing(ctx, dir, VALUES, "Permission denied; check");
    ds_hf_export *e = NULL;
    const ds_hf_export_params params = {.folder = dir, .config_json = "{}"};
    if (ds_hf_export_begin(ctx, &params, &e) != DS_ERR_IO) {
        return 1;
    }
    return rc;
}

static void full_disk_for_real(void **state)
{
    (void)state;
    in_child(full_disk);
}

static void limited_file_size(void **state)
{
    (void)state;
    in_child(file_size_limit);
}

static void folder_without_permission(void **state)
{
    (void)state;
    in_child(unwritable_folder);
}

/* What is in the way is named, and stays. */
static void odd_places(void **state)
{
    char *dir = scratch_make();
    uint64_t step = 0;
    scratch_write(scratch_path(dir, "file"), "x", 1);
    CHECK_FAILS(*state, saves_save(*state, scratch_path(dir, "file"), NULL, 1, VALUES, true),
                DS_ERR_IO, "cannot create folder");
    CHECK_FAILS(*state, saves_save(*state, scratch_path(dir, "file/x"), NULL, 1, VALUES, true),
                DS_ERR_IO, "Not a directory");
    CHECK_OK(*state, saves_save(*state, dir, NULL, 1, VALUES, true));
    assert_int_equal(unlink(scratch_path(dir, "latest")), 0);
    assert_int_equal(mkdir(scratch_path(dir, "latest"), 0777), 0);
    CHECK_FAILS(*state, saves_save(*state, dir, NULL, 2, VALUES, true), DS_ERR_IO,
                "latest: it is a folder");
    CHECK_OK(*state, saves_check(*state, dir, "global_step1", &step));
    assert_int_equal(scratch_count(dir), 3); /* "file", step 1 and the folder in the way */
    assert_int_equal(rmdir(scratch_path(dir, "latest")), 0);
    scratch_write(scratch_path(dir, "target"), "mine", 4);
    assert_int_equal(symlink(scratch_path(dir, "target"), scratch_path(dir, "latest")), 0);
    CHECK_OK(*state, saves_save(*state, dir, NULL, 3, VALUES, true));
    size_t n = 0;
    char *text = scratch_read(scratch_path(dir, "target"), &n);
    assert_int_equal(n, strlen("global_step3")); /* the link stays, what it names is replaced */
    assert_memory_equal(text, "global_step3", n);
    struct stat st;
    assert_int_equal(lstat(scratch_path(dir, "latest"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    free(text);
    scratch_remove(dir);
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
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(a_failed_replacement_is_undone),
        cmocka_unit_test(no_renameat2),
        cmocka_unit_test(short_and_interrupted_writes),
        cmocka_unit_test(large_files_in_memory),
        cmocka_unit_test(large_files_on_disk),
        cmocka_unit_test(full_disk_for_real),
        cmocka_unit_test(limited_file_size),
        cmocka_unit_test(folder_without_permission),
        cmocka_unit_test(odd_places),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
