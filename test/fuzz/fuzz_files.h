/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzzers of files share: a folder whose files lie in memory, inputs of several parts, one
 * context. Nothing here is used outside of test/fuzz. */
#ifndef DSI_TEST_FUZZ_FILES_H
#define DSI_TEST_FUZZ_FILES_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FUZZ_FILES = 12 };

/* Names in the folder are links to files in memory. */
typedef struct fuzz_folder {
    char path[64]; /* "" before the first use */
    char links[FUZZ_FILES][128];
    int files[FUZZ_FILES];
    size_t n;
} fuzz_folder;

static fuzz_folder fuzz_dir; /* one for the run of the fuzzer */

static inline void fuzz_require(bool condition, const char *what)
{
    if (!condition) {
        (void)fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static void fuzz_folder_remove(void)
{
    for (size_t i = 0; i < fuzz_dir.n; ++i) {
        (void)unlink(fuzz_dir.links[i]);
    }
    (void)rmdir(fuzz_dir.path);
}

static inline size_t fuzz_file_index(const char *name)
{
    fuzz_folder *f = &fuzz_dir;
    if (f->path[0] == '\0') {
        (void)snprintf(f->path, sizeof f->path, "/tmp/ds_fuzz_XXXXXX");
        fuzz_require(mkdtemp(f->path) != NULL && atexit(fuzz_folder_remove) == 0, "folder");
    }
    for (size_t i = 0; i < f->n; ++i) {
        if (strcmp(strrchr(f->links[i], '/') + 1, name) == 0) {
            return i;
        }
    }
    fuzz_require(f->n < FUZZ_FILES, "files");
    (void)snprintf(f->links[f->n], sizeof f->links[0], "%s/%s", f->path, name);
    f->files[f->n] = memfd_create(name, MFD_CLOEXEC);
    fuzz_require(f->files[f->n] >= 0, "file in memory");
    return f->n++;
}

/* The file of that name holds n bytes from now on. Returns its path. */
static inline const char *fuzz_put(const char *name, const void *data, size_t n)
{
    const size_t i = fuzz_file_index(name);
    char target[64];
    (void)snprintf(target, sizeof target, "/proc/self/fd/%d", fuzz_dir.files[i]);
    (void)symlink(target, fuzz_dir.links[i]); /* it may be there already */
    fuzz_require(ftruncate(fuzz_dir.files[i], 0) == 0 &&
                     pwrite(fuzz_dir.files[i], data, n, 0) == (ssize_t)n,
                 "write");
    return fuzz_dir.links[i];
}

/* The file of that name is not there from now on. */
static inline void fuzz_drop(const char *name)
{
    (void)unlink(fuzz_dir.links[fuzz_file_index(name)]);
}

/* One part of an input whose parts are separated by "%%%%". */
typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
    bool more; /* set it to true; false behind the last part */
} fuzz_input;

static inline bool fuzz_part(fuzz_input *input, const uint8_t **part_out, size_t *n_out)
{
    if (!input->more) {
        return false;
    }
    const uint8_t *mark = memmem(input->at, input->left, "%%%%", 4);
    *part_out = input->at;
    *n_out = mark != NULL ? (size_t)(mark - input->at) : input->left;
    input->more = mark != NULL;
    input->at += *n_out + (input->more ? 4 : 0);
    input->left -= *n_out + (input->more ? 4 : 0);
    return true;
}

static void fuzz_no_log(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* A context of one thread that logs nothing. */
static inline ds_ctx *fuzz_context(void)
{
    static ds_ctx *ctx;
    if (ctx == NULL) {
        ds_ctx_params params = ds_ctx_params_default();
        params.n_threads = 1;
        params.log = fuzz_no_log;
        fuzz_require(ds_ctx_create(&params, &ctx) >= 0, "context");
    }
    return ctx;
}

#endif
