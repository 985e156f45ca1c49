/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that ranks of DeepSpeed share (AutoTP): their shards as boxes of the model's tensors. See
 * ckpt_deepspeed.h.
 *
 * The model's file says of each parameter (universal_checkpoint_info.affine_map) the whole shape
 * and, by rank, pieces: `shape` elements that begin at `source` in the whole tensor and at `dest`
 * in the rank's shard, each with strides, and on which ranks the piece is (the first one's is
 * taken). Read are pieces that lie in one run of the shard and are a box of the tensor.
 */
#include "ckpt/ckpt_deepspeed.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PIECES = 4096 };

/* What the ranks' files had, before it was joined. */
typedef struct shards {
    const ds_checkpoint_tensor *tensors; /* [n_model][n] */
    const dsi_ckpt_slice *slices;
    size_t n;
} shards;

typedef struct piece {
    ds_shape shape;
    int64_t offset[DS_MAX_DIMS]; /* in the tensor */
    int64_t begin;               /* in the shard */
} piece;

static ds_status bad(const dsi_deepspeed *d, const char *name, const char *what)
{
    return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                   "%s: universal_checkpoint_info.affine_map: '%.160s' %s", d->models[0].path, name,
                   what);
}

/* A list or tuple of numbers >= 0 as a shape. */
static bool read_numbers(const dsi_pickle *list, ds_shape *shape_out)
{
    const size_t n = dsi_pickle_count(list);
    *shape_out = (ds_shape){.n_dims = (uint32_t)n};
    if (n > DS_MAX_DIMS || dsi_pickle_is(list, DSI_PICKLE_DICT)) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        if (!dsi_pickle_whole(dsi_pickle_at(list, i), &shape_out->dims[i]) ||
            shape_out->dims[i] < 0 || shape_out->dims[i] > INT64_C(1) << 56) {
            return false;
        }
    }
    const int64_t count = ds_shape_count(*shape_out);
    return list != NULL && count >= 0 && count < INT64_C(1) << 56;
}

/* Whether "^a\.b$" is the pattern of this name alone. */
static bool is_pattern_of(const char *pattern, const char *name)
{
    if (*pattern++ != '^') {
        return false;
    }
    for (; *name != '\0'; ++name, ++pattern) {
        pattern += *pattern == '\\';
        if (*pattern != *name) {
            return false;
        }
    }
    return strcmp(pattern, "$") == 0;
}

static const dsi_pickle *find_map(const dsi_deepspeed *d, const char *name)
{
    const dsi_pickle *info = dsi_pickle_get(d->models[0].root, "universal_checkpoint_info");
    const dsi_pickle *params = dsi_pickle_get(dsi_pickle_get(info, "affine_map"), "params");
    for (size_t i = 0; dsi_pickle_is(params, DSI_PICKLE_DICT) && i < params->list.n; i += 2) {
        const char *pattern = dsi_pickle_text(params->list.items[i]);
        if (pattern != NULL && is_pattern_of(pattern, name)) {
            return params->list.items[i + 1];
        }
    }
    return NULL;
}

static const dsi_pickle *of_rank(const dsi_pickle *ranks, uint32_t rank)
{
    for (size_t i = 0; dsi_pickle_is(ranks, DSI_PICKLE_DICT) && i < ranks->list.n; i += 2) {
        int64_t key = -1;
        if (dsi_pickle_whole(ranks->list.items[i], &key) && key == (int64_t)rank) {
            return ranks->list.items[i + 1];
        }
    }
    return NULL;
}

/* Whether the strides are those of row-major order, where an index has more than one value. */
static bool is_row_major(const dsi_pickle *strides, ds_shape shape, ds_shape extents)
{
    ds_shape s;
    int64_t below = 1;
    if (!read_numbers(strides, &s) || s.n_dims != shape.n_dims) {
        return false;
    }
    for (uint32_t i = shape.n_dims; i-- > 0;) {
        if (extents.dims[i] > 1 && s.dims[i] != below) {
            return false;
        }
        below *= shape.dims[i];
    }
    return true;
}

