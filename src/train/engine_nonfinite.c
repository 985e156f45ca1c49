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

static bool is_spoiled(const ds_engine *engine, ds_cell cell, ds_cell_kind kind)
{
    const ds_cell_info *info = ds_cells_get(engine->local, cell);
    const void *data = info->kind == kind ? dsi_exec_cell(engine->exec, cell) : NULL;
    const ds_dtype dtype = info->meta.dtype;
    return data != NULL &&
           (dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16) &&
           !is_finite(data, dtype, (size_t)ds_shape_count(info->meta.shape));
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
