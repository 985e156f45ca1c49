/* SPDX-License-Identifier: Apache-2.0 */
/* The copy of served weights that a file of init_inference asks for (save_mp_checkpoint_path): a
 * model folder, with a description of it (ds_inference_config.json) that `checkpoint` may name. */
#include "config/config_values.h"
#include "infer/generator.h"

#include <deepspeed/hf_export.h>
#include <stdio.h>
#include <string.h>

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

static ds_status describe(ds_ctx *ctx, const char *folder)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/ds_inference_config.json", folder);
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
    ds_status status = ds_hf_export_begin(ctx, &how, &export);
    status = status < 0 ? status : add_all(export, st);
    status = status < 0 ? status : describe(ctx, ds_hf_export_folder(export));
    if (status >= 0) {
        status = ds_hf_export_finish(&export);
    }
    ds_hf_export_abort(&export);
    ds_safetensors_close(&st);
    return status;
}
