/* SPDX-License-Identifier: Apache-2.0 */
/* No file or folder that a run writes is one that it reads. Called at the start, before anything is
 * opened.
 *
 * Paths are compared after links are resolved, and files by device and inode too, which finds hard
 * links. What is in a model or tokenizer folder is an input, each file of it. Into --output the run
 * writes the files of a model folder: an input that has the name of one must not lie there.
 */
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/train.h"
#include "config/config_values.h"
#include "data/indexed.h"
#include "io/file.h"
#include "monitor/run_history.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct place {
    const char *flag;
    const char *path; /* as given */
    char *real;       /* links resolved; of a file to come: its folder's, with its name */
    struct stat st;
    bool there;
} place;

static void place_free(place *p)
{
    free(p->real);
    p->real = NULL;
}

/* The path without slashes at its end: "out/" may be still to come. */
static char *trimmed(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        --n;
    }
    return strndup(path, n);
}

/* Links resolved as far as the path is there, the names of what is still to come behind; NULL for a
 * path that cannot be: whoever opens it says why. From malloc. */
static char *real_of(const char *path)
{
    char *plain = trimmed(path);
    char *real = realpath(path, NULL);
    char *folder = real == NULL && plain != NULL ? dsi_path_folder(plain) : NULL;
    if (folder != NULL && strcmp(folder, plain) != 0) {
        char *above = real_of(folder);
        real = above != NULL ? dsi_path_join(above, dsi_path_name(plain)) : NULL;
        free(above);
    }
    free(folder);
    free(plain);
    return real;
}

static place place_of(const char *flag, const char *path)
{
    place p = {.flag = flag, .path = path};
    p.there = stat(path, &p.st) == 0;
    p.real = real_of(path);
    return p;
}

static bool is_folder(const place *p)
{
    return p->there && S_ISDIR(p->st.st_mode);
}

/* Devices and pipes are read and written as their owner likes. */
static bool is_same(const place *a, const place *b)
{
    if (a->there && !S_ISREG(a->st.st_mode) && !S_ISDIR(a->st.st_mode)) {
        return false;
    }
    const bool inode =
        a->there && b->there && a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino;
    return inode || (a->real != NULL && b->real != NULL && strcmp(a->real, b->real) == 0);
}

static bool is_inside(const place *a, const place *folder)
{
    const size_t n = folder->real != NULL ? strlen(folder->real) : 0;
    return a->real != NULL && n > 1 && strncmp(a->real, folder->real, n) == 0 && a->real[n] == '/';
}

/* The file of the folder that is this one under another name; NULL: none. From malloc. */
static char *hard_link_in(const place *file, const place *folder)
{
    char **names = NULL;
    size_t n = 0;
    char *found = NULL;
    if (!file->there || is_folder(file) || dsi_folder_list(NULL, folder->path, &names, &n) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < n && found == NULL; ++i) {
        char *path = dsi_path_join(folder->path, names[i]);
        struct stat st;
        if (path != NULL && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
            st.st_dev == file->st.st_dev && st.st_ino == file->st.st_ino) {
            found = path;
        } else {
            free(path);
        }
    }
    dsi_names_free(names, n);
    return found;
}

static ds_status refuse(ds_ctx *ctx, const place *out, const char *how, const place *in)
{
    return ds_fail(ctx, DS_ERR_ARG, "%s %s %s %s %s, which this run reads; give another path",
                   out->flag, out->path, how, in->flag, in->path);
}

