/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: makers, validity, the part of a rank. See placement.h. */
#include "place/placement.h"

#include <string.h>

dsi_placement dsi_replicate(void)
{
    return (dsi_placement){0};
}

dsi_placement dsi_shard_blocks(dsi_placement p, dsi_axis axis, uint32_t dim, uint32_t blocks)
{
    p.on[axis] = (dsi_place_on){DSI_SHARD, (uint8_t)dim, (uint8_t)blocks};
    return p;
}

dsi_placement dsi_partial(dsi_placement p, dsi_axis axis)
{
    p.on[axis] = (dsi_place_on){.kind = DSI_PARTIAL};
    return p;
}

dsi_placement dsi_partial_of(dsi_placement p, dsi_axis axis, dsi_terms terms)
{
    p.on[axis] = (dsi_place_on){.kind = DSI_PARTIAL, .dim = (uint8_t)terms};
    return p;
}

dsi_placement dsi_at(dsi_placement p, dsi_axis axis, uint32_t first, uint32_t last)
{
    p.on[axis] = (dsi_place_on){DSI_AT, (uint8_t)first, (uint8_t)last};
    return p;
}

dsi_placement dsi_from(dsi_placement p, dsi_axis axis, uint32_t first, uint32_t last)
{
    p.on[axis] = (dsi_place_on){DSI_FROM, (uint8_t)first, (uint8_t)last};
    return p;
}

dsi_placement dsi_own(dsi_placement p, dsi_axis axis)
{
    p.on[axis] = (dsi_place_on){.kind = DSI_OWN};
    return p;
}

dsi_placement dsi_flat(dsi_placement p, dsi_axes axes)
{
    p.flat = axes;
    p.cut = axes.n > 0 ? DSI_CUT_ELEMENT : DSI_CUT_NONE;
    p.owner = 0;
    return p;
}

dsi_placement dsi_flat_owner(dsi_placement p, dsi_axes axes, uint32_t owner)
{
    p.flat = axes;
    p.cut = axes.n > 0 ? DSI_CUT_TENSOR : DSI_CUT_NONE;
    p.owner = axes.n > 0 ? owner : 0;
    return p;
}

static uint32_t axes_of_kind(const dsi_placement *p, dsi_place_kind kind)
{
    uint32_t mask = 0;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        mask |= p->on[a].kind == kind ? 1u << a : 0;
    }
    return mask;
}

uint32_t dsi_placement_partial_axes(const dsi_placement *p)
{
    return axes_of_kind(p, DSI_PARTIAL);
}

uint32_t dsi_placement_own_axes(const dsi_placement *p)
{
    return axes_of_kind(p, DSI_OWN);
}

uint32_t dsi_placement_shard_axes(const dsi_placement *p)
{
    return axes_of_kind(p, DSI_SHARD);
}

uint32_t dsi_placement_part_axes(const dsi_placement *p)
{
    return axes_of_kind(p, DSI_SHARD) | axes_of_kind(p, DSI_AT) | axes_of_kind(p, DSI_FROM) |
           dsi_axes_mask(&p->flat);
}

uint32_t dsi_placement_dim_axes(const dsi_placement *p, uint32_t dim)
{
    uint32_t mask = axes_of_kind(p, DSI_SHARD);
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        mask &= p->on[a].dim == dim ? ~0u : ~(1u << a);
    }
    return mask;
}

/* ---- validity -------------------------------------------------------------------------------- */

static ds_status bad(ds_ctx *ctx, const dsi_placement *p, const char *name, const char *what)
{
    char text[DSI_PLACEMENT_TEXT];
    return ds_fail(ctx, DS_ERR_SHAPE, "%s: placement %s: %s", name, dsi_placement_str(p, text),
                   what);
}

static ds_status check_flat(ds_ctx *ctx, const dsi_mesh *mesh, const dsi_placement *p,
                            const char *name)
{
    if ((p->flat.n == 0) != (p->cut == DSI_CUT_NONE)) {
        return bad(ctx, p, name, "flat needs both axes and a cut");
    }
    uint32_t mask = 0;
    for (uint32_t i = 0; i < p->flat.n; ++i) {
        const uint32_t a = p->flat.axis[i];
        if (a >= DSI_AXIS_COUNT || (mask >> a & 1u) != 0) {
            return bad(ctx, p, name, "an axis stands twice in flat, or is unknown");
        }
        if (p->on[a].kind != DSI_REPLICATE) {
            return bad(ctx, p, name, "an axis is flat and cut or summed as well");
        }
        mask |= 1u << a;
    }
    if (p->cut == DSI_CUT_TENSOR ? p->owner >= dsi_axes_size(mesh, &p->flat) : p->owner != 0) {
        return bad(ctx, p, name, "the owner is not a rank of the flat group");
    }
    return DS_OK;
}

