/* SPDX-License-Identifier: Apache-2.0 */
/* Placements: where the elements of a logical tensor are on a mesh.
 *
 * For each axis of the mesh a value is replicated, cut along one of its dims, or the sum (or
 * maximum) of what the ranks of the axis have; or each rank has one of its own, for its own samples
 * (the data axes: such a value has the shape of one rank's); or it is flat on an ordered tuple of
 * axes: row-major elements padded and cut into equal slices (ZeRO), or given whole to one owner.
 * {0} is Replicate on every axis. Plain values; every rank computes the same.
 *
 * Cuts: n indices (or elements) over N ranks make slices of S = ceil(n/N); rank r has
 * [r·S, min((r+1)·S, n)), which may be short or empty. Axes that cut the same dim cut one after the
 * other, the mesh's outermost first. A dim of so many equal blocks may be cut inside of each (the
 * heads of packed q, k, v): a rank has as much of every block, evenly, and no other axis cuts the
 * dim. The first dim may be cut into slices that are padded: every rank has S indices, of which
 * those behind the last one are zeros, and at least one of its own (rows of a vocabulary). Flat
 * cuts what the Shards leave (the local box, with its padding), over its whole tuple at once; its
 * local memory is S elements, zeros behind the last.
 *
 * Inside of another axis: of an axis that cuts n blocks of a dim, each rank of an axis behind it
 * that has n ranks and cuts the dim takes one block. So "sp:S(2;2) tp:S(2)" is what tp cuts first
 * and sp then: heads of the weights that a rank has.
 *
 * Sums: the value of a Partial placement is the sum over all ranks of the group along its Partial
 * axes together, in fp32, in the canonical order (aligned binary tree over the group's index, axes
 * in the mesh's order), rounded once to the dtype.
 */
#ifndef DSI_PLACE_PLACEMENT_H
#define DSI_PLACE_PLACEMENT_H

#include "place/mesh.h"
#include "place/part.h"

typedef enum dsi_place_kind {
    DSI_REPLICATE = 0,
    DSI_SHARD,
    DSI_PARTIAL,
    DSI_OWN, /* no relation between the ranks' values: nothing moves them */
    DSI_AT, /* of cells: whole at the indices `dim` and `blocks` of the axis, others have nothing */
    DSI_FROM /* the same from `dim` to `blocks` */
} dsi_place_kind;

/* What a Partial value is of the ranks' terms. Of one value all axes have the same. */
typedef enum dsi_terms {
    DSI_TERMS_SUM = 0, /* the canonical sum, below */
    DSI_TERMS_MAX,     /* the largest, NaN above all */
    DSI_TERMS_EXACT,   /* exact pairs (op/ops.h, sum_parts): any order gives the same bits */
    DSI_TERMS_SIDE     /* the terms side by side in rank order: readers reduce them */
} dsi_terms;

enum { DSI_PADDED = 255 }; /* as blocks: the dim is cut as one, into equal slices with padding */

typedef struct dsi_place_on {
    uint8_t kind;   /* dsi_place_kind */
    uint8_t dim;    /* of DSI_SHARD; of DSI_PARTIAL its dsi_terms; an index; else 0 */
    uint8_t blocks; /* of DSI_SHARD: blocks of the dim that are cut each, or DSI_PADDED, 0: the dim
                       is cut as one; an index; else 0 */
} dsi_place_on;

static inline bool dsi_place_on_equal(dsi_place_on a, dsi_place_on b)
{
    return a.kind == b.kind && a.dim == b.dim && a.blocks == b.blocks;
}

typedef enum dsi_cut {
    DSI_CUT_NONE = 0,
    DSI_CUT_ELEMENT, /* equal slices of elements */
    DSI_CUT_TENSOR   /* all elements on one rank of the tuple's group: `owner` */
} dsi_cut;

typedef struct dsi_placement {
    dsi_place_on on[DSI_AXIS_COUNT];
    dsi_axes flat; /* n 0: not flat. Where an axis is flat, its `on` is Replicate */
    dsi_cut cut;
    uint32_t owner; /* of DSI_CUT_TENSOR: index in the group, else 0 */
} dsi_placement;

