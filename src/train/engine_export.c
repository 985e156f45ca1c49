/* SPDX-License-Identifier: Apache-2.0 */
/* A model folder that transformers loads: config.json, weights, tokenizer files. */
#include "ckpt/stacked.h"
#include "io/file.h"
#include "nn/nn.h"
#include "train/engine.h"

#include <deepspeed/hf_export.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of shards as in transformers, by default. */
static const uint64_t max_shard_bytes = (uint64_t)5 << 30;

/* Rank 0 writes. A tensor that is sharded over the ranks is gathered when the writer comes to it:
 * rank 0 names the cell, all ranks gather it, until rank 0 names none. One tensor at a time is
 * whole. */
typedef struct whole_tensor {
    const ds_engine *engine;
    ds_cell cell; /* whose data it is; DS_NONE at first */
    unsigned char *data;
} whole_tensor;

typedef struct shard_tensor { /* what the writer's callback needs */
    whole_tensor *whole;
    ds_cell cell;
} shard_tensor;

/* All ranks: the word of rank 0. */
static ds_status hear(const ds_engine *engine, int64_t *word)
{
    const dsi_comm_part part = {.in = word, .out = word, .count = 1};
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = DS_DTYPE_I64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "export of weights"};
    return engine->comm != NULL ? dsi_comm_run(engine->comm, &call) : DS_OK;
}

static ds_status fill_cut(void *user, size_t offset, void *data, size_t n)
{
    const shard_tensor *cut = user;
    whole_tensor *whole = cut->whole;
    if (whole->cell != cut->cell) {
        int64_t word = cut->cell;
        DS_TRY(hear(whole->engine, &word));
        DS_TRY(dsi_engine_whole(whole->engine, cut->cell, whole->data));
        whole->cell = cut->cell;
    }
    memcpy(data, whole->data + offset, n);
    return DS_OK;
}

/* The other ranks: gather with rank 0 until it reports that it is done, or that it failed. */
static ds_status serve(const ds_engine *engine, void *data)
{
    for (;;) {
        int64_t word = 0;
        DS_TRY(hear(engine, &word));
        if (word < 0) {
            return word == -1 ? DS_OK
                              : ds_fail(engine->ctx, DS_ERR_PEER,
                                        "rank 0 could not write the model folder: %s",
                                        ds_status_text((ds_status)(word + 1)));
        }
        DS_TRY(dsi_engine_whole(engine, (ds_cell)word, data));
    }
}

/* What the writer cannot read in place: a weight that is sharded over the ranks, that lives on disk
 * or in host memory apart, or that lies in memory of a device which the host does not see. */
static bool is_fetched(const ds_engine *engine, ds_cell c)
{
    return dsi_engine_is_cut(engine, c) || dsi_exec_host_view(engine->exec, c) == NULL;
}

static ds_tensor_source source_of(const ds_engine *engine, ds_cell c, shard_tensor *cut)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    ds_tensor_source source = {.name = cell->name, .meta = cell->meta, .stored = cell->meta.dtype};
    if (is_fetched(engine, c)) {
        source.fill = fill_cut;
        source.user = cut;
    } else {
        source.data = dsi_exec_host_view(engine->exec, c);
    }
    return source;
}

static bool is_weight(const ds_engine *engine, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE && !dsi_nn_is_teacher(cell) &&
           !dsi_is_dense(cell->name);
}

/* A custom model has no config.json: only its weights are written. */
static ds_status write_weights(const ds_engine *engine, const char *dir, shard_tensor *cuts)
{
    const uint32_t n_cells = ds_cells_count(engine->cells);
    ds_tensor_source *sources = calloc((size_t)n_cells + 1, sizeof *sources);
    size_t n = 0;
    if (sources == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the model folder");
    }
    for (ds_cell c = 0; c < n_cells; ++c) {
        if (is_weight(engine, c)) {
            sources[n++] = source_of(engine, c, &cuts[c]);
        }
    }
    ds_status status = dsi_folder_make(engine->ctx, dir);
    if (status >= 0) {
        status = dsi_write_parameters(engine->ctx, dir, sources, n, max_shard_bytes, NULL);
    }
    free(sources);
    return status;
}

static ds_status write_folder(const ds_engine *engine, const char *dir, const char *tokenizer_dir,
                              shard_tensor *cuts)
{
    const ds_hf_export_params params = {.folder = dir,
                                        .config_json = ds_model_config_text(engine->model),
                                        .dtype = engine->spec.train.dtype,
                                        .max_shard_bytes = max_shard_bytes,
                                        .copy_from = tokenizer_dir,
                                        .task = engine->spec.train.task};
    ds_hf_export *export = NULL;
    ds_status status = DS_OK;
    if (engine->compression != NULL) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "%s: the weights are as they are trained, before compression_training quantizes "
               "and prunes them",
               dir);
    }
    if (params.config_json == NULL) {
        return write_weights(engine, dir, cuts);
    }
    DS_TRY(ds_hf_export_begin(engine->ctx, &params, &export));
    for (ds_cell c = 0; c < ds_cells_count(engine->cells) && status >= 0; ++c) {
        if (is_weight(engine, c)) {
            const ds_tensor_source source = source_of(engine, c, &cuts[c]);
            status = ds_hf_export_add(export, &source);
        }
    }
    if (status < 0) {
        ds_hf_export_abort(&export);
        return status;
    }
    return ds_hf_export_finish(&export);
}

/* Bytes of the largest of them: room for one at a time. */
static size_t largest_fetched(const ds_engine *engine)
{
    size_t most = 1;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const size_t bytes = ds_meta_bytes(ds_cells_get(engine->cells, c)->meta);
        if (is_weight(engine, c) && is_fetched(engine, c) && bytes > most) {
            most = bytes;
        }
    }
    return most;
}

ds_status ds_engine_save_16bit_model(ds_engine *engine, const char *dir, const char *tokenizer_dir)
{
    if (engine->spec.autotune.trial) {
        ds_log(engine->ctx, DS_LOG_JOB, "a trial of the autotuner: no model folder is written");
        return DS_OK;
    }
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_save_16bit_model"));
    if (engine->spec.train.adapter != NULL) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "ds_engine_save_16bit_model: the engine trains an adapter, the model's "
                       "weights are as they were; ds_engine_save_adapter writes it, "
                       "ds_adapter_merge adds it to the model");
    }
    const uint32_t n_cells = ds_cells_count(engine->cells);
    whole_tensor whole = {
        .engine = engine, .cell = DS_NONE, .data = malloc(largest_fetched(engine))};
    shard_tensor *cuts = calloc((size_t)n_cells + 1, sizeof *cuts);
    ds_status status = DS_OK;
    if (whole.data == NULL || cuts == NULL) {
        status = ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the model folder");
        goto done;
    }
    if (ds_comm_rank(engine->comm) != 0) {
        status = serve(engine, whole.data);
        goto done;
    }
    for (ds_cell c = 0; c < n_cells; ++c) {
        cuts[c] = (shard_tensor){&whole, c};
    }
    status = write_folder(engine, dir, tokenizer_dir, cuts);
    int64_t word = status < 0 ? (int64_t)status - 1 : -1;
    const ds_status told = hear(engine, &word);
    status = status < 0 ? status : told;
done:
    free(whole.data);
    free(cuts);
    return status;
}