/* false: no box of the tensor in one run of the shard. */
static bool read_piece(const dsi_pickle *value, ds_shape whole, piece *p)
{
    const dsi_pickle *source = dsi_pickle_get(value, "source");
    const dsi_pickle *dest = dsi_pickle_get(value, "dest");
    int64_t at = 0;
    int64_t below = ds_shape_count(whole);
    if (!read_numbers(dsi_pickle_get(value, "shape"), &p->shape) ||
        p->shape.n_dims != whole.n_dims || !dsi_pickle_whole(dsi_pickle_at(source, 0), &at) ||
        !dsi_pickle_whole(dsi_pickle_at(dest, 0), &p->begin) || at < 0 || p->begin < 0 ||
        at > below || p->begin > below ||
        !is_row_major(dsi_pickle_at(source, 1), whole, p->shape) ||
        !is_row_major(dsi_pickle_at(dest, 1), p->shape, p->shape)) {
        return false;
    }
    for (uint32_t i = 0; i < whole.n_dims; ++i) {
        below = whole.dims[i] > 0 ? below / whole.dims[i] : 0;
        p->offset[i] = below > 0 ? at / below : 0;
        at -= p->offset[i] * below;
        if (p->shape.dims[i] > whole.dims[i] - p->offset[i]) {
            return false;
        }
    }
    return true;
}

/* ---- runs of a piece as boxes ---- */

typedef struct run {
    dsi_deepspeed *d;
    const piece *p;
    uint32_t shard;
    const uint8_t *data; /* of element `from` of the piece */
    int64_t from;
} run;

/* Elements [low, high) of the piece below the indices at[0 … dim). */
static ds_status add_boxes(const run *r, uint32_t dim, int64_t *at, int64_t base, int64_t low,
                           int64_t high)
{
    const ds_shape *shape = &r->p->shape;
    int64_t below = 1;
    for (uint32_t i = dim + 1; i < shape->n_dims; ++i) {
        below *= shape->dims[i];
    }
    while (low < high) {
        const int64_t index = low / below;
        const int64_t full = (high - index * below) / below;
        if (low % below != 0 || full == 0) {
            const int64_t end = (index + 1) * below < high ? (index + 1) * below : high;
            at[dim] = index;
            DS_TRY(add_boxes(r, dim + 1, at, base + index * below, low - index * below,
                             end - index * below));
            low = end;
            continue;
        }
        int64_t offset[DS_MAX_DIMS] = {0};
        int64_t lengths[DS_MAX_DIMS] = {0};
        for (uint32_t i = 0; i < shape->n_dims; ++i) {
            offset[i] = r->p->offset[i] + (i < dim ? at[i] : i == dim ? index : 0);
            lengths[i] = i < dim ? 1 : i == dim ? full : shape->dims[i];
        }
        const ds_dtype dtype = r->d->m->tensors[r->d->m->n_tensors - 1].meta.dtype;
        const ds_extent box = ds_extent_box(shape->n_dims, offset, lengths);
        DS_TRY(
            dsi_deepspeed_part(r->d, r->shard, &box,
                               r->data + (size_t)(base + low - r->from) * ds_dtype_bytes(dtype)));
        low += full * below;
    }
    return DS_OK;
}

/* A piece out of the flat slices of a rank's shard. */
static ds_status add_piece(dsi_deepspeed *d, const shards *s, const ds_checkpoint_tensor *shard,
                           const piece *p)
{
    const int64_t count = ds_shape_count(p->shape);
    for (uint32_t k = 0; k < shard->n_slices; ++k) {
        const dsi_ckpt_slice *slice = &s->slices[shard->first_slice + k];
        const int64_t begin = slice->extent.begin - p->begin;
        const int64_t end = begin + slice->extent.count;
        const int64_t low = begin > 0 ? begin : 0;
        const int64_t high = end < count ? end : count;
        int64_t at[DS_MAX_DIMS] = {0};
        if (low < high) {
            const run r = {d, p, slice->shard, slice->stored->data, begin};
            DS_TRY(add_boxes(&r, 0, at, 0, low, high));
        }
    }
    return DS_OK;
}

/* ---- tensors ---- */

static bool overlap(const piece *a, const piece *b)
{
    for (uint32_t i = 0; i < a->shape.n_dims; ++i) {
        if (a->offset[i] >= b->offset[i] + b->shape.dims[i] ||
            b->offset[i] >= a->offset[i] + a->shape.dims[i]) {
            return false;
        }
    }
    return true;
}

