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

ds_status dsi_localize_reshape(dsi_localizing *l, ds_shape shape, ds_value *value)
{
    dsi_reshape_attrs attrs = {.n_dims = shape.n_dims};
    memcpy(attrs.dims, shape.dims, sizeof attrs.dims);
    return ds_shape_equal(ds_graph_meta(l->r.to, *value).shape, shape)
               ? DS_OK
               : dsi_localize_apply(l, &dsi_op_reshape, &attrs, *value, value);
}

ds_status dsi_localize_gather(dsi_localizing *l, const dsi_axes *axes, ds_shape shape,
                              ds_value *value)
{
    dsi_comm_attrs attrs = dsi_localize_comm(l, axes, -1);
    attrs.n_dims = shape.n_dims;
    memcpy(attrs.dims, shape.dims, sizeof attrs.dims);
    return dsi_localize_apply(l, &dsi_op_all_gather, &attrs, *value, value);
}

/* ---- maxima and exact sums ------------------------------------------------------------------- */

/* All terms go everywhere: no order of additions can be another then. Along some of their axes they
 * may stay terms. */
static ds_status combine(dsi_localizing *l, const dsi_placement *from, const dsi_placement *need,
                         ds_value *value)
{
    const dsi_axes axes =
        dsi_axes_of(dsi_placement_partial_axes(from) & ~dsi_placement_partial_axes(need));
    const int64_t n = dsi_axes_size(&l->placed->mesh, &axes);
    const ds_shape shape = ds_graph_meta(l->r.to, *value).shape;
    const bool is_max = from->on[axes.axis[0]].dim == DSI_TERMS_MAX;
    if (from->on[axes.axis[0]].dim == DSI_TERMS_SIDE) {
        ds_shape all = {.n_dims = shape.n_dims + 1, .dims = {n}};
        if (all.n_dims > DS_MAX_DIMS) {
            return ds_fail(l->r.from->ctx, DS_ERR_UNSUPPORTED,
                           "terms of %u dims have no room for the parts that they are of",
                           shape.n_dims);
        }
        memcpy(all.dims + 1, shape.dims, shape.n_dims * sizeof *all.dims);
        return dsi_localize_gather(l, &axes, all, value);
    }
    const ds_shape flat = ds_shape_2d(n, ds_shape_count(shape));
    DS_TRY(dsi_localize_gather(l, &axes, is_max ? ds_shape_1d(n) : flat, value));
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

/* A reduce-scatter of flat slices: those that the collective makes, in their order. */
static bool is_flat_reduction(const dsi_move *move)
{
    return move->chunk == 0 && move->to.flat.n > 0;
}

/* The axes along which what is whole becomes a term. `to` is left as it is before that. */
static dsi_axes new_terms(const dsi_placement *from, dsi_placement *to)
{
    uint32_t axes = 0;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (from->on[a].kind == DSI_REPLICATE && to->on[a].kind == DSI_PARTIAL) {
            to->on[a] = (dsi_place_on){0};
            axes |= 1u << a;
        }
    }
    return dsi_axes_of(axes);
}

/* A maximum has what is whole as each of its terms, a sum as its first. */
static ds_status make_term(dsi_localizing *l, const dsi_axes *axes, const dsi_placement *to,
                           ds_value *value)
{
    const dsi_comm_attrs attrs = dsi_localize_comm(l, axes, -1);
    return to->on[axes->axis[0]].dim == DSI_TERMS_MAX
               ? DS_OK
               : dsi_localize_apply(l, &dsi_op_take_term, &attrs, *value, value);
}

