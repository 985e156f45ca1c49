/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of all ranks, merged on rank 0.
 *
 * A rank sends its slices in the order of its shard (sorted by kind, name, call), then its states:
 *
 *     u64 slices, then for each: i32 dtype, u32 dims, i64 shape[dims], u8 flat, i64 extent[2 or
 *     2 * dims], texts kind, name and entry (u64 length, bytes)
 *     u64 states, then for each: texts section and JSON
 *
 * It sends u64 bytes and digest of its file and a digest a slice: before the shards are written
 * with digests of 0, so that the manifest's length is known, and after it. The bytes come from a
 * rank of the same program, so a list that does not parse is a bug or a damaged transport:
 * ERR_PEER.
 */
#include "ckpt/ckpt_writer.h"

#include <stdlib.h>
#include <string.h>

/* A slice in the merged list. */
typedef struct row {
    ds_checkpoint_tensor tensor;
    ds_extent extent;
    const char *entry;
    uint32_t shard;
    size_t order; /* in its shard */
} row;

typedef struct reader {
    const uint8_t *at, *end;
    bool failed;
} reader;

static ds_status no_memory(const ds_checkpoint_writer *w)
{
    return ds_fail(w->ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

/* ---- the own list ---- */

static int compare_pending(const void *a, const void *b)
{
    const dsi_ckpt_pending *x = a;
    const dsi_ckpt_pending *y = b;
    const int order = dsi_ckpt_compare_tensors(&x->tensor, &y->tensor);
    return order != 0 ? order : (x->order > y->order) - (x->order < y->order);
}

/* Sorts the own slices and names their entries: "#k" tells several slices of a tensor apart. */
static ds_status name_entries(ds_checkpoint_writer *w)
{
    if (w->n_pending > 0) {
        qsort(w->pending, w->n_pending, sizeof *w->pending, compare_pending);
    }
    size_t n = 0;
    for (size_t first = 0; first < w->n_pending; first += n) {
        dsi_ckpt_pending *p = &w->pending[first];
        for (n = 1;
             first + n < w->n_pending && dsi_ckpt_compare_tensors(&p->tensor, &p[n].tensor) == 0;) {
            ++n;
        }
        for (uint32_t k = 0; k < n; ++k) {
            p[k].entry =
                dsi_ckpt_entry_name(w->m.arena, p->tensor.kind, p->tensor.name, k, (uint32_t)n);
            if (p[k].entry == NULL) {
                return no_memory(w);
            }
        }
    }
    return DS_OK;
}

static void put(dsi_buf *out, const void *data, size_t n)
{
    dsi_buf_append(out, data, n);
}

static void put_u64(dsi_buf *out, uint64_t value)
{
    put(out, &value, sizeof value);
}

static void put_text(dsi_buf *out, const char *text)
{
    const size_t n = strlen(text);
    put_u64(out, n);
    put(out, text, n);
}

static void put_slice(dsi_buf *out, const dsi_ckpt_pending *p)
{
    const ds_shape *shape = &p->tensor.meta.shape;
    const int32_t dtype = (int32_t)p->tensor.meta.dtype;
    const uint8_t flat = p->extent.flat;
    put(out, &dtype, sizeof dtype);
    put(out, &shape->n_dims, sizeof shape->n_dims);
    put(out, shape->dims, shape->n_dims * sizeof shape->dims[0]);
    put(out, &flat, sizeof flat);
    if (flat) {
        put(out, &p->extent.begin, sizeof p->extent.begin);
        put(out, &p->extent.count, sizeof p->extent.count);
    } else {
        put(out, p->extent.offset, shape->n_dims * sizeof p->extent.offset[0]);
        put(out, p->extent.lengths, shape->n_dims * sizeof p->extent.lengths[0]);
    }
    put_text(out, p->tensor.kind);
    put_text(out, p->tensor.name);
    put_text(out, p->entry);
}

static ds_status put_table(const ds_checkpoint_writer *w, dsi_buf *out)
{
    put_u64(out, w->n_pending);
    for (size_t i = 0; i < w->n_pending; ++i) {
        put_slice(out, &w->pending[i]);
    }
    put_u64(out, w->m.n_states);
    for (size_t i = 0; i < w->m.n_states; ++i) {
        put_text(out, w->m.states[i].key);
        put_text(out, w->m.states[i].value);
    }
    return out->failed ? no_memory(w) : DS_OK;
}

/* ---- reading lists ---- */

static void get(reader *r, void *out, size_t n)
{
    memset(out, 0, n);
    if (r->failed || (size_t)(r->end - r->at) < n) {
        r->failed = true;
        return;
    }
    memcpy(out, r->at, n);
    r->at += n;
}

static uint64_t get_u64(reader *r)
{
    uint64_t value;
    get(r, &value, sizeof value);
    return value;
}

static ds_status get_text(ds_checkpoint_writer *w, reader *r, const char **text_out)
{
    const uint64_t n = get_u64(r);
    if (r->failed || n > (size_t)(r->end - r->at)) {
        r->failed = true;
        return DS_OK;
    }
    *text_out = dsi_arena_strndup(w->m.arena, (const char *)r->at, (size_t)n);
    r->at += n;
    return *text_out != NULL ? DS_OK : no_memory(w);
}

static ds_status get_slice(ds_checkpoint_writer *w, reader *r, row *out)
{
    ds_meta *meta = &out->tensor.meta;
    ds_extent *e = &out->extent;
    int32_t dtype = 0;
    uint8_t flat = 0;
    get(r, &dtype, sizeof dtype);
    get(r, &meta->shape.n_dims, sizeof meta->shape.n_dims);
    if (meta->shape.n_dims > DS_MAX_DIMS) {
        r->failed = true;
        return DS_OK;
    }
    meta->dtype = (ds_dtype)dtype;
    get(r, meta->shape.dims, meta->shape.n_dims * sizeof meta->shape.dims[0]);
    get(r, &flat, sizeof flat);
    e->flat = flat != 0;
    if (e->flat) {
        get(r, &e->begin, sizeof e->begin);
        get(r, &e->count, sizeof e->count);
    } else {
        get(r, e->offset, meta->shape.n_dims * sizeof e->offset[0]);
        get(r, e->lengths, meta->shape.n_dims * sizeof e->lengths[0]);
    }
    DS_TRY(get_text(w, r, &out->tensor.kind));
    DS_TRY(get_text(w, r, &out->tensor.name));
    return get_text(w, r, &out->entry);
}

static ds_status damaged(const ds_checkpoint_writer *w, uint32_t rank)
{
    return ds_fail(w->ctx, DS_ERR_PEER, "%s: the list that %s sent cannot be read", w->group.what,
                   dsi_comm_rank_name(w->group.comm, rank).text);
}

/* Takes rank's states: a section has one text, whoever gives it. */
static ds_status merge_states(ds_checkpoint_writer *w, reader *r, uint32_t rank)
{
    const uint64_t n = get_u64(r);
    for (uint64_t i = 0; i < n && !r->failed; ++i) {
        const char *key = "";
        const char *value = "";
        DS_TRY(get_text(w, r, &key));
        DS_TRY(get_text(w, r, &value));
        size_t k = 0;
        while (k < w->m.n_states && strcmp(w->m.states[k].key, key) != 0) {
            ++k;
        }
        if (r->failed || (k < w->m.n_states && strcmp(w->m.states[k].value, value) == 0)) {
            continue;
        }
        if (k < w->m.n_states) {
            return ds_fail(w->ctx, DS_ERR_ARG,
                           "checkpoint: %s gives another text for state '%s' than the ranks "
                           "before it; name a state by its rank where it differs",
                           dsi_comm_rank_name(w->group.comm, rank).text, key);
        }
        DS_TRY(dsi_ckpt_push_state(w, key, value));
    }
    return r->failed ? damaged(w, rank) : DS_OK;
}

/* ---- the merged list ---- */

static int compare_rows(const void *a, const void *b)
{
    const row *x = a;
    const row *y = b;
    const int order = dsi_ckpt_compare_tensors(&x->tensor, &y->tensor);
    if (order != 0 || x->shard != y->shard) {
        return order != 0 ? order : (x->shard > y->shard) - (x->shard < y->shard);
    }
    return (x->order > y->order) - (x->order < y->order);
}

/* One logical tensor of n rows: all alike, and covering it. */
static ds_status check_tensor(const ds_checkpoint_writer *w, const row *rows, size_t n)
{
    const ds_checkpoint_tensor *t = &rows[0].tensor;
    ds_extent *extents = calloc(n, sizeof *extents);
    if (extents == NULL) {
        return no_memory(w);
    }
    dsi_cover cover = DSI_COVER_EXACT;
    size_t other = 0;
    for (size_t i = 0; i < n; ++i) {
        extents[i] = rows[i].extent;
        if (rows[i].tensor.meta.dtype != t->meta.dtype ||
            !ds_shape_equal(rows[i].tensor.meta.shape, t->meta.shape)) {
            other = i;
        }
    }
    const ds_status status =
        other == 0 ? dsi_extent_cover(extents, n, t->meta.shape, &cover) : DS_OK;
    free(extents);
    if (status < 0) {
        return no_memory(w);
    }
    if (other > 0) {
        char a[128];
        char b[128];
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       "checkpoint: tensor '%s/%s' is given with different shapes or dtypes: %s by "
                       "%s, %s by %s",
                       t->kind, t->name, ds_meta_text(t->meta, a, sizeof a),
                       dsi_comm_rank_name(w->group.comm, rows[0].shard).text,
                       ds_meta_text(rows[other].tensor.meta, b, sizeof b),
                       dsi_comm_rank_name(w->group.comm, rows[other].shard).text);
    }
    if (cover != DSI_COVER_EXACT) {
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       cover == DSI_COVER_GAP
                           ? "checkpoint: the slices of tensor '%s/%s' do not cover it"
                           : "checkpoint: tensor '%s/%s' has elements that are given twice",
                       t->kind, t->name);
    }
    return DS_OK;
}