/* The pieces of which a rank is the first. */
static ds_status add_rank(dsi_deepspeed *d, const shards *s, size_t i, uint32_t mp,
                          const dsi_pickle *map, piece *pieces, size_t *n)
{
    const ds_checkpoint_tensor *shard = &s->tensors[(size_t)mp * s->n + i];
    const ds_shape whole = d->m->tensors[d->m->n_tensors - 1].meta.shape;
    const dsi_pickle *own = of_rank(dsi_pickle_get(map, "ranks"), mp);
    const dsi_pickle *list = dsi_pickle_get(own, "pieces");
    ds_shape has;
    if (!read_numbers(dsi_pickle_get(own, "shard_shape"), &has) ||
        !ds_shape_equal(has, shard->meta.shape)) {
        return bad(d, shard->name, "has another shard_shape than the ranks' param_shapes");
    }
    for (size_t k = 0; k < dsi_pickle_count(list); ++k) {
        const dsi_pickle *value = dsi_pickle_at(list, k);
        int64_t first = -1;
        piece *p = &pieces[*n];
        (void)dsi_pickle_whole(dsi_pickle_at(dsi_pickle_get(value, "locations"), 0), &first);
        if (first != (int64_t)mp) {
            continue;
        }
        if (*n + 1 >= MOST_PIECES || !read_piece(value, whole, p) ||
            ds_shape_count(p->shape) > ds_shape_count(shard->meta.shape) - p->begin) {
            return bad(d, shard->name,
                       "has a piece that is no box of it in one run of a shard, or "
                       "more pieces than are read");
        }
        for (size_t q = 0; q < *n; ++q) {
            if (overlap(&pieces[q], p)) {
                return bad(d, shard->name, "has pieces that overlap");
            }
        }
        ++*n;
        DS_TRY(add_piece(d, s, shard, p));
    }
    return DS_OK;
}

static ds_status join_tensor(dsi_deepspeed *d, const shards *s, size_t i, piece *pieces)
{
    const ds_checkpoint_tensor *first = &s->tensors[i];
    const dsi_pickle *map = find_map(d, first->name);
    ds_meta meta = {first->meta.dtype, {0}};
    size_t n = 0;
    if (map == NULL || !read_numbers(dsi_pickle_get(map, "logical_shape"), &meta.shape)) {
        return bad(d, first->name,
                   "has no logical_shape, without which the ranks' shards cannot be joined "
                   "(versions before 0.19 do not write it: convert with ds_to_universal)");
    }
    DS_TRY(dsi_deepspeed_tensor_of(d, first->kind, first->name, meta));
    for (uint32_t mp = 0; mp < d->n_model; ++mp) {
        const ds_checkpoint_tensor *t = &s->tensors[(size_t)mp * s->n + i];
        if (strcmp(t->name, first->name) != 0 || strcmp(t->kind, first->kind) != 0 ||
            t->meta.dtype != first->meta.dtype) {
            return bad(d, first->name, "is another parameter in the file of another rank");
        }
        DS_TRY(add_rank(d, s, i, mp, map, pieces, &n));
    }
    return dsi_deepspeed_end_tensor(d);
}

ds_status dsi_deepspeed_join(dsi_deepspeed *d)
{
    dsi_ckpt_manifest *m = d->m;
    const shards s = {m->tensors, m->slices, m->n_tensors / d->n_model};
    piece *pieces = dsi_arena_array(m->arena, MOST_PIECES, sizeof *pieces);
    if (pieces == NULL) {
        return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
    }
    if (s.n * d->n_model != m->n_tensors) {
        return ds_fail(d->ctx, DS_ERR_FORMAT,
                       "%s: the model-parallel ranks have different numbers of parameters",
                       d->folder);
    }
    m->tensors = NULL;
    m->slices = NULL;
    m->n_tensors = m->n_slices = 0;
    d->room_tensors = d->room_slices = 0;
    for (size_t i = 0; i < s.n; ++i) {
        DS_TRY(join_tensor(d, &s, i, pieces));
    }
    return DS_OK;
}