bool dsi_place_on_has(dsi_place_on on, uint32_t index)
{
    switch (on.kind) {
    case DSI_AT:
        return index == on.dim || index == on.blocks;
    case DSI_FROM:
        return index >= on.dim && index <= on.blocks;
    default:
        return true;
    }
}

static bool is_known(dsi_place_on on)
{
    const bool padded = on.blocks == DSI_PADDED && on.dim == 0;
    if (on.kind == DSI_AT || on.kind == DSI_FROM) {
        return on.dim <= on.blocks;
    }
    if (on.blocks != 0 &&
        (on.kind != DSI_SHARD || on.blocks < 2 || (on.blocks > DSI_PART_MOST_BLOCKS && !padded))) {
        return false;
    }
    return on.kind == DSI_PARTIAL ? on.dim <= DSI_TERMS_SIDE
                                  : on.kind == DSI_SHARD || (on.kind <= DSI_OWN && on.dim == 0);
}

/* A dim in blocks is cut evenly, by one axis alone, or each block by an axis of as many ranks
 * behind it, and no other dim is in blocks; one with padding likewise, but that it leaves no rank
 * without indices. */
static ds_status check_blocks(ds_ctx *ctx, const dsi_mesh *mesh, const dsi_placement *p,
                              ds_shape shape, const char *name)
{
    uint32_t n = 0;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const dsi_place_on on = p->on[a];
        if (on.kind != DSI_SHARD || on.blocks == 0 || mesh->size[a] == 1) {
            continue;
        }
        if (++n > 1) {
            return bad(ctx, p, name, "two axes cut blocks");
        }
        for (uint32_t b = 0; b < DSI_AXIS_COUNT; ++b) {
            if (b != a && mesh->size[b] > 1 && p->on[b].kind == DSI_SHARD &&
                p->on[b].dim == on.dim && !(b > a && mesh->size[b] == on.blocks)) {
                return bad(ctx, p, name, "another axis cuts the dim that is cut in blocks");
            }
        }
        if (on.blocks == DSI_PADDED) {
            if (!dsi_all_have_some(shape.dims[on.dim], mesh->size[a])) {
                return bad(ctx, p, name, "a rank would have nothing but padding");
            }
        } else if (shape.dims[on.dim] % ((int64_t)on.blocks * mesh->size[a]) != 0) {
            return bad(ctx, p, name, "the ranks do not divide the blocks of the dim");
        }
    }
    return DS_OK;
}

ds_status dsi_placement_check(ds_ctx *ctx, const dsi_mesh *mesh, const dsi_placement *p,
                              ds_shape shape, const char *name)
{
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (!is_known(p->on[a])) {
            return bad(ctx, p, name, "an axis has no kind that is known");
        }
        if ((p->on[a].kind == DSI_AT || p->on[a].kind == DSI_FROM) &&
            p->on[a].blocks >= mesh->size[a]) {
            return bad(ctx, p, name, "an index that the axis does not have");
        }
        if (p->on[a].kind == DSI_SHARD && p->on[a].dim >= shape.n_dims) {
            char text[DSI_PLACEMENT_TEXT];
            return ds_fail(ctx, DS_ERR_SHAPE,
                           "%s: placement %s: axis %s cuts dim %u, but the tensor has %u dims",
                           name, dsi_placement_str(p, text), dsi_axis_name((dsi_axis)a),
                           p->on[a].dim, shape.n_dims);
        }
    }
    DS_TRY(check_blocks(ctx, mesh, p, shape, name));
    return check_flat(ctx, mesh, p, name);
}

/* ---- equality -------------------------------------------------------------------------------- */

dsi_placement dsi_placement_simplify(const dsi_mesh *mesh, const dsi_placement *p)
{
    dsi_placement simple = {0};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (mesh->size[a] > 1) {
            simple.on[a] = p->on[a];
        }
    }
    for (uint32_t i = 0; i < p->flat.n; ++i) {
        if (mesh->size[p->flat.axis[i]] > 1) {
            simple.flat.axis[simple.flat.n++] = p->flat.axis[i];
        }
    }
    if (simple.flat.n > 0) { /* axes of size 1 do not change the owner's index */
        simple.cut = p->cut;
        simple.owner = p->owner;
    }
    return simple;
}

