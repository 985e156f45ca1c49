/* SPDX-License-Identifier: Apache-2.0 */
/* Moves of values that are cut along dims, as nodes. See localize_impl.h.
 *
 * A collective carries equal blocks, one behind the other: an axis that cuts a dim is there a dim
 * of its own in front of all others. So a dim of n·b indices is split (a view), the axis of n is
 * moved to the front (a permute, where it is not there already), the collective runs, and what came
 * is put back in the same way. All parts have one shape (localize.c, check_even), so that blocks
 * are equal.
 *
 *     R -> tp:S(1)         (r,n·b) -> (r,n,b) -> (n,r,b), take_slice -> (r,b)
 *     tp:S(1) -> R         (r,b), all_gather -> (n,r,b) -> (r,n,b) -> (r,n·b)
 *     tp:P -> tp:S(1)      (r,n·c) -> (n,r,c), reduce_scatter -> (r,c)
 *     sp:S(0) -> sp:S(1)   (r,n·c) -> (n,r,c), all_to_all -> (n,r,c): rows of all ranks -> (n·r,c)
 */
#include "place/localize_impl.h"

#include <string.h>

/* Axes that cut dims in one placement and not in another, in the order of a group. */
typedef struct cuts {
    dsi_axes axes;
    uint32_t dim[DSI_AXIS_COUNT];    /* per axis of the tuple */
    uint32_t blocks[DSI_AXIS_COUNT]; /* of it, that are cut each; 0: the dim as one */
    bool inside[DSI_AXIS_COUNT];     /* it cuts what the others leave, see placement.h */
    uint32_t n_split;                /* axes that cut blocks: a dim more for each */
    bool padded;                     /* an axis makes slices with padding */
} cuts;

bool dsi_box_is_inside(const dsi_mesh *mesh, const dsi_placement *p, uint32_t axis)
{
    bool inside = false;
    for (uint32_t b = axis + 1; p->on[axis].kind == DSI_SHARD && b < DSI_AXIS_COUNT; ++b) {
        inside = inside || (p->on[b].kind == DSI_SHARD && p->on[b].dim == p->on[axis].dim &&
                            p->on[axis].blocks == mesh->size[b]);
    }
    return inside;
}

/* The cuts that `with` has more than `without`. False: they differ otherwise too, or a cut is not
 * the innermost of its dim, so that its parts are no block of the other's. */
static bool find_cuts(const dsi_mesh *mesh, const dsi_placement *without, const dsi_placement *with,
                      cuts *c)
{
    *c = (cuts){0};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const dsi_place_on on = with->on[a];
        if (dsi_place_on_equal(on, without->on[a])) {
            continue;
        }
        const bool inside = on.kind == DSI_SHARD && dsi_box_is_inside(mesh, with, a);
        if (on.kind != DSI_SHARD || without->on[a].kind == DSI_SHARD ||
            (dsi_placement_dim_axes(without, on.dim) >> a != 0 && !inside)) {
            return false;
        }
        c->inside[c->axes.n] = inside;
        c->dim[c->axes.n] = on.dim;
        c->padded = c->padded || on.blocks == DSI_PADDED;
        c->blocks[c->axes.n] = on.blocks == DSI_PADDED || inside ? 0 : on.blocks;
        c->n_split += c->blocks[c->axes.n] > 0 ? 1 : 0;
        dsi_axes_add(&c->axes, (dsi_axis)a);
    }
    return true;
}

static ds_shape box_of(const dsi_mesh *mesh, const dsi_placement *at, ds_shape whole)
{
    dsi_placement box = *at;
    box.flat = (dsi_axes){0};
    box.cut = DSI_CUT_NONE;
    const dsi_part part = dsi_placement_part(mesh, &box, whole, 0);
    return dsi_part_shape(&part);
}

static bool is_flat_alike(const dsi_placement *a, const dsi_placement *b)
{
    return a->cut == b->cut && a->owner == b->owner && dsi_axes_equal(&a->flat, &b->flat);
}

/* Whether a shape with a dim more for each axis is one; slices with padding are along one axis. */
static bool has_room(const dsi_moves *moves, const cuts *c)
{
    const ds_shape shape = moves->meta.shape;
    return shape.n_dims + c->axes.n + c->n_split <= DS_MAX_DIMS && (!c->padded || c->axes.n == 1);
}

/* Whether slices with padding are those that a collective makes, by elements. */
static bool is_padded_by_elements(const dsi_moves *moves, const cuts *c)
{
    const ds_shape shape = moves->meta.shape;
    return !c->padded || ds_shape_count(shape) == shape.dims[0];
}

