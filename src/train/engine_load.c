/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a model folder into an engine: mapped, converted once. */
#include "ckpt/model_weights.h"
#include "train/engine.h"

#include <stdlib.h>

static ds_status fill_run(ds_engine *engine, ds_cell cell, const ds_safetensor *tensor,
                          const dsi_run *run)
{
    const ds_dtype dtype = ds_cells_get(engine->cells, cell)->meta.dtype;
    unsigned char *view = dsi_exec_host_view(engine->exec, cell);
    const ds_safetensor part = dsi_weights_range(tensor, run->begin, run->count);
    if (view == NULL) {
        return dsi_engine_put_cell(engine, cell, run->begin, run->count, part.data,
                                   part.meta.dtype);
    }
    return ds_safetensors_read(engine->ctx, &part, dtype,
                               view + (size_t)run->local * ds_dtype_bytes(dtype));
}

/* Reads only the part that this rank holds. */
static ds_status fill_cell(ds_engine *engine, ds_cell cell, const ds_safetensor *tensor)
{
    const dsi_part own = dsi_engine_part(engine, cell);
    const ds_shape shape = ds_cells_get(engine->cells, cell)->meta.shape;
    for (dsi_run run = {0}; dsi_part_next_run(&own, shape, &run);) {
        DS_TRY(fill_run(engine, cell, tensor, &run));
    }
    return DS_OK;
}

ds_status dsi_engine_fill_from(ds_engine *engine, const ds_safetensor *const *by_cell)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        if (by_cell[c] == NULL) {
            continue;
        }
        const char *name = ds_cells_get(engine->cells, c)->name;
        const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, name);
        DS_TRY(fill_cell(engine, c, by_cell[c]));
        if (master != DS_NONE) {
            DS_TRY(fill_cell(engine, master, by_cell[c]));
        }
    }
    return DS_OK;
}

ds_status dsi_engine_load_folder(ds_engine *engine, const char *dir)
{
    ds_safetensors *st = NULL;
    DS_TRY(ds_safetensors_open_folder(engine->ctx, dir, &st));
    const ds_safetensor **by_cell =
        calloc((size_t)ds_cells_count(engine->cells) + 1, sizeof *by_cell);
    ds_status status = DS_OK;
    if (by_cell == NULL) {
        status = ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to match weights");
        goto done;
    }
    DS_TRY_GOTO(status, dsi_weights_match(engine->ctx, engine->model, engine->cells, st, by_cell),
                done);
    status = dsi_engine_fill_from(engine, by_cell);
done:
    free(by_cell);
    ds_safetensors_close(&st);
    return status;
}
