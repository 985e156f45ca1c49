/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a checkpoint: open, look up, read parts, verify. */
#include "base/process_memory.h"
#include "ckpt/ckpt_internal.h"

#include "ckpt/ckpt_deepspeed.h"
#include "ckpt/ckpt_distcp.h"
#include "io/convert.h"
#include "io/safetensors_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define ARENA_BYTES ((size_t)4 << 30)

struct ds_checkpoint {
    ds_ctx *ctx;
    char *dir;    /* SAVE_DIR */
    char *folder; /* SAVE_DIR/TAG */
    dsi_ckpt_depth depth;
    dsi_ckpt_manifest m;
};

void ds_checkpoint_close(ds_checkpoint **ckpt_inout)
{
    ds_checkpoint *c = ckpt_inout != NULL ? *ckpt_inout : NULL;
    if (c == NULL) {
        return;
    }
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        ds_safetensors_close(&c->m.shards[i].st);
    }
    dsi_arena_destroy(&c->m.arena);
    free(c->folder);
    free(c->dir);
    free(c);
    *ckpt_inout = NULL;
}

ds_status dsi_ckpt_read_latest(ds_ctx *ctx, const char *dir, char *tag)
{
    char *path = dsi_path_join(dir, DSI_CKPT_LATEST);
    dsi_map map = {0};
    if (path == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory reading %s", dir);
    }
    ds_status status = dsi_map_open(ctx, path, 0, &map);
    if (status == DS_ERR_NOT_FOUND) { /* DeepSpeed's ds_to_universal writes a file of its own */
        free(path);
        path = dsi_path_join(dir, DSI_CKPT_LATEST "_universal");
        status = path != NULL && dsi_map_open(NULL, path, 0, &map) == DS_OK
                     ? DS_OK
                     : ds_fail(ctx, DS_ERR_NOT_FOUND, "%s has no file 'latest'", dir);
    }
    if (status == DS_OK) {
        size_t n = map.size < 256 ? map.size : 255;
        memcpy(tag, map.size > 0 ? (const char *)map.data : "", n);
        while (n > 0 && (tag[n - 1] == '\n' || tag[n - 1] == '\r' || tag[n - 1] == ' ')) {
            --n;
        }
        tag[n] = '\0';
        if (strlen(tag) != n || !dsi_ckpt_is_tag(tag)) {
            status = ds_fail(ctx, DS_ERR_FORMAT,
                             "%s: expected the tag of a checkpoint, found '%.60s'", path, tag);
        }
    }
    dsi_map_close(&map);
    free(path);
    return status;
}

static ds_status load_manifest(ds_checkpoint *c)
{
    char *path = dsi_path_join(c->folder, DSI_CKPT_MANIFEST);
    dsi_map map = {0};
    if (path == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "out of memory reading %s", c->folder);
    }
    ds_status status = dsi_map_open(c->ctx, path, DSI_MAP_NO_LINK, &map);
    if (status == DS_OK) {
        status = dsi_ckpt_manifest_parse(c->ctx, path, (const char *)map.data, map.size, &c->m);
    }
    dsi_map_close(&map);
    free(path);
    return status;
}

static bool has_manifest(const ds_checkpoint *c)
{
    char *path = dsi_path_join(c->folder, DSI_CKPT_MANIFEST);
    const bool has = path == NULL || access(path, F_OK) == 0;
    free(path);
    return has;
}

/* ---- shards ---- */

ds_ctx *dsi_ckpt_ctx(const ds_checkpoint *c)
{
    return c->ctx;
}

dsi_ckpt_manifest *dsi_ckpt_manifest_of(ds_checkpoint *c)
{
    return &c->m;
}

uint64_t dsi_ckpt_manifest_digest(const ds_checkpoint *c)
{
    return c->m.digest;
}

size_t dsi_ckpt_n_absent(const ds_checkpoint *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        n += c->m.shards[i].absent;
    }
    return n;
}

/* Names the shards that other hosts hold. */
static ds_status fail_absent(const ds_checkpoint *c)
{
    enum { NAMED = 8 };
    char text[1024] = "";
    size_t at = 0;
    size_t n = 0;
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        const dsi_ckpt_shard *shard = &c->m.shards[i];
        if (shard->absent && n++ < NAMED && at < sizeof text) {
            const int k = snprintf(text + at, sizeof text - at, "%s%s (on host %s)",
                                   at > 0 ? ", " : "", shard->file, shard->host);
            at += k > 0 ? (size_t)k : 0;
        }
    }
    return ds_fail(c->ctx, DS_ERR_NOT_FOUND,
                   "%s lacks %zu of its %zu shards: %s%s; bring them into this folder, or save "
                   "into a folder that all hosts share",
                   c->folder, n, c->m.n_shards, text, n > NAMED ? ", ..." : "");
}