/* The first dim with the padding of all slices. */
static ds_shape with_padding(const dsi_moves *moves, const cuts *c, ds_shape whole)
{
    const int64_t n = moves->mesh.size[c->axes.axis[0]];
    if (!is_padded_by_elements(moves, c)) {
        whole.dims[0] = (whole.dims[0] + n - 1) / n * n;
    }
    return whole;
}

/* ---- axes to the front and back -------------------------------------------------------------- */

/* How a box with the cut dims split, axis before rest, has its dims: `n` of them, and where each is
 * when the axes stand in front. */
typedef struct split {
    uint32_t n;
    int64_t split[DS_MAX_DIMS];  /* sizes */
    uint32_t front[DS_MAX_DIMS]; /* of each, its place with the axes in front */
} split;

/* whole: what the blocks of all ranks make together. A dim that is cut in blocks is blocks, ranks,
 * rest; one that is cut inside of another axis' cut has the ranks of that first. */
static split split_of(const dsi_mesh *mesh, const cuts *c, ds_shape whole)
{
    split s = {0};
    uint32_t front = c->axes.n;
    for (uint32_t d = 0; d < whole.n_dims; ++d) {
        int64_t rest = whole.dims[d];
        for (uint32_t k = 0; k < 2 * c->axes.n; ++k) {
            const uint32_t i = k % c->axes.n;
            if (c->inside[i] != (k >= c->axes.n)) {
                continue;
            }
            if (c->dim[i] == d && c->blocks[i] > 0) {
                s.split[s.n] = c->blocks[i];
                s.front[s.n] = front++;
                rest /= s.split[s.n++];
            }
            if (c->dim[i] == d) {
                s.split[s.n] = mesh->size[c->axes.axis[i]];
                s.front[s.n] = i;
                rest /= s.split[s.n++];
            }
        }
        s.split[s.n] = rest;
        s.front[s.n++] = front++;
    }
    return s;
}

static bool is_in_front(const split *s)
{
    bool same = true;
    for (uint32_t i = 0; i < s->n; ++i) {
        same = same && s->front[i] == i;
    }
    return same;
}

static ds_shape shape_in_front(const split *s)
{
    ds_shape shape = {.n_dims = s->n};
    for (uint32_t i = 0; i < s->n; ++i) {
        shape.dims[s->front[i]] = s->split[i];
    }
    return shape;
}

static ds_status permute(dsi_localizing *l, const split *s, bool to_front, ds_value *value)
{
    dsi_permute_attrs attrs = {.n_dims = s->n};
    for (uint32_t i = 0; i < s->n; ++i) {
        attrs.order[to_front ? s->front[i] : i] = to_front ? i : s->front[i];
    }
    return dsi_localize_apply(l, &dsi_op_permute, &attrs, *value, value);
}

static ds_status bring_to_front(dsi_localizing *l, const split *s, ds_value *value)
{
    ds_shape sizes = {.n_dims = s->n};
    memcpy(sizes.dims, s->split, sizeof s->split);
    if (is_in_front(s)) {
        return DS_OK;
    }
    DS_TRY(dsi_localize_reshape(l, sizes, value));
    return permute(l, s, true, value);
}

