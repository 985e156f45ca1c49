/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a model folder into an engine: mapped, converted once. */
#include "ckpt/packed_weight.h"
#include "train/engine.h"

/* A weight that has no pieces in its file, in part by part, to where the host does not see it. */
static ds_status put_read(ds_engine *engine, ds_cell cell, const dsi_weight *weight,
                          const dsi_run *run)
{
    enum { AT_ONCE = 4096 };
    float values[AT_ONCE];
    for (int64_t at = 0; at < run->count; at += AT_ONCE) {
        const int64_t n = run->count - at < AT_ONCE ? run->count - at : AT_ONCE;
        DS_TRY(dsi_weight_read(engine->ctx, weight, run->begin + at, n, DS_DTYPE_F32, values));
        DS_TRY(dsi_engine_put_cell(engine, cell, run->begin + at, n, values, DS_DTYPE_F32));
    }
    return DS_OK;
}

static ds_status fill_run(ds_engine *engine, ds_cell cell, const dsi_weight *weight,
                          const dsi_run *run)
{
    const ds_dtype dtype = ds_cells_get(engine->cells, cell)->meta.dtype;
    unsigned char *view = dsi_exec_host_view(engine->exec, cell);
    if (view != NULL) {
        return dsi_weight_read(engine->ctx, weight, run->begin, run->count, dtype,
                               view + (size_t)run->local * ds_dtype_bytes(dtype));
    }
    if (weight->scales != NULL) {
        return put_read(engine, cell, weight, run);
    }
    for (int64_t at = 0; at < run->count;) {
        const ds_safetensor piece = dsi_weight_piece(weight, run->begin + at, run->count - at);
        const int64_t n = piece.meta.shape.dims[0];
        DS_TRY(dsi_engine_put_cell(engine, cell, run->begin + at, n, piece.data, piece.meta.dtype));
        at += n;
    }
    return DS_OK;
}

/* Reads only the part that this rank holds. */
static ds_status fill_cell(ds_engine *engine, ds_cell cell, const dsi_weight *weight)
{
    const dsi_part own = dsi_engine_part(engine, cell);
    const ds_shape shape = ds_cells_get(engine->cells, cell)->meta.shape;
    for (dsi_run run = {0}; dsi_part_next_run(&own, shape, &run);) {
        DS_TRY(fill_run(engine, cell, weight, &run));
    }
    return DS_OK;
}

/* The parameter, and its master where there is one. */
static ds_status fill_both(ds_engine *engine, ds_cell param, const dsi_weight *weight)
{
    const char *name = ds_cells_get(engine->cells, param)->name;
    if (ds_cells_get(engine->cells, param)->packed.format != DS_PACKING_NONE) {
        dsi_packed_source source = {engine->ctx, weight};
        return dsi_engine_pack(engine, param, dsi_packed_stored, &source);
    }
    const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, name);
    DS_TRY(fill_cell(engine, param, weight));
    return master != DS_NONE ? fill_cell(engine, master, weight) : DS_OK;
}

ds_status dsi_engine_fill_from(ds_engine *engine, const ds_safetensor *const *by_cell)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const dsi_weight weight = {.parts = &by_cell[c], .n = 1};
        DS_TRY(by_cell[c] != NULL ? fill_both(engine, c, &weight) : DS_OK);
    }
    return DS_OK;
}

static ds_status fill(ds_engine *engine, const dsi_weights *weights)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const dsi_weight weight = dsi_weights_of(weights, c);
        DS_TRY(weight.n > 0 ? fill_both(engine, c, &weight) : DS_OK);
    }
    return DS_OK;
}

static ds_status load_folder(ds_engine *engine, const ds_model *model, const char *dir,
                             bool teacher)
{
    ds_safetensors *st = NULL;
    dsi_weights *weights = NULL;
    DS_TRY(ds_safetensors_open_folder(engine->ctx, dir, &st));
    ds_status status = dsi_weights_match(engine->ctx, model, engine->cells, st, teacher, &weights);
    if (status >= 0) {
        status = fill(engine, weights);
    }
    dsi_weights_destroy(&weights);
    ds_safetensors_close(&st);
    return status;
}

ds_status dsi_engine_load_folder(ds_engine *engine, const char *dir)
{
    return load_folder(engine, engine->model, dir, false);
}

ds_status dsi_engine_load_teacher(ds_engine *engine)
{
    const ds_distillation *d = &engine->spec.train.distillation;
    return d->teacher != NULL ? load_folder(engine, d->teacher, d->weights, true) : DS_OK;
}
