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

/* ---- one dim --------------------------------------------------------------------------------- */

static bool in_blocks(const dsi_part *part, uint32_t d)
{
    return part->blocks > 1 && part->block_dim == d;
}

/* Indices of a block, or of the whole dim. */
static int64_t each_of(const dsi_part *part, uint32_t d)
{
    return in_blocks(part, d) ? part->lengths[d] / part->blocks : part->lengths[d];
}

/* The tensor's index of the box's. */
static int64_t index_of(const dsi_part *part, uint32_t d, int64_t local)
{
    const int64_t each = each_of(part, d);
    return in_blocks(part, d) ? part->offset[d] + local / each * part->block_stride + local % each
                              : part->offset[d] + local;
}

/* The box's index of the tensor's, which is in the box. */
static int64_t local_of(const dsi_part *part, uint32_t d, int64_t index)
{
    const int64_t at = index - part->offset[d];
    return in_blocks(part, d) ? at / part->block_stride * each_of(part, d) + at % part->block_stride
                              : at;
}

/* The first index from `index` on that is in the box, INT64_MAX: none; *end_out: where its block
 * ends. */
static int64_t next_in(const dsi_part *part, uint32_t d, int64_t index, int64_t *end_out)
{
    const int64_t each = each_of(part, d);
    const int64_t stride = in_blocks(part, d) ? part->block_stride : INT64_MAX;
    const int64_t blocks = in_blocks(part, d) ? part->blocks : 1;
    const int64_t at = index > part->offset[d] ? index - part->offset[d] : 0;
    const int64_t block = at / stride + (at % stride >= each ? 1 : 0);
    if (block >= blocks || each == 0) {
        *end_out = INT64_MAX;
        return INT64_MAX;
    }
    const int64_t begin = part->offset[d] + (block > 0 ? block * stride : 0);
    *end_out = begin + each;
    return index > begin ? index : begin;
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
        inner *= whole ? each_of(part, d) : 1;
        whole = whole && each_of(part, d) == shape.dims[d];
        run->begin += index_of(part, d, left % part->lengths[d]) * stride;
        left /= part->lengths[d];
        stride *= shape.dims[d];
    }
    const int64_t rest = inner - (part->begin + at) % inner;
    run->count = rest < part->count - at ? rest : part->count - at;
    return true;
}

ds_shape dsi_part_shape(const dsi_part *part)
{
    ds_shape shape = ds_shape_of(part->n_dims, part->lengths);
    if (part->flat) {
        return ds_shape_1d(part->slots);
    }
    if (part->padding > 0) {
        shape.dims[0] += part->padding;
    }
    return shape;
}