static ds_status fill_manifest(ds_checkpoint_writer *w, row *rows, size_t n_rows)
{
    dsi_ckpt_manifest *m = &w->m;
    qsort(rows, n_rows, sizeof *rows, compare_rows);
    m->tensors = dsi_arena_array(m->arena, n_rows + 1, sizeof *m->tensors);
    m->slices = dsi_arena_array(m->arena, n_rows + 1, sizeof *m->slices);
    if (m->tensors == NULL || m->slices == NULL) {
        return no_memory(w);
    }
    size_t n = 0;
    for (size_t first = 0; first < n_rows; first += n) {
        const row *r = &rows[first];
        for (n = 1;
             first + n < n_rows && dsi_ckpt_compare_tensors(&r->tensor, &r[n].tensor) == 0;) {
            ++n;
        }
        DS_TRY(check_tensor(w, r, n));
        ds_checkpoint_tensor *t = &m->tensors[m->n_tensors++];
        *t = r->tensor;
        t->first_slice = (uint32_t)first;
        t->n_slices = (uint32_t)n;
        for (size_t k = 0; k < n; ++k) {
            m->slices[m->n_slices++] = (dsi_ckpt_slice){.shard = r[k].shard,
                                                        .order = r[k].order,
                                                        .entry = r[k].entry,
                                                        .extent = r[k].extent};
        }
    }
    return DS_OK;
}

