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

/* What the ranks' files had, before it was joined. */
typedef struct shards {
    const ds_checkpoint_tensor *tensors; /* [n_model][n] */
    const dsi_ckpt_slice *slices;
    size_t n;
} shards;

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

bool dsi_deepspeed_logical(const dsi_deepspeed *d, const char *name, ds_shape *shape_out)
{
    const dsi_pickle *map = find_map(d, name);
    return map != NULL && read_numbers(dsi_pickle_get(map, "logical_shape"), shape_out);
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
static bool read_piece(const dsi_pickle *value, ds_shape whole, dsi_deepspeed_piece *p)
{
    const dsi_pickle *source = dsi_pickle_get(value, "source");
    const dsi_pickle *dest = dsi_pickle_get(value, "dest");
    int64_t at = 0;
    int64_t below = ds_shape_count(whole);
    if (!read_numbers(dsi_pickle_get(value, "shape"), &p->box.shape) ||
        p->box.shape.n_dims != whole.n_dims || !dsi_pickle_whole(dsi_pickle_at(source, 0), &at) ||
        !dsi_pickle_whole(dsi_pickle_at(dest, 0), &p->begin) || at < 0 || p->begin < 0 ||
        at > below || p->begin > below ||
        !is_row_major(dsi_pickle_at(source, 1), whole, p->box.shape) ||
        !is_row_major(dsi_pickle_at(dest, 1), p->box.shape, p->box.shape)) {
        return false;
    }
    for (uint32_t i = 0; i < whole.n_dims; ++i) {
        below = whole.dims[i] > 0 ? below / whole.dims[i] : 0;
        p->box.offset[i] = below > 0 ? at / below : 0;
        at -= p->box.offset[i] * below;
        if (p->box.shape.dims[i] > whole.dims[i] - p->box.offset[i]) {
            return false;
        }
    }
    return true;
}

ds_status dsi_deepspeed_pieces(const dsi_deepspeed *d, const char *name, uint32_t mp,
                               ds_shape shard, ds_shape *whole_out, dsi_deepspeed_piece *pieces,
                               size_t *n_out)
{
    const dsi_pickle *map = find_map(d, name);
    const dsi_pickle *own = of_rank(dsi_pickle_get(map, "ranks"), mp);
    const dsi_pickle *list = dsi_pickle_get(own, "pieces");
    const size_t n = dsi_pickle_count(list);
    ds_shape has;
    if (map == NULL || !read_numbers(dsi_pickle_get(map, "logical_shape"), whole_out)) {
        return bad(d, name,
                   "has no logical_shape, without which the ranks' shards cannot be joined "
                   "(versions before 0.19 do not write it: convert with ds_to_universal)");
    }
    if (!read_numbers(dsi_pickle_get(own, "shard_shape"), &has) || !ds_shape_equal(has, shard)) {
        return bad(d, name, "has another shard_shape than the ranks' param_shapes");
    }
    for (size_t k = 0; k < n; ++k) {
        const dsi_pickle *value = dsi_pickle_at(list, k);
        int64_t first = -1;
        (void)dsi_pickle_whole(dsi_pickle_at(dsi_pickle_get(value, "locations"), 0), &first);
        if (k >= DSI_DEEPSPEED_PIECES || !read_piece(value, *whole_out, &pieces[k]) ||
            ds_shape_count(pieces[k].box.shape) > ds_shape_count(shard) - pieces[k].begin) {
            return bad(d, name,
                       "has a piece that is no box of it in one run of a shard, or "
                       "more pieces than are read");
        }
        pieces[k].first = first == (int64_t)mp;
    }
    *n_out = n;
    return DS_OK;
}

/* ---- pieces out of the shards ---- */

typedef struct run {
    dsi_deepspeed *d;
    uint32_t shard;
    const uint8_t *data; /* of element `from` of the piece */
    int64_t from;
} run;

static ds_status add_box(void *user, const ds_extent *extent, int64_t first)
{
    const run *r = user;
    const ds_dtype dtype = r->d->m->tensors[r->d->m->n_tensors - 1].meta.dtype;
    return dsi_deepspeed_part(r->d, r->shard, extent,
                              r->data + (size_t)(first - r->from) * ds_dtype_bytes(dtype));
}

/* A piece out of the flat slices of a rank's shard. */
static ds_status add_piece(dsi_deepspeed *d, const shards *s, const ds_checkpoint_tensor *shard,
                           const dsi_deepspeed_piece *p)
{
    const int64_t count = ds_shape_count(p->box.shape);
    for (uint32_t k = 0; k < shard->n_slices; ++k) {
        const dsi_ckpt_slice *slice = &s->slices[shard->first_slice + k];
        const int64_t begin = slice->extent.begin - p->begin;
        const int64_t end = begin + slice->extent.count;
        const int64_t low = begin > 0 ? begin : 0;
        const int64_t high = end < count ? end : count;
        if (low < high) {
            run r = {d, slice->shard, slice->stored->data, begin};
            DS_TRY(dsi_box_runs(&p->box, low, high, add_box, &r));
        }
    }
    return DS_OK;
}

/* ---- tensors ---- */

static bool overlap(const dsi_box *a, const dsi_box *b)
{
    for (uint32_t i = 0; i < a->shape.n_dims; ++i) {
        if (a->offset[i] >= b->offset[i] + b->shape.dims[i] ||
            b->offset[i] >= a->offset[i] + a->shape.dims[i]) {
            return false;
        }
    }
    return true;
}

/* What the reading of a tensor's pieces fills. */
typedef struct joined {
    dsi_deepspeed_piece *own; /* of a rank; [DSI_DEEPSPEED_PIECES] */
    dsi_deepspeed_piece *all; /* that are taken; likewise */
    size_t n;
} joined;

/* The pieces of which a rank is the first. */
static ds_status add_rank(dsi_deepspeed *d, const shards *s, size_t i, uint32_t mp, joined *j)
{
    const ds_checkpoint_tensor *shard = &s->tensors[(size_t)mp * s->n + i];
    ds_meta meta = {shard->meta.dtype, {0}};
    size_t n = 0;
    DS_TRY(dsi_deepspeed_pieces(d, shard->name, mp, shard->meta.shape, &meta.shape, j->own, &n));
    if (mp == 0) {
        DS_TRY(dsi_deepspeed_tensor_of(d, shard->kind, shard->name, meta));
    }
    for (size_t k = 0; k < n; ++k) {
        const dsi_deepspeed_piece *p = &j->own[k];
        if (!p->first) {
            continue;
        }
        if (j->n == DSI_DEEPSPEED_PIECES) {
            return bad(d, shard->name, "has more pieces than are read");
        }
        for (size_t q = 0; q < j->n; ++q) {
            if (overlap(&j->all[q].box, &p->box)) {
                return bad(d, shard->name, "has pieces that overlap");
            }
        }
        j->all[j->n++] = *p;
        DS_TRY(add_piece(d, s, shard, p));
    }
    return DS_OK;
}

static ds_status join_tensor(dsi_deepspeed *d, const shards *s, size_t i, joined *j)
{
    const ds_checkpoint_tensor *first = &s->tensors[i];
    j->n = 0;
    for (uint32_t mp = 0; mp < d->n_model; ++mp) {
        const ds_checkpoint_tensor *t = &s->tensors[(size_t)mp * s->n + i];
        if (strcmp(t->name, first->name) != 0 || strcmp(t->kind, first->kind) != 0 ||
            t->meta.dtype != first->meta.dtype) {
            return bad(d, first->name, "is another parameter in the file of another rank");
        }
        DS_TRY(add_rank(d, s, i, mp, j));
    }
    return dsi_deepspeed_end_tensor(d);
}

ds_status dsi_deepspeed_join(dsi_deepspeed *d)
{
    dsi_ckpt_manifest *m = d->m;
    const shards s = {m->tensors, m->slices, m->n_tensors / d->n_model};
    joined j = {dsi_arena_array(m->arena, DSI_DEEPSPEED_PIECES, sizeof *j.own),
                dsi_arena_array(m->arena, DSI_DEEPSPEED_PIECES, sizeof *j.all), 0};
    if (j.own == NULL || j.all == NULL) {
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
        DS_TRY(join_tensor(d, &s, i, &j));
    }
    return DS_OK;
}
