/* SPDX-License-Identifier: Apache-2.0 */
/* 1-bit optimizers at run time: which kind of step is due, and what the ranks keep of their own in
 * checkpoints. What a step runs of it stands in engine_onebit_step.c. docs/internals/onebit.md. */
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>

static const dsi_onebit_spec *spec_of(const ds_engine *engine)
{
    return &engine->spec.train.onebit;
}

static bool is_zero_one(const ds_engine *engine)
{
    return engine->spec.train.optimizer == DS_OPTIMIZER_ZERO_ONE_ADAM;
}

/* ---- which step ------------------------------------------------------------------------------ */

/* DeepSpeed makes at least one update before it freezes the second moment, which is 0 before; 0/1
 * Adam freezes it behind the step that follows var_freeze_step. */
static int64_t warm_up(const ds_engine *engine)
{
    const int64_t n = spec_of(engine)->freeze_step;
    return is_zero_one(engine) ? n + 1 : n > 1 ? n : 1;
}

static dsi_onebit_step step_after(const ds_engine *engine, int64_t updates)
{
    if (!spec_of(engine)->on) {
        return DSI_ONEBIT_MEAN;
    }
    if (updates >= warm_up(engine)) {
        return is_zero_one(engine) ? DSI_ONEBIT_LOCAL : DSI_ONEBIT_SIGNS;
    }
    const bool between = is_zero_one(engine) && (updates + 1) % engine->onebit.var_interval != 0;
    return between ? DSI_ONEBIT_SIGNS : DSI_ONEBIT_MEAN;
}

dsi_onebit_step dsi_onebit_due(const ds_engine *engine)
{
    return step_after(engine, dsi_engine_updates(engine));
}

bool dsi_onebit_freezes(const ds_engine *engine)
{
    return spec_of(engine)->on && dsi_engine_updates(engine) == warm_up(engine);
}

static bool syncs_after(const ds_engine *engine, int64_t updates)
{
    return step_after(engine, updates) == DSI_ONEBIT_LOCAL &&
           (updates + 1) % engine->onebit.local_interval == 0;
}

bool dsi_onebit_syncs(const ds_engine *engine)
{
    return syncs_after(engine, dsi_engine_updates(engine));
}

/* Whether an event that is the n-th is the last of so many. Counts it. */
static bool completes(int64_t *count, int64_t n)
{
    *count += 1;
    if (*count != n) {
        return false;
    }
    *count = 0;
    return true;
}

/* The intervals behind an update that came after so many. */
static void advance(ds_engine *engine, int64_t updates)
{
    const dsi_onebit_spec *spec = spec_of(engine);
    dsi_onebit_state *s = &engine->onebit;
    const dsi_onebit_step step = step_after(engine, updates);
    s->apart = step == DSI_ONEBIT_LOCAL && !syncs_after(engine, updates);
    if (step == DSI_ONEBIT_MEAN && completes(&s->var_counter, spec->var_update_scaler) &&
        s->var_interval < INT64_MAX / 2) {
        s->var_interval *= 2;
    }
    if (step == DSI_ONEBIT_LOCAL && completes(&s->local_counter, spec->local_step_scaler)) {
        const int64_t twice = s->local_interval < INT64_MAX / 2 ? 2 * s->local_interval : INT64_MAX;
        s->local_interval = twice < spec->local_step_clipper ? twice : spec->local_step_clipper;
    }
}

void dsi_onebit_count(ds_engine *engine)
{
    if (is_zero_one(engine)) {
        advance(engine, dsi_engine_updates(engine));
    }
}

void dsi_onebit_begin(ds_engine *engine)
{
    engine->onebit = (dsi_onebit_state){.var_interval = 1, .local_interval = 1};
    for (int64_t i = 0; is_zero_one(engine) && i < dsi_engine_updates(engine); ++i) {
        advance(engine, i);
    }
}

ds_status dsi_onebit_clear_errors(ds_engine *engine)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_kind kind = ds_cells_get(engine->cells, c)->kind;
        if (kind == DS_CELL_WORKER_ERROR || kind == DS_CELL_SERVER_ERROR) {
            DS_TRY(dsi_exec_clear(engine->exec, c));
        }
    }
    return DS_OK;
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

bool dsi_onebit_saves(const ds_engine *engine, ds_cell_kind kind)
{
    if (engine->spec.train.loco.on) {
        return true;
    }
    const bool begun = dsi_engine_updates(engine) >= (is_zero_one(engine) ? 1 : warm_up(engine));
    return kind == DS_CELL_LOCAL ? engine->onebit.apart : begun; /* else they are zero */
}

bool dsi_engine_is_own(const ds_engine *engine, ds_cell cell)
{
    const ds_cell_kind kind = ds_cells_get(engine->cells, cell)->kind;
    return kind == DS_CELL_WORKER_ERROR || kind == DS_CELL_SERVER_ERROR || kind == DS_CELL_LOCAL;
}

