/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of each logical tensor this rank holds; writing parts, gathering wholes. */
#include "train/engine.h"
#include "train/half_copy.h"

#include <stdlib.h>
#include <string.h>

static int64_t count_of(const ds_engine *engine, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(engine->cells, cell)->meta.shape);
}

dsi_span dsi_engine_span(const ds_engine *engine, ds_cell cell)
{
    dsi_span span = {0, count_of(engine, cell)};
    if (engine->places != NULL && engine->places[cell].at.flat.n > 0) {
        const dsi_part part = dsi_placement_part(&engine->spec.zero.mesh, &engine->places[cell].at,
                                                 ds_cells_get(engine->cells, cell)->meta.shape,
                                                 ds_comm_rank(engine->comm));
        span = (dsi_span){part.begin, part.count};
    }
    return span;
}

bool dsi_engine_is_first(const ds_engine *engine, ds_cell cell)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const dsi_coords at = dsi_mesh_coords(mesh, ds_comm_rank(engine->comm));
    bool first = true;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        first =
            first && (at.at[a] == 0 || dsi_axes_has(&engine->places[cell].at.flat, (dsi_axis)a));
    }
    return first;
}

/* Converts and writes to a cell that does not live on the device, a piece at a time. */
static ds_status put_swapped(ds_engine *engine, ds_cell cell, size_t first, const void *data,
                             ds_dtype dtype, size_t n)
{
    enum { PIECE = 1 << 20 };
    const ds_dtype to = ds_cells_get(engine->cells, cell)->meta.dtype;
    const size_t size = ds_dtype_bytes(to);
    ds_status status = DS_OK;
    if (to == dtype) {
        return dsi_exec_write(engine->exec, cell, first * size, data, n * size);
    }
    void *piece = malloc((n < PIECE ? n : PIECE) * size);
    if (piece == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to write an offloaded tensor");
    }
    for (size_t at = 0; at < n && status >= 0; at += PIECE) {
        const size_t count = n - at < PIECE ? n - at : PIECE;
        dsi_half_copy(engine->ctx, piece, to,
                      (const unsigned char *)data + at * ds_dtype_bytes(dtype), dtype, count, 1.0f);
        status = dsi_exec_write(engine->exec, cell, (first + at) * size, piece, count * size);
    }
    free(piece);
    return status;
}

ds_status dsi_engine_put_cell(ds_engine *engine, ds_cell cell, int64_t begin, int64_t count,
                              const void *data, ds_dtype dtype)
{
    const dsi_span own = dsi_engine_span(engine, cell);
    const int64_t from = begin > own.begin ? begin : own.begin;
    const int64_t end =
        begin + count < own.begin + own.count ? begin + count : own.begin + own.count;
    if (from >= end) {
        return DS_OK;
    }
    const ds_dtype to = ds_cells_get(engine->cells, cell)->meta.dtype;
    const size_t n = (size_t)(end - from);
    const size_t first = (size_t)(from - own.begin);
    const unsigned char *in =
        (const unsigned char *)data + (size_t)(from - begin) * ds_dtype_bytes(dtype);
    if (dsi_exec_is_swapped(engine->exec, cell)) {
        return put_swapped(engine, cell, first, in, dtype, n);
    }
    unsigned char *out = dsi_exec_cell(engine->exec, cell);
    out += first * ds_dtype_bytes(to);
    if (to == dtype) {
        memcpy(out, in, n * ds_dtype_bytes(to));
    } else {
        dsi_half_copy(engine->ctx, out, to, in, dtype, n, 1.0f);
    }
    return DS_OK;
}

ds_status dsi_engine_put(ds_engine *engine, ds_cell param, int64_t begin, int64_t count,
                         const void *data, ds_dtype dtype)
{
    const char *name = ds_cells_get(engine->cells, param)->name;
    const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, name);
    if (master != DS_NONE) {
        DS_TRY(dsi_engine_put_cell(engine, master, begin, count, data, dtype));
    }
    return dsi_engine_put_cell(engine, param, begin, count, data, dtype);
}

/* What this rank holds of a cell, wherever that lives; *own_out: copied to `room`, or in place. */
static ds_status own_part(const ds_engine *engine, ds_cell cell, void *room, const void **own_out)
{
    *own_out = dsi_exec_cell(engine->exec, cell);
    if (!dsi_exec_is_swapped(engine->exec, cell)) {
        return DS_OK;
    }
    *own_out = room;
    return dsi_exec_read(engine->exec, cell, 0, room,
                         ds_meta_bytes(ds_cells_get(engine->local, cell)->meta));
}

ds_status dsi_engine_whole(const ds_engine *engine, ds_cell cell, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    if (engine->places == NULL || engine->places[cell].at.flat.n == 0) {
        return dsi_exec_read(engine->exec, cell, 0, data, ds_meta_bytes(info->meta));
    }
    const void *own = NULL;
    void *room = NULL;
    if (dsi_exec_is_swapped(engine->exec, cell)) {
        room = malloc(ds_meta_bytes(ds_cells_get(engine->local, cell)->meta) + 1);
        if (room == NULL) {
            dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
            return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to gather %s", info->name);
        }
    }
    ds_status status = own_part(engine, cell, room, &own);
    dsi_comm *group = NULL;
    if (status >= 0) {
        status = dsi_mesh_comms_get(engine->mesh, &engine->places[cell].at.flat, &group);
    }
    const dsi_comm_part part = {.in = own, .out = data, .count = (size_t)count_of(engine, cell)};
    const dsi_comm_call call = {.kind = DSI_COLL_ALL_GATHER,
                                .dtype = info->meta.dtype,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = info->name};
    if (status >= 0) {
        status = dsi_comm_run(group, &call);
    } else { /* the others wait for this rank's part */
        dsi_comm_abort(engine->comm, ds_ctx_error(engine->ctx));
    }
    free(room);
    return status;
}
