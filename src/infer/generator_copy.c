/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of served weights that a file of init_inference asks for (save_mp_checkpoint_path): a
 * model folder, with a description of it (ds_inference_config.json) that `checkpoint` may name. */
#include "config/config_values.h"
#include "infer/generator.h"

#include <deepspeed/hf_export.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DESCRIPTION "ds_inference_config.json"

static ds_status add_all(ds_hf_export *export, const ds_safetensors *st)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        const ds_tensor_source source = {
            .name = tensor->name, .meta = tensor->meta, .data = tensor->data};
        DS_TRY(ds_hf_export_add(export, &source));
    }
    return DS_OK;
}

static bool same_place(const char *a, const char *b)
{
    struct stat one;
    struct stat other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

static bool ends_in(const char *name, const char *end)
{
    const size_t n = strlen(name);
    return n > strlen(end) && strcmp(name + n - strlen(end), end) == 0;
}

/* Weights that no earlier copy left there. */
static bool holds_others(const char *folder)
{
    bool weights = false;
    bool described = false;
    DIR *dir = opendir(folder);
    for (const struct dirent *e = dir != NULL ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        described = described || strcmp(e->d_name, DESCRIPTION) == 0;
        weights = weights || ends_in(e->d_name, ".safetensors") || ends_in(e->d_name, ".bin") ||
                  ends_in(e->d_name, ".pt") || ends_in(e->d_name, ".gguf");
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return weights && !described;
}

/* The copy goes where none of what is read lies, and over no weights but those of another copy. */
static ds_status check_target(ds_ctx *ctx, const char *target, const char *model_folder,
                              const ds_safetensors *st)
{
    bool own = model_folder != NULL && same_place(target, model_folder);
    for (size_t i = 0; i < ds_safetensors_count(st) && !own; ++i) {
        const char *path = ds_safetensors_at(st, i)->path;
        const char *slash = strrchr(path, '/');
        char folder[4096];
        (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) : 1,
                       slash != NULL ? path : ".");
        own = same_place(target, folder);
    }
    if (own || holds_others(target)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "save_mp_checkpoint_path %s %s, which the copy would overwrite; name another "
            "folder",
            target, own ? "is where the model's weights are" : "holds other weights");
    }
    return DS_OK;
}

static ds_status describe(ds_ctx *ctx, const char *folder)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/" DESCRIPTION, folder);
    FILE *file = fopen(path, "w");
    const bool written =
        file != NULL && fputs("{\"type\": \"ds_model\", \"checkpoints\": [\"model.safetensors\"], "
                              "\"version\": 1.0, \"parallelization\": \"pp\"}\n",
                              file) >= 0;
    if ((file != NULL && fclose(file) != 0) || !written) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write %s", path);
    }
    return DS_OK;
}

ds_status ds_generator_copy(ds_ctx *ctx, const ds_config *config, const ds_generator_params *params,
                            const char *model_folder)
{
    const ds_config_values *values = dsi_config_values(config);
    ds_safetensors *st = NULL;
    ds_hf_export *export = NULL;
    if (values == NULL || values->inference.copy == NULL || ds_comm_rank(params->comm) > 0) {
        return DS_OK;
    }
    const ds_hf_export_params how = {.folder = values->inference.copy,
                                     .config_json = ds_model_config_text(params->model),
                                     .dtype = params->dtype,
                                     .copy_from = model_folder};
    if (params->weights == NULL || strstr(how.config_json, "\"quantization_config\"") != NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "save_mp_checkpoint_path goes with a folder of real weights");
    }
    DS_TRY(ds_safetensors_open_folder(ctx, params->weights, &st));
    ds_status status = check_target(ctx, how.folder, model_folder, st);
    status = status < 0 ? status : ds_hf_export_begin(ctx, &how, &export);
    status = status < 0 ? status : add_all(export, st);
    status = status < 0 ? status : describe(ctx, ds_hf_export_folder(export));
    if (status >= 0) {
        status = ds_hf_export_finish(&export);
    }
    ds_hf_export_abort(&export);
    ds_safetensors_close(&st);
    return status;
}
