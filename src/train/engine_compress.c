/* SPDX-License-Identifier: Apache-2.0 */
/* compression_training in a run: the control cells of its groups before each forward pass, its
 * masks once. The rewrite of the graph: compile/compress_graph.h. */
#include "compile/compress_graph.h"
#include "op/ops.h"
#include "train/engine_actions.h"

#include <stdlib.h>
#include <string.h>

struct dsi_compress_state {
    ds_cell draw;
    struct {
        ds_cell control;
        float newest[DSI_QUANT_COUNT]; /* written; -1: nothing yet */
    } groups[];
};

ds_status dsi_engine_copy_compression(ds_engine *engine)
{
    const ds_config_compression *c = engine->spec.train.compression;
    engine->spec.train.compression = NULL;
    if (c == NULL || c->n_groups == 0) {
        return DS_OK;
    }
    ds_config_compression *copy = malloc(dsi_compression_bytes(c->n_groups));
    if (copy == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    memcpy(copy, c, dsi_compression_bytes(c->n_groups));
    engine->compression = copy;
    engine->spec.train.compression = copy;
    return DS_OK;
}

ds_status dsi_engine_open_compression(ds_engine *engine)
{
    const ds_config_compression *c = engine->compression;
    struct dsi_compress_state *state = NULL;
    if (c == NULL) {
        return DS_OK;
    }
    state = calloc(1, sizeof *state + c->n_groups * sizeof state->groups[0]);
    if (state == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    engine->compress = state;
    state->draw = ds_cells_find(engine->cells, DS_CELL_SCALAR, DSI_COMPRESS_DRAW);
    for (uint32_t i = 0; i < c->n_groups; ++i) {
        char name[128];
        (void)dsi_compress_control_name(&c->groups[i], name, sizeof name);
        state->groups[i].control = ds_cells_find(engine->cells, DS_CELL_SCALAR, name);
        state->groups[i].newest[DSI_QUANT_ON] = -1.0f;
    }
    return DS_OK;
}

static void say(const ds_engine *engine, const ds_compress_group *g, const float *was,
                const float *is, int64_t updates)
{
    const bool weights = g->technique == DS_COMPRESS_WEIGHTS;
    if (is[DSI_QUANT_ON] != 0.0f && was[DSI_QUANT_ON] != 1.0f) {
        ds_log(engine->ctx, DS_LOG_JOB, "%s of %s is enabled at step %lld",
               dsi_compress_technique_name(g->technique), g->name, (long long)updates);
    } else if (weights && g->verbose && is[DSI_QUANT_ON] != 0.0f &&
               was[DSI_QUANT_BITS] != is[DSI_QUANT_BITS]) {
        ds_log(engine->ctx, DS_LOG_JOB, "weights of %s have %g bits from step %lld on", g->name,
               (double)is[DSI_QUANT_BITS], (long long)updates);
    }
}

static ds_status write_controls(void *user)
{
    ds_engine *engine = user;
    struct dsi_compress_state *state = engine->compress;
    const int64_t updates = dsi_engine_updates(engine);
    for (uint32_t i = 0; i < engine->compression->n_groups; ++i) {
        const ds_compress_group *g = &engine->compression->groups[i];
        const size_t n = g->technique == DS_COMPRESS_WEIGHTS ? DSI_QUANT_COUNT : 1;
        float control[DSI_QUANT_COUNT] = {0};
        dsi_compress_control(g, updates, control);
        if (memcmp(control, state->groups[i].newest, n * sizeof *control) != 0) {
            say(engine, g, state->groups[i].newest, control, updates);
            DS_TRY(dsi_exec_write(engine->exec, state->groups[i].control, 0, control,
                                  n * sizeof *control));
            memcpy(state->groups[i].newest, control, n * sizeof *control);
        }
    }
    if (state->draw != DS_NONE) {
        const int64_t draw[2] = {(int64_t)engine->spec.seed, updates};
        DS_TRY(dsi_exec_write(engine->exec, state->draw, 0, draw, sizeof draw));
    }
    return DS_OK;
}
const dsi_program_action dsi_engine_write_compression = {"write_compression", write_controls};

ds_status dsi_engine_make_masks(ds_engine *engine)
{
    const ds_phase masks = engine->own.phases.masks;
    return masks != DS_NONE ? dsi_exec_run(engine->exec, engine->train_id, masks) : DS_OK;
}
