/* Where each cell lies, for a ZeRO stage. See zero.h. */
#include "place/zero.h"

static dsi_zero_place place_of(const dsi_zero_spec *spec, const ds_cell_info *cell, int64_t *kept)
{
    const int64_t count = ds_shape_count(cell->meta.shape);
    switch (cell->kind) {
    case DS_CELL_PARAM:
        if (spec->stage < 3) {
            return DSI_ZERO_LOCAL;
        }
        if (count < spec->persistence_threshold && count <= spec->model_persistence - *kept) {
            *kept += count;
            return DSI_ZERO_LOCAL;
        }
        return DSI_ZERO_FLAT;
    case DS_CELL_GRAD:
        if (spec->stage >= 2) {
            return DSI_ZERO_FLAT;
        }
        if (!spec->reduce_each) {
            return DSI_ZERO_PARTIAL;
        }
        return spec->stage == 1 ? DSI_ZERO_FLAT : DSI_ZERO_LOCAL;
    case DS_CELL_MASTER:
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_MOMENTUM:
    case DS_CELL_WAITING:
    case DS_CELL_HANDED:
        return spec->stage >= 1 ? DSI_ZERO_FLAT : DSI_ZERO_LOCAL;
    default:
        return DSI_ZERO_LOCAL;
    }
}

void dsi_zero_rules(const dsi_zero_spec *spec, const ds_cells *cells, dsi_zero_place *places)
{
    int64_t kept = 0;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        places[c] =
            spec->n_ranks > 1 ? place_of(spec, ds_cells_get(cells, c), &kept) : DSI_ZERO_LOCAL;
    }
}

static int64_t slice_of(const dsi_zero_spec *spec, int64_t whole)
{
    return whole / spec->n_ranks + (whole % spec->n_ranks != 0 ? 1 : 0);
}

ds_meta dsi_zero_meta(const dsi_zero_spec *spec, ds_meta whole, dsi_zero_place place)
{
    if (place != DSI_ZERO_FLAT) {
        return whole;
    }
    return (ds_meta){whole.dtype, ds_shape_1d(slice_of(spec, ds_shape_count(whole.shape)))};
}

void dsi_zero_own(const dsi_zero_spec *spec, int64_t whole, uint32_t rank, int64_t *begin_out,
                  int64_t *count_out)
{
    const int64_t slice = slice_of(spec, whole);
    const int64_t begin = slice * rank < whole ? slice * rank : whole;
    *begin_out = begin;
    *count_out = whole - begin < slice ? whole - begin : slice;
}
