/* SPDX-License-Identifier: Apache-2.0 */
/* The data cache: the same batches as from memory, whatever happens to it or to who makes it. */
#include "common/check.h"
#include "common/scratch.h"
#include "data/data_cache.h"
#include "data/dataset.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 24, MOST_FILES = 3 };

typedef struct world {
    ds_ctx *ctx;
    ds_tokenizer *bytes;
    char *folder;
    char files[MOST_FILES][300];
    const char *names[MOST_FILES];
    uint32_t n_files;
    uint32_t n_reads; /* times that files were tokenized */
    ds_dataset_stage stage;
    const char *spoil; /* a file that grows while it is read */
} world;

static char warning[600];

static uint32_t below(uint32_t n)
{
    static uint64_t at = 5;
    at = at * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(at >> 33) % n;
}

static void write_rows(const char *path, int kind, int n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < n; ++i) {
        char text[40];
        const int size = 1 + (int)below(30);
        memset(text, 'a' + (int)below(26), sizeof text);
        (void)fprintf(file,
                      kind == 0 ? "{\"text\":\"%.*s %d\"}\n"
                                : "{\"prompt\":\"%.*s\",\"completion\":\"%d\"}\n",
                      size, text, i);
    }
    (void)fclose(file);
}

static void make_files(world *w, int kind, uint32_t n_files, int n_rows)
{
    w->n_files = n_files;
    for (uint32_t i = 0; i < n_files; ++i) {
        char name[32];
        (void)snprintf(name, sizeof name, "%u.jsonl", i);
        (void)snprintf(w->files[i], sizeof w->files[i], "%s", scratch_path(w->folder, name));
        w->names[i] = w->files[i];
        write_rows(w->files[i], kind, n_rows);
    }
}

static ds_status on_progress(void *user, const ds_dataset_progress *progress)
{
    world *w = user;
    w->n_reads += progress->stage == DS_DATASET_READS && progress->done == progress->all;
    w->stage = progress->stage;
    if (w->spoil != NULL && progress->stage == DS_DATASET_READS) {
        FILE *file = fopen(w->spoil, "ab");
        (void)fputs("\n", file);
        (void)fclose(file);
        w->spoil = NULL;
    }
    return DS_OK;
}

static ds_dataset_params params_of(world *w, bool cached)
{
    return (ds_dataset_params){.files = w->names,
                               .n_files = w->n_files,
                               .tokenizer = w->bytes,
                               .seq_length = LENGTH,
                               .cache = cached ? scratch_path(w->folder, "cache") : NULL,
                               .progress = on_progress,
                               .progress_user = w};
}

static ds_dataset *open_data(world *w, bool cached)
{
    const ds_dataset_params params = params_of(w, cached);
    ds_dataset *data = NULL;
    w->n_reads = 0;
    CHECK_OK(w->ctx, ds_dataset_open(w->ctx, &params, &data));
    return data;
}

static void same_data(const ds_dataset *a, const ds_dataset *b)
{
    const ds_dataset_info x = ds_dataset_get_info(a);
    const ds_dataset_info y = ds_dataset_get_info(b);
    assert_memory_equal(&x, &y, sizeof x);
    assert_int_equal(dsi_dataset_content(a), dsi_dataset_content(b));
    assert_int_equal(a->longest, b->longest);
    for (uint64_t d = 0; d <= a->n_docs; ++d) {
        assert_int_equal(dsi_dataset_begin(a, d), dsi_dataset_begin(b, d));
    }
    for (uint64_t i = a->first; i < a->end; ++i) {
        assert_int_equal(dsi_store_get(a->tokens, i), dsi_store_get(b->tokens, i));
    }
}

/* Entries and leftovers: what is in the cache but sources and locks, of which a killed maker may
 * leave one. */
static int count_entries(const world *w)
{
    char **names = NULL;
    size_t n = 0;
    int entries = 0;
    assert_int_equal(dsi_folder_list(NULL, scratch_path(w->folder, "cache"), &names, &n), DS_OK);
    for (size_t i = 0; i < n; ++i) {
        entries += strstr(names[i], ".source") == NULL && strstr(names[i], ".lock") == NULL;
    }
    dsi_names_free(names, n);
    return entries;
}

static const char *entry(const world *w)
{
    static char path[400];
    char **names = NULL;
    size_t n = 0;
    path[0] = '\0';
    assert_int_equal(dsi_folder_list(NULL, scratch_path(w->folder, "cache"), &names, &n), DS_OK);
    for (size_t i = 0; i < n; ++i) {
        if (strchr(names[i], '.') == NULL) {
            (void)snprintf(path, sizeof path, "%s/cache/%s", w->folder, names[i]);
        }
    }
    dsi_names_free(names, n);
    return path;
}

