/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of each logical tensor this rank holds; writing parts, gathering wholes. */
#include "place/redistribute_run.h"
#include "train/engine.h"
#include "train/half_copy.h"

#include <stdlib.h>
#include <string.h>

uint32_t dsi_engine_stage(const ds_engine *engine)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    return dsi_mesh_coords(mesh, ds_comm_rank(engine->comm)).at[DSI_AXIS_PP];
}

dsi_part dsi_engine_part(const ds_engine *engine, ds_cell cell)
{
    const ds_shape shape = ds_cells_get(engine->cells, cell)->meta.shape;
    if (!dsi_engine_is_cut(engine, cell)) {
        return dsi_part_whole(shape);
    }
    return dsi_placement_part(&engine->spec.zero.mesh, &engine->places[cell].at, shape,
                              ds_comm_rank(engine->comm));
}

/* Whether some stages of a pipeline lack it. */
static bool is_of_stages(const ds_engine *engine, ds_cell cell)
{
    const uint32_t kind = engine->places[cell].at.on[DSI_AXIS_PP].kind;
    return kind == DSI_AT || kind == DSI_FROM;
}

bool dsi_engine_is_cut(const ds_engine *engine, ds_cell cell)
{
    return engine->places != NULL &&
           (engine->places[cell].at.flat.n > 0 || is_of_stages(engine, cell) ||
            dsi_placement_shard_axes(&engine->places[cell].at) != 0);
}

bool dsi_engine_is_first(const ds_engine *engine, ds_cell cell)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    const dsi_coords at = dsi_mesh_coords(mesh, ds_comm_rank(engine->comm));
    const dsi_placement *place = &engine->places[cell].at;
    bool first = !is_of_stages(engine, cell) || at.at[DSI_AXIS_PP] == place->on[DSI_AXIS_PP].dim;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        first =
            first && (at.at[a] == 0 || (a == DSI_AXIS_PP && is_of_stages(engine, cell)) ||
                      place->on[a].kind == DSI_SHARD || dsi_axes_has(&place->flat, (dsi_axis)a));
    }
    return first;
}

