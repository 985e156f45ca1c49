/* SPDX-License-Identifier: Apache-2.0 */
/* From a change of placement to nodes. See localize_impl.h. */
#include "place/localize_impl.h"

#include <string.h>

ds_status dsi_localize_apply(dsi_localizing *l, const ds_op *op, const void *attrs, ds_value in,
                             ds_value *value_out)
{
    ds_value out[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(l->r.to, op, attrs, &in, 1, out));
    *value_out = out[0];
    return DS_OK;
}

dsi_comm_attrs dsi_localize_comm(const dsi_localizing *l, const dsi_axes *axes, int64_t bucket)
{
    return (dsi_comm_attrs){
        .n_ranks = dsi_axes_size(&l->placed->mesh, axes), .bucket = bucket, .factor = 1.0};
}

static ds_status gather(dsi_localizing *l, const dsi_axes *axes, ds_shape shape, ds_value *value)
{
    dsi_comm_attrs attrs = dsi_localize_comm(l, axes, -1);
    attrs.n_dims = shape.n_dims;
    memcpy(attrs.dims, shape.dims, sizeof attrs.dims);
    return dsi_localize_apply(l, &dsi_op_all_gather, &attrs, *value, value);
}

/* ---- maxima and exact sums ------------------------------------------------------------------- */

/* All terms go everywhere: no order of additions can be another then. */
static ds_status combine(dsi_localizing *l, const dsi_placement *from, ds_value *value)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_partial_axes(from));
    const int64_t n = dsi_axes_size(&l->placed->mesh, &axes);
    const int64_t count = ds_shape_count(ds_graph_meta(l->r.to, *value).shape);
    const bool is_max = from->on[axes.axis[0]].dim == DSI_TERMS_MAX;
    DS_TRY(gather(l, &axes, is_max ? ds_shape_1d(n) : ds_shape_2d(n, count), value));
    if (from->on[axes.axis[0]].dim == DSI_TERMS_SIDE) {
        return DS_OK;
    }
    return dsi_localize_apply(l, is_max ? &dsi_op_abs_max : &dsi_op_sum_parts, NULL, *value, value);
}

/* ---- collectives and slices ------------------------------------------------------------------ */

static ds_status refuse(const dsi_localizing *l, ds_value v, const dsi_moves *moves, uint32_t at)
{
    char from[DSI_PLACEMENT_TEXT];
    char to[DSI_PLACEMENT_TEXT];
    const dsi_value_info *info = &l->r.from->values[v];
    const char *name = info->cell != DS_NONE ? ds_cells_get(l->r.from->cells, info->cell)->name
                                             : l->r.from->nodes[info->producer].scope;
    return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                   "%s: from %s to %s takes %s%s, which has no collective yet", name,
                   dsi_placement_str(&moves->from, from), dsi_placement_str(&moves->to, to),
                   moves->move[at].chunk > 0 ? "chunks of " : "",
                   dsi_move_name(moves->move[at].kind));
}

/* Ranks that a sum over these axes is divided by. */
static double averaged_ranks(const dsi_localizing *l, uint32_t averaged)
{
    const dsi_axes axes = dsi_axes_of(averaged);
    return l->params->sum || axes.n == 0 ? 1.0 : (double)dsi_axes_size(&l->placed->mesh, &axes);
}