static bool is_lowered(const dsi_moves *moves, uint32_t i)
{
    const dsi_move *m = &moves->move[i];
    const bool packed = i > 0 && moves->move[i - 1].kind == DSI_MOVE_PACK;
    switch (m->kind) {
    case DSI_MOVE_PACK: /* with the collective that they belong to */
    case DSI_MOVE_UNPACK:
    case DSI_MOVE_ALL_REDUCE:
    case DSI_MOVE_MASK:
        return true;
    case DSI_MOVE_SLICE:
        return dsi_box_is_slice(moves, &m->from, &m->to);
    case DSI_MOVE_ALL_GATHER:
        return dsi_box_is_gather(moves, &m->from, &m->to);
    case DSI_MOVE_REDUCE_SCATTER:
        return (is_flat_reduction(m) && !packed) || dsi_box_is_reduce_scatter(moves, m) ||
               dsi_box_is_turned_sum(moves, m);
    case DSI_MOVE_ALL_TO_ALL:
        return dsi_box_is_all_to_all(moves, m);
    default:
        return false;
    }
}

/* Whether each of the moves has nodes. */
static bool is_all_lowered(const dsi_moves *moves)
{
    bool all = true;
    for (uint32_t i = 0; i < moves->n; ++i) {
        all = all && is_lowered(moves, i);
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

static ds_status run_move(dsi_localizing *l, const dsi_moves *moves, uint32_t i, double factor,
                          int64_t bucket, ds_value *value)
{
    const dsi_move *m = &moves->move[i];
    dsi_comm_attrs attrs = dsi_localize_comm(l, &m->axes, -1);
    const ds_dtype dtype = ds_graph_meta(l->r.to, *value).dtype;
    attrs.factor = is_last_reduction(moves, i) ? factor : 1.0;
    switch (m->kind) {
    case DSI_MOVE_SLICE:
        return dsi_box_slice(l, moves, &m->from, &m->to, value);
    case DSI_MOVE_ALL_GATHER:
        return dsi_box_gather(l, moves, &m->from, &m->to, value);
    case DSI_MOVE_ALL_TO_ALL:
        return dsi_box_all_to_all(l, moves, m, value);
    case DSI_MOVE_ALL_REDUCE:
        DS_TRY(dsi_bucket_number(l, bucket, &dsi_op_all_reduce, dtype, &attrs));
        return dsi_localize_apply(l, &dsi_op_all_reduce, &attrs, *value, value);
    case DSI_MOVE_REDUCE_SCATTER:
        DS_TRY(dsi_bucket_number(l, bucket, &dsi_op_reduce_scatter, dtype, &attrs));
        return is_flat_reduction(m)
                   ? dsi_localize_apply(l, &dsi_op_reduce_scatter, &attrs, *value, value)
               : dsi_box_is_turned_sum(moves, m)
                   ? dsi_box_turned_sum(l, moves, m, &attrs, value)
                   : dsi_box_reduce_scatter(l, moves, m, &attrs, value);
    case DSI_MOVE_MASK: /* of what a sum was; a maximum's terms stay */
        return make_term(l, &m->axes, &moves->to, value);
    default: /* PACK, UNPACK */
        return DS_OK;
    }
}

static ds_status run_moves(dsi_localizing *l, ds_value v, const dsi_moves *moves, uint32_t averaged,
                           int64_t bucket, ds_value *value)
{
    if (!is_all_lowered(moves)) {
        return refuse(l, v, moves);
    }
    for (uint32_t i = 0; i < moves->n; ++i) {
        DS_TRY(run_move(l, moves, i, 1.0 / averaged_ranks(l, averaged), bucket, value));
    }
    /* collectives make slices of one dim; a part of a box has the box's */
    return dsi_localize_reshape(l, dsi_local_meta(&l->placed->mesh, &moves->to, moves->meta).shape,
                                value);
}

/* Whether a sum into slices of fewer ranks is made in steps, along the innermost axes first, whose
 * terms must stay fp32 in between so that it is rounded once. */
static bool adds_in_steps(const dsi_localizing *l, const dsi_redistribution *r, uint32_t terms)
{
    const dsi_axes *flat = &r->to.flat;
    uint32_t inner = 0;                 /* those that are cut first */
    if (dsi_axes_mask(flat) == terms && /* one sum makes the slices of all ranks */
        ds_shape_count(r->meta.shape) % dsi_axes_size(&l->placed->mesh, flat) == 0) {
        return false;
    }
    for (uint32_t i = 0; i < flat->n && (i == 0 || flat->axis[i] > flat->axis[i - 1]); ++i) {
        inner |= terms & 1u << flat->axis[i];
    }
    return (r->meta.dtype == DS_DTYPE_BF16 || r->meta.dtype == DS_DTYPE_F16) && inner != 0 &&
           inner != terms && dsi_sum_splits(&l->placed->mesh, DS_DTYPE_F32, terms, inner);
}

/* The same with its sums complete, but those that stay. */
static dsi_placement reduced(const dsi_placement *from, const dsi_placement *need)
{
    dsi_placement to = *from;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const bool ends = to.on[a].kind == DSI_PARTIAL && need->on[a].kind != DSI_PARTIAL;
        to.on[a] = ends ? (dsi_place_on){0} : to.on[a];
    }
    return to;
}

/* The cuts that both have, from the outermost of each dim on; flat where both are so of one box. */
static dsi_placement in_common(const dsi_placement *from, const dsi_placement *to)
{
    dsi_placement both = *from;
    uint32_t apart = 0; /* dims */
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const dsi_place_on f = from->on[a];
        const dsi_place_on t = to->on[a];
        const bool same = dsi_place_on_equal(f, t);
        apart |= f.kind == DSI_SHARD && !same ? 1u << f.dim : 0;
        apart |= t.kind == DSI_SHARD && !same ? 1u << t.dim : 0;
        const bool keeps = f.kind != DSI_SHARD || (same && (apart >> f.dim & 1u) == 0);
        both.on[a] = keeps ? f : (dsi_place_on){0};
    }
    both.flat = (dsi_axes){0};
    both.cut = DSI_CUT_NONE;
    both.owner = 0;
    return both;
}

