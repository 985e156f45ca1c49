/* SPDX-License-Identifier: Apache-2.0 */
/* What is not finite in an engine: how long, and where. See engine.h. */
#include "train/engine.h"

#include <math.h>

void dsi_engine_count_nonfinite(ds_engine *engine, bool finite)
{
    if (finite) {
        engine->nonfinite_steps = 0;
    } else if (!engine->spec.loss_scale.dynamic) { /* which answers by itself, to its minimum */
        engine->nonfinite_steps += 1;
    }
}

uint64_t ds_engine_nonfinite_steps(const ds_engine *engine)
{
    return engine->nonfinite_steps;
}

static bool is_finite(const void *data, ds_dtype dtype, size_t n)
{
    const uint16_t *halves = data;
    const uint16_t exponent = dtype == DS_DTYPE_BF16 ? 0x7f80 : 0x7c00; /* all ones: inf, NaN */
    for (size_t i = 0; i < n; ++i) {
        if (dtype == DS_DTYPE_F32 ? !isfinite(((const float *)data)[i])
                                  : (halves[i] & exponent) == exponent) {
            return false;
        }
    }
    return true;
}

/* A piece at a time, where the host cannot touch the cell. */
static bool is_copy_finite(const ds_engine *engine, ds_cell cell, ds_meta meta)
{
    uint64_t room[512];
    const size_t bytes = ds_meta_bytes(meta);
    bool finite = true;
    for (size_t at = 0; at < bytes && finite; at += sizeof room) {
        const size_t n = bytes - at < sizeof room ? bytes - at : sizeof room;
        finite = dsi_exec_read(engine->exec, cell, at, room, n) < 0 ||
                 is_finite(room, meta.dtype, n / ds_dtype_bytes(meta.dtype));
    }
    return finite;
}

static bool is_spoiled(const ds_engine *engine, ds_cell cell, ds_cell_kind kind)
{
    const ds_cell_info *info = ds_cells_get(engine->local, cell);
    const ds_dtype dtype = info->meta.dtype;
    if (info->kind != kind || dsi_exec_is_swapped(engine->exec, cell) ||
        (dtype != DS_DTYPE_F32 && dtype != DS_DTYPE_BF16 && dtype != DS_DTYPE_F16)) {
        return false;
    }
    const void *data = dsi_exec_host_view(engine->exec, cell);
    return data != NULL ? !is_finite(data, dtype, (size_t)ds_shape_count(info->meta.shape))
                        : !is_copy_finite(engine, cell, info->meta);
}

const char *ds_engine_first_nonfinite(const ds_engine *engine, bool *is_gradient_out)
{
    static const ds_cell_kind kinds[] = {DS_CELL_PARAM, DS_CELL_GRAD};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
        for (ds_cell c = 0; c < ds_cells_count(engine->local); ++c) {
            if (is_spoiled(engine, c, kinds[k])) {
                *is_gradient_out = kinds[k] == DS_CELL_GRAD;
                return ds_cells_get(engine->local, c)->name;
            }
        }
    }
    return NULL;
}
