/* A model folder that transformers loads: config.json, model.safetensors, tokenizer files. */
#include "io/file.h"
#include "train/engine.h"

#include <deepspeed/safetensors.h>
#include <deepspeed/tokenizer.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Shards as transformers cuts them by default. */
static const uint64_t max_shard_bytes = (uint64_t)5 << 30;

static const char *torch_name(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        return "bfloat16";
    case DS_DTYPE_F16:
        return "float16";
    default:
        return "float32";
    }
}

static const char *class_name(const char *architecture)
{
    static const struct {
        const char *type, *name;
    } classes[] = {{"gpt2", "GPT2LMHeadModel"},
                   {"llama", "LlamaForCausalLM"},
                   {"mistral", "MistralForCausalLM"},
                   {"qwen2", "Qwen2ForCausalLM"},
                   {"qwen3", "Qwen3ForCausalLM"}};
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; ++i) {
        if (strcmp(classes[i].type, architecture) == 0) {
            return classes[i].name;
        }
    }
    return NULL;
}

/* The model's own config.json with the dtype of what is written. */
static ds_status write_config(const ds_engine *engine, const char *dir)
{
    const char *text = ds_model_config_text(engine->model);
    const char *name = class_name(ds_model_get_info(engine->model)->architecture);
    json_error_t error;
    json_t *json = json_loads(text != NULL ? text : "{}", 0, &error);
    char *path = dsi_path_join(dir, "config.json");
    char *out = NULL;
    ds_status status = DS_ERR_NOMEM;
    if (json != NULL && path != NULL) {
        (void)json_object_set_new(json, "torch_dtype",
                                  json_string(torch_name(engine->spec.train.dtype)));
        (void)json_object_del(json, "dtype");
        if (name != NULL && json_object_get(json, "architectures") == NULL) {
            (void)json_object_set_new(json, "architectures", json_pack("[s]", name));
        }
        out = json_dumps(json, JSON_INDENT(2));
    }
    if (out != NULL) {
        status = dsi_file_replace(engine->ctx, path, out, strlen(out));
    } else {
        status = ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for config.json");
    }
    free(out);
    free(path);
    json_decref(json);
    return status;
}

static ds_status write_weights(const ds_engine *engine, const char *dir)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    const uint32_t n_cells = ds_cells_count(engine->cells);
    ds_tensor_source *sources = calloc((size_t)n_cells + 1, sizeof *sources);
    size_t n = 0;
    if (sources == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the model folder");
    }
    for (ds_cell c = 0; c < n_cells; ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            sources[n++] = (ds_tensor_source){
                .name = cell->name, .meta = cell->meta, .data = dsi_exec_cell(engine->exec, c)};
        }
    }
    const ds_status status =
        ds_safetensors_write_folder(engine->ctx, dir, sources, n, max_shard_bytes, &params);
    free(sources);
    return status;
}

static ds_status copy_tokenizer(const ds_engine *engine, const char *from, const char *to)
{
    ds_tokenizer *tokenizer = NULL;
    DS_TRY(ds_tokenizer_open(engine->ctx, from, &tokenizer));
    const ds_status status = ds_tokenizer_save(engine->ctx, tokenizer, to);
    ds_tokenizer_close(&tokenizer);
    return status;
}

ds_status ds_engine_save_16bit_model(ds_engine *engine, const char *dir, const char *tokenizer_dir)
{
    DS_TRY(dsi_folder_make(engine->ctx, dir));
    DS_TRY(write_weights(engine, dir));
    if (ds_model_config_text(engine->model) != NULL) {
        DS_TRY(write_config(engine, dir));
    }
    return tokenizer_dir != NULL ? copy_tokenizer(engine, tokenizer_dir, dir) : DS_OK;
}
