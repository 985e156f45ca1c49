/* SPDX-License-Identifier: Apache-2.0 */
/* Folders and patterns as lists of data files. See data_files.h. */
#include "data/data_files.h"
#include "data/indexed.h"

#include "data/rows/data_bytes.h"
#include "data/rows/rows.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 32, LEFT_OUT_NAMED = 4, LEFT_OUT_TEXT = 200 };

typedef struct walk {
    ds_ctx *ctx;
    char **paths;
    size_t n, room, begin; /* begin: of the current word */
    size_t n_left_out;
    char left_out[LEFT_OUT_TEXT]; /* names of the first few */
} walk;

static ds_status no_memory(const walk *w)
{
    return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory to list data files");
}

/* path: from malloc, moved. */
static ds_status add(walk *w, char *path)
{
    if (w->n == w->room) {
        const size_t room = w->room < 16 ? 16 : 2 * w->room;
        char **grown = realloc(w->paths, room * sizeof *grown);
        if (grown == NULL) {
            free(path);
            return no_memory(w);
        }
        w->paths = grown;
        w->room = room;
    }
    w->paths[w->n++] = path;
    return DS_OK;
}

/* What stands beside rows in a data set and is none: as `datasets` leaves it out, or a text about
 * it. */
static bool is_about_data(const char *name)
{
    static const char *const names[] = {
        "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json",
        "state.json",  "LICENSE.txt",       "README.txt"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Indexed data is known by its .bin; many another file is called so. */
static bool is_indexed(const char *path)
{
    struct stat st;
    char *index = dsi_path_ends(path, ".bin") ? dsi_indexed_other(path) : NULL;
    if (index == NULL) {
        return false;
    }
    const bool is = stat(index, &st) == 0 && S_ISREG(st.st_mode);
    free(index);
    return is;
}

static bool is_data(const char *path)
{
    const size_t n = dsi_bytes_plain_name(path);
    const bool text = n >= 4 && memcmp(path + n - 4, ".txt", 4) == 0;
    return !is_about_data(dsi_path_name(path)) &&
           (text || dsi_rows_knows(path) || is_indexed(path));
}

/* The .idx of a pair is not left out: it is read with its .bin. */
static void leave_out(walk *w, const char *path)
{
    if (!dsi_path_ends(path, ".idx")) {
        const size_t used = strlen(w->left_out);
        if (w->n_left_out < LEFT_OUT_NAMED) {
            (void)snprintf(w->left_out + used, sizeof w->left_out - used, "%s%.40s",
                           used > 0 ? ", " : "", dsi_path_name(path));
        }
        w->n_left_out += 1;
    }
}

static ds_status take_folder(walk *w, const char *folder, int depth);

/* path: from malloc, moved. */
static ds_status take(walk *w, char *path, int depth)
{
    struct stat st;
    ds_status status = DS_OK;
    if (stat(path, &st) != 0) {
        status = dsi_io_fail(w->ctx, "read", path, errno);
    } else if (S_ISDIR(st.st_mode)) {
        status = take_folder(w, path, depth + 1);
    } else if (S_ISREG(st.st_mode) && is_data(path)) {
        return add(w, path);
    } else {
        leave_out(w, path);
    }
    free(path);
    return status;
}

static ds_status take_folder(walk *w, const char *folder, int depth)
{
    char **names = NULL;
    size_t n = 0;
    if (depth > MAX_DEPTH) {
        return ds_fail(w->ctx, DS_ERR_LIMIT,
                       "%s: more than %d folders deep: is one of them a link to itself?", folder,
                       MAX_DEPTH);
    }
    DS_TRY(dsi_folder_list(w->ctx, folder, &names, &n));
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && status >= 0; ++i) {
        if (names[i][0] != '.') {
            char *path = dsi_path_join(folder, names[i]);
            status = path != NULL ? take(w, path, depth) : no_memory(w);
        }
    }
    dsi_names_free(names, n);
    return status;
}

static ds_status take_matches(walk *w, const char *pattern)
{
    glob_t found = {0};
    if (strstr(pattern, "**") != NULL) {
        return ds_fail(w->ctx, DS_ERR_ARG,
                       "%s: ** is not known; a folder is taken with all folders below it", pattern);
    }
    const int rc = glob(pattern, GLOB_ERR, NULL, &found);
    ds_status status = DS_OK;
    if (rc != 0) {
        status = rc == GLOB_NOMATCH   ? ds_fail(w->ctx, DS_ERR_NOT_FOUND,
                                                "%s: no file has this name, nor matches it", pattern)
                 : rc == GLOB_NOSPACE ? no_memory(w)
                                      : dsi_io_fail(w->ctx, "list", pattern, errno);
    }
    for (size_t i = 0; rc == 0 && i < found.gl_pathc && status >= 0; ++i) {
        char *path = strdup(found.gl_pathv[i]);
        status = path != NULL ? take(w, path, 0) : no_memory(w);
    }
    globfree(&found);
    return status;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of a data set with its splits all would be trained on. */
static void warn_of_splits(const walk *w, const char *word)
{
    const char *train = NULL;
    const char *other = NULL;
    for (size_t i = w->begin; i < w->n; ++i) {
        const char *name = dsi_path_name(w->paths[i]);
        const bool held_out = strncmp(name, "test", 4) == 0 || strncmp(name, "validation", 10) == 0;
        train = strncmp(name, "train", 5) == 0 ? name : train;
        other = held_out ? name : other;
    }
    if (train != NULL && other != NULL) {
        ds_log(w->ctx, DS_LOG_WARN,
               "%s: %s is taken as well as %s; to keep the splits apart name the files, or a "
               "pattern",
               word, other, train);
    }
}

static ds_status check_found(walk *w, const char *word)
{
    const size_t n = w->n - w->begin;
    if (n == 0) {
        return ds_fail(w->ctx, DS_ERR_ARG,
                       "%s: no data file there%s%s; the endings are .jsonl, .json, .csv, .tsv, "
                       ".txt (each also .gz or .zst), .parquet, and .bin with its .idx",
                       word, w->n_left_out > 0 ? ", only " : "", w->left_out);
    }
    qsort(w->paths + w->begin, n, sizeof *w->paths, by_bytes);
    if (w->n_left_out > 0) {
        ds_log(w->ctx, DS_LOG_JOB, "%s: %zu data files; %zu other files are left out: %s%s", word,
               n, w->n_left_out, w->left_out, w->n_left_out > LEFT_OUT_NAMED ? ", …" : "");
    }
    warn_of_splits(w, word);
    return DS_OK;
}

/* A name that is there is no pattern, whatever is in it. */
static ds_status expand(walk *w, const char *word)
{
    struct stat st;
    w->begin = w->n;
    w->n_left_out = 0;
    w->left_out[0] = '\0';
    if (stat(word, &st) == 0 && !S_ISDIR(st.st_mode)) {
        char *path = strdup(word);
        return path != NULL ? add(w, path) : no_memory(w);
    }
    if (stat(word, &st) == 0) {
        DS_TRY(take_folder(w, word, 0));
    } else if (errno == ENOENT && strpbrk(word, "*?[") != NULL) {
        DS_TRY(take_matches(w, word));
    } else {
        return dsi_io_fail(w->ctx, "open", word, errno);
    }
    return check_found(w, word);
}

ds_status dsi_data_files_list(ds_ctx *ctx, const char *const *words, size_t n_words,
                              dsi_data_files *files_out)
{
    walk w = {.ctx = ctx};
    size_t *begin = calloc(n_words + 1, sizeof *begin);
    ds_status status = begin != NULL ? DS_OK : no_memory(&w);
    for (size_t i = 0; i < n_words && status >= 0; ++i) {
        status = expand(&w, words[i]);
        begin[i + 1] = w.n;
    }
    dsi_data_files files = {.paths = w.paths, .n = w.n, .begin = begin, .n_words = n_words};
    if (status < 0) {
        dsi_data_files_free(&files);
        return status;
    }
    *files_out = files;
    return DS_OK;
}

void dsi_data_files_free(dsi_data_files *files)
{
    dsi_names_free(files->paths, files->n);
    free(files->begin);
    *files = (dsi_data_files){0};
}
