/* SPDX-License-Identifier: Apache-2.0 */
/* See ckpt_distcp.h. Nothing is believed: every chunk lies inside of its file, has the shape that
 * the metadata says, and the chunks of a tensor cover it exactly. */
#include "ckpt/ckpt_distcp.h"

#include "io/pickle.h"
#include "io/safetensors_internal.h"
#include "io/torch_file.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { MOST_CHUNKS = 4096, NAME_BYTES = 1024, FOR_BYTE = 256 };

/* A chunk that is stored, by the metadata. */
typedef struct stored_chunk {
    const char *name, *file;
    const dsi_pickle *offset; /* a tuple */
    int64_t begin, length;    /* bytes in the file */
} stored_chunk;

typedef struct reading {
    ds_ctx *ctx;
    const char *folder, *path; /* of .metadata */
    dsi_ckpt_manifest *m;
    dsi_arena *values; /* of the pickle */
    const dsi_pickle *tensors, *names;
    stored_chunk *chunks; /* by name */
    size_t n_chunks;
} reading;

static ds_status bad(const reading *r, const char *name, const char *what)
{
    return ds_fail(r->ctx, DS_ERR_FORMAT, "%s: %s%.160s%s%s", r->path, name != NULL ? "'" : "",
                   name != NULL ? name : "", name != NULL ? "' " : "", what);
}

static ds_status no_memory(const reading *r)
{
    return ds_fail(r->ctx, DS_ERR_NOMEM, "no memory to read %s", r->folder);
}

bool dsi_ckpt_distcp_is(const char *folder)
{
    char **names = NULL;
    size_t n = 0;
    bool metadata = false;
    bool files = false;
    if (dsi_folder_list(NULL, folder, &names, &n) < 0) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        const size_t length = strlen(names[i]);
        metadata = metadata || strcmp(names[i], ".metadata") == 0;
        files = files || (length > 7 && strcmp(names[i] + length - 7, ".distcp") == 0);
    }
    dsi_names_free(names, n);
    return metadata && files;
}

/* ---- the metadata ---- */

/* An attribute of an instance of a class of torch.distributed.checkpoint. */
static const dsi_pickle *attribute(const dsi_pickle *object, const char *name)
{
    return dsi_pickle_is(object, DSI_PICKLE_OBJECT) ? dsi_pickle_get(object->object.state, name)
                                                    : NULL;
}

static bool is_of(const dsi_pickle *object, const char *name)
{
    return dsi_pickle_is(object, DSI_PICKLE_OBJECT) && strcmp(object->object.cls->name, name) == 0;
}

static int compare_chunks(const void *a, const void *b)
{
    return strcmp(((const stored_chunk *)a)->name, ((const stored_chunk *)b)->name);
}

static ds_status read_chunks(reading *r, const dsi_pickle *stored)
{
    const size_t n = dsi_pickle_is(stored, DSI_PICKLE_DICT) ? dsi_pickle_count(stored) : 0;
    r->chunks = dsi_arena_array(r->values, n + 1, sizeof *r->chunks);
    if (r->chunks == NULL) {
        return no_memory(r);
    }
    for (size_t i = 0; i < n; ++i) {
        const dsi_pickle *key = stored->list.items[2 * i];
        const dsi_pickle *info = stored->list.items[2 * i + 1];
        stored_chunk *c = &r->chunks[r->n_chunks++];
        c->name = dsi_pickle_text(attribute(key, "fqn"));
        c->offset = attribute(key, "offset");
        c->file = dsi_pickle_text(attribute(info, "relative_path"));
        const dsi_pickle *changed = attribute(info, "transform_descriptors");
        if (c->name == NULL || c->file == NULL ||
            !dsi_pickle_whole(attribute(info, "offset"), &c->begin) ||
            !dsi_pickle_whole(attribute(info, "length"), &c->length) || c->begin < 0 ||
            c->length < 0) {
            return bad(r, c->name, "has no file, offset and length in storage_data");
        }
        if (!dsi_path_is_plain(c->file)) {
            return bad(r, c->name, "is stored in something that is no plain file name");
        }
        if (changed != NULL && changed->kind != DSI_PICKLE_NONE) {
            return ds_fail(r->ctx, DS_ERR_UNSUPPORTED, "%s: '%.160s' is stored transformed",
                           r->path, c->name);
        }
    }
    qsort(r->chunks, r->n_chunks, sizeof *r->chunks, compare_chunks);
    return DS_OK;
}