static ds_status bring_back(dsi_localizing *l, const split *s, ds_shape whole, ds_value *value)
{
    if (!is_in_front(s)) {
        DS_TRY(dsi_localize_reshape(l, shape_in_front(s), value));
        DS_TRY(permute(l, s, false, value));
    }
    return dsi_localize_reshape(l, whole, value);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* Slices of slices are those of the whole where no padding lies between them. */
static bool is_flat_slice(const dsi_moves *moves, const dsi_placement *from,
                          const dsi_placement *to)
{
    const ds_shape shape = moves->meta.shape;
    const dsi_axes cut = dsi_axes_behind(&to->flat, from->flat.n);
    const int64_t slots = dsi_placement_slots(&moves->mesh, to, shape);
    const bool aligned = from->flat.n == 0 || slots * dsi_axes_size(&moves->mesh, &cut) ==
                                                  dsi_placement_slots(&moves->mesh, from, shape);
    return to->flat.n > from->flat.n && dsi_axes_begin(&from->flat, &to->flat) && aligned &&
           to->cut == DSI_CUT_ELEMENT;
}

/* First dims are cut, then what is left of them as elements. */
static dsi_placement with_box_of(const dsi_placement *p, const dsi_placement *box)
{
    dsi_placement at = *p;
    memcpy(at.on, box->on, sizeof at.on);
    return at;
}

bool dsi_box_is_slice(const dsi_moves *moves, const dsi_placement *from, const dsi_placement *to)
{
    const dsi_placement mid = with_box_of(from, to);
    cuts c;
    return find_cuts(&moves->mesh, from, to, &c) && (c.axes.n == 0 || from->flat.n == 0) &&
           has_room(moves, &c) && (is_flat_alike(&mid, to) || is_flat_slice(moves, &mid, to));
}

ds_status dsi_box_slice(dsi_localizing *l, const dsi_moves *moves, const dsi_placement *from,
                        const dsi_placement *to, ds_value *value)
{
    const dsi_placement mid = with_box_of(from, to);
    cuts c;
    (void)find_cuts(&moves->mesh, from, to, &c);
    if (c.axes.n > 0) {
        const ds_shape have = box_of(&moves->mesh, from, moves->meta.shape);
        const ds_shape whole = with_padding(moves, &c, have);
        const split s = split_of(&moves->mesh, &c, whole);
        const dsi_comm_attrs attrs = dsi_localize_comm(l, &c.axes, -1);
        const dsi_pad_attrs pad = {.after = whole.dims[0] - have.dims[0]};
        if (pad.after > 0) {
            DS_TRY(dsi_localize_apply(l, &dsi_op_pad, &pad, *value, value));
        }
        DS_TRY(bring_to_front(l, &s, value));
        DS_TRY(dsi_localize_apply(l, &dsi_op_take_slice, &attrs, *value, value));
        DS_TRY(dsi_localize_reshape(l, box_of(&moves->mesh, to, moves->meta.shape), value));
    }
    if (!is_flat_alike(&mid, to)) {
        const dsi_axes axes = dsi_axes_behind(&to->flat, from->flat.n);
        const dsi_comm_attrs attrs = dsi_localize_comm(l, &axes, -1);
        DS_TRY(dsi_localize_apply(l, &dsi_op_take_slice, &attrs, *value, value));
    }
    return DS_OK;
}

/* ---- gathers --------------------------------------------------------------------------------- */

bool dsi_box_is_gather(const dsi_moves *moves, const dsi_placement *from, const dsi_placement *to)
{
    return dsi_box_is_slice(moves, to, from);
}

ds_status dsi_box_gather(dsi_localizing *l, const dsi_moves *moves, const dsi_placement *from,
                         const dsi_placement *to, ds_value *value)
{
    const ds_meta meta = moves->meta;
    const dsi_placement mid = with_box_of(to, from); /* as `from`, and flat as `to` is */
    cuts c;
    (void)find_cuts(&moves->mesh, to, from, &c);
    if (!is_flat_alike(from, &mid)) {
        const dsi_axes axes = dsi_axes_behind(&from->flat, to->flat.n);
        DS_TRY(
            dsi_localize_gather(l, &axes, dsi_local_meta(&moves->mesh, &mid, meta).shape, value));
    }
    if (c.axes.n > 0) {
        const ds_shape want = box_of(&moves->mesh, to, meta.shape);
        const ds_shape whole = with_padding(moves, &c, want);
        const split s = split_of(&moves->mesh, &c, whole);
        const dsi_slice_attrs rows = {.length = want.dims[0]};
        DS_TRY(
            dsi_localize_gather(l, &c.axes, is_in_front(&s) ? whole : shape_in_front(&s), value));
        DS_TRY(bring_back(l, &s, whole, value));
        return whole.dims[0] > want.dims[0]
                   ? dsi_localize_apply(l, &dsi_op_slice, &rows, *value, value)
                   : DS_OK;
    }
    return DS_OK;
}

/* ---- sums into slices ------------------------------------------------------------------------ */

bool dsi_box_is_reduce_scatter(const dsi_moves *moves, const dsi_move *move)
{
    cuts c;
    return move->from.flat.n == 0 && move->to.flat.n == 0 &&
           find_cuts(&moves->mesh, &move->from, &move->to, &c) &&
           dsi_axes_equal(&c.axes, &move->axes) && has_room(moves, &c) &&
           is_padded_by_elements(moves, &c);
}

ds_status dsi_box_reduce_scatter(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                                 const dsi_comm_attrs *attrs, ds_value *value)
{
    cuts c;
    (void)find_cuts(&moves->mesh, &move->from, &move->to, &c);
    const split s =
        split_of(&moves->mesh, &c, box_of(&moves->mesh, &move->from, moves->meta.shape));
    DS_TRY(bring_to_front(l, &s, value));
    return dsi_localize_apply(l, &dsi_op_reduce_scatter, attrs, *value, value);
}

/* Equal flat slices whose order is another than that of the sum's ranks (hpZ: flat over dps and
 * then dpr). */
bool dsi_box_is_turned_sum(const dsi_moves *moves, const dsi_move *move)
{
    const dsi_placement *to = &move->to;
    const int64_t n = dsi_axes_size(&moves->mesh, &move->axes);
    bool same = true; /* but for the sum */
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        same = same && (move->from.on[a].kind == DSI_PARTIAL ||
                        dsi_place_on_equal(move->from.on[a], to->on[a]));
    }
    return same && move->from.flat.n == 0 && to->cut == DSI_CUT_ELEMENT &&
           to->flat.n < DS_MAX_DIMS && dsi_axes_mask(&to->flat) == dsi_axes_mask(&move->axes) &&
           ds_shape_count(box_of(&moves->mesh, &move->from, moves->meta.shape)) % n == 0;
}

