/* SPDX-License-Identifier: Apache-2.0 */
/* What custom operators are compiled to is kept between processes (driver/image_cache.c), over the
 * stand-ins of the driver and of NVRTC: one of two processes compiles; one that is killed or
 * stopped while it compiles holds nobody up; a damaged entry is made again; without a folder that
 * can be written each compiles for itself, and says so. Each process here is this program again,
 * which runs an operator and compares its bits. */
#include "accel/accel.h"
#include "common/check.h"
#include "common/cuda_op.h"
#include "common/scratch.h"
#include "common/standin_load.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { COUNT = 1000 };

static char *folder;

/* ---- the process ----------------------------------------------------------------------------- */

static ds_status run_operator(ds_ctx *ctx)
{
    const cuda_wave_attrs attrs = {.a = 1.3};
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_1d(COUNT)};
    static float x[COUNT];
    static float want[COUNT];
    static float got[COUNT];
    dsi_accel_choice choice;
    ds_accel_device *device = NULL;
    for (int i = 0; i < COUNT; ++i) {
        x[i] = (float)i * 0.01f - 5.0f;
    }
    DS_TRY(dsi_accel_choose(ctx, "cuda", &choice));
    DS_TRY(choice.accel->open(ctx, "", &device));
    DS_TRY(cuda_op_run(ctx, NULL, NULL, &cuda_wave, &attrs, meta, x, want));
    ds_status status = cuda_op_run(ctx, choice.accel, device, &cuda_wave, &attrs, meta, x, got);
    if (status >= 0 && memcmp(got, want, sizeof got) != 0) {
        status = ds_fail(ctx, DS_ERR_NUMERIC, "other bits");
    }
    choice.accel->close(&device);
    return status;
}

static int be_a_rank(void)
{
    standin_calls calls;
    ds_ctx *ctx = NULL;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (!standin_load(DS_BINARY_DIR, &calls) || ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const ds_status status = run_operator(ctx);
    if (status < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(ctx));
    }
    ds_ctx_destroy(&ctx);
    return status < 0 ? 1 : 0;
}

/* ---- starting it ----------------------------------------------------------------------------- */

typedef struct rank {
    const char *cache, *standin, *seconds; /* NULL: the default */
    long most_bytes;                       /* of a file; 0: any */
    const char *output;
    pid_t pid;
} rank;

static void start(rank *r)
{
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid > 0) {
        return;
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody waiting */
    const int out = open(r->output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    (void)dup2(out, STDERR_FILENO);
    (void)setenv("DS_CUDA_CACHE", r->cache, 1);
    if (r->standin != NULL) {
        (void)setenv("DS_NVRTC_STANDIN", r->standin, 1);
    }
    if (r->seconds != NULL) {
        (void)setenv("DS_CUDA_CACHE_SECONDS", r->seconds, 1);
    }
    if (r->most_bytes > 0) {
        const rlim_t n = (rlim_t)r->most_bytes;
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){n, RLIM_INFINITY});
    }
    (void)execl("/proc/self/exe", "test_cuda_cache", "rank", (char *)NULL);
    _exit(127);
}

