/* What ds_train's ranks compare before anything is read. See train.h. */
#include "comm/same_text.h"
#include "common/train.h"
#include "data/source.h"
#include "io/file.h"
#include "train/same_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ds_status same_file(const train_run *run, const char *path, const char *what)
{
    return dsi_same_files(run->ctx, run->comm, &path, path != NULL ? 1 : 0, what);
}

/* Of a file, those beside it count too: they are read with it. */
static ds_status same_tokenizer(const train_run *run)
{
    struct stat s;
    const char *path = run->options->tokenizer;
    const bool bytes = path != NULL && strcmp(path, "bytes") == 0;
    const bool file = path != NULL && !bytes && stat(path, &s) == 0 && S_ISREG(s.st_mode);
    char *folder = file ? dsi_path_folder(path) : NULL;
    DS_TRY(dsi_same_text(run->ctx, run->comm,
                         bytes          ? "bytes"
                         : path != NULL ? "files"
                                        : "the model's",
                         "tokenizer", "give all ranks the same"));
    ds_status status = same_file(run, file ? path : NULL, "tokenizer");
    if (status >= 0) {
        status = dsi_same_folder(run->ctx, run->comm,
                                 file    ? folder
                                 : bytes ? NULL
                                         : path,
                                 "tokenizer");
    }
    free(folder);
    return status;
}

/* Indexed data is a pair of files: both are compared. */
static ds_status same_data(const train_run *run, const dsi_data_files *files, const char *what)
{
    const char **paths = calloc(2 * files->n + 1, sizeof *paths);
    char **others = calloc(files->n + 1, sizeof *others);
    uint32_t n = 0;
    ds_status status = paths != NULL && others != NULL
                           ? DS_OK
                           : ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to compare data");
    for (size_t i = 0; i < files->n && status >= 0; ++i) {
        const char *path = files->paths[i];
        const bool bin = dsi_path_ends(path, ".bin");
        paths[n++] = path;
        if (bin || dsi_path_ends(path, ".idx")) {
            const int stem = (int)strlen(path) - 4;
            if (asprintf(&others[i], "%.*s%s", stem, path, bin ? ".idx" : ".bin") < 0) {
                others[i] = NULL;
                status = ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to compare data");
            }
            paths[n++] = others[i];
        }
    }
    if (status >= 0) {
        status = dsi_same_files(run->ctx, run->comm, paths, n, what);
    }
    for (size_t i = 0; others != NULL && i < files->n; ++i) {
        free(others[i]);
    }
    free(others);
    free(paths);
    return status;
}

ds_status train_same(const train_run *run)
{
    const train_options *o = run->options;
    DS_TRY(dsi_same_text(run->ctx, run->comm, o->text, "flag",
                         "all ranks of a run have the same flags"));
    DS_TRY(same_file(run, o->deepspeed_config, "configuration file"));
    DS_TRY(same_file(run, o->model_config, "model_config"));
    DS_TRY(same_tokenizer(run));
    DS_TRY(same_data(run, &run->data_files, "data"));
    return same_data(run, &run->eval_files, "evaluation data");
}