/* The size is looked at first: it tells more than the parser of a file that was cut. */
static ds_status check_shard(const ds_checkpoint *c, dsi_ckpt_shard *shard)
{
    char *path = dsi_path_join(c->folder, shard->file);
    dsi_map map = {0};
    if (path == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "out of memory reading %s", c->folder);
    }
    ds_status status = dsi_map_open(c->ctx, path, DSI_MAP_NO_LINK, &map);
    const size_t bytes = map.size;
    dsi_map_close(&map);
    if (status == DS_OK && bytes != shard->bytes) {
        status = ds_fail(c->ctx, DS_ERR_CORRUPT, "%s has %zu bytes, the manifest lists %llu", path,
                         bytes, (unsigned long long)shard->bytes);
    }
    shard->absent = status == DS_ERR_NOT_FOUND && shard->host != NULL;
    free(path);
    return shard->absent ? DS_OK : status;
}

/* Maps a shard unless it is mapped. */
static ds_status need_shard(const ds_checkpoint *c, dsi_ckpt_shard *shard)
{
    if (shard->st != NULL) {
        return DS_OK;
    }
    if (shard->absent) {
        return fail_absent(c);
    }
    char *path = dsi_path_join(c->folder, shard->file);
    if (path == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "out of memory reading %s", c->folder);
    }
    const ds_status status = dsi_safetensors_open_flags(c->ctx, path, DSI_MAP_NO_LINK, &shard->st);
    free(path);
    return status;
}

/* Finds the entry of a slice and compares it with what the manifest says. */
static ds_status need_slice(const ds_checkpoint *c, const ds_checkpoint_tensor *t,
                            dsi_ckpt_slice *slice)
{
    dsi_ckpt_shard *shard = &c->m.shards[slice->shard];
    if (slice->stored != NULL) {
        return DS_OK;
    }
    DS_TRY(need_shard(c, shard));
    const ds_safetensor *stored = ds_safetensors_find(shard->st, slice->entry);
    if (stored == NULL) {
        return ds_fail(c->ctx, DS_ERR_CORRUPT, "%s/%s lacks the tensor '%s'", c->folder,
                       shard->file, slice->entry);
    }
    if (stored->meta.dtype != t->meta.dtype ||
        !ds_shape_equal(stored->meta.shape, dsi_ckpt_entry_shape(&slice->extent, t->meta.shape))) {
        return ds_fail(c->ctx, DS_ERR_CORRUPT, "%s/%s: tensor '%s' is not what the manifest lists",
                       c->folder, shard->file, slice->entry);
    }
    slice->stored = stored;
    return DS_OK;
}

/* Everything at once, for DSI_CKPT_WHOLE. */
static ds_status need_all(const ds_checkpoint *c)
{
    if (dsi_ckpt_n_absent(c) > 0) {
        return fail_absent(c);
    }
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        DS_TRY(need_shard(c, &c->m.shards[i]));
    }
    for (size_t i = 0; i < c->m.n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &c->m.tensors[i];
        for (uint32_t k = 0; k < t->n_slices; ++k) {
            DS_TRY(need_slice(c, t, &c->m.slices[t->first_slice + k]));
        }
    }
    return DS_OK;
}

/* ---- opening ---- */

static int compare_begins(const void *a, const void *b)
{
    const ds_extent *x = &((const dsi_ckpt_slice *)a)->extent;
    const ds_extent *y = &((const dsi_ckpt_slice *)b)->extent;
    return x->begin != y->begin ? (x->begin > y->begin ? 1 : -1)
                                : (x->count > y->count) - (x->count < y->count);
}

/* Puts flat slices in the order of their elements, so that reads find theirs by bisection. */
static void order_slices(const ds_checkpoint *c, bool *ascending)
{
    for (size_t i = 0; i < c->m.n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &c->m.tensors[i];
        dsi_ckpt_slice *slices = &c->m.slices[t->first_slice];
        ascending[i] = true;
        for (uint32_t k = 0; k < t->n_slices; ++k) {
            ascending[i] = ascending[i] && slices[k].extent.flat;
        }
        if (ascending[i] && t->n_slices > 1) {
            qsort(slices, t->n_slices, sizeof *slices, compare_begins);
        }
    }
}