bool dsi_placement_equal(const dsi_placement *a, const dsi_placement *b)
{
    return memcmp(a->on, b->on, sizeof a->on) == 0 && dsi_axes_equal(&a->flat, &b->flat) &&
           a->cut == b->cut && a->owner == b->owner;
}

/* ---- parts ----------------------------------------------------------------------------------- */

static int64_t slice_of(int64_t n, uint32_t size)
{
    return n / size + (n % size != 0 ? 1 : 0);
}

bool dsi_all_have_some(int64_t n, uint32_t ranks)
{
    return n > 0 && slice_of(n, ranks) * (ranks - 1) < n;
}

/* Slice `index` of [0, n) over `size` ranks. */
static void cut(int64_t n, uint32_t size, uint32_t index, int64_t *begin_out, int64_t *count_out)
{
    const int64_t slice = slice_of(n, size);
    const int64_t begin = slice * index < n ? slice * index : n;
    *begin_out = begin;
    *count_out = n - begin < slice ? n - begin : slice;
}

static void cut_flat(const dsi_mesh *mesh, const dsi_placement *p, uint32_t rank, dsi_part *part)
{
    const dsi_rank_group group = dsi_mesh_group(mesh, &p->flat, rank);
    const int64_t real = part->count;
    const int64_t n = part->slots; /* with the box's padding, which no slice has */
    part->flat = true;
    if (p->cut == DSI_CUT_TENSOR) {
        part->count = group.index == p->owner ? real : 0;
        part->slots = group.index == p->owner ? n : 0;
        return;
    }
    cut(n, group.size, group.index, &part->begin, &part->count);
    part->slots = slice_of(n, group.size);
    part->begin = part->begin < real ? part->begin : real;
    part->count = part->count < real - part->begin ? part->count : real - part->begin;
}

dsi_part dsi_placement_part(const dsi_mesh *mesh, const dsi_placement *p, ds_shape shape,
                            uint32_t rank)
{
    const dsi_coords coords = dsi_mesh_coords(mesh, rank);
    dsi_part part = dsi_part_whole(shape);
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (p->on[a].kind == DSI_SHARD) {
            const uint32_t d = p->on[a].dim;
            if (part.blocks > 1 && part.block_dim == d && mesh->size[a] == part.blocks) {
                part.lengths[d] /= part.blocks; /* a block each */
                part.offset[d] += coords.at[a] * part.block_stride;
                part.blocks = part.block_dim = 0;
                part.block_stride = 0;
                continue;
            }
            const bool padded = p->on[a].blocks == DSI_PADDED;
            const bool whole = p->on[a].blocks == 0 || padded || mesh->size[a] == 1;
            const int64_t blocks = whole ? 1 : p->on[a].blocks;
            const int64_t block = part.lengths[d] / blocks;
            int64_t begin;
            cut(block, mesh->size[a], coords.at[a], &begin, &part.lengths[d]);
            part.offset[d] += begin;
            part.padding += padded ? slice_of(block, mesh->size[a]) - part.lengths[d] : 0;
            if (blocks > 1 && block > 0) {
                part.lengths[d] *= blocks;
                part.blocks = (uint32_t)blocks;
                part.block_dim = d;
                part.block_stride = block;
            }
        }
    }
    part.count = ds_shape_count(ds_shape_of(part.n_dims, part.lengths));
    part.slots = ds_shape_count(dsi_part_shape(&part));
    if (p->flat.n > 0) {
        cut_flat(mesh, p, rank, &part);
    }
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (!dsi_place_on_has(p->on[a], coords.at[a])) {
            part.count = part.slots = part.begin = 0;
            part.flat = true;
        }
    }
    return part;
}

int64_t dsi_placement_slots(const dsi_mesh *mesh, const dsi_placement *p, ds_shape shape)
{
    dsi_placement box = *p;
    box.flat.n = 0;
    const int64_t n = dsi_placement_part(mesh, &box, shape, 0).count; /* the first has most */
    const bool sliced = p->flat.n > 0 && p->cut != DSI_CUT_TENSOR;
    return sliced ? slice_of(n, dsi_axes_size(mesh, &p->flat)) : n;
}
