/* SPDX-License-Identifier: Apache-2.0 */
/* Questions to an engine, and its setters. */
#include "train/engine_pipe.h"
#include "train/engine_same.h"
#include "train/half_copy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

double ds_engine_loss(const ds_engine *engine)
{
    double loss = 0.0;
    if (engine->own.loss_seed == DS_NONE) {
        return loss;
    }
    if (engine->pipe != NULL) {
        return engine->pipe->newest;
    }
    const ds_status status = dsi_exec_real(engine->exec, engine->train_id, "loss", &loss);
    return status < 0 ? (double)NAN : loss;
}

double ds_engine_grad_norm(const ds_engine *engine)
{
    return engine->grad_norm;
}

double ds_engine_loss_scale(const ds_engine *engine)
{
    return engine->spec.loss_scale.scale;
}

uint64_t ds_engine_global_steps(const ds_engine *engine)
{
    return engine->global_steps;
}

uint64_t ds_engine_skipped_steps(const ds_engine *engine)
{
    return engine->skipped_steps;
}

uint64_t ds_engine_global_samples(const ds_engine *engine)
{
    return engine->global_samples;
}

uint64_t ds_engine_global_tokens(const ds_engine *engine)
{
    return engine->global_tokens;
}

bool ds_engine_was_step_applied(const ds_engine *engine)
{
    return engine->applied;
}

ds_comm *ds_engine_data_comm(const ds_engine *engine)
{
    return engine->data_comm;
}

int64_t ds_engine_micro_batch(const ds_engine *engine)
{
    return engine->spec.train.batch;
}

int64_t ds_engine_accumulation(const ds_engine *engine)
{
    return engine->spec.train.accumulation;
}

static uint64_t count_parameters(const ds_engine *engine, bool trainable_only)
{
    uint64_t n = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM && !(trainable_only && cell->frozen)) {
            n += (uint64_t)ds_shape_count(ds_cell_unpacked(cell, DS_DTYPE_F32).shape);
        }
    }
    return n;
}

uint64_t ds_engine_n_parameters(const ds_engine *engine)
{
    return count_parameters(engine, false);
}

uint64_t ds_engine_n_trainable(const ds_engine *engine)
{
    return count_parameters(engine, true);
}

static double count_flops(const dsi_plan *plan, bool recomputed)
{
    double flops = 0.0;
    for (uint32_t s = 0; s < plan->phase_begin[dsi_phases_micro(&plan->phases)]; ++s) {
        flops += plan->steps[s].recomputed == recomputed ? plan->steps[s].cost.flops : 0.0;
    }
    return flops;
}

double ds_engine_flops(const ds_engine *engine)
{
    return count_flops(engine->train_plan, false);
}

double ds_engine_recomputed_flops(const ds_engine *engine)
{
    return count_flops(engine->train_plan, true);
}

size_t ds_engine_planned_bytes(const ds_engine *engine)
{
    return dsi_exec_bytes(engine->exec) + ds_engine_checkpoint_info(engine).copy_bytes;
}

size_t ds_engine_host_bytes(const ds_engine *engine)
{
    return dsi_exec_host_bytes(engine->exec);
}

size_t ds_engine_disk_bytes(const ds_engine *engine)
{
    return dsi_exec_disk_bytes(engine->exec);
}

double ds_engine_disk_wait(const ds_engine *engine)
{
    return dsi_exec_swap_waited(engine->exec);
}

const ds_cells *ds_engine_cells(const ds_engine *engine)
{
    return engine->cells;
}

ds_status ds_engine_set_lr(ds_engine *engine, double lr)
{
    if (dsi_train_is_early(&engine->spec.train) && dsi_engine_awaits(engine) == DSI_CALL_STEP) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "ds_engine_set_lr is too late for this step: with bf16.check_grad_overflow "
                       "false, gradient_clipping 0 and gradient_accumulation_steps 1 the backward "
                       "pass updates the parameters");
    }
    engine->forced_lr = lr;
    return DS_OK;
}

ds_status ds_engine_set_accumulation_boundary(ds_engine *engine, int boundary)
{
    if (boundary < -1 || boundary > 1) {
        return ds_fail(engine->ctx, DS_ERR_ARG, "boundary must be -1, 0 or 1, got %d", boundary);
    }
    if (boundary == 0 && engine->spec.train.accumulation == 1) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "ds_engine_set_accumulation_boundary cannot put off the step: with "
                       "gradient_accumulation_steps 1 nothing adds gradients; set it to 2 or more");
    }
    engine->forced_boundary = boundary;
    return DS_OK;
}

/* The cell that holds the best copy of what is asked for: the master for a parameter that has one.
 */
static ds_status find_cell(const ds_engine *engine, ds_cell_kind kind, const char *name,
                           size_t count, ds_cell *cell_out)
{
    ds_cell cell = DS_NONE;
    if (kind == DS_CELL_PARAM) {
        cell = ds_cells_find(engine->cells, DS_CELL_MASTER, name);
    }
    if (cell == DS_NONE) {
        cell = ds_cells_find(engine->cells, kind, name);
    }
    if (cell == DS_NONE) {
        return ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "there is no %s named %s",
                       ds_cell_kind_name(kind), name);
    }
    const ds_meta meta =
        ds_cell_unpacked(ds_cells_get(engine->cells, cell), engine->spec.train.dtype);
    const bool real =
        meta.dtype == DS_DTYPE_F32 || meta.dtype == DS_DTYPE_BF16 || meta.dtype == DS_DTYPE_F16;
    if (!real || (size_t)ds_shape_count(meta.shape) != count) {
        char word[160];
        return ds_fail(engine->ctx, DS_ERR_SHAPE, "%s is %s, not %zu real numbers", name,
                       ds_meta_text(meta, word, sizeof word), count);
    }
    *cell_out = cell;
    return DS_OK;
}