static ds_status open_folder(ds_checkpoint *c, const char *dir, const char *tag)
{
    if (!dsi_ckpt_is_tag(tag)) {
        return ds_fail(c->ctx, DS_ERR_ARG, "'%s' is not the tag of a checkpoint", tag);
    }
    c->dir = strdup(dir);
    c->folder = dsi_folder_resolve(dir, tag);
    if (c->dir == NULL || c->folder == NULL || dsi_arena_create(ARENA_BYTES, &c->m.arena) < 0) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "out of memory opening %s", dir);
    }
    const bool own = has_manifest(c);
    if (!own && dsi_ckpt_deepspeed_is(c->folder)) {
        DS_TRY(dsi_ckpt_deepspeed_read(c->ctx, c->folder, tag, &c->m));
    } else if (!own && dsi_ckpt_distcp_is(c->folder)) {
        DS_TRY(dsi_ckpt_distcp_read(c->ctx, c->folder, tag, &c->m));
    } else {
        DS_TRY(load_manifest(c));
    }
    c->m.info.path = c->folder;
    c->m.ascending = dsi_arena_array(c->m.arena, c->m.n_tensors + 1, sizeof *c->m.ascending);
    if (c->m.ascending == NULL) {
        return ds_fail(c->ctx, DS_ERR_NOMEM, "out of memory opening %s", dir);
    }
    order_slices(c, c->m.ascending);
    if (c->m.foreign) {
        return DS_OK; /* its reader has mapped and compared all of it */
    }
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        DS_TRY(check_shard(c, &c->m.shards[i]));
    }
    return c->depth == DSI_CKPT_WHOLE ? need_all(c) : DS_OK;
}

ds_status dsi_ckpt_open_tag(ds_ctx *ctx, const char *dir, const char *tag, dsi_ckpt_depth depth,
                            ds_checkpoint **ckpt_out)
{
    ds_checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening %s", dir);
    }
    c->ctx = ctx;
    c->depth = depth;
    const ds_status status = open_folder(c, dir, tag);
    if (status < 0) {
        ds_checkpoint_close(&c);
        return status;
    }
    *ckpt_out = c;
    return DS_OK;
}

const ds_checkpoint_info *ds_checkpoint_get_info(const ds_checkpoint *c)
{
    return &c->m.info;
}

size_t ds_checkpoint_count(const ds_checkpoint *c)
{
    return c->m.n_tensors;
}

const ds_checkpoint_tensor *ds_checkpoint_at(const ds_checkpoint *c, size_t i)
{
    return i < c->m.n_tensors ? &c->m.tensors[i] : NULL;
}

const ds_checkpoint_tensor *ds_checkpoint_find(const ds_checkpoint *c, const char *kind,
                                               const char *name)
{
    const ds_checkpoint_tensor key = {.kind = kind, .name = name};
    return c->m.n_tensors > 0
               ? bsearch(&key, c->m.tensors, c->m.n_tensors, sizeof key, dsi_ckpt_compare_tensors)
               : NULL;
}

bool ds_checkpoint_get_shard(const ds_checkpoint *c, size_t i, ds_checkpoint_shard *shard_out)
{
    if (i >= c->m.n_shards) {
        return false;
    }
    const dsi_ckpt_shard *shard = &c->m.shards[i];
    *shard_out =
        (ds_checkpoint_shard){.file = shard->file, .bytes = shard->bytes, .host = shard->host};
    return true;
}

const char *ds_checkpoint_state(const ds_checkpoint *c, const char *section)
{
    for (size_t i = 0; i < c->m.n_states; ++i) {
        if (strcmp(c->m.states[i].key, section) == 0) {
            return c->m.states[i].value;
        }
    }
    return NULL;
}

const char *ds_checkpoint_state_name(const ds_checkpoint *c, size_t i)
{
    return i < c->m.n_states ? c->m.states[i].key : NULL;
}

/* Damage of the data shows only now: the error gets the offer that open would have made. */
static ds_status with_offer(ds_checkpoint *c, ds_status status)
{
    return dsi_ckpt_fail_with_offer(c->ctx, status, c->dir, c->m.info.tag);
}

ds_status dsi_ckpt_verify_slice(ds_checkpoint *c, const ds_checkpoint_tensor *t,
                                dsi_ckpt_slice *slice)
{
    const ds_status bound = need_slice(c, t, slice);
    if (bound < 0) {
        return bound == DS_ERR_NOMEM ? bound : with_offer(c, bound);
    }
    const ds_safetensor *stored = slice->stored;
    if (!slice->verified && XXH3_64bits(stored->data, stored->bytes) != slice->digest) {
        return with_offer(c, ds_fail(c->ctx, DS_ERR_CORRUPT,
                                     "%s: the data of tensor '%s/%s' does not have its checksum",
                                     stored->path, t->kind, t->name));
    }
    slice->verified = true;
    return DS_OK;
}

static bool is_ascending(const ds_checkpoint *c, const ds_checkpoint_tensor *t)
{
    return c->m.ascending[t - c->m.tensors];
}