static ds_status read_metadata(reading *r, const dsi_map *map)
{
    const dsi_pickle_source source = {.path = r->path, .data = map->data, .n = map->size};
    dsi_pickle *root = NULL;
    DS_TRY(dsi_pickle_load(r->ctx, &source, r->values, &root));
    if (!is_of(root, "Metadata")) {
        return bad(r, NULL, "it is no Metadata of torch.distributed.checkpoint");
    }
    r->tensors = attribute(root, "state_dict_metadata");
    r->names = attribute(root, "planner_data");
    if (!dsi_pickle_is(r->tensors, DSI_PICKLE_DICT)) {
        return bad(r, NULL, "state_dict_metadata is no dict");
    }
    return read_chunks(r, attribute(root, "storage_data"));
}

/* ---- names ---- */

static void join(const dsi_pickle *path, size_t first, size_t end, char *name)
{
    size_t at = 0;
    name[0] = '\0';
    for (size_t i = first; i < end; ++i) {
        const char *text = dsi_pickle_text(dsi_pickle_at(path, i));
        const int n = text != NULL
                          ? snprintf(name + at, NAME_BYTES - at, "%s%s", i > first ? "." : "", text)
                          : -1;
        if (n < 0 || (size_t)n >= NAME_BYTES - at) {
            name[0] = '\0'; /* a number among the keys, or too long: no name of a parameter */
            return;
        }
        at += (size_t)n;
    }
}

static bool is_one_of(const char *text, const char *a, const char *b)
{
    return text != NULL && (strcmp(text, a) == 0 || strcmp(text, b) == 0);
}

/* Kind and name of a tensor by its path through the dicts that were saved; false: it is none of a
 * model or its moments. */
static bool name_of(const reading *r, const char *key, const char **kind_out, char *name)
{
    static const char *const moments[][2] = {
        {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}, {"momentum_buffer", "momentum"}};
    const dsi_pickle *path = dsi_pickle_get(r->names, key);
    const size_t n = dsi_pickle_count(path);
    size_t first = 0;
    *kind_out = "param";
    if (!dsi_pickle_is(path, DSI_PICKLE_TUPLE) || n < 2) {
        (void)snprintf(name, NAME_BYTES, "%s", key);
        return strlen(key) < NAME_BYTES;
    }
    first += is_one_of(dsi_pickle_text(dsi_pickle_at(path, first)), "app", "state") && n > 2;
    const char *part = dsi_pickle_text(dsi_pickle_at(path, first));
    if (is_one_of(part, "model", "module")) {
        join(path, first + 1, n, name);
        return name[0] != '\0';
    }
    const char *last = dsi_pickle_text(dsi_pickle_at(path, n - 1));
    if (!is_one_of(part, "optim", "optimizer") || n < first + 4 || last == NULL ||
        !is_one_of(dsi_pickle_text(dsi_pickle_at(path, first + 1)), "state", "state")) {
        return false;
    }
    for (size_t i = 0; i < sizeof moments / sizeof moments[0]; ++i) {
        if (strcmp(last, moments[i][0]) == 0) {
            *kind_out = moments[i][1];
            join(path, first + 2, n - 1, name);
            return name[0] != '\0';
        }
    }
    return false;
}

/* ---- files ---- */

