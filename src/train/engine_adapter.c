/* SPDX-License-Identifier: Apache-2.0 */
/* The weights of an engine's adapter, from and to PEFT's folder.
 *
 * Tensors are gathered one by one, on all ranks alike; rank 0 keeps them until it has written them:
 * an adapter is small, what modules_to_save trains is as large as it is. They are written in fp32,
 * from the masters where there are any, as PEFT keeps its adapters.
 */
#include "ckpt/adapter_weights.h"
#include "io/file.h"
#include "model/adapter.h"
#include "model/adapter_experts.h"
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

typedef struct writing {
    ds_tensor_source *sources;
    char (*names)[NAME_BYTES];
    float **data;
    uint32_t n;
} writing;

static ds_status no_memory(const ds_engine *engine)
{
    return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the adapter's weights");
}

static ds_status load_one(ds_engine *engine, const ds_adapter *a)
{
    ds_safetensors *st = NULL;
    if (dsi_adapter_folder(a) == NULL) {
        return DS_OK;
    }
    const ds_safetensor **by_cell =
        calloc((size_t)ds_cells_count(engine->cells) + 1, sizeof *by_cell);
    ds_status status = by_cell != NULL ? dsi_adapter_weights_open(a, engine->cells, &st, by_cell)
                                       : no_memory(engine);
    status = status < 0 ? status : dsi_engine_fill_from(engine, by_cell);
    free(by_cell);
    ds_safetensors_close(&st);
    return status;
}

ds_status dsi_engine_load_adapter(ds_engine *engine)
{
    const ds_adapter *a = engine->spec.train.adapter;
    for (uint32_t i = 0; a != NULL && i < a->n_frozen; ++i) {
        DS_TRY(load_one(engine, a->frozen[i]));
    }
    for (uint32_t i = 0; a != NULL && i < a->n_others; ++i) {
        DS_TRY(load_one(engine, a->others[i]));
    }
    return load_one(engine, a);
}

/* Lengths of the rows of one weight. Collective. */
static ds_status begin_lengths(ds_engine *engine, ds_cell c)
{
    const ds_cell_info *own = ds_cells_get(engine->cells, c);
    const ds_cell_info *weight = ds_cells_get(engine->cells, own->of);
    const ds_shape shape = ds_cell_unpacked(weight, DS_DTYPE_F32).shape;
    const bool last = dsi_engine_is_turned(engine, weight);
    const int64_t n = own->meta.shape.dims[0], count = ds_shape_count(shape);
    float *data = malloc((size_t)count * sizeof *data + 1);
    double *sums = calloc((size_t)n + 1, sizeof *sums);
    float *lengths = malloc(((size_t)n + 1) * sizeof *lengths);
    ds_status status = data != NULL && sums != NULL && lengths != NULL ? DS_OK : no_memory(engine);
    if (status < 0) {
        dsi_comm_abort(engine->comm, "out of memory for the adapter's weights");
    } else {
        status = ds_engine_get(engine, DS_CELL_PARAM, weight->name, data, (size_t)count);
    }
    for (int64_t i = 0; i < count && status >= 0; ++i) {
        sums[last ? i % n : i / (count / n)] += (double)data[i] * (double)data[i];
    }
    for (int64_t o = 0; o < n && status >= 0; ++o) {
        lengths[o] = (float)sqrt(sums[o]);
    }
    status = status < 0 ? status : dsi_engine_put(engine, c, 0, n, lengths, DS_DTYPE_F32);
    free(data);
    free(sums);
    free(lengths);
    return status;
}

ds_status dsi_engine_begin_lengths(ds_engine *engine)
{
    const ds_adapter *a = engine->spec.train.adapter;
    for (ds_cell c = 0; a != NULL && a->dora && c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM && cell->of != DS_NONE &&
            strstr(cell->name, DSI_ADAPTER_MAGNITUDE) != NULL) {
            DS_TRY(begin_lengths(engine, c));
        }
    }
    return DS_OK;
}

