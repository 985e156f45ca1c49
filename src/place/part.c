/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of tensors: what two of them share, and copies between them. See part.h.
 *
 * Everything walks the rows (last dim) of the boxes' intersection: within a row the elements of
 * both parts are consecutive, and ranges only clip its ends.
 */
#include "place/part.h"

#include <string.h>

dsi_part dsi_part_whole(ds_shape shape)
{
    dsi_part part = {.n_dims = shape.n_dims};
    memcpy(part.lengths, shape.dims, sizeof part.lengths);
    part.count = part.slots = ds_shape_count(shape);
    return part;
}

bool dsi_part_next_run(const dsi_part *part, ds_shape shape, dsi_run *run)
{
    const int64_t at = run->local + run->count;
    int64_t inner = 1; /* elements of the box that are neighbours in the tensor */
    int64_t left = part->begin + at;
    int64_t stride = 1;
    bool whole = true; /* the dims behind */
    if (at >= part->count) {
        return false;
    }
    *run = (dsi_run){.local = at};
    for (uint32_t d = part->n_dims; d-- > 0;) {
        inner *= whole ? part->lengths[d] : 1;
        whole = whole && part->lengths[d] == shape.dims[d];
        run->begin += (part->offset[d] + left % part->lengths[d]) * stride;
        left /= part->lengths[d];
        stride *= shape.dims[d];
    }
    const int64_t rest = inner - (part->begin + at) % inner;
    run->count = rest < part->count - at ? rest : part->count - at;
    return true;
}

ds_shape dsi_part_shape(const dsi_part *part)
{
    return part->flat ? ds_shape_1d(part->slots) : ds_shape_of(part->n_dims, part->lengths);
}

/* Row-major index of a logical element in the part's box. */
static int64_t index_in(const dsi_part *part, const int64_t *at)
{
    int64_t index = 0;
    for (uint32_t d = 0; d < part->n_dims; ++d) {
        index = index * part->lengths[d] + (at[d] - part->offset[d]);
    }
    return index;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A walk over the runs of elements that two parts share. */
typedef struct walk {
    const dsi_part *a, *b;
    int64_t low[DS_MAX_DIMS], high[DS_MAX_DIMS]; /* intersection of the boxes */
    int64_t at[DS_MAX_DIMS];                     /* current row; its last index is low */
    bool more;
    int64_t in_a, in_b, n; /* current run: places in the local memories, length */
} walk;

static walk walk_start(const dsi_part *a, const dsi_part *b)
{
    walk w = {.a = a, .b = b, .more = a->count > 0 && b->count > 0};
    for (uint32_t d = 0; d < a->n_dims; ++d) {
        w.low[d] = most(a->offset[d], b->offset[d]);
        w.high[d] = least(a->offset[d] + a->lengths[d], b->offset[d] + b->lengths[d]);
        w.at[d] = w.low[d];
        w.more = w.more && w.low[d] < w.high[d];
    }
    return w;
}

/* Goes to the next row. */
static void walk_row(walk *w)
{
    uint32_t d = w->a->n_dims;
    d = d > 0 ? d - 1 : 0; /* the last dim is the row itself */
    while (d-- > 0) {
        if (++w->at[d] < w->high[d]) {
            return;
        }
        w->at[d] = w->low[d];
    }
    w->more = false;
}

/* The next run into in_a, in_b, n; false at the end. */
static bool walk_next(walk *w)
{
    while (w->more) {
        const uint32_t n_dims = w->a->n_dims;
        const int64_t row = n_dims == 0 ? 1 : w->high[n_dims - 1] - w->low[n_dims - 1];
        const int64_t in_a = index_in(w->a, w->at) - w->a->begin;
        const int64_t in_b = index_in(w->b, w->at) - w->b->begin;
        const int64_t first = most(0, most(-in_a, -in_b));
        const int64_t end = least(row, least(w->a->count - in_a, w->b->count - in_b));
        walk_row(w);
        if (first < end) {
            w->in_a = in_a + first;
            w->in_b = in_b + first;
            w->n = end - first;
            return true;
        }
    }
    return false;
}

static bool same_box(const dsi_part *a, const dsi_part *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->offset, b->offset, a->n_dims * sizeof a->offset[0]) == 0 &&
           memcmp(a->lengths, b->lengths, a->n_dims * sizeof a->lengths[0]) == 0;
}

int64_t dsi_part_common(const dsi_part *a, const dsi_part *b)
{
    int64_t n = 0;
    if (same_box(a, b)) { /* ranges of the same elements */
        const int64_t end = least(a->begin + a->count, b->begin + b->count);
        return most(0, end - most(a->begin, b->begin));
    }
    if (!a->flat && !b->flat) { /* boxes: no need to walk */
        n = a->count > 0 && b->count > 0 ? 1 : 0;
        for (uint32_t d = 0; d < a->n_dims; ++d) {
            const int64_t low = most(a->offset[d], b->offset[d]);
            const int64_t high = least(a->offset[d] + a->lengths[d], b->offset[d] + b->lengths[d]);
            n *= most(0, high - low);
        }
        return n;
    }
    for (walk w = walk_start(a, b); walk_next(&w);) {
        n += w.n;
    }
    return n;
}