ds_status dsi_box_turned_sum(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                             const dsi_comm_attrs *attrs, ds_value *value)
{
    const dsi_axes *flat = &move->to.flat;
    dsi_permute_attrs order = {.n_dims = flat->n + 1};
    ds_shape slices = {.n_dims = flat->n + 1};
    slices.dims[flat->n] = ds_shape_count(ds_graph_meta(l->r.to, *value).shape) / attrs->n_ranks;
    order.order[flat->n] = flat->n;
    for (uint32_t i = 0; i < flat->n; ++i) {
        slices.dims[i] = moves->mesh.size[flat->axis[i]];
        for (uint32_t k = 0; k < move->axes.n; ++k) {
            order.order[k] = move->axes.axis[k] == flat->axis[i] ? (int64_t)i : order.order[k];
        }
    }
    DS_TRY(dsi_localize_reshape(l, slices, value));
    DS_TRY(dsi_localize_apply(l, &dsi_op_permute, &order, *value, value));
    return dsi_localize_apply(l, &dsi_op_reduce_scatter, attrs, *value, value);
}

/* ---- other dims ------------------------------------------------------------------------------ */

/* The cuts that go, those that come, and what is between them. */
typedef struct turn {
    dsi_placement mid;
    cuts lost, made;
} turn;

static bool find_turn(const dsi_moves *moves, const dsi_move *move, turn *t)
{
    uint32_t before = 0; /* dims */
    uint32_t after = 0;
    t->mid = move->from;
    for (uint32_t i = 0; i < move->axes.n; ++i) {
        t->mid.on[move->axes.axis[i]] = (dsi_place_on){0};
    }
    if (move->from.flat.n > 0 || move->to.flat.n > 0 ||
        !find_cuts(&moves->mesh, &t->mid, &move->from, &t->lost) ||
        !find_cuts(&moves->mesh, &t->mid, &move->to, &t->made) ||
        !dsi_axes_equal(&t->lost.axes, &move->axes) ||
        !dsi_axes_equal(&t->made.axes, &move->axes)) {
        return false;
    }
    for (uint32_t i = 0; i < move->axes.n; ++i) {
        before |= 1u << t->lost.dim[i];
        after |= 1u << t->made.dim[i];
    }
    return (before & after) == 0 && has_room(moves, &t->made) &&
           is_padded_by_elements(moves, &t->made);
}

bool dsi_box_is_all_to_all(const dsi_moves *moves, const dsi_move *move)
{
    turn t;
    return find_turn(moves, move, &t);
}

ds_status dsi_box_all_to_all(dsi_localizing *l, const dsi_moves *moves, const dsi_move *move,
                             ds_value *value)
{
    turn t;
    (void)find_turn(moves, move, &t);
    const ds_shape have = box_of(&moves->mesh, &move->from, moves->meta.shape);
    const ds_shape made = box_of(&moves->mesh, &move->to, moves->meta.shape);
    const split out = split_of(&moves->mesh, &t.made, have);
    const split in = split_of(&moves->mesh, &t.lost, made);
    const dsi_comm_attrs attrs = dsi_localize_comm(l, &move->axes, -1);
    const ds_shape blocks = ds_shape_2d(attrs.n_ranks, ds_shape_count(have) / attrs.n_ranks);
    DS_TRY(bring_to_front(l, &out, value));
    DS_TRY(dsi_localize_reshape(l, blocks, value));
    DS_TRY(dsi_localize_apply(l, &dsi_op_all_to_all, &attrs, *value, value));
    return bring_back(l, &in, made, value);
}