static void empty_cache(const world *w)
{
    assert_int_equal(dsi_folder_remove(NULL, scratch_path(w->folder, "cache")), DS_OK);
}

/* ---- the same batches ---- */

static ds_loader *make_loader(world *w, ds_dataset *const *data, uint32_t n, uint32_t rank,
                              uint32_t n_ranks)
{
    static const double weights[2] = {3, 1};
    const ds_loader_params params = {.batch = 2,
                                     .seq_length = LENGTH,
                                     .seed = 4,
                                     .shuffle = true,
                                     .rank = rank,
                                     .n_ranks = n_ranks};
    ds_loader *loader = NULL;
    CHECK_OK(w->ctx, ds_loader_create_mixed(w->ctx, (const ds_dataset *const *)data, weights, n,
                                            &params, &loader));
    return loader;
}

/* Reads on both, and carries the cursor of one over to the other. */
static void same_batches(world *w, ds_dataset *const a[2], ds_dataset *const b[2], uint32_t n)
{
    const uint32_t ranks = 1 + below(4);
    const uint32_t rank = below(ranks);
    ds_loader *one = make_loader(w, a, n, rank, ranks);
    ds_loader *two = make_loader(w, b, n, rank, ranks);
    for (int i = 0; i < 30; ++i) {
        ds_loader_batch x;
        ds_loader_batch y;
        CHECK_OK(w->ctx, ds_loader_next(one, &x));
        CHECK_OK(w->ctx, ds_loader_next(two, &y));
        assert_memory_equal(x.input_ids.data, y.input_ids.data,
                            (size_t)4 * 2 * LENGTH * sizeof(int32_t)); /* four planes */
        if (below(6) == 0) {
            char *cursor = NULL;
            CHECK_OK(w->ctx, ds_loader_save(one, &cursor));
            ds_loader_destroy(&two);
            two = make_loader(w, b, n, rank, ranks);
            CHECK_OK(w->ctx, ds_loader_restore(two, cursor));
            free(cursor);
        }
    }
    ds_loader_destroy(&one);
    ds_loader_destroy(&two);
}

static void batches_are_those_of_memory(void **state)
{
    world *w = *state;
    for (int round = 0; round < 24; ++round) {
        const uint32_t n = 1 + below(2);
        ds_dataset *data[2][2] = {{NULL}}; /* memory, cache */
        const bool split = below(3) == 0;
        for (uint32_t s = 0; s < n; ++s) {
            make_files(w, round % 2, 1 + below(MOST_FILES), 20 + (int)below(100));
            data[0][s] = open_data(w, false);
            data[1][s] = open_data(w, true);
            same_data(data[0][s], data[1][s]);
            assert_true(data[1][s]->tokens->ids == NULL);
            for (int c = 0; c < 2 && split; ++c) {
                ds_dataset *tail = NULL;
                CHECK_OK(w->ctx, ds_dataset_split(data[c][s], 0.3, &tail));
                ds_dataset_close(round % 4 < 2 ? &tail : &data[c][s]);
                data[c][s] = round % 4 < 2 ? data[c][s] : tail;
            }
        }
        same_batches(w, data[0], data[1], n);
        for (int i = 0; i < 4; ++i) {
            ds_dataset_close(&data[i / 2][i % 2]);
        }
        empty_cache(w);
    }
}

/* ---- when an entry is taken, and when made ---- */

static uint32_t reads(world *w, const ds_dataset_params *params)
{
    ds_dataset *data = NULL;
    w->n_reads = 0;
    CHECK_OK(w->ctx, ds_dataset_open(w->ctx, params, &data));
    ds_dataset_close(&data);
    return w->n_reads;
}

