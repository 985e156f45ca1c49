/* Weights of a model folder into an engine: mapped, converted once. */
#include "ckpt/model_weights.h"
#include "train/engine.h"

#include <stdlib.h>

static ds_status fill(ds_engine *engine, const ds_safetensor *const *by_cell)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        if (by_cell[c] == NULL) {
            continue;
        }
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, info->name);
        DS_TRY(ds_safetensors_read(engine->ctx, by_cell[c], info->meta.dtype,
                                   dsi_exec_cell(engine->exec, c)));
        if (master != DS_NONE) {
            DS_TRY(ds_safetensors_read(engine->ctx, by_cell[c], DS_DTYPE_F32,
                                       dsi_exec_cell(engine->exec, master)));
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
