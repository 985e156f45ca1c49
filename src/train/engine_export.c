/* A model folder that transformers loads: config.json, weights, tokenizer files. */
#include "io/file.h"
#include "train/engine.h"

#include <deepspeed/hf_export.h>
#include <stdlib.h>

/* Shards as transformers cuts them by default. */
static const uint64_t max_shard_bytes = (uint64_t)5 << 30;

static ds_tensor_source source_of(const ds_engine *engine, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    return (ds_tensor_source){
        .name = cell->name, .meta = cell->meta, .data = dsi_exec_cell(engine->exec, c)};
}

static bool is_weight(const ds_engine *engine, ds_cell c)
{
    return ds_cells_get(engine->cells, c)->kind == DS_CELL_PARAM;
}

/* A custom model has no config.json: only its weights are written. */
static ds_status export_weights(const ds_engine *engine, const char *dir)
{
    const uint32_t n_cells = ds_cells_count(engine->cells);
    ds_tensor_source *sources = calloc((size_t)n_cells + 1, sizeof *sources);
    size_t n = 0;
    if (sources == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the model folder");
    }
    for (ds_cell c = 0; c < n_cells; ++c) {
        if (is_weight(engine, c)) {
            sources[n++] = source_of(engine, c);
        }
    }
    ds_status status = dsi_folder_make(engine->ctx, dir);
    if (status >= 0) {
        status = ds_safetensors_write_folder(engine->ctx, dir, sources, n, max_shard_bytes, NULL);
    }
    free(sources);
    return status;
}

ds_status ds_engine_save_16bit_model(ds_engine *engine, const char *dir, const char *tokenizer_dir)
{
    const ds_hf_export_params params = {.folder = dir,
                                        .config_json = ds_model_config_text(engine->model),
                                        .dtype = engine->spec.train.dtype,
                                        .max_shard_bytes = max_shard_bytes,
                                        .copy_from = tokenizer_dir};
    ds_hf_export *export = NULL;
    ds_status status = DS_OK;
    if (params.config_json == NULL) {
        return export_weights(engine, dir);
    }
    DS_TRY(ds_hf_export_begin(engine->ctx, &params, &export));
    for (ds_cell c = 0; c < ds_cells_count(engine->cells) && status >= 0; ++c) {
        if (is_weight(engine, c)) {
            const ds_tensor_source source = source_of(engine, c);
            status = ds_hf_export_add(export, &source);
        }
    }
    if (status < 0) {
        ds_hf_export_abort(&export);
        return status;
    }
    return ds_hf_export_finish(&export);
}
