/* SPDX-License-Identifier: Apache-2.0 */
/* ZenFlow's states at run time: made, waited for, drained, checked. What a step runs of it stands
 * in engine_zenflow_step.c. docs/internals/zenflow.md. */
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dsi_zenflow_spec *spec_of(const ds_engine *engine)
{
    return &engine->spec.train.zenflow;
}

static bool is_index(const ds_cell_info *info)
{
    return info->kind == DS_CELL_CHOSEN && info->meta.dtype == DS_DTYPE_I32;
}

/* What the settings come to; that columns may be chosen once only is worth a line. */
void dsi_zenflow_say(const ds_engine *engine)
{
    const dsi_zenflow_spec *z = spec_of(engine);
    if (!z->on) {
        return;
    }
    char rest[64] = "when they weigh enough";
    char chosen[80] = "once: zenflow.steps_per_epoch is not known, or select_interval is 0";
    if (!z->weighs) {
        (void)snprintf(rest, sizeof rest, "every %lld steps", (long long)z->update_every);
    }
    if (z->select_every > 0) {
        (void)snprintf(chosen, sizeof chosen, "every %lld steps", (long long)z->select_every);
    }
    ds_log(engine->ctx, DS_LOG_JOB,
           "zenflow: %g of the columns are updated each step, the others %s%s; chosen %s", z->ratio,
           rest, z->overlap ? " concurrently with the next steps" : "", chosen);
}

/* Threads of the update concurrent with the steps: those that are not reserved for the steps; all
 * where that would be none. */
static uint32_t late_threads(const ds_engine *engine)
{
    const uint32_t all = ds_ctx_n_threads(engine->ctx);
    const uint32_t reserved = (uint32_t)ceil(engine->spec.reserved_cores * (double)all);
    return reserved < all ? all - reserved : all;
}

ds_status dsi_zenflow_open(ds_engine *engine)
{
    const uint32_t n = ds_cells_count(engine->cells);
    if (!spec_of(engine)->overlap) {
        return DS_OK;
    }
    engine->late_pairs = calloc(2 * (size_t)n + 1, sizeof *engine->late_pairs);
    if (engine->late_pairs == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    for (int handed = 0; handed < 2; ++handed) {
        uint32_t *at = &engine->n_late_pairs;
        const uint32_t first = *at;
        for (ds_cell c = 0; c < n; ++c) {
            if (ds_cells_get(engine->cells, c)->kind ==
                (handed == 0 ? DS_CELL_WAITING : DS_CELL_HANDED)) {
                engine->late_pairs[(*at)++] = c;
            }
        }
        *at = handed == 0 ? *at : first; /* as many of the one as of the other */
    }
    dsi_exec_set_side_threads(engine->exec, late_threads(engine));
    return DS_OK;
}

/* Every entry of an index is -1: no column. */
static ds_status forget_choice(ds_engine *engine, ds_cell cell)
{
    static const int32_t none = -1;
    const size_t bytes = ds_meta_bytes(ds_cells_get(engine->cells, cell)->meta);
    for (size_t at = 0; at < bytes; at += sizeof none) {
        DS_TRY(dsi_exec_write(engine->exec, cell, at, &none, sizeof none));
    }
    return DS_OK;
}

ds_status dsi_zenflow_begin(ds_engine *engine)
{
    dsi_exec_drop(engine->exec);
    engine->zenflow = (dsi_zenflow_state){0};
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (is_index(info)) {
            DS_TRY(forget_choice(engine, c));
        } else if (info->kind == DS_CELL_CHOSEN || info->kind == DS_CELL_WAITING) {
            DS_TRY(dsi_exec_clear(engine->exec, c));
        }
    }
    if (spec_of(engine)->on) {
        const dsi_axes slices = dsi_axes_zero(true);
        const int32_t rank =
            (int32_t)dsi_mesh_group(&engine->spec.zero.mesh, &slices, ds_comm_rank(engine->comm))
                .index;
        return dsi_exec_write(engine->exec, engine->own.zenflow.rank, 0, &rank, sizeof rank);
    }
    return DS_OK;
}

ds_status dsi_zenflow_finish(const ds_engine *engine)
{
    const ds_status status = dsi_exec_finish(engine->exec);
    if (status == DS_OK) {
        return DS_OK;
    }
    char reason[1024];
    (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(engine->ctx));
    return ds_fail(engine->ctx, status,
                   "zero_optimization.zenflow.overlap_step: the update concurrent with the steps "
                   "failed: %s; load a checkpoint",
                   reason);
}

ds_status dsi_zenflow_drain(const ds_engine *engine)
{
    DS_TRY(dsi_zenflow_finish(engine));
    if (!engine->zenflow.chosen || engine->zenflow.fetch) {
        return DS_OK;
    }
    if (dsi_engine_awaits(engine) != DSI_CALL_FORWARD) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "zero_optimization.zenflow: weights can be read and set before "
                       "ds_engine_forward and after ds_engine_step only");
    }
    return dsi_exec_run(engine->exec, engine->train_id, engine->own.phases.zenflow.settle);
}

ds_status dsi_zenflow_tidy(ds_engine *engine)
{
    for (uint32_t i = 0; i < engine->n_late_pairs && engine->zenflow.waiting == 0; ++i) {
        DS_TRY(dsi_exec_clear(engine->exec, engine->late_pairs[i]));
    }
    return DS_OK;
}

ds_status dsi_zenflow_check(const ds_engine *engine, const char *path)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        if (!is_index(info)) {
            continue;
        }
        const int64_t columns = ds_cells_get(engine->cells, info->of)->meta.shape.dims[1];
        int32_t before = -1;
        for (int64_t i = 0; i < info->meta.shape.dims[0]; ++i) {
            int32_t column = -1;
            DS_TRY(
                dsi_exec_read(engine->exec, c, (size_t)i * sizeof column, &column, sizeof column));
            if (column < before || column >= columns) {
                return ds_fail(
                    engine->ctx, DS_ERR_FORMAT,
                    "%s: %s names column %d, expected columns of %lld in ascending order", path,
                    info->name, column, (long long)columns);
            }
            before = column;
        }
    }
    return DS_OK;
}
