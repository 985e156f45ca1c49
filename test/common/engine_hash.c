/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes the states of an engine. See engine_hash.h. */
#include "common/engine_hash.h"

#include <stdlib.h>
#include <xxhash.h>

/* Of states in 8 bits their magnitudes: the bytes themselves show in the weights of the next steps.
 */
static bool is_state(const ds_cell_info *cell)
{
    const ds_cell_kind kind = cell->kind;
    const bool sizes =
        kind == DS_CELL_ABSMAX || kind == DS_CELL_ABSMAX_SQ || kind == DS_CELL_ABSMAX_SLOW;
    return (kind <= DS_CELL_MOMENTUM && kind != DS_CELL_GRAD && kind != DS_CELL_MASTER &&
            cell->meta.dtype != DS_DTYPE_U8) ||
           sizes;
}

ds_status engine_hash(ds_ctx *ctx, const ds_engine *engine, uint64_t *hash_out)
{
    const ds_cells *cells = ds_engine_cells(engine);
    uint64_t hash = 0;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *info = ds_cells_get(cells, c);
        if (!is_state(info)) {
            continue;
        }
        const size_t n = (size_t)ds_shape_count(info->meta.shape);
        float *data = malloc(n * sizeof *data);
        if (data == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory to hash %s", info->name);
        }
        const ds_status status = ds_engine_get(engine, info->kind, info->name, data, n);
        hash = XXH3_64bits_withSeed(data, n * sizeof *data, hash);
        free(data);
        DS_TRY(status);
    }
    *hash_out = hash;
    return DS_OK;
}