/* The first slice of a tensor that may hold element `first` or one behind it. */
static uint32_t first_slice(const ds_checkpoint *c, const ds_checkpoint_tensor *t, int64_t first)
{
    uint32_t low = 0;
    uint32_t high = is_ascending(c, t) ? t->n_slices : 0;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const ds_extent *e = &c->m.slices[t->first_slice + middle].extent;
        if (e->begin + e->count <= first) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

ds_status ds_checkpoint_read(ds_checkpoint *c, const ds_checkpoint_tensor *t,
                             const ds_extent *extent, ds_dtype dtype, void *data)
{
    const ds_extent wanted = extent != NULL ? *extent : ds_extent_whole(t->meta.shape);
    char meta[128];
    if (!dsi_extent_is_inside(&wanted, t->meta.shape)) {
        return ds_fail(c->ctx, DS_ERR_SHAPE,
                       "%s: a part of tensor '%s/%s' was asked for that lies outside of %s",
                       c->folder, t->kind, t->name, ds_meta_text(t->meta, meta, sizeof meta));
    }
    if (!dsi_can_convert(t->meta.dtype, dtype)) {
        return ds_fail(c->ctx, DS_ERR_SHAPE,
                       "%s: tensor '%s/%s' is stored as %s, cannot be read as %s", c->folder,
                       t->kind, t->name, ds_dtype_name(t->meta.dtype), ds_dtype_name(dtype));
    }
    size_t overflows = 0;
    int64_t first = 0;
    int64_t end = 0;
    dsi_extent_span(&wanted, t->meta.shape, &first, &end);
    for (uint32_t k = first_slice(c, t, first); k < t->n_slices; ++k) {
        dsi_ckpt_slice *slice = &c->m.slices[t->first_slice + k];
        dsi_extent_copy copy = {.shape = t->meta.shape,
                                .from = &slice->extent,
                                .in_dtype = t->meta.dtype,
                                .to = &wanted,
                                .out_dtype = dtype};
        if (is_ascending(c, t) && slice->extent.begin >= end) {
            break;
        }
        if (dsi_extent_copy_run(&copy) == 0) {
            continue; /* counted only: out is still NULL */
        }
        DS_TRY(dsi_ckpt_verify_slice(c, t, slice));
        copy.in = slice->stored->data;
        copy.out = data;
        (void)dsi_extent_copy_run(&copy);
        overflows += copy.overflows;
    }
    if (overflows > 0) {
        return ds_fail(c->ctx, DS_ERR_NUMERIC,
                       "%s: %zu values of tensor '%s/%s' (%s) are beyond the range of %s",
                       c->folder, overflows, t->kind, t->name, ds_dtype_name(t->meta.dtype),
                       ds_dtype_name(dtype));
    }
    return DS_OK;
}

void dsi_ckpt_release(const ds_checkpoint *c, const ds_checkpoint_tensor *t)
{
    for (uint32_t k = 0; k < t->n_slices; ++k) {
        const ds_safetensor *stored = c->m.slices[t->first_slice + k].stored;
        if (stored != NULL) {
            dsi_process_memory_release(stored->data, stored->bytes);
        }
    }
}

ds_status ds_checkpoint_verify(ds_checkpoint *c)
{
    for (size_t i = 0; i < c->m.n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &c->m.tensors[i];
        for (uint32_t k = 0; k < t->n_slices; ++k) {
            DS_TRY(dsi_ckpt_verify_slice(c, t, &c->m.slices[t->first_slice + k]));
        }
        dsi_ckpt_release(c, t);
    }
    for (size_t i = 0; i < c->m.n_shards; ++i) {
        dsi_ckpt_shard *shard = &c->m.shards[i];
        DS_TRY(need_shard(c, shard));
        const dsi_map *map = &shard->st->files[0].map;
        if (c->m.foreign) {
            DS_TRY(c->m.n_parts == 0 ? dsi_torch_verify(c->ctx, shard->file, map->data, map->size)
                                     : DS_OK);
            continue;
        }
        if (XXH3_64bits(map->data, map->size) != shard->digest) {
            return with_offer(c, ds_fail(c->ctx, DS_ERR_CORRUPT, "%s/%s does not have its checksum",
                                         c->folder, shard->file));
        }
        dsi_process_memory_release(map->data, map->size);
    }
    for (size_t i = 0; i < c->m.n_parts; ++i) {
        const dsi_ckpt_part *part = &c->m.parts[i];
        const dsi_ckpt_shard *shard = &c->m.shards[part->shard];
        DS_TRY(dsi_torch_verify(c->ctx, shard->file, shard->st->files[0].map.data + part->begin,
                                part->bytes));
    }
    return DS_OK;
}