static ds_status need_file(reading *r, const char *file, uint32_t *shard_out)
{
    dsi_ckpt_manifest *m = r->m;
    for (uint32_t i = 0; i < m->n_shards; ++i) {
        if (strcmp(m->shards[i].file, file) == 0) {
            *shard_out = i;
            return DS_OK;
        }
    }
    dsi_ckpt_shard *shard = &m->shards[m->n_shards];
    char *path = dsi_path_join(r->folder, file);
    dsi_map map = {0};
    shard->file = dsi_arena_strdup(m->arena, file);
    ds_status status = path != NULL && shard->file != NULL ? DS_OK : no_memory(r);
    status = status >= 0 ? dsi_map_open(r->ctx, path, DSI_MAP_NO_LINK, &map) : status;
    free(path);
    DS_TRY(status);
    *shard_out = (uint32_t)m->n_shards++; /* it is closed with the checkpoint from now on */
    status = dsi_safetensors_create(r->ctx, 1, &shard->st);
    if (status < 0) {
        dsi_map_close(&map);
        return status;
    }
    shard->st->files[0].map = map;
    shard->st->n_files = 1;
    shard->bytes = map.size;
    m->info.bytes += map.size;
    return DS_OK;
}

/* ---- tensors ---- */

static bool read_dims(const dsi_pickle *dims, ds_shape *shape_out)
{
    const size_t n = dsi_pickle_count(dims);
    *shape_out = (ds_shape){.n_dims = (uint32_t)n};
    if (!dsi_pickle_is(dims, DSI_PICKLE_TUPLE) || n > DS_MAX_DIMS) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        if (!dsi_pickle_whole(dsi_pickle_at(dims, i), &shape_out->dims[i]) ||
            shape_out->dims[i] < 0) {
            return false;
        }
    }
    const int64_t count = ds_shape_count(*shape_out);
    return count >= 0 && count < INT64_C(1) << 56;
}

/* Whether the metadata lists a chunk of this place and size. */
static bool is_listed(const dsi_pickle *tensor, ds_shape offset, ds_shape sizes)
{
    const dsi_pickle *list = attribute(tensor, "chunks");
    for (size_t i = 0; i < dsi_pickle_count(list); ++i) {
        ds_shape o;
        ds_shape s;
        const dsi_pickle *chunk = dsi_pickle_at(list, i);
        if (read_dims(attribute(chunk, "offsets"), &o) &&
            read_dims(attribute(chunk, "sizes"), &s) && ds_shape_equal(o, offset) &&
            ds_shape_equal(s, sizes)) {
            return true;
        }
    }
    return false;
}

/* A chunk as a slice of the newest tensor; the dtype is that of the first. */
static ds_status add_chunk(reading *r, const dsi_pickle *tensor, const stored_chunk *c, bool first)
{
    dsi_ckpt_manifest *m = r->m;
    ds_checkpoint_tensor *t = &m->tensors[m->n_tensors - 1];
    uint32_t shard = 0;
    dsi_torch_file file = {0};
    ds_shape offset;
    char place[2 * NAME_BYTES];
    DS_TRY(need_file(r, c->file, &shard));
    const dsi_map *map = &m->shards[shard].st->files[0].map;
    (void)snprintf(place, sizeof place, "%s/%.200s at %lld", r->folder, c->file,
                   (long long)c->begin);
    if ((uint64_t)c->begin > map->size || (uint64_t)c->length > map->size - (uint64_t)c->begin) {
        return bad(r, c->name, "is stored beyond the end of its file");
    }
    DS_TRY(dsi_torch_parse(r->ctx, place, map->data + c->begin, (size_t)c->length, &file));
    const dsi_pickle_tensor *value =
        dsi_pickle_is(file.root, DSI_PICKLE_TENSOR) ? file.root->tensor : NULL;
    const uint8_t *data = value != NULL ? dsi_pickle_dense(value) : NULL;
    const ds_dtype dtype = value != NULL ? dsi_pickle_dtype(value) : DS_DTYPE_NONE;
    const ds_shape sizes = value != NULL ? value->shape : (ds_shape){0};
    dsi_torch_close(&file); /* data is of the map */
    if (data == NULL || dtype == DS_DTYPE_NONE) {
        return ds_fail(r->ctx, DS_ERR_FORMAT, "%s holds no tensor in row-major order", place);
    }
    t->meta.dtype = first ? dtype : t->meta.dtype;
    if (!read_dims(c->offset, &offset) || !is_listed(tensor, offset, sizes) ||
        t->meta.dtype != dtype || offset.n_dims != t->meta.shape.n_dims) {
        return bad(r, c->name, "has a chunk that its list of chunks does not have");
    }
    ds_extent box = ds_extent_box(offset.n_dims, offset.dims, sizes.dims);
    const int64_t count = ds_shape_count(sizes);
    if (ds_shape_equal(sizes, t->meta.shape)) {
        box = ds_extent_flat(0, count);
    }
    ds_safetensor *stored = dsi_arena_alloc(m->arena, sizeof *stored);
    if (stored == NULL) {
        return no_memory(r);
    }
    if (!dsi_extent_is_inside(&box, t->meta.shape)) {
        return bad(r, c->name, "has a chunk that lies outside of it");
    }
    *stored = (ds_safetensor){.name = t->name,
                              .meta = {dtype, sizes},
                              .data = data,
                              .bytes = (size_t)count * ds_dtype_bytes(dtype),
                              .path = m->shards[shard].file};
    m->slices[m->n_slices++] = (dsi_ckpt_slice){
        .shard = shard, .entry = t->name, .extent = box, .stored = stored, .verified = true};
    m->parts[m->n_parts++] = (dsi_ckpt_part){shard, (size_t)c->begin, (size_t)c->length};
    ++t->n_slices;
    return DS_OK;
}