/* Finds the cell, and agrees with the other ranks about the call. given: values to set, or NULL. */
static ds_status open_cell(const ds_engine *engine, ds_cell_kind kind, const char *name,
                           const float *given, size_t count, ds_cell *cell_out)
{
    char what[256];
    (void)snprintf(what, sizeof what, "%s %s of %s", given != NULL ? "set" : "get",
                   ds_cell_kind_name(kind), name);
    ds_status status = find_cell(engine, kind, name, count, cell_out);
    if (status == DS_OK && given != NULL) {
        status = dsi_engine_check_plain(engine, *cell_out);
    }
    const bool values = status == DS_OK && given != NULL && engine->comm != NULL;
    const uint64_t digest = values ? XXH3_64bits(given, count * sizeof *given) : 0;
    return dsi_engine_same(engine, what, digest, status);
}

ds_status dsi_engine_check_settled(const ds_engine *engine, const char *name)
{
    return engine->spec.train.speculative && dsi_engine_awaits(engine) == DSI_CALL_STEP
               ? ds_fail(engine->ctx, DS_ERR_STATE,
                         "what belongs to %s is there before ds_engine_backward and behind "
                         "ds_engine_step: with offload_optimizer.super_offload it is ahead of the "
                         "step in between",
                         name)
               : DS_OK;
}

ds_status ds_engine_get(const ds_engine *engine, ds_cell_kind kind, const char *name, float *data,
                        size_t count)
{
    ds_cell cell = DS_NONE;
    DS_TRY(dsi_engine_check_settled(engine, name));
    DS_TRY(open_cell(engine, kind, name, NULL, count, &cell));
    DS_TRY(kind == DS_CELL_PARAM || kind == DS_CELL_MASTER ? dsi_zenflow_drain(engine)
                                                           : dsi_zenflow_finish(engine));
    return dsi_engine_get_cell(engine, cell, data);
}

ds_status dsi_engine_check_plain(const ds_engine *engine, ds_cell cell)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    return info->packed.format == DS_PACKING_NONE
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                         "%s is held in few bits (%s): ds_engine_get reads its numbers, nothing "
                         "sets or shares them",
                         info->name, ds_packing_name(info->packed.format));
}

ds_status dsi_engine_get_cell(const ds_engine *engine, ds_cell cell, float *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    if (info->packed.format != DS_PACKING_NONE) {
        return dsi_engine_unpack(engine, cell, data);
    }
    const ds_meta meta = info->meta;
    const size_t count = (size_t)ds_shape_count(meta.shape);
    const void *view = dsi_exec_host_view(engine->exec, cell);
    if (!dsi_engine_is_cut(engine, cell) && view != NULL) {
        dsi_half_copy(engine->ctx, data, DS_DTYPE_F32, view, meta.dtype, count, 1.0f);
        return DS_OK;
    }
    if (meta.dtype == DS_DTYPE_F32) {
        return dsi_engine_whole(engine, cell, data);
    }
    void *narrow = malloc(ds_meta_bytes(meta));
    if (narrow == NULL) {
        dsi_comm_abort(engine->comm,
                       "out of memory for a whole tensor"); /* the others wait for it */
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to gather %s", info->name);
    }
    const ds_status status = dsi_engine_whole(engine, cell, narrow);
    dsi_half_copy(engine->ctx, data, DS_DTYPE_F32, narrow, meta.dtype, count, 1.0f);
    free(narrow);
    return status;
}

ds_status ds_engine_set(ds_engine *engine, ds_cell_kind kind, const char *name, const float *data,
                        size_t count)
{
    ds_cell cell = DS_NONE;
    DS_TRY(dsi_engine_check_settled(engine, name));
    DS_TRY(dsi_engine_check_set(engine, kind));
    DS_TRY(open_cell(engine, kind, name, data, count, &cell));
    DS_TRY(dsi_zenflow_finish(engine));
    if (kind == DS_CELL_PARAM || kind == DS_CELL_MASTER) {
        DS_TRY(dsi_zenflow_drain(engine));
        engine->zenflow.fetch = engine->zenflow.chosen;
    }
    if (kind == DS_CELL_PARAM) {
        return dsi_engine_put(engine, ds_cells_find(engine->cells, DS_CELL_PARAM, name), 0,
                              (int64_t)count, data, DS_DTYPE_F32);
    }
    return dsi_engine_put_cell(engine, cell, 0, (int64_t)count, data, DS_DTYPE_F32);
}

ds_status ds_engine_print_plan(const ds_engine *engine, char **text_out)
{
    enum { CEILING = 1 << 30 };
    char *plan = NULL;
    dsi_buf text = dsi_buf_make(CEILING);
    DS_TRY(dsi_plan_print(engine->train_plan, &plan));
    dsi_buf_puts(&text, plan);
    free(plan);
    dsi_program_print(&engine->training, &text);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to print the plan");
    }
    *text_out = text.data;
    return DS_OK;
}
