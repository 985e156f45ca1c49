/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a live engine: gathered whole, a parameter at a time, into the generator's memory.
 *
 * Every rank of the engine has a generator of its own and gathers alike. What is taken is what a
 * save would write: the master where there is one, rounded once.
 */
#include "infer/generator.h"
#include "io/convert.h"
#include "train/engine_packed.h"
#include "train/engine_same.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t largest_parameter(const ds_cells *cells)
{
    size_t most = 1;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const size_t count = (size_t)ds_shape_count(cell->meta.shape);
        most = cell->kind == DS_CELL_PARAM && count > most ? count : most;
    }
    return most;
}

static ds_status convert(ds_generator *g, ds_cell c, void *data, void *user)
{
    const ds_cell_info *cell = ds_cells_get(g->cells, c);
    const size_t count = (size_t)ds_shape_count(cell->meta.shape);
    const size_t overflows = dsi_convert(DS_DTYPE_F32, user, cell->meta.dtype, data, count);
    return overflows == 0
               ? DS_OK
               : ds_fail(g->ctx, DS_ERR_NUMERIC, "%zu values of %s are beyond the range of %s",
                         overflows, cell->name, ds_dtype_name(cell->meta.dtype));
}

/* Packed bytes as they are. */
static ds_status copy_packed(ds_generator *g, ds_cell c, void *data, void *user)
{
    const char *name = ds_cells_get(g->cells, c)->name;
    (void)user;
    return dsi_engine_packed(g->engine, ds_cells_find(g->engine->cells, DS_CELL_PARAM, name), data);
}

static ds_status take(ds_generator *g, float *scratch)
{
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->cells, c);
        if (cell->kind != DS_CELL_PARAM || (g->shared != NULL && g->shared[c])) {
            continue;
        }
        if (cell->packed.format != DS_PACKING_NONE) {
            DS_TRY(dsi_generator_fill(g, c, copy_packed, NULL));
            continue;
        }
        const size_t count = (size_t)ds_shape_count(cell->meta.shape);
        DS_TRY(ds_engine_get(g->engine, DS_CELL_PARAM, cell->name, scratch, count));
        DS_TRY(dsi_generator_fill(g, c, convert, scratch));
    }
    return DS_OK;
}

/* Whether a parameter is not the model, but where schedule-free AdamW takes its gradient. */
static bool is_point(const ds_engine *e, const char *name)
{
    return e->spec.train.schedule_free.on &&
           ds_cells_find(e->cells, DS_CELL_MASTER, name) != DS_NONE;
}

/* Where the engine has the same parameter, whole and for good; NULL: it does not. ZenFlow's change
 * their place. */
static void *live_place(const ds_generator *g, ds_cell c)
{
    const ds_engine *e = g->engine;
    const ds_cell_info *own = ds_cells_get(g->cells, c);
    const ds_cell from = ds_cells_find(e->cells, DS_CELL_PARAM, own->name);
    if (own->kind != DS_CELL_PARAM || own->packed.format != DS_PACKING_NONE || from == DS_NONE ||
        e->spec.train.zenflow.on || is_point(e, own->name) || !dsi_exec_is_on_host(g->exec) ||
        dsi_engine_is_cut(e, from)) {
        return NULL;
    }
    const ds_cell_info *theirs = ds_cells_get(e->cells, from);
    const bool alike = theirs->meta.dtype == own->meta.dtype &&
                       theirs->packed.format == DS_PACKING_NONE &&
                       ds_shape_equal(theirs->meta.shape, own->meta.shape);
    return alike ? dsi_exec_host_view(e->exec, from) : NULL;
}

ds_status dsi_generator_share_engine(ds_generator *g)
{
    const uint32_t n = ds_cells_count(g->cells);
    double bytes = 0.0;
    double all = 0.0;
    g->shared = calloc((size_t)n + 1, sizeof *g->shared);
    if (g->shared == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    for (ds_cell c = 0; c < n; ++c) {
        void *place = live_place(g, c);
        const ds_cell_info *cell = ds_cells_get(g->cells, c);
        const double size = cell->kind == DS_CELL_PARAM ? (double)ds_meta_bytes(cell->meta) : 0.0;
        all += size;
        if (place != NULL) {
            DS_TRY(dsi_exec_bind(g->exec, c, place)); /* generation only reads parameters */
            g->shared[c] = true;
            bytes += size;
        }
    }
    ds_log(g->ctx, DS_LOG_JOB, "generation reads %.1f of %.1f MB of parameters where they train",
           bytes * 1e-6, all * 1e-6);
    return DS_OK;
}

ds_status dsi_generator_check_live(const ds_generator *g)
{
    return g->shared == NULL || g->engine_steps == ds_engine_global_steps(g->engine)
               ? DS_OK
               : ds_fail(g->ctx, DS_ERR_STATE,
                         "the engine has trained since its parameters were taken: call "
                         "ds_generator_update, or ds_serve_update, first");
}

ds_status dsi_generator_take_engine(ds_generator *g, ds_status own)
{
    float *scratch = NULL;
    if (own == DS_OK) {
        own = dsi_engine_check_whole(g->engine, "generation");
    }
    if (own == DS_OK && g->engine->compression != NULL) {
        own = ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                      "generation by an engine with compression_training would use the weights "
                      "before they are quantized and pruned; evaluate with ds_engine_eval_batch, "
                      "or leave the section out");
    }
    if (own == DS_OK) {
        scratch = malloc(largest_parameter(g->cells) * sizeof *scratch);
        own = scratch != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a parameter");
    }
    const uint64_t how = ((uint64_t)g->dtype + 1) * 2 + (g->shared != NULL);
    ds_status status = dsi_engine_same(g->engine, "generate", how, own);
    status = status < 0 ? status : take(g, scratch);
    g->engine_steps = ds_engine_global_steps(g->engine);
    free(scratch);
    return status;
}

ds_status ds_generator_update(ds_generator *g)
{
    if (g->engine == NULL) {
        return ds_fail(g->ctx, DS_ERR_STATE,
                       "ds_generator_update needs a generator of an engine; this one's weights are "
                       "of a file");
    }
    g->length = 0; /* what the KV cells hold is of the old weights */
    g->logits = NULL;
    return dsi_generator_take_engine(g, DS_OK);
}