static void free_writing(writing *w)
{
    for (uint32_t i = 0; i < w->n && w->data != NULL; ++i) {
        free(w->data[i]);
    }
    free(w->sources);
    free(w->names);
    free(w->data);
}

/* A matrix B (out,rank) that belongs to a weight (in,out), and to no experts; of square ones alone
 * nobody can tell, and PEFT finds out by itself. */
bool dsi_engine_is_transposed(const ds_engine *engine)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const bool is_b = cell->kind == DS_CELL_PARAM && cell->of != DS_NONE &&
                          strstr(cell->name, ".lora_B.weight") != NULL;
        const ds_shape of =
            is_b ? ds_cell_unpacked(ds_cells_get(engine->cells, cell->of), DS_DTYPE_F32).shape
                 : cell->meta.shape;
        if (is_b && of.n_dims == 2 && of.dims[0] != cell->meta.shape.dims[0]) {
            return true;
        }
    }
    return false;
}

/* One tensor, whole in fp32. Collective. */
static ds_status gather(ds_engine *engine, ds_cell c, const ds_cell_info *cell, writing *w)
{
    ds_shape shape = cell->meta.shape;
    const size_t count = (size_t)ds_shape_count(cell->meta.shape);
    float *data = malloc(2 * count * sizeof *data + 1);
    if (data == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for the adapter's weights");
        return no_memory(engine);
    }
    const uint32_t i = w->n++;
    w->data[i] = data;
    DS_TRY(ds_engine_get(engine, DS_CELL_PARAM, cell->name, data, count));
    (void)dsi_engine_join_first(engine, c, &shape, data);
    (void)snprintf(w->names[i], NAME_BYTES, "%s%s", DSI_ADAPTER_PREFIX,
                   dsi_adapter_plain_name(cell->name));
    w->sources[i] =
        (ds_tensor_source){.name = w->names[i], .meta = {DS_DTYPE_F32, shape}, .data = data};
    if (ds_comm_rank(engine->comm) != 0) { /* rank 0 alone writes */
        free(data);
        w->data[i] = NULL;
    }
    return DS_OK;
}

/* The source of a name, or a new one of this size. */
static ds_status source_of(const ds_engine *engine, const dsi_expert_stored *stored, writing *w,
                           float **data_out)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s", DSI_ADAPTER_PREFIX, stored->name);
    for (uint32_t i = 0; i < w->n; ++i) {
        if (strcmp(w->names[i], name) == 0) {
            *data_out = w->data[i];
            return DS_OK;
        }
    }
    const uint32_t i = w->n++;
    w->data[i] = malloc((size_t)ds_shape_count(stored->meta.shape) * sizeof(float) + 1);
    (void)snprintf(w->names[i], NAME_BYTES, "%s", name);
    w->sources[i] = (ds_tensor_source){
        .name = w->names[i], .meta = {DS_DTYPE_F32, stored->meta.shape}, .data = w->data[i]};
    *data_out = w->data[i];
    return *data_out != NULL ? DS_OK : no_memory(engine);
}

/* One of experts, in its place in PEFT's tensor. Collective; every rank keeps it. */
static ds_status gather_experts(ds_engine *engine, const ds_cell_info *cell,
                                const dsi_expert_stored *stored, writing *w)
{
    const size_t count = (size_t)ds_shape_count(cell->meta.shape);
    float *part = malloc(count * sizeof *part + 1);
    float *data = NULL;
    ds_status status = part != NULL ? source_of(engine, stored, w, &data) : no_memory(engine);
    if (status < 0) {
        dsi_comm_abort(engine->comm, "out of memory for the adapter's weights");
    } else {
        status = ds_engine_get(engine, DS_CELL_PARAM, cell->name, part, count);
    }
    for (int64_t i = 0; i < (int64_t)count && status >= 0; ++i) {
        data[dsi_expert_stored_at(stored, cell->meta.shape, i)] = part[i];
    }
    free(part);
    return status;
}

