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
    const dsi_mesh *mesh = &l->placed->mesh;
    int64_t stride = 1;
    for (uint32_t a = axes->n > 0 ? axes->axis[axes->n - 1] + 1u : 0; a < DSI_AXIS_COUNT; ++a) {
        stride *= mesh->size[a];
    }
    return (dsi_comm_attrs){.n_ranks = dsi_axes_size(mesh, axes),
                            .axes = dsi_axes_code(mesh, axes),
                            .stride = stride,
                            .bucket = bucket,
                            .factor = 1.0};
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

static ds_status refuse(const dsi_localizing *l, ds_value v, const dsi_moves *moves)
{
    char from[DSI_PLACEMENT_TEXT];
    char to[DSI_PLACEMENT_TEXT];
    const dsi_value_info *info = &l->r.from->values[v];
    const char *name = info->cell != DS_NONE ? ds_cells_get(l->r.from->cells, info->cell)->name
                                             : l->r.from->nodes[info->producer].scope;
    return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                   "%s: a change from %s to %s has no collectives yet", name,
                   dsi_placement_str(&moves->from, from), dsi_placement_str(&moves->to, to));
}

/* Ranks that a sum over these axes is divided by. */
static double averaged_ranks(const dsi_localizing *l, uint32_t averaged)
{
    const dsi_axes axes = dsi_axes_of(averaged);
    return l->params->sum || axes.n == 0 ? 1.0 : (double)dsi_axes_size(&l->placed->mesh, &axes);
}

/* Whether each of the moves is an operator. */
static bool has_collectives(const dsi_moves *moves)
{
    bool all = true;
    for (uint32_t i = 0; i < moves->n; ++i) {
        const dsi_move *m = &moves->move[i];
        all = all && m->chunk == 0 && m->kind != DSI_MOVE_PACK && m->kind != DSI_MOVE_UNPACK &&
              m->kind != DSI_MOVE_MASK && m->kind != DSI_MOVE_ALL_TO_ALL &&
              m->kind != DSI_MOVE_BROADCAST && (m->kind != DSI_MOVE_SLICE || m->to.flat.n > 0);
    }
    return all;
}

static bool is_reduction(const dsi_move *move)
{
    return move->kind == DSI_MOVE_REDUCE_SCATTER || move->kind == DSI_MOVE_ALL_REDUCE;
}

/* The last reduction of a list divides. */
static bool is_last_reduction(const dsi_moves *moves, uint32_t at)
{
    bool last = is_reduction(&moves->move[at]);
    for (uint32_t i = at + 1; i < moves->n; ++i) {
        last = last && !is_reduction(&moves->move[i]);
    }
    return last;
}

static ds_status reduce(dsi_localizing *l, const ds_op *op, dsi_comm_attrs attrs, int64_t bucket,
                        ds_value *value)
{
    DS_TRY(dsi_bucket_number(l, bucket, op, attrs.axes, &attrs.bucket));
    return dsi_localize_apply(l, op, &attrs, *value, value);
}

static ds_status run_moves(dsi_localizing *l, ds_value v, const dsi_moves *moves, uint32_t averaged,
                           int64_t bucket, ds_value *value)
{
    if (!has_collectives(moves)) {
        return refuse(l, v, moves);
    }
    for (uint32_t i = 0; i < moves->n; ++i) {
        const dsi_move *move = &moves->move[i];
        const bool is_slice = move->kind == DSI_MOVE_SLICE;
        const dsi_axes sliced = dsi_axes_behind(&move->to.flat, move->from.flat.n);
        const dsi_axes *axes = is_slice ? &sliced : &move->axes;
        dsi_comm_attrs attrs = dsi_localize_comm(l, axes, -1);
        const ds_shape shape = dsi_local_meta(&l->placed->mesh, &move->to, moves->meta).shape;
        attrs.factor = is_last_reduction(moves, i) ? 1.0 / averaged_ranks(l, averaged) : 1.0;
        switch (move->kind) {
        case DSI_MOVE_SLICE:
            DS_TRY(dsi_localize_apply(l, &dsi_op_take_slice, &attrs, *value, value));
            break;
        case DSI_MOVE_REDUCE_SCATTER:
            DS_TRY(reduce(l, &dsi_op_reduce_scatter, attrs, bucket, value));
            break;
        case DSI_MOVE_ALL_REDUCE:
            DS_TRY(reduce(l, &dsi_op_all_reduce, attrs, bucket, value));
            break;
        case DSI_MOVE_ALL_GATHER:
            DS_TRY(gather(l, axes, shape, value));
            break;
        default:
            return refuse(l, v, moves);
        }
    }
    return DS_OK;
}

/* Whether a sum into slices of fewer ranks is made in steps, along the innermost axes first, whose
 * terms must stay fp32 in between so that it is rounded once. */
static bool adds_in_steps(const dsi_localizing *l, const dsi_redistribution *r, uint32_t terms)
{
    const dsi_axes *flat = &r->to.flat;
    uint32_t inner = 0; /* those that are cut first */
    for (uint32_t i = 0; i < flat->n && (i == 0 || flat->axis[i] > flat->axis[i - 1]); ++i) {
        inner |= terms & 1u << flat->axis[i];
    }
    return (r->meta.dtype == DS_DTYPE_BF16 || r->meta.dtype == DS_DTYPE_F16) && inner != 0 &&
           inner != terms && dsi_sum_splits(&l->placed->mesh, DS_DTYPE_F32, terms, inner);
}

/* The same with its sums complete. */
static dsi_placement reduced(const dsi_placement *from)
{
    dsi_placement to = *from;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        to.on[a] = to.on[a].kind == DSI_PARTIAL ? (dsi_place_on){0} : to.on[a];
    }
    return to;
}

static ds_status move(dsi_localizing *l, ds_value v, const dsi_spread *from, const dsi_spread *need,
                      int64_t bucket, ds_value *value)
{
    const uint32_t terms = dsi_placement_partial_axes(&from->at);
    const ds_dtype dtype = ds_graph_meta(l->r.to, *value).dtype;
    dsi_redistribution r = {.name = "a value",
                            .mesh = l->placed->mesh,
                            .meta = {dtype, l->r.from->values[v].meta.shape},
                            .from = from->at,
                            .to = need->at};
    const dsi_moves *moves = NULL;
    if (terms != 0 && from->at.on[dsi_axes_of(terms).axis[0]].dim != DSI_TERMS_SUM) {
        return combine(l, &from->at, value);
    }
    const bool wide = adds_in_steps(l, &r, terms);
    const dsi_cast_attrs up = {.dtype = DS_DTYPE_F32};
    const dsi_cast_attrs down = {.dtype = dtype};
    if (wide) {
        r.meta.dtype = DS_DTYPE_F32;
        DS_TRY(dsi_localize_apply(l, &dsi_op_cast, &up, *value, value));
    }
    DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
    if (terms != 0 && !has_collectives(moves)) { /* the sum everywhere, then a part of it */
        const dsi_placement to = r.to;
        r.to = reduced(&from->at);
        DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
        DS_TRY(run_moves(l, v, moves, from->averaged & ~need->averaged, bucket, value));
        r.from = r.to;
        r.to = to;
        DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
    }
    DS_TRY(run_moves(l, v, moves, from->averaged & ~need->averaged, bucket, value));
    return wide ? dsi_localize_apply(l, &dsi_op_cast, &down, *value, value) : DS_OK;
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
    if (kind == DS_CELL_PARAM && from->at.flat.n > 0 && need->at.flat.n == 0) {
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
