/* SPDX-License-Identifier: Apache-2.0 */
/* Packed parameters of an engine: filled, and read back as numbers. See engine.h.
 *
 * A rank packs the whole matrix, of which it then keeps what it holds: the bytes are the same on
 * any number of ranks. One matrix at a time is in memory beside those that are kept. Where ranks
 * along tp share the matrix its bytes are put into their order first (base/packed_parts.h).
 */
#include "train/engine_packed.h"
#include "base/packed_parts.h"
#include "ckpt/packed_weight.h"

#include <stdlib.h>

static ds_status no_memory(const ds_engine *engine, const ds_cell_info *cell)
{
    return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to pack %s", cell->name);
}

static dsi_packed_parts parts_of(const ds_engine *engine, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const dsi_place_on *on = &engine->places[c].at.on[DSI_AXIS_TP];
    return (dsi_packed_parts){.whole = &cell->packed,
                              .cut = on->kind != DSI_SHARD || cell->meta.shape.n_dims < 2
                                         ? DSI_PACKED_WHOLE
                                     : on->dim == 0 ? DSI_PACKED_ROWS
                                                    : DSI_PACKED_COLUMNS,
                              .ranks = cell->meta.shape.n_dims < 2 ? 1 : cell->meta.shape.dims[0]};
}

/* packed: the whole matrix, into the parts that this rank holds. */
static ds_status put_parts(ds_engine *engine, ds_cell c, const void *packed)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const dsi_packed_parts parts = parts_of(engine, c);
    const int64_t bytes = (int64_t)ds_meta_bytes(cell->meta);
    if (parts.ranks == 1) {
        return dsi_engine_put_cell(engine, c, 0, bytes, packed, DS_DTYPE_U8);
    }
    void *shared = malloc((size_t)bytes + 1);
    if (shared == NULL) {
        return no_memory(engine, cell);
    }
    ds_status status = dsi_packed_split(engine->ctx, &parts, packed, shared);
    status = status < 0 ? status : dsi_engine_put_cell(engine, c, 0, bytes, shared, DS_DTYPE_U8);
    free(shared);
    return status;
}

ds_status dsi_engine_pack(ds_engine *engine, ds_cell c, dsi_packed_fn read, void *user)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const ds_dtype compute = engine->spec.train.dtype;
    void *view = dsi_exec_host_view(engine->exec, c);
    if (view != NULL && !dsi_engine_is_cut(engine, c) && cell->meta.shape.n_dims == 1) {
        return dsi_packed_fill(engine->ctx, cell, compute, read, user, view);
    }
    void *packed = malloc(ds_packed_bytes(&cell->packed) + 1);
    if (packed == NULL) {
        return no_memory(engine, cell);
    }
    ds_status status = dsi_packed_fill(engine->ctx, cell, compute, read, user, packed);
    status = status < 0 ? status : put_parts(engine, c, packed);
    free(packed);
    return status;
}

ds_status dsi_engine_packed(const ds_engine *engine, ds_cell c, void *packed)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const dsi_packed_parts parts = parts_of(engine, c);
    if (parts.ranks == 1) {
        return dsi_engine_whole(engine, c, packed);
    }
    void *shared = malloc(ds_meta_bytes(cell->meta) + 1);
    if (shared == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
        return no_memory(engine, cell);
    }
    ds_status status = dsi_engine_whole(engine, c, shared);
    if (status >= 0) {
        status = dsi_packed_join(engine->ctx, &parts, shared, packed);
        if (status < 0) { /* the others go on to the next collective */
            dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
        }
    }
    free(shared);
    return status;
}

ds_status dsi_engine_unpack(const ds_engine *engine, ds_cell c, float *data)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    void *packed = malloc(ds_packed_bytes(&cell->packed) + 1);
    if (packed == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
        return no_memory(engine, cell);
    }
    ds_status status = dsi_engine_packed(engine, c, packed);
    status = status < 0 ? status : dsi_packed_unpack(engine->ctx, cell, packed, data);
    free(packed);
    return status;
}