static bool overlap(const ds_extent *a, const ds_extent *b, uint32_t n_dims)
{
    for (uint32_t i = 0; i < n_dims; ++i) {
        if (a->offset[i] >= b->offset[i] + b->lengths[i] ||
            b->offset[i] >= a->offset[i] + a->lengths[i]) {
            return false;
        }
    }
    return true;
}

/* The chunks have each element once. */
static ds_status check_cover(const reading *r, const char *key)
{
    const dsi_ckpt_manifest *m = r->m;
    const ds_checkpoint_tensor *t = &m->tensors[m->n_tensors - 1];
    const dsi_ckpt_slice *slices = &m->slices[t->first_slice];
    int64_t count = 0;
    for (uint32_t i = 0; i < t->n_slices; ++i) {
        count += ds_extent_count(&slices[i].extent, t->meta.shape);
        for (uint32_t k = 0; k < i; ++k) {
            if (slices[i].extent.flat || slices[k].extent.flat ||
                overlap(&slices[i].extent, &slices[k].extent, t->meta.shape.n_dims)) {
                return bad(r, key, "has chunks that overlap");
            }
        }
    }
    return count == ds_shape_count(t->meta.shape) ? DS_OK
                                                  : bad(r, key, "has chunks that do not cover it");
}

static ds_status add_tensor(reading *r, const char *key, const dsi_pickle *tensor)
{
    dsi_ckpt_manifest *m = r->m;
    char name[NAME_BYTES];
    const char *kind = NULL;
    ds_meta meta = {DS_DTYPE_NONE, {0}};
    const stored_chunk wanted = {.name = key};
    if (!name_of(r, key, &kind, name)) {
        return DS_OK;
    }
    if (!read_dims(attribute(tensor, "size"), &meta.shape)) {
        return bad(r, key, "has a size that is none");
    }
    stored_chunk *c = bsearch(&wanted, r->chunks, r->n_chunks, sizeof *r->chunks, compare_chunks);
    const stored_chunk *end = r->chunks + r->n_chunks;
    while (c != NULL && c > r->chunks && strcmp(c[-1].name, key) == 0) {
        --c;
    }
    m->tensors[m->n_tensors++] = (ds_checkpoint_tensor){.kind = kind,
                                                        .name = dsi_arena_strdup(m->arena, name),
                                                        .meta = meta,
                                                        .first_slice = (uint32_t)m->n_slices};
    if (m->tensors[m->n_tensors - 1].name == NULL) {
        return no_memory(r);
    }
    for (uint32_t n = 0; c != NULL && c < end && strcmp(c->name, key) == 0; ++c, ++n) {
        if (n == MOST_CHUNKS) {
            return ds_fail(r->ctx, DS_ERR_LIMIT, "%s: '%.160s' has more than %d chunks", r->path,
                           key, (int)MOST_CHUNKS);
        }
        DS_TRY(add_chunk(r, tensor, c, n == 0));
    }
    if (m->tensors[m->n_tensors - 1].n_slices == 0) {
        return bad(r, key, "has no chunk in storage_data");
    }
    return check_cover(r, key);
}