static ds_status step(dsi_localizing *l, ds_value v, const dsi_redistribution *r, uint32_t averaged,
                      int64_t bucket, ds_value *value)
{
    const dsi_moves *moves = NULL;
    DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, r, &moves));
    return run_moves(l, v, moves, averaged, bucket, value);
}

/* What no sum divides (gradients of experts, of which a rank has all ranks' terms), where it lies,
 * then moved. */
static ds_status divide(dsi_localizing *l, ds_value v, const dsi_spread *from,
                        const dsi_spread *need, ds_value *value)
{
    const dsi_scale_attrs attrs = {.factor =
                                       1.0 / averaged_ranks(l, from->averaged & ~need->averaged)};
    const dsi_spread mean = {.at = from->at, .averaged = need->averaged};
    DS_TRY(dsi_localize_apply(l, &dsi_op_scale, &attrs, *value, value));
    return dsi_placement_equal(&mean.at, &need->at)
               ? DS_OK
               : dsi_localize_move(l, v, &mean, need, -1, value);
}

static bool is_way(const dsi_redistribution *r, const dsi_placement *by)
{
    return dsi_placement_check(NULL, &r->mesh, by, r->meta.shape, r->name) == DS_OK &&
           dsi_parts_are_even(&r->mesh, by, r->meta.shape);
}

/* Where a dim comes to be cut inside of another axis' cut, or no longer is: what only the target
 * cuts is sliced first, what only the source cuts is gathered last, and between the two the axis
 * exchanges one dim for another. False: it is no such move, or on it two axes would cut blocks, or
 * ranks parts of different shapes. */
static bool exchange_between(const dsi_redistribution *r, dsi_placement *before,
                             dsi_placement *behind)
{
    bool inside = false;
    uint32_t turns = 0;
    *before = *behind = r->from;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const dsi_place_on from = r->from.on[a];
        const dsi_place_on to = r->to.on[a];
        const bool turned =
            from.kind == DSI_SHARD && to.kind == DSI_SHARD && !dsi_place_on_equal(from, to);
        inside = inside || dsi_box_is_inside(&r->mesh, &r->from, a) ||
                 dsi_box_is_inside(&r->mesh, &r->to, a);
        turns += turned ? 1 : 0;
        before->on[a] = from.kind == DSI_REPLICATE ? to : from;
        behind->on[a] = turned ? to : before->on[a];
    }
    return inside && turns == 1 && r->from.flat.n == 0 && r->to.flat.n == 0 && is_way(r, before) &&
           is_way(r, behind);
}