static void entries_are_of_their_data(void **state)
{
    world *w = *state;
    make_files(w, 1, 2, 50);
    ds_dataset_params params = params_of(w, true);
    assert_int_equal(reads(w, &params), 1);
    assert_int_equal(reads(w, &params), 0);
    params.seq_length = LENGTH - 1; /* samples are cut to it */
    assert_int_equal(reads(w, &params), 1);
    params.too_long = DS_TOO_LONG_DROP;
    assert_int_equal(reads(w, &params), 1);
    params = params_of(w, true);
    params.n_files = 1;
    assert_int_equal(reads(w, &params), 1);
    char moved[300];
    (void)snprintf(moved, sizeof moved, "%s", scratch_path(w->folder, "moved.jsonl"));
    assert_int_equal(rename(w->files[0], moved), 0);
    params.files = (const char *const[]){moved};
    assert_int_equal(reads(w, &params), 0); /* the same content under another name */
    FILE *file = fopen(moved, "r+b");
    assert_true(file != NULL && fseek(file, 12, SEEK_SET) == 0);
    (void)fputc('#', file);
    (void)fclose(file);
    assert_int_equal(reads(w, &params), 1);

    make_files(w, 0, 1, 50);
    params = params_of(w, true);
    assert_int_equal(reads(w, &params), 1);
    params.seq_length = LENGTH + 3; /* plain text is not */
    assert_int_equal(reads(w, &params), 0);
    params.column_map = "text=text";
    assert_int_equal(reads(w, &params), 1);
    params.alpaca = DS_ALPACA_CHAT;
    assert_int_equal(reads(w, &params), 1);
    params.cache_from_bytes = 1 << 20;
    params.column_map = NULL;
    assert_int_equal(reads(w, &params), 1); /* too small to be cached */
    empty_cache(w);
}

/* A file as old as most is not hashed again, until its size or time changes. */
static void hashes_are_kept(void **state)
{
    world *w = *state;
    const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    make_files(w, 0, 1, 50);
    const ds_dataset_params params = params_of(w, true);
    assert_int_equal(utimensat(AT_FDCWD, w->files[0], times, 0), 0);
    assert_int_equal(reads(w, &params), 1);
    w->stage = DS_DATASET_WAITS;
    assert_int_equal(reads(w, &params), 0);
    assert_int_equal(w->stage, DS_DATASET_WAITS);
    assert_int_equal(utimensat(AT_FDCWD, w->files[0], NULL, 0), 0);
    assert_int_equal(reads(w, &params), 0);
    assert_int_equal(w->stage, DS_DATASET_HASHES);
    empty_cache(w);
}

static void bad_rows_are_not_forgotten(void **state)
{
    world *w = *state;
    ds_dataset *data = NULL;
    make_files(w, 0, 1, 50);
    FILE *file = fopen(w->files[0], "ab");
    assert_non_null(file);
    (void)fputs("{\"text\":\n", file);
    (void)fclose(file);
    ds_dataset_params params = params_of(w, true);
    params.skip_bad = 2;
    assert_int_equal(reads(w, &params), 1);
    assert_int_equal(reads(w, &params), 0);
    params.skip_bad = 0;
    CHECK_FAILS(w->ctx, ds_dataset_open(w->ctx, &params, &data), DS_ERR_FORMAT, "0.jsonl:51:");
    empty_cache(w);
}

static void changing_files_are_refused(void **state)
{
    world *w = *state;
    ds_dataset *data = NULL;
    make_files(w, 0, 2, 50);
    w->spoil = w->files[0];
    const ds_dataset_params params = params_of(w, true);
    CHECK_FAILS(w->ctx, ds_dataset_open(w->ctx, &params, &data), DS_ERR_STATE,
                "changed while it was read");
    assert_int_equal(count_entries(w), 0);
    empty_cache(w);
}

/* ---- damage ---- */

static void damage(const char *path, int how)
{
    size_t n = 0;
    if (how == 0) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    char *text = scratch_read(path, &n);
    if (how == 1) {
        n -= 1;
    } else if (how == 2) {
        text[below((uint32_t)n)] ^= (char)(1 << below(8));
    } else {
        n = 0;
    }
    scratch_write(path, text, n);
    free(text);
}

static void damage_is_found(void **state)
{
    world *w = *state;
    static const char *const names[] = {"tokens.bin", "documents.u64", "counts.u8", "entry.meta"};
    make_files(w, 1, 1, 60);
    ds_dataset *memory = open_data(w, false);
    for (int round = 0; round < 60; ++round) {
        ds_dataset *data = open_data(w, true);
        ds_dataset_close(&data);
        char path[500];
        (void)snprintf(path, sizeof path, "%s/%s", entry(w), names[round % 4]);
        damage(path, round < 16 ? round / 4 : 2);
        warning[0] = '\0';
        data = open_data(w, true);
        /* a changed blank of the JSON is no damage */
        assert_true(w->n_reads == 1 || round % 4 == 3);
        assert_true(w->n_reads == 0 || strstr(warning, "is damaged") != NULL);
        same_data(memory, data);
        ds_dataset_close(&data);
        assert_int_equal(count_entries(w), 1);
    }
    ds_dataset_close(&memory);
    empty_cache(w);
}

/* ---- makers that are killed, and several at once ---- */

static int calls_left = -1; /* the process ends instead of its next call when this reaches 0 */

