/* SPDX-License-Identifier: Apache-2.0 */
/* A value as a reader needs it: made once for equal needs. Parameters are gathered anew when their
 * last use is far, accumulated gradients are rounded before they are reduced. See localize_impl.h.
 */
#include "place/localize_impl.h"

/* ---- parameters ------------------------------------------------------------------------------ */

static ds_status gather_slices(dsi_localizing *l, ds_value v, const dsi_spread *from,
                               const dsi_spread *gathered, ds_value *value)
{
    const dsi_value_info *info = &l->r.from->values[v];
    return dsi_blocks_carry_parameter(l, info->cell)
               ? dsi_blocks_gather(
                     l, &from->at.flat,
                     dsi_local_meta(&l->placed->mesh, &gathered->at, info->meta).shape, value)
               : dsi_localize_move(l, v, from, gathered, -1, value);
}

/* What another stage of a pipeline has made. */
static bool is_of_other_stage(const dsi_localizing *l, ds_value v)
{
    const ds_node maker = v != DS_NONE ? l->r.to->values[v].producer : DS_NONE;
    return maker != DS_NONE && l->r.to->nodes[maker].stage != l->r.to->stage;
}

/* A parameter, or a rank's shard of it, with its flat slices together: gathered anew for a use in
 * this phase, unless the last use is near, or that of the first half of the rows. A use that needs
 * a part of it, or a term, makes that of it. */
static ds_status gather_parameter(dsi_localizing *l, ds_value v, const dsi_spread *from,
                                  const dsi_spread *need, ds_value *value_out)
{
    const ds_cell cell = l->r.from->values[v].cell;
    const int64_t count = ds_shape_count(ds_cells_get(l->r.from->cells, cell)->meta.shape);
    const int64_t distance = l->used - l->used_at[cell];
    const int64_t live = l->params->max_live < l->params->max_reuse_distance
                             ? l->params->max_live
                             : l->params->max_reuse_distance;
    dsi_spread gathered = *from;
    gathered.at.flat = (dsi_axes){0};
    gathered.at.cut = DSI_CUT_NONE;
    gathered.at.owner = 0;
    /* a phase behind the micro-batches may run without what the others made */
    const ds_phase phase = l->r.to->phase;
    const bool apart =
        ((phase >= DS_PHASE_STEP || l->params->by_phase) && phase != l->gathered_in[cell]) ||
        is_of_other_stage(l, l->gathered[cell]);
    const bool again = l->r.to->half > 1 && distance == 0; /* the piece before was just before */
    const bool far = distance > live || count > live - distance;
    if (l->gathered[cell] == DS_NONE || apart || (far && !again)) {
        DS_TRY(ds_graph_read(l->r.to, cell, &l->gathered[cell]));
        DS_TRY(gather_slices(l, v, from, &gathered, &l->gathered[cell]));
    }
    l->gathered_in[cell] = phase;
    if (distance > 0 || l->used == 0) {
        l->used += count;
    }
    l->used_at[cell] = l->used;
    *value_out = l->gathered[cell];
    return dsi_placement_equal(&gathered.at, &need->at)
               ? DS_OK
               : dsi_localize_move(l, v, &gathered, need, -1, value_out);
}

/* ---- gradients ------------------------------------------------------------------------------- */

static ds_status reduce(dsi_localizing *l, ds_value v, const dsi_spread *from,
                        const dsi_spread *need, int64_t bucket, ds_value *value)
{
    return dsi_blocks_carry_gradient(l, v, from)
               ? dsi_blocks_reduce(l, v, from, need, bucket, value)
               : dsi_localize_move(l, v, from, need, bucket, value);
}

/* An accumulated gradient, whose terms the cell has: rounded, then reduced. */
static ds_status reduce_accumulated(dsi_localizing *l, ds_value v, const dsi_spread *from,
                                    const dsi_spread *need, ds_value *value)
{
    const dsi_value_info *info = &l->r.from->values[v];
    const ds_dtype dtype = l->params->comm_dtype;
    const char *scope = l->r.to->scope;
    DS_TRY(ds_graph_set_scope(l->r.to, ds_cells_get(l->r.from->cells, info->cell)->name));
    if (info->meta.dtype != dtype) {
        const dsi_cast_attrs cast = {.dtype = dtype};
        DS_TRY(dsi_localize_apply(l, &dsi_op_cast, &cast, *value, value));
    }
    const int64_t bucket = dsi_bucket_next(&l->bucket, ds_shape_count(info->meta.shape), dtype,
                                           l->params->reduce_bucket);
    DS_TRY(reduce(l, v, from, need, bucket, value));
    l->r.to->scope = scope;
    return DS_OK;
}

/* ---- any value ------------------------------------------------------------------------------- */

static ds_status as_needed(dsi_localizing *l, ds_value v, const dsi_spread *from,
                           const dsi_spread *need, int64_t bucket, ds_value *value_out)
{
    const ds_cell cell = l->r.from->values[v].cell;
    const ds_cell_kind kind =
        cell != DS_NONE ? ds_cells_get(l->r.from->cells, cell)->kind : DS_CELL_SCALAR;
    dsi_other_form *other = &l->others[v];
    *value_out = l->r.map[v];
    if (dsi_placement_equal(&from->at, &need->at) && (from->averaged & ~need->averaged) == 0) {
        return DS_OK;
    }
    if (kind == DS_CELL_PARAM && from->at.flat.n > 0 && need->at.flat.n == 0) {
        return gather_parameter(l, v, from, need, value_out);
    }
    if (other->value != DS_NONE && dsi_placement_equal(&other->at, &need->at)) {
        *value_out = other->value;
        return DS_OK;
    }
    DS_TRY(kind == DS_CELL_GRAD ? reduce_accumulated(l, v, from, need, value_out)
           : bucket >= 0        ? reduce(l, v, from, need, bucket, value_out)
                                : dsi_localize_move(l, v, from, need, -1, value_out));
    *other = (dsi_other_form){need->at, *value_out};
    return DS_OK;
}

/* Nodes of the change stand on the stage that reads. But what one stage has made and all read is
 * completed where it was made, and what all stages have (inputs, tables of positions) on each of
 * them: or those before the first reader could not have it. */
ds_status dsi_localize_value(dsi_localizing *l, ds_value v, const dsi_spread *from,
                             const dsi_spread *need, int64_t bucket, ds_value *value_out)
{
    const dsi_value_info *info = &l->r.from->values[v];
    const uint32_t reader = l->r.to->stage;
    const uint32_t maker = info->producer != DS_NONE ? l->r.from->nodes[info->producer].stage : 0;
    const bool is_param = info->producer == DS_NONE && info->cell != DS_NONE &&
                          ds_cells_get(l->r.from->cells, info->cell)->kind == DS_CELL_PARAM;
    if (!is_param && (reader == 0 || maker == 0)) {
        l->r.to->stage = maker;
    }
    const ds_status status = as_needed(l, v, from, need, bucket, value_out);
    l->r.to->stage = reader;
    return status;
}