bool dsi_engine_is_apart(const ds_engine *engine, ds_cell cell)
{
    const ds_cell_kind kind = ds_cells_get(engine->cells, cell)->kind;
    return engine->onebit.apart &&
           (kind == DS_CELL_PARAM || kind == DS_CELL_MASTER || kind == DS_CELL_EXP_AVG);
}

ds_meta dsi_engine_own_meta(const ds_engine *engine, ds_cell cell, ds_extent *extent_out)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const ds_meta meta = ds_cells_get(engine->cells, cell)->meta;
    const int64_t n = ds_shape_count(meta.shape);
    *extent_out = ds_extent_flat(n * dsi_mesh_data_rank(mesh, ds_comm_rank(engine->comm)), n);
    ds_shape shape = ds_shape_2d(dsi_mesh_data_size(mesh), n);
    if (meta.dtype == DS_DTYPE_U8) { /* blocks: rows of other numbers of ranks are none of these */
        shape = (ds_shape){3, {shape.dims[0], meta.shape.dims[0], meta.shape.dims[1]}};
    }
    return (ds_meta){meta.dtype, shape};
}

const char *dsi_engine_own_kind(const ds_engine *engine, ds_cell cell)
{
    switch (ds_cells_get(engine->cells, cell)->kind) {
    case DS_CELL_PARAM:
        return "own_param";
    case DS_CELL_MASTER:
        return "own_master";
    case DS_CELL_EXP_AVG:
        return "own_exp_avg";
    default:
        return ds_cell_kind_name(ds_cells_get(engine->cells, cell)->kind);
    }
}

/* The tensor that has a row of this rank's for a cell; NULL: none that fits. A parameter with a
 * master is its rounding. */
static const ds_checkpoint_tensor *find_row(const ds_engine *engine, const ds_checkpoint *ckpt,
                                            ds_cell cell, ds_extent *extent_out)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const bool rounds = info->kind == DS_CELL_PARAM &&
                        ds_cells_find(engine->cells, DS_CELL_MASTER, info->name) != DS_NONE;
    const ds_checkpoint_tensor *tensor = ds_checkpoint_find(
        ckpt, rounds ? "own_master" : dsi_engine_own_kind(engine, cell), info->name);
    const ds_meta meta = dsi_engine_own_meta(engine, cell, extent_out);
    return tensor != NULL && ds_shape_equal(tensor->meta.shape, meta.shape) ? tensor : NULL;
}

static ds_status read_row(ds_engine *engine, dsi_ckpt_pool *pool,
                          const ds_checkpoint_tensor *tensor, ds_cell cell, const ds_extent *extent)
{
    const ds_meta meta = ds_cells_get(engine->cells, cell)->meta;
    void *view = dsi_exec_host_view(engine->exec, cell);
    if (view != NULL) {
        return dsi_ckpt_pool_read(pool, tensor, extent, meta.dtype, view);
    }
    void *room = malloc(ds_meta_bytes(meta) + 1);
    if (room == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to load %s", tensor->name);
    }
    ds_status status = dsi_ckpt_pool_read(pool, tensor, extent, meta.dtype, room);
    status =
        status >= 0 ? dsi_exec_write(engine->exec, cell, 0, room, ds_meta_bytes(meta)) : status;
    free(room);
    return status;
}

/* As DeepSpeed, which starts the errors at zero with every checkpoint that it loads, and gives all
 * ranks the first one's parameters. */
ds_status dsi_onebit_load(ds_engine *engine, const ds_checkpoint *ckpt, dsi_ckpt_pool *pool)
{
    bool lost = false;
    dsi_onebit_begin(engine);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const bool own = dsi_engine_is_own(engine, c);
        ds_extent extent;
        if (!own && !dsi_engine_is_apart(engine, c)) {
            continue;
        }
        const ds_checkpoint_tensor *tensor = find_row(engine, ckpt, c, &extent);
        if (tensor != NULL) {
            DS_TRY(read_row(engine, pool, tensor, c, &extent));
        } else {
            lost = lost || dsi_onebit_saves(engine, ds_cells_get(engine->cells, c)->kind);
            DS_TRY(own ? dsi_exec_clear(engine->exec, c) : DS_OK);
        }
    }
    if (lost && ds_comm_rank(engine->comm) == 0) {
        ds_log(
            engine->ctx, DS_LOG_WARN,
            engine->spec.train.loco.on
                ? "%s was saved by other ranks, or without zeropp_loco_param: what quantized "
                  "gradients have lost starts at zero%s"
                : "%s was saved by another number of ranks, or before they exchanged signs: what "
                  "their signs have lost starts at zero%s",
            ds_checkpoint_get_info(ckpt)->path,
            engine->onebit.apart ? ", and all have the first one's weights" : "");
    }
    return DS_OK;
}