static ds_status name_shards(ds_checkpoint_writer *w)
{
    dsi_ckpt_manifest *m = &w->m;
    const uint32_t size = w->group.size;
    m->n_shards = size;
    m->info.n_shards = size;
    m->shards = dsi_arena_array(m->arena, size, sizeof *m->shards);
    for (uint32_t r = 0; r < size && m->shards != NULL; ++r) {
        char name[DSI_CKPT_SHARD_NAME];
        dsi_ckpt_shard_name(r, size, name);
        m->shards[r].file = dsi_arena_strdup(m->arena, name);
        m->shards[r].host = w->hosts != NULL ? w->hosts[r] : NULL;
        if (m->shards[r].file == NULL) {
            return no_memory(w);
        }
    }
    return m->shards != NULL ? DS_OK : no_memory(w);
}

/* Rank 0: parses the list of one rank; rows grow. */
static ds_status take_list(ds_checkpoint_writer *w, uint32_t rank, reader *r, row **rows,
                           size_t *n_rows)
{
    const uint64_t n = get_u64(r);
    if (r->failed || n > (size_t)(r->end - r->at) || n > UINT32_MAX - *n_rows) {
        return damaged(w, rank);
    }
    row *grown = realloc(*rows, (*n_rows + (size_t)n + 1) * sizeof *grown);
    if (grown == NULL) {
        return no_memory(w);
    }
    *rows = grown;
    for (uint64_t i = 0; i < n && !r->failed; ++i) {
        row *out = &grown[*n_rows + i];
        *out = (row){.shard = rank, .order = (size_t)i};
        DS_TRY(get_slice(w, r, out));
        if (!r->failed && (ds_meta_bytes(out->tensor.meta) > SIZE_MAX / 4 ||
                           !dsi_extent_is_inside(&out->extent, out->tensor.meta.shape))) {
            return damaged(w, rank);
        }
    }
    *n_rows += (size_t)n;
    return merge_states(w, r, rank);
}

