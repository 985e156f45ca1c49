/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a live engine: gathered whole, a parameter at a time, into the generator's memory.
 *
 * Every rank of the engine has a generator of its own and gathers alike. What is taken is what a
 * save would write: the master where there is one, rounded once.
 */
#include "infer/generator.h"
#include "io/convert.h"
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
    return dsi_engine_whole(g->engine, ds_cells_find(g->engine->cells, DS_CELL_PARAM, name), data);
}

static ds_status take(ds_generator *g, float *scratch)
{
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->cells, c);
        if (cell->kind != DS_CELL_PARAM) {
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
    ds_status status = dsi_engine_same(g->engine, "generate", (uint64_t)g->dtype + 1, own);
    status = status < 0 ? status : take(g, scratch);
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