static int end(rank *r)
{
    int code = 0;
    while (waitpid(r->pid, &code, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}

/* Its exit code; what it wrote must have the text, or be nothing when text is "". */
static void end_well(rank *r, const char *text)
{
    size_t n = 0;
    const int code = end(r);
    char *said = scratch_read(r->output, &n);
    if (code != 0 || (text[0] == '\0' ? n != 0 : strstr(said, text) == NULL)) {
        fail_msg("exit %d, expected 0 and \"%s\"; it said: %s", code, text, said);
    }
    free(said);
}

/* Lines of a file that may not be there yet. */
static int lines_of(const char *path)
{
    int n = 0;
    FILE *file = fopen(path, "re");
    for (int c = 0; file != NULL && (c = fgetc(file)) != EOF;) {
        n += c == '\n' ? 1 : 0;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return n;
}

static void await_lines(const char *path, int n)
{
    while (lines_of(path) < n) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

typedef struct place {
    char cache[300], count[300], gate[300], first[300], second[300], waits[700], counts[400];
} place;

static place place_of(const char *name)
{
    place p;
    (void)snprintf(p.cache, sizeof p.cache, "%s/%s_cache", folder, name);
    (void)snprintf(p.count, sizeof p.count, "%s/%s_count", folder, name);
    (void)snprintf(p.gate, sizeof p.gate, "%s/%s_gate", folder, name);
    (void)snprintf(p.first, sizeof p.first, "%s/%s_first", folder, name);
    (void)snprintf(p.second, sizeof p.second, "%s/%s_second", folder, name);
    (void)snprintf(p.waits, sizeof p.waits, "count=%s,wait=%s", p.count, p.gate);
    (void)snprintf(p.counts, sizeof p.counts, "count=%s", p.count);
    return p;
}

/* The only file of the cache with that end, or "". */
static const char *entry_of(const place *p, const char *suffix)
{
    static char path[700];
    const struct dirent *at = NULL;
    int n = 0;
    DIR *dir = opendir(p->cache);
    path[0] = '\0';
    while (dir != NULL && (at = readdir(dir)) != NULL) {
        const char *dot = strrchr(at->d_name, '.');
        if (dot != NULL && strcmp(dot, suffix) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", p->cache, at->d_name);
            n += 1;
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    assert_true(n <= 1);
    return path;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void one_of_two_compiles(void **state)
{
    const place p = place_of("two");
    rank first = {.cache = p.cache, .standin = p.waits, .output = p.first};
    rank second = {.cache = p.cache, .standin = p.waits, .output = p.second};
    (void)state;
    start(&first);
    start(&second);
    await_lines(p.count, 1);
    scratch_write(p.gate, "", 0);
    end_well(&first, "");
    end_well(&second, "");
    assert_int_equal(lines_of(p.count), 1);
    struct stat st;
    assert_true(stat(p.cache, &st) == 0 && (st.st_mode & 0777) == 0700);
    assert_true(stat(entry_of(&p, ".cubin"), &st) == 0 && (st.st_mode & 0777) == 0600);
    assert_string_equal(entry_of(&p, ".tmp"), "");
    assert_int_equal(scratch_count(p.cache), 2); /* and the lock */
}

static void who_is_killed_holds_nobody_up(void **state)
{
    const place p = place_of("killed");
    rank first = {.cache = p.cache, .standin = p.waits, .output = p.first};
    rank second = first;
    (void)state;
    second.output = p.second;
    start(&first);
    await_lines(p.count, 1); /* it compiles, and holds the lock */
    start(&second);          /* waits, or comes later: both are to go on */
    assert_int_equal(kill(first.pid, SIGKILL), 0);
    assert_int_equal(end(&first), 128 + SIGKILL);
    scratch_write(p.gate, "", 0);
    end_well(&second, "");
    assert_int_equal(lines_of(p.count), 2);
    assert_true(entry_of(&p, ".cubin")[0] != '\0');
}

static void who_is_stopped_is_waited_for_no_longer_than_said(void **state)
{
    const place p = place_of("stopped");
    rank first = {.cache = p.cache, .standin = p.waits, .output = p.first};
    rank second = {.cache = p.cache, .standin = p.counts, .seconds = "0", .output = p.second};
    char text[200];
    (void)state;
    start(&first);
    await_lines(p.count, 1);
    start(&second);
    (void)snprintf(text, sizeof text,
                   "an entry is not waited for (DS_CUDA_CACHE_SECONDS): process %ld has held its "
                   "lock for too long; operator cuda_wave is compiled by each rank that needs it",
                   (long)first.pid);
    end_well(&second, text);
    assert_string_equal(entry_of(&p, ".cubin"), ""); /* the holder of the lock writes it */
    scratch_write(p.gate, "", 0);
    end_well(&first, "");
    assert_int_equal(lines_of(p.count), 2);
    assert_true(entry_of(&p, ".cubin")[0] != '\0');
}

static void run_with(const place *p, rank r, const char *text)
{
    r.cache = r.cache != NULL ? r.cache : p->cache;
    r.standin = p->counts;
    r.output = p->first;
    start(&r);
    end_well(&r, text);
}

static void flip_a_byte(const char *path, long at)
{
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, -1, SEEK_CUR), 0);
    assert_true(fputc(byte ^ 0x10, file) != EOF && fclose(file) == 0);
}

static void what_is_damaged_is_made_again(void **state)
{
    const place p = place_of("damaged");
    const rank plain = {.output = NULL};
    (void)state;
    run_with(&p, plain, "");
    for (int i = 0; i < 4; ++i) {
        const char *entry = entry_of(&p, ".cubin");
        struct stat st;
        assert_int_equal(stat(entry, &st), 0);
        if (i == 0) {
            flip_a_byte(entry, -2000); /* of the code */
        } else if (i == 1) {
            flip_a_byte(entry, 40); /* of the key */
        } else if (i == 2) {
            assert_int_equal(truncate(entry, st.st_size - 1), 0);
        } else {
            assert_int_equal(chmod(entry, 0666), 0);
        }
        run_with(&p, plain, ".cubin: it is damaged or another user's, and made again");
        assert_int_equal(lines_of(p.count), 2 + i);
        run_with(&p, plain, "");
        assert_int_equal(lines_of(p.count), 2 + i);
    }
}

static void without_a_folder_each_compiles_for_itself(void **state)
{
    const place p = place_of("nowhere");
    char in_a_file[320];
    (void)state;
    scratch_write(p.gate, "", 0); /* a file */
    (void)snprintf(in_a_file, sizeof in_a_file, "%s/cache", p.gate);
    run_with(&p, (rank){.cache = in_a_file},
             "it cannot be made: Not a directory; operator cuda_wave is compiled by each rank");
    run_with(&p, (rank){.most_bytes = 5000},
             "an entry cannot be written: File too large; operator cuda_wave is compiled by each");
    assert_string_equal(entry_of(&p, ".cubin"), "");
    assert_string_equal(entry_of(&p, ".tmp"), ""); /* no part of it is left */
    assert_int_equal(chmod(p.cache, 0777), 0);
    run_with(&p, (rank){.cache = NULL}, "it is not used: another user owns it or may write to it");
    run_with(&p, (rank){.cache = "none"}, "");
    assert_int_equal(lines_of(p.count), 4);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "rank") == 0) {
        return be_a_rank();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_two_compiles),
        cmocka_unit_test(who_is_killed_holds_nobody_up),
        cmocka_unit_test(who_is_stopped_is_waited_for_no_longer_than_said),
        cmocka_unit_test(what_is_damaged_is_made_again),
        cmocka_unit_test(without_a_folder_each_compiles_for_itself),
    };
    folder = scratch_make();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
