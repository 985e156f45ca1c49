/* SPDX-License-Identifier: Apache-2.0 */
/* Packed matrices under tensor parallelism. See packed_layers.h. */
#include "compile/packed_layers.h"

#include "base/packed_parts.h"
#include "ir/graph.h"

/* The first packed cell that so many ranks cannot share as `on` says; DS_NONE: they can. */
static ds_cell first_divided(const ds_cells *cells, const dsi_place_on *on, uint32_t ranks)
{
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const dsi_packed_parts parts = {&cell->packed,
                                        on[c].kind != DSI_SHARD ? DSI_PACKED_WHOLE
                                        : on[c].dim == 0        ? DSI_PACKED_ROWS
                                                                : DSI_PACKED_COLUMNS,
                                        ranks};
        if (cell->packed.format != DS_PACKING_NONE && !dsi_packed_can_cut(&parts)) {
            return c;
        }
    }
    return DS_NONE;
}

ds_status dsi_packed_layers_check(const ds_cells *cells, const dsi_place_on *on, uint32_t tp)
{
    const ds_cell c = first_divided(cells, on, tp);
    uint32_t goes = tp;
    if (c == DS_NONE) {
        return DS_OK;
    }
    while (goes > 1 && first_divided(cells, on, goes) != DS_NONE) {
        --goes;
    }
    const ds_cell_info *cell = ds_cells_get(cells, c);
    return ds_fail(cells->ctx, DS_ERR_UNSUPPORTED,
                   "tensor_parallel.autotp_size %u with a model in few bits (%s): %u ranks would "
                   "divide a block of %s (%lld x %lld, shared by its %s); the nearest size below "
                   "that goes is %u%s",
                   tp, ds_packing_name(cell->packed.format), tp, cell->name,
                   (long long)cell->packed.rows, (long long)cell->packed.columns,
                   on[c].dim == 0 ? "outputs" : "inputs", goes,
                   cell->packed.format == DS_PACKING_NF4_DOUBLE
                       ? ", or leave --bnb_4bit_use_double_quant out, whose blocks are of 16384"
                       : "");
}