bool dsi_part_inside(const dsi_part *a, const dsi_part *b)
{
    return a->count <= b->count && dsi_part_common(a, b) == a->count;
}

/* Logical coordinates of an element of a part. */
static void locate(const dsi_part *part, int64_t element, int64_t *at)
{
    int64_t index = part->begin + element;
    for (uint32_t d = part->n_dims; d-- > 0;) {
        at[d] = part->offset[d] + index % part->lengths[d];
        index /= part->lengths[d];
    }
}

bool dsi_part_is_range(const dsi_part *a, const dsi_part *b, int64_t *at_out)
{
    if (a->count == 0) {
        *at_out = 0;
        return true;
    }
    if (!dsi_part_inside(a, b)) {
        return false;
    }
    int64_t first[DS_MAX_DIMS];
    int64_t last[DS_MAX_DIMS];
    locate(a, 0, first);
    locate(a, a->count - 1, last);
    *at_out = index_in(b, first) - b->begin;
    return index_in(b, last) - b->begin - *at_out == a->count - 1;
}

/* ---- copies ---------------------------------------------------------------------------------- */

int64_t dsi_part_copy(const dsi_part *from, const void *in, const dsi_part *to, void *out,
                      size_t element_bytes)
{
    int64_t n = 0;
    for (walk w = walk_start(from, to); walk_next(&w); n += w.n) {
        memcpy((char *)out + (size_t)w.in_b * element_bytes,
               (const char *)in + (size_t)w.in_a * element_bytes, (size_t)w.n * element_bytes);
    }
    return n;
}

int64_t dsi_part_pack(const dsi_part *from, const void *in, const dsi_part *to, void *packed,
                      size_t element_bytes)
{
    int64_t n = 0;
    for (walk w = walk_start(from, to); walk_next(&w); n += w.n) {
        memcpy((char *)packed + (size_t)n * element_bytes,
               (const char *)in + (size_t)w.in_a * element_bytes, (size_t)w.n * element_bytes);
    }
    return n;
}

int64_t dsi_part_unpack(const dsi_part *from, const void *packed, const dsi_part *to, void *out,
                        size_t element_bytes)
{
    int64_t n = 0;
    for (walk w = walk_start(from, to); walk_next(&w); n += w.n) {
        memcpy((char *)out + (size_t)w.in_b * element_bytes,
               (const char *)packed + (size_t)n * element_bytes, (size_t)w.n * element_bytes);
    }
    return n;
}

/* ---- extents --------------------------------------------------------------------------------- */

/* The largest box that begins at `element` of the part and is a range of its elements: indices
 * [at, at + *n_out) of dim *dim_out, one index on the dims before, everything on those behind. */
static int64_t box_from(const dsi_part *part, int64_t element, uint32_t *dim_out, int64_t *n_out)
{
    const int64_t index = part->begin + element;
    const int64_t left = part->count - element;
    int64_t stride = 1;
    int64_t taken = 1;
    *dim_out = part->n_dims - 1;
    *n_out = 1;
    for (uint32_t d = part->n_dims; d-- > 0;) {
        if (index % stride != 0 || stride > left) {
            break;
        }
        const int64_t n =
            least(left / stride, part->lengths[d] - index / stride % part->lengths[d]);
        *dim_out = d;
        *n_out = n;
        taken = n * stride;
        stride *= part->lengths[d];
    }
    return taken;
}

uint32_t dsi_part_extents(const dsi_part *part, ds_shape shape,
                          ds_extent extents_out[DSI_PART_MOST_EXTENTS])
{
    if (part->count == 0) {
        return 0;
    }
    const dsi_part whole = dsi_part_whole(shape);
    if (!part->flat || part->n_dims == 0) {
        extents_out[0] = ds_extent_box(part->n_dims, part->offset, part->lengths);
        return 1;
    }
    if (memcmp(part->lengths, whole.lengths, part->n_dims * sizeof part->lengths[0]) == 0) {
        extents_out[0] = ds_extent_flat(part->begin, part->count);
        return 1;
    }
    uint32_t n = 0;
    for (int64_t done = 0; done < part->count; ++n) {
        int64_t offset[DS_MAX_DIMS];
        int64_t lengths[DS_MAX_DIMS];
        uint32_t dim;
        int64_t along;
        locate(part, done, offset);
        done += box_from(part, done, &dim, &along);
        for (uint32_t d = 0; d < part->n_dims; ++d) {
            lengths[d] = d < dim ? 1 : d == dim ? along : part->lengths[d];
        }
        extents_out[n] = ds_extent_box(part->n_dims, offset, lengths);
    }
    return n;
}
