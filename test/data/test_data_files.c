/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and patterns as lists of data files: what is taken, in which order, what is refused. */
#include "common/check.h"
#include "common/scratch.h"
#include "data/data_files.h"
#include "io/file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct world {
    ds_ctx *ctx;
    char *folder;
} world;

static const char *in(const world *w, const char *name)
{
    return *name != '\0' ? scratch_path(w->folder, name) : w->folder;
}

/* The files that a word stands for, by their paths in the folder, joined by blanks. */
static const char *found(const world *w, const char *word)
{
    static char text[1000];
    dsi_data_files files;
    const char *path = in(w, word);
    CHECK_OK(w->ctx, dsi_data_files_list(w->ctx, &path, 1, &files));
    assert_int_equal(files.begin[1], files.n);
    text[0] = '\0';
    for (size_t i = 0; i < files.n; ++i) {
        (void)strcat(text, i > 0 ? " " : "");
        (void)strcat(text, files.paths[i] + strlen(w->folder) + 1);
    }
    dsi_data_files_free(&files);
    return text;
}

static void refused(const world *w, const char *word, ds_status code, const char *text)
{
    dsi_data_files files;
    const char *words[2] = {in(w, "b.jsonl"), in(w, word)};
    CHECK_FAILS(w->ctx, dsi_data_files_list(w->ctx, words, 2, &files), code, text);
}

static void fill(const world *w)
{
    static const char *const names[] = {"b.jsonl",           "a.jsonl.gz",      "README.md",
                                        "dataset_info.json", "c.parquet",       "t.txt",
                                        "model.bin",         "i.bin",           "i.idx",
                                        ".hidden.jsonl",     "[x].jsonl",       "sub/z.csv",
                                        "sub/deep/y.tsv",    ".git/data.jsonl", "a-1.json",
                                        "a-2.json",          "LICENSE.txt"};
    static const char *const folders[] = {"sub", "sub/deep", ".git", "empty", "docs"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; ++i) {
        assert_int_equal(mkdir(in(w, folders[i]), 0777), 0);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        scratch_write(in(w, names[i]), "", 0);
    }
    scratch_write(in(w, "docs/a.md"), "", 0);
}

static void words_stand_for_files(void **state)
{
    const world *w = *state;
    fill(w);
    assert_string_equal(found(w, ""), "[x].jsonl a-1.json a-2.json a.jsonl.gz b.jsonl c.parquet "
                                      "i.bin sub/deep/y.tsv sub/z.csv t.txt");
    assert_string_equal(found(w, "sub/"), "sub/deep/y.tsv sub/z.csv");
    assert_string_equal(found(w, "README.md"), "README.md"); /* who reads it refuses it */
    assert_string_equal(found(w, "[x].jsonl"), "[x].jsonl");
    assert_string_equal(found(w, "a-?.json"), "a-1.json a-2.json");
    assert_string_equal(found(w, "i.*"), "i.bin");
    assert_string_equal(found(w, "*.json*"), "[x].jsonl a-1.json a-2.json a.jsonl.gz b.jsonl");
    assert_string_equal(found(w, "s*"), "sub/deep/y.tsv sub/z.csv");
}

static void several_words_keep_their_order(void **state)
{
    const world *w = *state;
    dsi_data_files files;
    const char *words[3] = {in(w, "sub"), in(w, "b.jsonl"), in(w, "a-*")};
    CHECK_OK(w->ctx, dsi_data_files_list(w->ctx, words, 3, &files));
    assert_int_equal(files.n, 5);
    assert_int_equal(files.begin[1], 2);
    assert_int_equal(files.begin[2], 3);
    assert_int_equal(files.begin[3], 5);
    assert_string_equal(dsi_path_name(files.paths[2]), "b.jsonl");
    dsi_data_files_free(&files);
}

static void nothing_is_an_error(void **state)
{
    const world *w = *state;
    refused(w, "empty", DS_ERR_ARG, "empty: no data file there; the endings are .jsonl");
    refused(w, "docs", DS_ERR_ARG, "docs: no data file there, only a.md");
    refused(w, "no-*.jsonl", DS_ERR_NOT_FOUND, "no-*.jsonl: no file has this name, nor matches it");
    refused(w, "gone.jsonl", DS_ERR_NOT_FOUND, "gone.jsonl");
    refused(w, "**/y.tsv", DS_ERR_ARG, "** is not known");
    refused(w, "*.md", DS_ERR_ARG, "only README.md");
    assert_int_equal(symlink("..", in(w, "sub/up")), 0);
    refused(w, "sub", DS_ERR_LIMIT, "a link to itself");
    assert_int_equal(unlink(in(w, "sub/up")), 0);
}

static int set_up(void **state)
{
    static world w;
    w.folder = scratch_make();
    *state = &w;
    return ds_ctx_create(NULL, &w.ctx);
}

static int tear_down(void **state)
{
    world *w = *state;
    scratch_remove(w->folder);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_stand_for_files),
        cmocka_unit_test(several_words_keep_their_order),
        cmocka_unit_test(nothing_is_an_error),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