static void count_down(void)
{
    if (calls_left >= 0 && calls_left-- == 0) {
        _exit(3);
    }
}

/* These stand before the C library's in this program. */
int mkdir(const char *path, mode_t mode)
{
    count_down();
    return (int)syscall(SYS_mkdir, path, mode);
}

ssize_t write(int fd, const void *data, size_t n)
{
    count_down();
    return syscall(SYS_write, fd, data, n);
}

int fsync(int fd)
{
    count_down();
    return (int)syscall(SYS_fsync, fd);
}

int unlink(const char *path)
{
    count_down();
    return (int)syscall(SYS_unlink, path);
}

static void killed_makers_break_nothing(void **state)
{
    world *w = *state;
    bool ended = false;
    make_files(w, 1, 1, 60);
    ds_dataset *memory = open_data(w, false);
    for (int calls = 0; !ended && calls < 100; ++calls) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            calls_left = calls;
            const ds_dataset_params params = params_of(w, true);
            ds_dataset *data = NULL;
            _exit(ds_dataset_open(w->ctx, &params, &data) >= 0 ? 0 : 4);
        }
        int result = 0;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_true(WIFEXITED(result) && WEXITSTATUS(result) != 4);
        ended = WEXITSTATUS(result) == 0;
        ds_dataset *data = open_data(w, true);
        same_data(memory, data);
        ds_dataset_close(&data);
        assert_int_equal(count_entries(w), 1);
        empty_cache(w);
    }
    assert_true(ended);
    ds_dataset_close(&memory);
}

/* Exit code: 10 for having made the entry, 0 for having found it. */
static int open_in_child(world *w, const ds_dataset *memory)
{
    const ds_dataset_params params = params_of(w, true);
    ds_dataset *data = NULL;
    w->n_reads = 0;
    if (ds_dataset_open(w->ctx, &params, &data) < 0 ||
        dsi_dataset_content(data) != dsi_dataset_content(memory)) {
        return 1;
    }
    return w->n_reads > 0 ? 10 : 0;
}

static void one_makes_it_for_all(void **state)
{
    world *w = *state;
    enum { CHILDREN = 4 };
    make_files(w, 0, 2, 4000);
    ds_dataset *memory = open_data(w, false);
    pid_t children[CHILDREN];
    int makers = 0;
    for (int i = 0; i < CHILDREN; ++i) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            _exit(open_in_child(w, memory));
        }
    }
    for (int i = 0; i < CHILDREN; ++i) {
        int result = 0;
        assert_int_equal(waitpid(children[i], &result, 0), children[i]);
        assert_true(WIFEXITED(result) && WEXITSTATUS(result) != 1);
        makers += WEXITSTATUS(result) == 10;
    }
    assert_int_equal(makers, 1);
    assert_int_equal(count_entries(w), 1);
    ds_dataset_close(&memory);
    empty_cache(w);
}

/* A disk that takes no more: a clear error, and nothing left. */
static void full_disks_are_told_of(void **state)
{
    world *w = *state;
    make_files(w, 0, 1, 4000);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit limit = {20000, 20000};
        const ds_dataset_params params = params_of(w, true);
        ds_dataset *data = NULL;
        (void)signal(SIGXFSZ, SIG_IGN);
        (void)setrlimit(RLIMIT_FSIZE, &limit);
        const ds_status status = ds_dataset_open(w->ctx, &params, &data);
        _exit(status == DS_ERR_IO && strstr(ds_ctx_error(w->ctx), "--data_cache DIR") ? 0 : 1);
    }
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    assert_int_equal(count_entries(w), 0);
    empty_cache(w);
}

static void keep_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    if (level == DS_LOG_WARN) {
        (void)snprintf(warning, sizeof warning, "%s", line);
    }
}

static int set_up(void **state)
{
    static world w;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1; /* children fork off */
    params.log = keep_line;
    w.folder = scratch_make();
    *state = &w;
    return ds_ctx_create(&params, &w.ctx) < 0 ? -1 : ds_tokenizer_open(w.ctx, "bytes", &w.bytes);
}

static int tear_down(void **state)
{
    world *w = *state;
    ds_tokenizer_close(&w->bytes);
    scratch_remove(w->folder);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_memory),
        cmocka_unit_test(entries_are_of_their_data),
        cmocka_unit_test(hashes_are_kept),
        cmocka_unit_test(bad_rows_are_not_forgotten),
        cmocka_unit_test(changing_files_are_refused),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(killed_makers_break_nothing),
        cmocka_unit_test(one_makes_it_for_all),
        cmocka_unit_test(full_disks_are_told_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