static ds_status gather_all(ds_engine *engine, const ds_adapter *a, writing *w)
{
    const uint32_t n = ds_cells_count(engine->cells);
    w->sources = calloc((size_t)n + 1, sizeof *w->sources);
    w->names = calloc((size_t)n + 1, sizeof *w->names);
    w->data = calloc((size_t)n + 1, sizeof *w->data);
    if (w->sources == NULL || w->names == NULL || w->data == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for the adapter's weights");
        return no_memory(engine);
    }
    for (ds_cell c = 0; c < n; ++c) {
        const ds_cell_info cell = *ds_cells_get(engine->cells, c);
        dsi_expert_stored stored;
        if (!dsi_adapter_has(a, &cell)) {
            continue;
        }
        DS_TRY(cell.of != DS_NONE &&
                       dsi_expert_stored_of(&cell, ds_cells_get(engine->cells, cell.of), &stored)
                   ? gather_experts(engine, &cell, &stored, w)
                   : gather(engine, c, &cell, w));
    }
    return DS_OK;
}

/* The weights first: a folder with adapter_config.json is whole. */
static ds_status write_folder(const ds_engine *engine, const ds_adapter *a, const char *folder,
                              const writing *w)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    char *config = NULL;
    char *weights_path = dsi_path_join(folder, DSI_ADAPTER_WEIGHTS);
    char *config_path = dsi_path_join(folder, DSI_ADAPTER_CONFIG);
    ds_status status = weights_path != NULL && config_path != NULL ? DS_OK : no_memory(engine);
    DS_TRY_GOTO(status, dsi_folder_make(engine->ctx, folder), done);
    DS_TRY_GOTO(status, dsi_adapter_folder_text(a, dsi_engine_is_transposed(engine), &config),
                done);
    DS_TRY_GOTO(status, ds_safetensors_write(engine->ctx, weights_path, w->sources, w->n, &params),
                done);
    status = dsi_file_replace(engine->ctx, config_path, config, strlen(config));
done:
    free(weights_path);
    free(config_path);
    free(config);
    return status;
}

/* Collective. */
static ds_status save_one(ds_engine *engine, const ds_adapter *a, const char *folder)
{
    writing w = {0};
    ds_status status = gather_all(engine, a, &w);
    if (status >= 0 && ds_comm_rank(engine->comm) == 0) {
        status = write_folder(engine, a, folder, &w);
    }
    free_writing(&w);
    return ds_comm_agree(engine->comm, engine->ctx, status);
}

/* Each of several in the folder of its name. */
static ds_status save_several(ds_engine *engine, const ds_adapter *first, const char *folder)
{
    ds_status status = DS_OK;
    if (ds_comm_rank(engine->comm) == 0) {
        status = dsi_folder_make(engine->ctx, folder);
    }
    DS_TRY(ds_comm_agree(engine->comm, engine->ctx, status));
    for (uint32_t i = 0; i <= first->n_others; ++i) {
        const ds_adapter *a = dsi_adapter_trained(first, i);
        char *path = dsi_path_join(folder, a->name);
        if (path == NULL) {
            dsi_comm_abort(engine->comm, "out of memory for the adapter's weights");
            return no_memory(engine);
        }
        status = save_one(engine, a, path);
        free(path);
        DS_TRY(status);
    }
    return DS_OK;
}

ds_status ds_engine_save_adapter(ds_engine *engine, const char *folder)
{
    const ds_adapter *a = engine->spec.train.adapter;
    if (a == NULL) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "ds_engine_save_adapter: the engine trains no adapter");
    }
    if (engine->spec.autotune.trial) {
        ds_log(engine->ctx, DS_LOG_JOB, "a trial of the autotuner: no adapter is written");
        return DS_OK;
    }
    DS_TRY(dsi_engine_check_whole(engine, "ds_engine_save_adapter"));
    return a->n_others > 0 ? save_several(engine, a, folder) : save_one(engine, a, folder);
}
