/* SPDX-License-Identifier: Apache-2.0 */
/* What the engine does for the flops profiler: times of steps, and the report. */
#include "io/file.h"
#include "report/flops_profile.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of one micro-batch. */
static double phase_seconds(const ds_engine *engine, ds_phase phase)
{
    const dsi_plan *plan = engine->train_plan;
    double sum = 0.0;
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        sum += engine->step_seconds[s];
    }
    return sum;
}

static ds_status named(const ds_engine *engine, ds_status status)
{
    return status >= 0 ? DS_OK
                       : ds_fail(engine->ctx, status, "flops_profiler.output_file: %s",
                                 ds_ctx_error(engine->ctx));
}

static ds_status write_report(const ds_engine *engine, const char *text)
{
    const char *path = engine->spec.flops.output_file;
    if (path[0] == '\0') {
        dsi_engine_log_lines(engine, text);
        return DS_OK;
    }
    return named(engine, dsi_file_replace(engine->ctx, path, text, strlen(text)));
}

/* Makes the folder, and looks whether the report can be put there. */
static ds_status try_file(const ds_engine *engine)
{
    const char *path = engine->spec.flops.output_file;
    char *folder = dsi_path_folder(path);
    ds_status status = folder != NULL
                           ? dsi_folder_make(engine->ctx, folder)
                           : ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for %s", path);
    free(folder);
    status = status < 0 ? status : dsi_file_check(engine->ctx, path);
    return named(engine, status);
}

ds_status dsi_engine_open_flops(ds_engine *engine)
{
    if (!engine->spec.flops.enabled) {
        return DS_OK;
    }
    engine->step_seconds =
        calloc((size_t)engine->train_plan->n_steps + 1, sizeof *engine->step_seconds);
    if (engine->step_seconds == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the flops profiler");
    }
    const bool writes =
        ds_comm_rank(engine->comm) == 0 && engine->spec.flops.output_file[0] != '\0';
    return writes ? try_file(engine) : DS_OK;
}

/* Of norm and update, and of what may run between them. */
static double step_seconds(const ds_engine *engine)
{
    double seconds = 0.0;
    for (ds_phase phase = DS_PHASE_STEP; phase < DS_MAX_PHASES; ++phase) {
        seconds += phase_seconds(engine, phase);
    }
    return seconds;
}

/* Elements of parameters that this rank computes with: what ZeRO cuts is whole there. */
static double rank_params(const ds_engine *engine)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    double sum = 0.0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        dsi_placement at = {0};
        if (cell->kind != DS_CELL_PARAM) {
            continue;
        }
        at.on[DSI_AXIS_TP] = engine->places[c].at.on[DSI_AXIS_TP];
        at.on[DSI_AXIS_EP] = engine->places[c].at.on[DSI_AXIS_EP];
        const dsi_part part =
            dsi_placement_part(mesh, &at, cell->meta.shape, ds_comm_rank(engine->comm));
        sum += (double)ds_shape_count(ds_cell_unpacked(cell, DS_DTYPE_F32).shape) *
               (double)part.count / (double)ds_shape_count(cell->meta.shape);
    }
    return sum;
}

ds_status dsi_engine_report_flops(ds_engine *engine)
{
    const double share = 1.0 / (double)engine->spec.train.accumulation;
    char *text = NULL;
    if (!engine->spec.flops.enabled || ds_comm_rank(engine->comm) != 0 ||
        engine->global_steps != (uint64_t)engine->spec.flops.profile_step + 1) {
        return DS_OK;
    }
    const dsi_plan *plan = engine->train_plan;
    for (uint32_t s = 0; s < plan->phase_begin[dsi_phases_micro(&plan->phases)]; ++s) {
        engine->step_seconds[s] *= share;
    }
    const dsi_flops_run run = {.seconds = engine->step_seconds,
                               .forward = phase_seconds(engine, DS_PHASE_FORWARD),
                               .backward = phase_seconds(engine, DS_PHASE_BACKWARD),
                               .step = step_seconds(engine),
                               .global_step = engine->global_steps - 1,
                               .n_ranks = ds_comm_size(engine->comm),
                               .rank_params = rank_params(engine),
                               .n_data_ranks = dsi_mesh_data_size(&engine->spec.zero.mesh),
                               .micro_batch = engine->spec.train.batch,
                               .accumulation = engine->spec.train.accumulation,
                               .model = ds_model_get_info(engine->model)->architecture != NULL
                                            ? ds_model_get_info(engine->model)->architecture
                                            : "model"};
    DS_TRY(dsi_flops_print(&engine->spec.flops, engine->train_plan, engine->cells, &run, &text));
    const ds_status status = write_report(engine, text);
    free(text);
    return status;
}
