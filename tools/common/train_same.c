/* SPDX-License-Identifier: Apache-2.0 */
/* What ds_train's ranks compare before they open tokenizer and data. See train.h. */
#include "base/buf.h"
#include "comm/same_text.h"
#include "common/environment.h"
#include "common/train.h"
#include "data/indexed.h"
#include "io/file.h"
#include "train/same_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_BYTES = 16 << 20 };

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
    for (size_t i = 0; status >= 0 && i < files->n; ++i) {
        const char *path = files->paths[i];
        paths[n++] = path;
        others[i] = dsi_indexed_other(path);
        if (others[i] != NULL) {
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

/* The keys that the file has, by their paths; then the file, which may have what nothing reads. */
static ds_status same_config(const train_run *run)
{
    dsi_buf text = dsi_buf_make(CONFIG_BYTES);
    for (size_t i = 0; i < ds_config_n_items(run->config); ++i) {
        const ds_config_item *item = ds_config_item_at(run->config, i);
        if (item->origin != DS_ORIGIN_DEFAULT) {
            dsi_buf_printf(&text, "%s: %s\n", item->path, item->value);
        }
    }
    const ds_status status =
        text.failed ? ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to compare configurations")
                    : dsi_same_text(run->ctx, run->comm, dsi_buf_text(&text), "configuration",
                                    "give all ranks the same --deepspeed_config");
    dsi_buf_free(&text);
    return status < 0 ? status
                      : same_file(run, run->options->deepspeed_config, "configuration file");
}

/* What is read of config.json by its fields; then the file, of which a copy is saved. */
static ds_status same_model_config(const train_run *run)
{
    char *text = NULL;
    DS_TRY(ds_model_print(run->model, &text));
    const ds_status status =
        dsi_same_text(run->ctx, run->comm, text, "config.json", "give all ranks the same model");
    free(text);
    return status < 0 ? status : same_file(run, run->options->model_config, "model_config");
}

static ds_status same_environment(const train_run *run)
{
    char *text = environment_text();
    const ds_status status = text == NULL
                                 ? ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to compare ranks")
                                 : dsi_same_text(run->ctx, run->comm, text, "environment",
                                                 "the variable is the same on all ranks of a run");
    free(text);
    return status;
}

ds_status train_same_call(const train_run *run)
{
    DS_TRY(same_environment(run));
    return dsi_same_text(run->ctx, run->comm, run->options->text, "flag",
                         "all ranks of a run have the same flags");
}

ds_status train_same_inputs(const train_run *run)
{
    DS_TRY(same_config(run));
    DS_TRY(same_model_config(run));
    DS_TRY(same_tokenizer(run));
    DS_TRY(same_data(run, &run->data_files, "data"));
    return same_data(run, &run->eval_files, "evaluation data");
}