/* Converts and writes to a cell that the host cannot touch, a piece at a time. */
static ds_status put_copied(ds_engine *engine, ds_cell cell, size_t first, const void *data,
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
        return ds_fail(engine->ctx, DS_ERR_NOMEM,
                       "no memory to write a tensor that the host cannot touch");
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

/* Elements of `run` that are in [begin, begin + count); data is of element `begin`. */
static ds_status put_run(ds_engine *engine, ds_cell cell, const dsi_run *run, int64_t begin,
                         int64_t count, const void *data, ds_dtype dtype)
{
    const int64_t from = begin > run->begin ? begin : run->begin;
    const int64_t end =
        begin + count < run->begin + run->count ? begin + count : run->begin + run->count;
    if (from >= end) {
        return DS_OK;
    }
    const ds_dtype to = ds_cells_get(engine->cells, cell)->meta.dtype;
    const size_t n = (size_t)(end - from);
    const size_t first = (size_t)(run->local + from - run->begin);
    const unsigned char *in =
        (const unsigned char *)data + (size_t)(from - begin) * ds_dtype_bytes(dtype);
    unsigned char *out = dsi_exec_host_view(engine->exec, cell);
    if (out == NULL) {
        return put_copied(engine, cell, first, in, dtype, n);
    }
    out += first * ds_dtype_bytes(to);
    if (to == dtype) {
        memcpy(out, in, n * ds_dtype_bytes(to));
    } else {
        dsi_half_copy(engine->ctx, out, to, in, dtype, n, 1.0f);
    }
    return DS_OK;
}

ds_status dsi_engine_put_cell(ds_engine *engine, ds_cell cell, int64_t begin, int64_t count,
                              const void *data, ds_dtype dtype)
{
    const ds_shape shape = ds_cells_get(engine->cells, cell)->meta.shape;
    const dsi_part own = dsi_engine_part(engine, cell);
    for (dsi_run run = {0}; dsi_part_next_run(&own, shape, &run);) {
        if (run.begin >= begin + count) {
            break; /* runs ascend */
        }
        DS_TRY(put_run(engine, cell, &run, begin, count, data, dtype));
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
    *own_out = dsi_exec_host_view(engine->exec, cell);
    if (*own_out != NULL) {
        return DS_OK;
    }
    *own_out = room;
    return dsi_exec_read(engine->exec, cell, 0, room,
                         ds_meta_bytes(ds_cells_get(engine->local, cell)->meta));
}

/* Flat alone: every rank's slice, in place of the others' order. */
static ds_status gather_flat(const ds_engine *engine, ds_cell cell, const dsi_placement *at,
                             const void *own, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    dsi_comm *group = NULL;
    DS_TRY(dsi_mesh_comms_get(engine->mesh, &at->flat, &group));
    const dsi_comm_part part = {
        .in = own, .out = data, .count = (size_t)ds_shape_count(info->meta.shape)};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = info->meta.dtype,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = info->name};
    return dsi_comm_run(group, &call);
}

static ds_status gather_boxes(const ds_engine *engine, ds_cell cell, const dsi_placement *at,
                              const void *own, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const dsi_redistribution way = {.name = info->name,
                                    .mesh = engine->spec.zero.mesh,
                                    .meta = info->meta,
                                    .from = *at,
                                    .to = dsi_replicate()};
    dsi_moves moves;
    DS_TRY(dsi_redistribute(engine->ctx, &way, &moves));
    return dsi_moves_run(&moves, engine->mesh, info->name, own, data);
}

/* From the ranks that have parts of it, by a placement that has no stages. */
static ds_status whole_of_ranks(const ds_engine *engine, ds_cell cell, const dsi_placement *at,
                                void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const void *own = NULL;
    void *room = NULL;
    if (dsi_exec_host_view(engine->exec, cell) == NULL) {
        room = malloc(ds_meta_bytes(ds_cells_get(engine->local, cell)->meta) + 1);
        if (room == NULL) {
            dsi_comm_abort(engine->comm, "out of memory for a whole tensor");
            return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to gather %s", info->name);
        }
    }
    ds_status status = own_part(engine, cell, room, &own);
    if (status < 0) { /* the others wait for this rank's part */
        dsi_comm_abort(engine->comm, ds_ctx_error(engine->ctx));
    } else {
        const bool boxes = dsi_placement_shard_axes(at) != 0;
        if (boxes || at->flat.n > 0) {
            status = (boxes ? gather_boxes : gather_flat)(engine, cell, at, own, data);
        } else {
            memcpy(data, own, ds_meta_bytes(info->meta));
        }
    }
    free(room);
    return status;
}

/* All ranks make a communicator together, also one that a single stage needs. */
static ds_status make_groups(const ds_engine *engine, ds_cell cell, const dsi_placement *at)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const dsi_redistribution way = {.name = info->name,
                                    .mesh = engine->spec.zero.mesh,
                                    .meta = info->meta,
                                    .from = *at,
                                    .to = dsi_replicate()};
    dsi_comm *group = NULL;
    dsi_moves moves;
    if (dsi_placement_shard_axes(at) == 0) {
        return at->flat.n > 0 ? dsi_mesh_comms_get(engine->mesh, &at->flat, &group) : DS_OK;
    }
    DS_TRY(dsi_redistribute(engine->ctx, &way, &moves));
    for (uint32_t i = 0; i < moves.n; ++i) {
        if (moves.move[i].axes.n > 0) {
            DS_TRY(dsi_mesh_comms_get(engine->mesh, &moves.move[i].axes, &group));
        }
    }
    return DS_OK;
}

/* From the first stage that has it, to all. */
static ds_status whole_of_stages(const ds_engine *engine, ds_cell cell, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const dsi_axes pp = dsi_axes_of(1u << DSI_AXIS_PP);
    dsi_placement at = engine->places[cell].at;
    const uint32_t first = at.on[DSI_AXIS_PP].dim;
    const dsi_comm_part part = {
        .in = data, .out = data, .count = (size_t)ds_shape_count(info->meta.shape)};
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = info->meta.dtype,
                                .factor = 1.0f,
                                .peer = first,
                                .parts = &part,
                                .n_parts = 1,
                                .what = info->name};
    dsi_comm *across = NULL;
    at.on[DSI_AXIS_PP] = (dsi_place_on){0};
    DS_TRY(make_groups(engine, cell, &at));
    if (dsi_engine_stage(engine) == first) {
        DS_TRY(whole_of_ranks(engine, cell, &at, data));
    }
    DS_TRY(dsi_mesh_comms_get(engine->mesh, &pp, &across));
    return dsi_comm_run(across, &call);
}

ds_status dsi_engine_whole(const ds_engine *engine, ds_cell cell, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    if (!dsi_engine_is_cut(engine, cell)) {
        return dsi_exec_read(engine->exec, cell, 0, data, ds_meta_bytes(info->meta));
    }
    if (is_of_stages(engine, cell)) {
        return whole_of_stages(engine, cell, data);
    }
    return whole_of_ranks(engine, cell, &engine->places[cell].at, data);
}