/* Row-major index of a logical element in the part's box. */
static int64_t index_in(const dsi_part *part, const int64_t *at)
{
    int64_t index = 0;
    for (uint32_t d = 0; d < part->n_dims; ++d) {
        index = index * part->lengths[d] + local_of(part, d, at[d]);
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

/* The first index from `from` on that both have on a dim, INT64_MAX: none; *end_out: where those
 * that follow it end. */
static int64_t next_common(const dsi_part *a, const dsi_part *b, uint32_t d, int64_t from,
                           int64_t *end_out)
{
    int64_t end_a = 0;
    int64_t end_b = 0;
    int64_t in_a = next_in(a, d, from, &end_a);
    int64_t in_b = next_in(b, d, from, &end_b);
    while (in_a != in_b) {
        if (in_a < in_b) {
            in_a = next_in(a, d, in_b, &end_a);
        } else {
            in_b = next_in(b, d, in_a, &end_b);
        }
    }
    *end_out = least(end_a, end_b);
    return in_a;
}

/* A walk over the runs of elements that two parts share. */
typedef struct walk {
    const dsi_part *a, *b;
    int64_t low[DS_MAX_DIMS]; /* first common indices */
    int64_t at[DS_MAX_DIMS];  /* current row, or the current block of it */
    int64_t row;              /* its length */
    bool more;
    int64_t in_a, in_b, n; /* current run: places in the local memories, length */
} walk;

static walk walk_start(const dsi_part *a, const dsi_part *b)
{
    walk w = {.a = a, .b = b, .row = 1, .more = a->count > 0 && b->count > 0};
    for (uint32_t d = 0; d < a->n_dims && w.more; ++d) {
        int64_t end = 0;
        w.low[d] = next_common(a, b, d, 0, &end);
        w.at[d] = w.low[d];
        w.row = end - w.low[d]; /* of the last dim in the end */
        w.more = w.low[d] != INT64_MAX;
    }
    return w;
}

/* Goes to the next row, or block of it. */
static void walk_row(walk *w)
{
    const uint32_t last = w->a->n_dims - 1;
    for (uint32_t d = w->a->n_dims; d-- > 0;) {
        int64_t end = 0;
        const int64_t step = d == last ? w->row : 1;
        const int64_t next = next_common(w->a, w->b, d, w->at[d] + step, &end);
        if (next != INT64_MAX) {
            w->at[d] = next;
            w->row = d == last ? end - next : w->row;
            return;
        }
        w->at[d] = w->low[d];
        if (d == last) {
            (void)next_common(w->a, w->b, d, w->low[d], &end);
            w->row = end - w->low[d];
        }
    }
    w->more = false;
}

/* The next run into in_a, in_b, n; false at the end. */
static bool walk_next(walk *w)
{
    while (w->more) {
        const int64_t in_a = index_in(w->a, w->at) - w->a->begin;
        const int64_t in_b = index_in(w->b, w->at) - w->b->begin;
        const int64_t first = most(0, most(-in_a, -in_b));
        const int64_t end = least(w->row, least(w->a->count - in_a, w->b->count - in_b));
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
    const bool alike =
        a->blocks == b->blocks &&
        (a->blocks == 0 || (a->block_dim == b->block_dim && a->block_stride == b->block_stride));
    return alike && a->n_dims == b->n_dims &&
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
            int64_t common = 0;
            int64_t end = 0;
            for (int64_t at = next_common(a, b, d, 0, &end); at != INT64_MAX && n > 0;
                 at = next_common(a, b, d, end, &end)) {
                common += end - at;
            }
            n *= common;
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
        at[d] = index_of(part, d, index % part->lengths[d]);
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

ds_status dsi_part_visit(const dsi_part *a, const dsi_part *b, dsi_part_visit_fn visit, void *user)
{
    for (walk w = walk_start(a, b); walk_next(&w);) {
        DS_TRY(visit(user, w.in_a, w.in_b, w.n));
    }
    return DS_OK;
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

dsi_part dsi_part_of_extent(const ds_extent *extent, ds_shape shape)
{
    dsi_part part = dsi_part_whole(shape);
    part.flat = extent->flat;
    part.begin = extent->flat ? extent->begin : 0;
    for (uint32_t d = 0; d < part.n_dims && !extent->flat; ++d) {
        part.offset[d] = extent->offset[d];
        part.lengths[d] = extent->lengths[d];
    }
    part.count = part.slots = ds_extent_count(extent, shape);
    return part;
}

/* A box of the part's box, by indices of that: one extent, or one for each block that it meets. */
static uint32_t add_boxes(const dsi_part *part, const int64_t *offset, const int64_t *lengths,
                          ds_extent *extents_out)
{
    int64_t begin[DS_MAX_DIMS];
    int64_t along[DS_MAX_DIMS];
    const uint32_t cut = part->blocks > 1 ? part->block_dim : 0;
    uint32_t n = 0;
    for (uint32_t d = 0; d < part->n_dims; ++d) {
        begin[d] = index_of(part, d, offset[d]);
        along[d] = lengths[d];
    }
    const int64_t end = offset[cut] + lengths[cut];
    for (int64_t at = offset[cut]; at < end; at += along[cut]) {
        const int64_t each = each_of(part, cut);
        begin[cut] = index_of(part, cut, at);
        along[cut] = least(end - at, each - at % each);
        extents_out[n++] = ds_extent_box(part->n_dims, begin, along);
    }
    return n;
}

uint32_t dsi_part_extents(const dsi_part *part, ds_shape shape,
                          ds_extent extents_out[DSI_PART_MOST_EXTENTS])
{
    static const int64_t none[DS_MAX_DIMS] = {0};
    if (part->count == 0) {
        return 0;
    }
    const dsi_part whole = dsi_part_whole(shape);
    if (part->n_dims == 0) {
        extents_out[0] = ds_extent_box(part->n_dims, part->offset, part->lengths);
        return 1;
    }
    if (!part->flat) {
        return add_boxes(part, none, part->lengths, extents_out);
    }
    if (memcmp(part->lengths, whole.lengths, part->n_dims * sizeof part->lengths[0]) == 0) {
        extents_out[0] = ds_extent_flat(part->begin, part->count);
        return 1;
    }
    uint32_t n = 0;
    for (int64_t done = 0; done < part->count;) {
        int64_t offset[DS_MAX_DIMS];
        int64_t lengths[DS_MAX_DIMS];
        uint32_t dim;
        int64_t along;
        int64_t index = part->begin + done;
        for (uint32_t d = part->n_dims; d-- > 0;) {
            offset[d] = index % part->lengths[d];
            index /= part->lengths[d];
        }
        done += box_from(part, done, &dim, &along);
        for (uint32_t d = 0; d < part->n_dims; ++d) {
            lengths[d] = d < dim ? 1 : d == dim ? along : part->lengths[d];
        }
        n += add_boxes(part, offset, lengths, &extents_out[n]);
    }
    return n;
}
