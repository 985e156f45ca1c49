/* SPDX-License-Identifier: Apache-2.0 */
/* 1-bit optimizers at run time: which part of a step is due, and what the ranks keep of their own
 * in checkpoints. docs/internals/onebit.md. */
#include "train/engine.h"

#include <stdlib.h>

/* DeepSpeed makes at least one update before it freezes the second moment, which is 0 before. */
static int64_t warm_up(const ds_engine *engine)
{
    const int64_t n = engine->spec.train.onebit.freeze_step;
    return n > 1 ? n : 1;
}

bool dsi_onebit_is_frozen(const ds_engine *engine)
{
    return engine->spec.train.onebit.on && dsi_engine_updates(engine) >= warm_up(engine);
}

bool dsi_onebit_freezes(const ds_engine *engine)
{
    return engine->spec.train.onebit.on && dsi_engine_updates(engine) == warm_up(engine);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

bool dsi_engine_is_own(const ds_engine *engine, ds_cell cell)
{
    const ds_cell_kind kind = ds_cells_get(engine->cells, cell)->kind;
    return kind == DS_CELL_WORKER_ERROR || kind == DS_CELL_SERVER_ERROR;
}

ds_meta dsi_engine_own_meta(const ds_engine *engine, ds_cell cell, ds_extent *extent_out)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const ds_meta meta = ds_cells_get(engine->cells, cell)->meta;
    const int64_t n = ds_shape_count(meta.shape);
    *extent_out = ds_extent_flat(n * dsi_mesh_data_rank(mesh, ds_comm_rank(engine->comm)), n);
    return (ds_meta){meta.dtype, ds_shape_2d(dsi_mesh_data_size(mesh), n)};
}

static ds_status load_own(ds_engine *engine, const ds_checkpoint *ckpt, dsi_ckpt_pool *pool,
                          ds_cell cell, bool *lost)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const ds_checkpoint_tensor *tensor =
        ds_checkpoint_find(ckpt, ds_cell_kind_name(info->kind), info->name);
    ds_extent extent;
    const ds_meta meta = dsi_engine_own_meta(engine, cell, &extent);
    if (tensor == NULL || !ds_shape_equal(tensor->meta.shape, meta.shape)) {
        *lost = true;
        return dsi_exec_clear(engine->exec, cell);
    }
    void *view = dsi_exec_host_view(engine->exec, cell);
    if (view != NULL) {
        return dsi_ckpt_pool_read(pool, tensor, &extent, meta.dtype, view);
    }
    const size_t bytes = ds_meta_bytes(info->meta);
    void *room = malloc(bytes + 1);
    if (room == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to load %s", info->name);
    }
    ds_status status = dsi_ckpt_pool_read(pool, tensor, &extent, meta.dtype, room);
    status = status >= 0 ? dsi_exec_write(engine->exec, cell, 0, room, bytes) : status;
    free(room);
    return status;
}

/* As DeepSpeed, which starts the errors at zero with every checkpoint that it loads. */
ds_status dsi_onebit_load(ds_engine *engine, const ds_checkpoint *ckpt, dsi_ckpt_pool *pool)
{
    bool lost = false;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        if (dsi_engine_is_own(engine, c)) {
            DS_TRY(load_own(engine, ckpt, pool, c, &lost));
        }
    }
    if (lost && dsi_onebit_is_frozen(engine) && ds_comm_rank(engine->comm) == 0) {
        ds_log(
            engine->ctx, DS_LOG_WARN,
            "%s was saved by another number of ranks, or before they exchanged signs: what their "
            "signs have lost starts at zero",
            ds_checkpoint_get_info(ckpt)->path);
    }
    return DS_OK;
}