bool train_path_is_written(const char *name)
{
    static const char *const names[] = {"adapter_config.json",
                                        "config.json",
                                        "generation_config.json",
                                        "latest",
                                        "model.safetensors.index.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.jinja",
                                        "additional_chat_templates",
                                        "modules.json",
                                        "1_Pooling",
                                        "2_Normalize",
                                        "sentence_bert_config.json",
                                        "config_sentence_transformers.json",
                                        DSI_RUN_HISTORY_NAME,
                                        ".ds_begun",
                                        ".ds_lock"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    const size_t n = strlen(name);
    return strncmp(name, "tokenizer", 9) == 0 || strncmp(name, "global_step", 11) == 0 ||
           (n > 12 && strcmp(name + n - 12, ".safetensors") == 0);
}

/* An input that lies in --output under a name that is written there. */
static bool is_in_the_way(const place *out, const place *in)
{
    return strcmp(out->flag, "--output") == 0 && !is_folder(in) && is_inside(in, out) &&
           strchr(in->real + strlen(out->real) + 1, '/') == NULL &&
           train_path_is_written(dsi_path_name(in->real));
}

static ds_status compare(ds_ctx *ctx, const place *out, const place *in)
{
    if (is_same(out, in)) {
        return refuse(ctx, out, "is", in);
    }
    if (is_folder(in) && is_inside(out, in)) {
        return refuse(ctx, out, "is inside of", in);
    }
    if (is_in_the_way(out, in)) {
        return refuse(ctx, out, "would get files over", in);
    }
    char *link = is_folder(in) ? hard_link_in(out, in) : NULL;
    if (link != NULL) {
        const ds_status status =
            ds_fail(ctx, DS_ERR_ARG,
                    "%s %s is the file %s of %s %s, which this run reads; give another path",
                    out->flag, out->path, link, in->flag, in->path);
        free(link);
        return status;
    }
    return DS_OK;
}

static ds_status compare_with(ds_ctx *ctx, const place *out, const char *flag, const char *path)
{
    if (path == NULL) {
        return DS_OK;
    }
    place in = place_of(flag, path);
    const ds_status status = compare(ctx, out, &in);
    place_free(&in);
    return status;
}

static bool is_there(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* The words, of which folders are inputs as a whole, and the files. Indexed data are two files. */
static ds_status compare_data(ds_ctx *ctx, const place *out, const char *flag,
                              const dsi_arg_list *words, const dsi_data_files *files)
{
    for (size_t i = 0; i < words->n; ++i) {
        DS_TRY(is_there(words->items[i]) ? compare_with(ctx, out, flag, words->items[i]) : DS_OK);
    }
    for (size_t i = 0; i < files->n; ++i) {
        const char *path = files->paths[i];
        char *other = dsi_indexed_other(path);
        ds_status status = compare_with(ctx, out, flag, path);
        status = status < 0 ? status : compare_with(ctx, out, flag, other);
        free(other);
        DS_TRY(status);
    }
    return DS_OK;
}

static ds_status compare_all(const train_run *run, const place *out)
{
    ds_ctx *ctx = run->ctx;
    const train_options *o = run->options;
    const bool bytes = o->tokenizer != NULL && strcmp(o->tokenizer, "bytes") == 0;
    DS_TRY(compare_data(ctx, out, "--data", &o->data, &run->data_files));
    DS_TRY(compare_data(ctx, out, "--eval_data", &o->eval_data, &run->eval_files));
    DS_TRY(compare_with(ctx, out, "--deepspeed_config", o->deepspeed_config));
    const char *flag = out->flag + (strncmp(out->flag, "--", 2) == 0 ? 2 : 0);
    DS_TRY(hub_flag_spare(ctx, o->model_found, flag, out->path));
    DS_TRY(hub_flag_spare(ctx, o->tokenizer_found, flag, out->path));
    DS_TRY(compare_with(ctx, out, "--model", o->model));
    DS_TRY(compare_with(ctx, out, "--model_config", o->model_config));
    DS_TRY(compare_with(ctx, out, "--adapter", o->adapter.folder));
    for (size_t i = 0; i < o->adapter.frozen.n; ++i) {
        DS_TRY(compare_with(ctx, out, "--frozen_adapters", o->adapter.frozen.items[i]));
    }
    DS_TRY(hub_flag_spare(ctx, o->teacher.found, flag, out->path));
    DS_TRY(compare_with(ctx, out, "--teacher", o->teacher.teacher));
    return bytes ? DS_OK : compare_with(ctx, out, "--tokenizer", o->tokenizer);
}

/* A profile of another run stays, as the files of --metrics and --trace do. */
static ds_status check_profile(const train_run *run)
{
    const train_options *o = run->options;
    const ds_config_flops_profiler *f = &dsi_config_values(run->config)->flops_profiler;
    const bool keeps = o->overwrite || o->resume_given || o->restarted || o->trial;
    if (!f->enabled || f->output_file == NULL || ds_comm_rank(run->comm) != 0 ||
        output_free(run->ctx, f->output_file, NULL, keeps) != DS_ERR_ARG) {
        return DS_OK;
    }
    return ds_fail(run->ctx, DS_ERR_ARG,
                   "flops_profiler.output_file: %s is there already and would be lost; move it, or "
                   "give another name",
                   f->output_file);
}

ds_status train_paths_check_config(const train_run *run)
{
    static const char *const keys[] = {"flops_profiler.output_file", "autotuning.metric_path",
                                       "autotuning.model_info_path"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
        const ds_config_item *item = ds_config_find(run->config, keys[i]);
        const size_t n = item != NULL ? strlen(item->value) : 0;
        if (n < 3 || item->value[0] != '"' || n >= PATH_MAX) {
            continue; /* null, or "" */
        }
        char path[PATH_MAX];
        (void)snprintf(path, sizeof path, "%.*s", (int)(n - 2), item->value + 1);
        place out = place_of(keys[i], path);
        const ds_status status = compare_all(run, &out);
        place_free(&out);
        DS_TRY(status);
    }
    return check_profile(run);
}

/* Where no --report is given the page has its own name in the folder. */
static bool is_page(const train_options *o, const char *name)
{
    return o->report == NULL && strcmp(name, DSI_RUN_PAGE_NAME) == 0;
}

/* A file among those that the run itself writes into --output. */
static ds_status compare_written(ds_ctx *ctx, const train_options *o, const place *folder,
                                 const place *file)
{
    const char *inner = is_inside(file, folder) ? file->real + strlen(folder->real) + 1 : NULL;
    if (inner == NULL) {
        return DS_OK;
    }
    char *first = strndup(inner, strcspn(inner, "/"));
    const bool taken = first != NULL && (train_path_is_written(first) || is_page(o, inner));
    free(first);
    return taken ? ds_fail(ctx, DS_ERR_ARG,
                           "%s %s has a name that the run itself writes in --output %s; give "
                           "another path",
                           file->flag, file->path, folder->path)
                 : DS_OK;
}

static ds_status compare_outputs(ds_ctx *ctx, const train_options *o, const place *a,
                                 const place *b)
{
    if (is_same(a, b)) {
        return ds_fail(ctx, DS_ERR_ARG, "%s and %s are both %s", a->flag, b->flag, a->path);
    }
    return strcmp(a->flag, "--output") == 0 ? compare_written(ctx, o, a, b) : DS_OK;
}

ds_status train_paths_check(const train_run *run)
{
    enum { N = 4 };
    ds_ctx *ctx = run->ctx;
    const train_options *o = run->options;
    const char *const flags[N] = {"--output", "--metrics", "--trace", "--report"};
    const bool page = o->report != NULL && strcmp(o->report, "none") != 0;
    const char *const paths[N] = {o->trial ? NULL : o->output, o->metrics, o->trace,
                                  page ? o->report : NULL};
    for (size_t i = 0; i < N; ++i) {
        if (paths[i] == NULL) {
            continue;
        }
        place out = place_of(flags[i], paths[i]);
        ds_status status = compare_all(run, &out);
        for (size_t k = i + 1; k < N && status == DS_OK; ++k) {
            place other = place_of(flags[k], paths[k] != NULL ? paths[k] : "");
            status = paths[k] != NULL ? compare_outputs(ctx, o, &out, &other) : DS_OK;
            place_free(&other);
        }
        place_free(&out);
        DS_TRY(status);
    }
    return DS_OK;
}