static ds_status finish(reading *r, const char *tag)
{
    dsi_ckpt_manifest *m = r->m;
    qsort(m->tensors, m->n_tensors, sizeof *m->tensors, dsi_ckpt_compare_tensors);
    for (size_t i = 1; i < m->n_tensors; ++i) {
        if (dsi_ckpt_compare_tensors(&m->tensors[i - 1], &m->tensors[i]) == 0) {
            return bad(r, m->tensors[i].name, "is there twice");
        }
    }
    if (m->n_tensors == 0) {
        return bad(r, NULL, "it lists no tensor of a model");
    }
    m->info.tag = dsi_arena_strdup(m->arena, tag);
    m->info.optimizer = "unknown";
    m->info.n_shards = (uint32_t)m->n_shards;
    m->states = dsi_arena_array(m->arena, 1, sizeof *m->states);
    if (m->info.tag == NULL || m->states == NULL) {
        return no_memory(r);
    }
    m->states[m->n_states++] =
        (ds_text_pair){"origin", "{\"program\":\"torch.distributed.checkpoint\"}"};
    return DS_OK;
}

static ds_status read_all(reading *r, const char *tag, const dsi_map *map)
{
    dsi_ckpt_manifest *m = r->m;
    DS_TRY(read_metadata(r, map));
    const size_t n = dsi_pickle_count(r->tensors);
    m->digest = XXH3_64bits(map->data, map->size);
    m->shards = dsi_arena_array(m->arena, r->n_chunks + 1, sizeof *m->shards);
    m->slices = dsi_arena_array(m->arena, r->n_chunks + 1, sizeof *m->slices);
    m->parts = dsi_arena_array(m->arena, r->n_chunks + 1, sizeof *m->parts);
    m->tensors = dsi_arena_array(m->arena, n + 1, sizeof *m->tensors);
    if (m->shards == NULL || m->slices == NULL || m->parts == NULL || m->tensors == NULL) {
        return no_memory(r);
    }
    for (size_t i = 0; i < n; ++i) {
        const char *key = dsi_pickle_text(r->tensors->list.items[2 * i]);
        const dsi_pickle *tensor = r->tensors->list.items[2 * i + 1];
        const bool again = key != NULL && dsi_pickle_get(r->tensors, key) != tensor;
        if (key == NULL || again) {
            return bad(r, key, "is no name, or there twice, in state_dict_metadata");
        }
        if (is_of(tensor, "TensorStorageMetadata")) {
            DS_TRY(add_tensor(r, key, tensor));
        }
    }
    return finish(r, tag);
}

ds_status dsi_ckpt_distcp_read(ds_ctx *ctx, const char *folder, const char *tag,
                               dsi_ckpt_manifest *m)
{
    char *path = dsi_path_join(folder, ".metadata");
    reading r = {.ctx = ctx, .folder = folder, .path = path, .m = m};
    dsi_map map = {0};
    ds_status status = path != NULL ? DS_OK : no_memory(&r);
    m->foreign = true;
    status = status >= 0 ? dsi_map_open(ctx, path, DSI_MAP_NO_LINK, &map) : status;
    if (status >= 0 && map.size > DSI_PICKLE_BYTES) {
        status = ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than %zu bytes", path, DSI_PICKLE_BYTES);
    }
    if (status >= 0 && dsi_arena_create(map.size * FOR_BYTE + ((size_t)1 << 20), &r.values) < 0) {
        status = no_memory(&r);
    }
    status = status >= 0 ? read_all(&r, tag, &map) : status;
    dsi_arena_destroy(&r.values);
    dsi_map_close(&map);
    free(path);
    return status;
}
