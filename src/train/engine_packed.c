/* SPDX-License-Identifier: Apache-2.0 */
/* Packed parameters of an engine: filled, and read back as numbers. See engine.h.
 *
 * A rank packs the whole matrix, of which it then keeps what it holds: the bytes are the same on
 * any number of ranks. One matrix at a time is in memory beside those that are kept.
 */
#include "ckpt/packed_weight.h"
#include "train/engine.h"

#include <stdlib.h>

static ds_status no_memory(const ds_engine *engine, const ds_cell_info *cell)
{
    return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to pack %s", cell->name);
}

ds_status dsi_engine_pack(ds_engine *engine, ds_cell c, dsi_packed_fn read, void *user)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const size_t bytes = ds_meta_bytes(cell->meta);
    const ds_dtype compute = engine->spec.train.dtype;
    void *view = dsi_exec_host_view(engine->exec, c);
    if (view != NULL && !dsi_engine_is_cut(engine, c)) {
        return dsi_packed_fill(engine->ctx, cell, compute, read, user, view);
    }
    void *packed = malloc(bytes + 1);
    if (packed == NULL) {
        return no_memory(engine, cell);
    }
    ds_status status = dsi_packed_fill(engine->ctx, cell, compute, read, user, packed);
    status = status < 0 ? status
                        : dsi_engine_put_cell(engine, c, 0, (int64_t)bytes, packed, DS_DTYPE_U8);
    free(packed);
    return status;
}

ds_status dsi_engine_unpack(const ds_engine *engine, ds_cell c, float *data)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    void *packed = malloc(ds_meta_bytes(cell->meta) + 1);
    if (packed == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
        return no_memory(engine, cell);
    }
    ds_status status = dsi_engine_whole(engine, c, packed);
    status = status < 0 ? status : dsi_packed_unpack(engine->ctx, cell, packed, data);
    free(packed);
    return status;
}