static ds_status merge(ds_checkpoint_writer *w, const dsi_ckpt_pieces *pieces)
{
    row *rows = NULL;
    size_t n_rows = 0;
    ds_status status = name_shards(w);
    for (uint32_t r = 0; r < w->group.size && status == DS_OK; ++r) {
        reader list = {.at = pieces->data + pieces->at[r], .end = pieces->data + pieces->at[r + 1]};
        status = take_list(w, r, &list, &rows, &n_rows);
    }
    if (status == DS_OK) {
        status = fill_manifest(w, rows, n_rows);
    }
    free(rows);
    return status;
}

ds_status dsi_ckpt_table_merge(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    dsi_ckpt_pieces pieces = {0};
    dsi_buf list = dsi_buf_make(SIZE_MAX / 4);
    ds_status status = name_entries(w);
    if (status == DS_OK) {
        status = put_table(w, &list);
    }
    DS_TRY_GOTO(status, dsi_ckpt_agree(g, status), done);
    DS_TRY_GOTO(status, dsi_ckpt_to_root(g, list.data, list.size, &pieces), done);
    status = dsi_ckpt_agree(g, g->rank == 0 ? merge(w, &pieces) : DS_OK);
done:
    dsi_ckpt_pieces_free(&pieces);
    dsi_buf_free(&list);
    return status;
}

/* ---- checksums ---- */

static ds_status take_digests(ds_checkpoint_writer *w, const dsi_ckpt_pieces *pieces)
{
    dsi_ckpt_manifest *m = &w->m;
    for (uint32_t r = 0; r < w->group.size; ++r) {
        const uint64_t *words = (const uint64_t *)(const void *)(pieces->data + pieces->at[r]);
        if (pieces->at[r + 1] - pieces->at[r] < 2 * sizeof *words) {
            return damaged(w, r);
        }
        m->shards[r].bytes = words[0];
        m->shards[r].digest = words[1];
    }
    for (size_t i = 0; i < m->n_slices; ++i) {
        dsi_ckpt_slice *slice = &m->slices[i];
        const size_t at = pieces->at[slice->shard] + (2 + slice->order) * sizeof slice->digest;
        if (at + sizeof slice->digest > pieces->at[slice->shard + 1]) {
            return damaged(w, slice->shard);
        }
        memcpy(&slice->digest, pieces->data + at, sizeof slice->digest);
    }
    return DS_OK;
}

ds_status dsi_ckpt_table_room(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    const size_t n = w->n_pending + 2;
    w->report = calloc(n, sizeof *w->report);
    DS_TRY(dsi_ckpt_agree(g, w->report != NULL ? DS_OK : no_memory(w)));
    w->report[0] = w->shard_bytes;
    DS_TRY(dsi_ckpt_to_root(g, w->report, n * sizeof *w->report, &w->reports));
    return dsi_ckpt_agree(g, g->rank == 0 ? take_digests(w, &w->reports) : DS_OK);
}

ds_status dsi_ckpt_table_digests(ds_checkpoint_writer *w)
{
    dsi_ckpt_group *g = &w->group;
    const size_t n = w->n_pending + 2;
    DS_TRY(dsi_ckpt_to_root_again(g, w->report, n * sizeof *w->report, &w->reports));
    return dsi_ckpt_agree(g, g->rank == 0 ? take_digests(w, &w->reports) : DS_OK);
}