/* What no list of collectives does at once: by way of other placements, the last leg is left. */
static ds_status detour(dsi_localizing *l, ds_value v, dsi_redistribution *r, int64_t bucket,
                        ds_value *value)
{
    const dsi_placement to = r->to;
    dsi_placement legs[2];
    uint32_t n = 2;
    if (!exchange_between(r, &legs[0], &legs[1])) {
        legs[0] = in_common(&r->from, &to); /* whole, then a part of it */
        n = 1;
    }
    for (uint32_t i = 0; i < n; ++i) {
        r->to = legs[i];
        if (!dsi_placement_equal(&r->from, &r->to)) {
            DS_TRY(step(l, v, r, 0, bucket, value));
        }
        r->from = r->to;
    }
    r->to = to;
    return DS_OK;
}

ds_status dsi_localize_move(dsi_localizing *l, ds_value v, const dsi_spread *from,
                            const dsi_spread *need, int64_t bucket, ds_value *value)
{
    const uint32_t terms = dsi_placement_partial_axes(&from->at);
    const ds_dtype dtype = ds_graph_meta(l->r.to, *value).dtype;
    dsi_redistribution r = {.name = "a value",
                            .mesh = l->placed->mesh,
                            .meta = {dtype, l->r.from->values[v].meta.shape},
                            .from = from->at,
                            .to = need->at};
    const dsi_moves *moves = NULL;
    dsi_spread before = *need;
    const dsi_axes added = new_terms(&from->at, &before.at);
    if (added.n > 0) {
        if (need->at.on[added.axis[0]].dim == DSI_TERMS_SIDE) {
            return refuse(l, v, &(dsi_moves){.from = from->at, .to = need->at});
        }
        if (!dsi_placement_equal(&from->at, &before.at)) {
            DS_TRY(dsi_localize_move(l, v, from, &before, bucket, value));
        }
        return make_term(l, &added, &need->at, value);
    }
    uint32_t averaged = from->averaged & ~need->averaged;
    if (averaged != 0 && terms == 0) {
        return divide(l, v, from, need, value);
    }
    if (terms != 0 && from->at.on[dsi_axes_of(terms).axis[0]].dim != DSI_TERMS_SUM) {
        return combine(l, &from->at, &need->at, value);
    }
    const bool wide = adds_in_steps(l, &r, terms);
    const dsi_cast_attrs up = {.dtype = DS_DTYPE_F32};
    const dsi_cast_attrs down = {.dtype = dtype};
    if (wide) {
        r.meta.dtype = DS_DTYPE_F32;
        DS_TRY(dsi_localize_apply(l, &dsi_op_cast, &up, *value, value));
    }
    DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
    if (terms != 0 && !is_all_lowered(moves)) { /* the sum everywhere, then a part of it */
        const dsi_placement to = r.to;
        r.to = reduced(&from->at, &to);
        DS_TRY(step(l, v, &r, averaged, bucket, value));
        r.from = r.to;
        r.to = to;
        averaged = 0;
        DS_TRY(dsi_redistribute_memo(l->r.from->ctx, &l->memo, &r, &moves));
    }
    if (!is_all_lowered(moves)) {
        DS_TRY(detour(l, v, &r, bucket, value));
    }
    DS_TRY(dsi_placement_equal(&r.from, &r.to) ? DS_OK : step(l, v, &r, averaged, bucket, value));
    return wide ? dsi_localize_apply(l, &dsi_op_cast, &down, *value, value) : DS_OK;
}
