/* Which part of each logical tensor this rank holds; writing parts, gathering wholes. */
#include "train/engine.h"
#include "train/half_copy.h"

#include <string.h>

static int64_t count_of(const ds_engine *engine, ds_cell cell)
{
    return ds_shape_count(ds_cells_get(engine->cells, cell)->meta.shape);
}

dsi_span dsi_engine_span(const ds_engine *engine, ds_cell cell)
{
    dsi_span span = {0, count_of(engine, cell)};
    if (engine->places != NULL && engine->places[cell] == DSI_ZERO_FLAT) {
        dsi_zero_own(&engine->spec.zero, span.count, ds_comm_rank(engine->comm), &span.begin,
                     &span.count);
    }
    return span;
}

void dsi_engine_put_cell(ds_engine *engine, ds_cell cell, int64_t begin, int64_t count,
                         const void *data, ds_dtype dtype)
{
    const dsi_span own = dsi_engine_span(engine, cell);
    const int64_t from = begin > own.begin ? begin : own.begin;
    const int64_t end =
        begin + count < own.begin + own.count ? begin + count : own.begin + own.count;
    if (from >= end) {
        return;
    }
    const ds_dtype to = ds_cells_get(engine->cells, cell)->meta.dtype;
    const size_t n = (size_t)(end - from);
    unsigned char *out = dsi_exec_cell(engine->exec, cell);
    const unsigned char *in = data;
    out += (size_t)(from - own.begin) * ds_dtype_bytes(to);
    in += (size_t)(from - begin) * ds_dtype_bytes(dtype);
    if (to == dtype) {
        memcpy(out, in, n * ds_dtype_bytes(to));
    } else {
        dsi_half_copy(engine->ctx, out, to, in, dtype, n, 1.0f);
    }
}

void dsi_engine_put(ds_engine *engine, ds_cell param, int64_t begin, int64_t count,
                    const void *data, ds_dtype dtype)
{
    const char *name = ds_cells_get(engine->cells, param)->name;
    const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, name);
    if (master != DS_NONE) {
        dsi_engine_put_cell(engine, master, begin, count, data, dtype);
    }
    dsi_engine_put_cell(engine, param, begin, count, data, dtype);
}

ds_status dsi_engine_whole(const ds_engine *engine, ds_cell cell, void *data)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, cell);
    const void *own = dsi_exec_cell(engine->exec, cell);
    if (engine->places == NULL || engine->places[cell] != DSI_ZERO_FLAT) {
        memcpy(data, own, ds_meta_bytes(info->meta));
        return DS_OK;
    }
    const dsi_comm_part part = {.in = own, .out = data, .count = (size_t)count_of(engine, cell)};
    const dsi_comm_call call = {.kind = DSI_COLL_ALL_GATHER,
                                .dtype = info->meta.dtype,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = info->name};
    return dsi_comm_run(engine->comm, &call);
}