static ds_status run_moves(dsi_localizing *l, ds_value v, const dsi_moves *moves, uint32_t averaged,
                           int64_t bucket, ds_value *value)
{
    for (uint32_t i = 0; i < moves->n; ++i) {
        const dsi_move *move = &moves->move[i];
        const bool is_slice = move->kind == DSI_MOVE_SLICE && move->to.flat.n > 0;
        const dsi_axes *axes = is_slice ? &move->to.flat : &move->axes;
        const bool reduces =
            move->kind == DSI_MOVE_REDUCE_SCATTER || move->kind == DSI_MOVE_ALL_REDUCE;
        dsi_comm_attrs attrs = dsi_localize_comm(l, axes, reduces ? bucket : -1);
        const uint32_t divided = averaged & dsi_axes_mask(axes);
        const ds_shape shape = dsi_local_meta(&l->placed->mesh, &move->to, moves->meta).shape;
        attrs.factor = reduces ? 1.0 / averaged_ranks(l, divided) : 1.0;
        if (move->chunk > 0 || (move->kind == DSI_MOVE_SLICE && !is_slice)) {
            return refuse(l, v, moves, i);
        }
        switch (move->kind) {
        case DSI_MOVE_SLICE:
            DS_TRY(dsi_localize_apply(l, &dsi_op_take_slice, &attrs, *value, value));
            break;
        case DSI_MOVE_REDUCE_SCATTER:
            DS_TRY(dsi_localize_apply(l, &dsi_op_reduce_scatter, &attrs, *value, value));
            break;
        case DSI_MOVE_ALL_REDUCE:
            DS_TRY(dsi_localize_apply(l, &dsi_op_all_reduce, &attrs, *value, value));
            break;
        case DSI_MOVE_ALL_GATHER:
            DS_TRY(gather(l, axes, shape, value));
            break;
        default:
            return refuse(l, v, moves, i);
        }
    }
    return DS_OK;
}

static ds_status move(dsi_localizing *l, ds_value v, const dsi_spread *from, const dsi_spread *need,
                      int64_t bucket, ds_value *value)
{
    const uint32_t terms = dsi_placement_partial_axes(&from->at);
    const dsi_redistribution r = {
        .name = "a value",
        .mesh = l->placed->mesh,
        .meta = {ds_graph_meta(l->r.to, *value).dtype, l->r.from->values[v].meta.shape},
        .from = from->at,
        .to = need->at};
    const dsi_moves *moves = NULL;
    if (terms != 0 && from->at.on[dsi_axes_of(terms).axis[0]].dim != DSI_TERMS_SUM) {
        return combine(l, &from->at, value);
    }
    DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
    return run_moves(l, v, moves, from->averaged & ~need->averaged, bucket, value);
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* The whole parameter for a use in this phase: gathered anew, unless the last use is near. */
static ds_status gather_parameter(dsi_localizing *l, ds_value v, const dsi_spread *from,
                                  const dsi_spread *need, ds_value *value_out)
{
    const ds_cell cell = l->r.from->values[v].cell;
    const int64_t count = ds_shape_count(ds_cells_get(l->r.from->cells, cell)->meta.shape);
    const int64_t distance = l->used - l->used_at[cell];
    const int64_t live = l->params->max_live < l->params->max_reuse_distance
                             ? l->params->max_live
                             : l->params->max_reuse_distance;
    if (l->gathered[cell] == DS_NONE || distance > live || count > live - distance) {
        DS_TRY(ds_graph_read(l->r.to, cell, &l->gathered[cell]));
        DS_TRY(move(l, v, from, need, -1, &l->gathered[cell]));
    }
    if (distance > 0 || l->used == 0) {
        l->used += count;
    }
    l->used_at[cell] = l->used;
    *value_out = l->gathered[cell];
    return DS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

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
    DS_TRY(move(l, v, from, need, bucket, value));
    l->r.to->scope = scope;
    return DS_OK;
}

/* ---- any value ------------------------------------------------------------------------------- */

ds_status dsi_localize_value(dsi_localizing *l, ds_value v, const dsi_spread *from,
                             const dsi_spread *need, int64_t bucket, ds_value *value_out)
{
    const ds_cell cell = l->r.from->values[v].cell;
    const ds_cell_kind kind =
        cell != DS_NONE ? ds_cells_get(l->r.from->cells, cell)->kind : DS_CELL_SCALAR;
    dsi_other_form *other = &l->others[v];
    *value_out = l->r.map[v];
    if (dsi_placement_equal(&from->at, &need->at)) {
        return DS_OK;
    }
    if (kind == DS_CELL_PARAM && from->at.flat.n > 0) {
        return gather_parameter(l, v, from, need, value_out);
    }
    if (other->value != DS_NONE && dsi_placement_equal(&other->at, &need->at)) {
        *value_out = other->value;
        return DS_OK;
    }
    DS_TRY(kind == DS_CELL_GRAD ? reduce_accumulated(l, v, from, need, value_out)
                                : move(l, v, from, need, bucket, value_out));
    *other = (dsi_other_form){need->at, *value_out};
    return DS_OK;
}