/* Makers, to be combined: dsi_shard(dsi_partial(dsi_replicate(), tp), dps, 0). */
dsi_placement dsi_replicate(void);
dsi_placement dsi_shard_blocks(dsi_placement p, dsi_axis axis, uint32_t dim, uint32_t blocks);
static inline dsi_placement dsi_shard(dsi_placement p, dsi_axis axis, uint32_t dim)
{
    return dsi_shard_blocks(p, axis, dim, 0);
}
dsi_placement dsi_partial(dsi_placement p, dsi_axis axis);
dsi_placement dsi_partial_of(dsi_placement p, dsi_axis axis, dsi_terms terms);
dsi_placement dsi_own(dsi_placement p, dsi_axis axis);
/* At two indices of an axis, or at one given twice; or from the first to the last. */
dsi_placement dsi_at(dsi_placement p, dsi_axis axis, uint32_t first, uint32_t last);
dsi_placement dsi_from(dsi_placement p, dsi_axis axis, uint32_t first, uint32_t last);
dsi_placement dsi_flat(dsi_placement p, dsi_axes axes);
dsi_placement dsi_flat_owner(dsi_placement p, dsi_axes axes, uint32_t owner);

/* Whether the placement fits mesh and shape. Errors: ERR_SHAPE names `name` (a value or cell), the
 * placement, and what is wrong. */
ds_status dsi_placement_check(ds_ctx *ctx, const dsi_mesh *mesh, const dsi_placement *p,
                              ds_shape shape, const char *name);

/* The same data on every rank of a mesh, in the simplest form: nothing on axes of size 1. */
dsi_placement dsi_placement_simplify(const dsi_mesh *mesh, const dsi_placement *p);
/* Written alike. Of simplified placements: placed alike. */
bool dsi_placement_equal(const dsi_placement *a, const dsi_placement *b);

/* Whether slices of ceil(n/ranks) leave each rank one index at least. */
bool dsi_all_have_some(int64_t n, uint32_t ranks);

/* What a rank holds. Pre: dsi_placement_check passed. */
dsi_part dsi_placement_part(const dsi_mesh *mesh, const dsi_placement *p, ds_shape shape,
                            uint32_t rank);
/* Largest slots of all ranks: memory that is the same size everywhere. */
int64_t dsi_placement_slots(const dsi_mesh *mesh, const dsi_placement *p, ds_shape shape);

/* Axes of one kind, as a mask (1 << axis). */
uint32_t dsi_placement_partial_axes(const dsi_placement *p);
uint32_t dsi_placement_own_axes(const dsi_placement *p);
/* Whether the rank at an index of an axis has something of it. */
bool dsi_place_on_has(dsi_place_on on, uint32_t index);
uint32_t dsi_placement_shard_axes(const dsi_placement *p); /* Shard of any dim */
/* The axes along which ranks can have different parts. */
uint32_t dsi_placement_part_axes(const dsi_placement *p);
uint32_t dsi_placement_dim_axes(const dsi_placement *p, uint32_t dim);

/* "R", "dps:S(0) tp:P", "dps:own", "tp:S(1) flat(dps,ep)", "flat(dps;tensor@3)"; "tp:S(1;3)": dim
 * 1 in each of its 3 blocks; "tp:S(0;padded)": equal slices with padding; "pp:at(0,3)",
 * "pp:from(0,3)"; Pmax, Pexact and
 * Pside are the other reductions. Axes that are replicated are left out. */
void dsi_placement_text(const dsi_placement *p, dsi_buf *buf);
/* The same into a text of fixed size, for messages. */
enum { DSI_PLACEMENT_TEXT = 160 };
const char *dsi_placement_str(const dsi_placement *p, char text[DSI_PLACEMENT_TEXT]);
/* Reads it back. Errors: ERR_FORMAT names the place. */
ds_status dsi_placement_parse(ds_ctx *ctx, const char *text, dsi_placement *p_out);

#endif
