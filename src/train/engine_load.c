/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a model folder into an engine: mapped, converted once. */
#include "ckpt/model_weights.h"
#include "train/engine.h"

#include <stdlib.h>

/* Reads only the part that this rank holds. */
static ds_status fill_cell(ds_engine *engine, ds_cell cell, const ds_safetensor *tensor)
{
    const dsi_span own = dsi_engine_span(engine, cell);
    const size_t size = ds_dtype_bytes(tensor->meta.dtype);
    const size_t skip = (size_t)own.begin * size;
    ds_safetensor part = *tensor;
    if (own.count == 0) {
        return DS_OK;
    }
    part.meta.shape = ds_shape_1d(own.count);
    part.data = (const unsigned char *)tensor->data + skip;
    part.bytes = (size_t)own.count * size;
    part.file_offset += skip;
    const ds_dtype dtype = ds_cells_get(engine->cells, cell)->meta.dtype;
    if (dsi_exec_is_swapped(engine->exec, cell)) {
        return dsi_engine_put_cell(engine, cell, own.begin, own.count, part.data, part.meta.dtype);
    }
    return ds_safetensors_read(engine->ctx, &part, dtype, dsi_exec_cell(engine->exec, cell));
}

static ds_status fill(ds_engine *engine, const ds_safetensor *const *by_cell)
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
    status = fill(engine, by_cell);
done:
    free(by_cell);
    ds_safetensors_close(&st);
    return status;
}
