/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing a manifest: the checksum line first, then every member, nothing trusted.
 *
 * 1. The text ends with the checksum line, and the XXH3-64 of all before it is that number.
 * 2. Members have their types; numbers are not negative; names are plain words or file names.
 * 3. Slices lie inside of their tensor, cover it exactly, and name a listed shard.
 */
#include "ckpt/ckpt_internal.h"

#include "io/json_load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct parse {
    ds_ctx *ctx;
    const char *path;
    dsi_ckpt_manifest *m;
    bool *full_out; /* set when the arena had no room: then any error is ERR_NOMEM */
} parse;

static ds_status bad(const parse *p, const char *what)
{
    return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: not a right manifest: %s", p->path, what);
}

static ds_status no_memory(const parse *p)
{
    return ds_fail(p->ctx, DS_ERR_NOMEM, "out of memory reading %s", p->path);
}

static bool read_hex(const char *text, uint64_t *value_out)
{
    uint64_t value = 0;
    for (int i = 0; i < 16; ++i) {
        const char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return false;
        }
        value = value << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *value_out = value;
    return true;
}

static ds_status check_digest(const parse *p, const char *text, size_t n)
{
    static const char before[] = "\"checksum\": \"";
    static const char after[] = "\"\n}\n";
    const size_t n_before = sizeof before - 1;
    const size_t n_tail = n_before + 16 + sizeof after - 1;
    const char *tail = n >= n_tail ? text + n - n_tail : NULL;
    uint64_t want = 0;
    if (tail == NULL || memcmp(tail, before, n_before) != 0 ||
        memcmp(tail + n_before + 16, after, sizeof after - 1) != 0 ||
        !read_hex(tail + n_before, &want)) {
        return ds_fail(p->ctx, DS_ERR_CORRUPT,
                       "%s does not end with its checksum line: it is cut short, or was changed "
                       "after it was written",
                       p->path);
    }
    if (XXH3_64bits(text, n - n_tail) != want) {
        return ds_fail(p->ctx, DS_ERR_CORRUPT,
                       "%s does not have its checksum: it was changed after it was written",
                       p->path);
    }
    p->m->digest = want;
    return DS_OK;
}

static bool get_count(const json_t *object, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return false;
    }
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool get_text(const parse *p, const json_t *object, const char *key, const char **out)
{
    const char *text = json_string_value(json_object_get(object, key));
    *out = text != NULL ? dsi_arena_strdup(p->m->arena, text) : NULL;
    *p->full_out |= text != NULL && *out == NULL;
    return *out != NULL;
}

static bool get_digest(const json_t *object, uint64_t *out)
{
    const json_t *value = json_object_get(object, "xxh3");
    return json_is_string(value) && json_string_length(value) == 16 &&
           read_hex(json_string_value(value), out);
}

/* A list of exactly or at most n numbers >= 0. */
static bool get_list(const json_t *value, size_t max, bool exactly, int64_t *out, uint32_t *n_out)
{
    const size_t n = json_array_size(value);
    if (!json_is_array(value) || n > max || (exactly && n != max)) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0) {
            return false;
        }
        out[i] = json_integer_value(item);
    }
    *n_out = (uint32_t)n;
    return true;
}

static ds_status read_head(const parse *p, const json_t *root)
{
    ds_checkpoint_info *info = &p->m->info;
    const char *format = json_string_value(json_object_get(root, "format"));
    uint64_t version = 0;
    if (format == NULL || strcmp(format, DSI_CKPT_FORMAT) != 0 ||
        !get_count(root, "version", &version)) {
        return bad(p, "format or version");
    }
    if (version != DSI_CKPT_VERSION) {
        return ds_fail(p->ctx, DS_ERR_UNSUPPORTED,
                       "%s has format version %llu, this program reads version %d: use the program "
                       "that saved it, or a newer one",
                       p->path, (unsigned long long)version, DSI_CKPT_VERSION);
    }
    if (!get_count(root, "step", &info->step) || !get_count(root, "samples", &info->samples) ||
        !get_count(root, "tokens", &info->tokens)) {
        return bad(p, "step, samples or tokens");
    }
    if (!get_text(p, root, "tag", &info->tag) || !dsi_ckpt_is_tag(info->tag) ||
        !get_text(p, root, "optimizer", &info->optimizer)) {
        return bad(p, "tag or optimizer");
    }
    return DS_OK;
}

static ds_status read_states(const parse *p, json_t *states)
{
    dsi_ckpt_manifest *m = p->m;
    const char *key;
    json_t *value;
    if (!json_is_object(states)) {
        return bad(p, "states");
    }
    m->states = dsi_arena_array(m->arena, json_object_size(states) + 1, sizeof *m->states);
    if (m->states == NULL) {
        return no_memory(p);
    }
    json_object_foreach(states, key, value)
    {
        if (!dsi_ckpt_is_word(key)) {
            return bad(p, "name of a state");
        }
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        ds_text_pair pair = {dsi_arena_strdup(m->arena, key),
                             text != NULL ? dsi_arena_strdup(m->arena, text) : NULL};
        free(text);
        if (pair.key == NULL || pair.value == NULL) {
            return no_memory(p);
        }
        m->states[m->n_states++] = pair;
    }
    return DS_OK;
}

static ds_status read_shards(const parse *p, const json_t *shards)
{
    dsi_ckpt_manifest *m = p->m;
    const size_t n = json_array_size(shards);
    if (!json_is_array(shards) || n == 0 || n > UINT32_MAX) {
        return bad(p, "shards");
    }
    m->shards = dsi_arena_array(m->arena, n, sizeof *m->shards);
    if (m->shards == NULL) {
        return no_memory(p);
    }
    for (size_t i = 0; i < n; ++i) {
        const json_t *object = json_array_get(shards, i);
        dsi_ckpt_shard *shard = &m->shards[i];
        if (!get_text(p, object, "file", &shard->file) ||
            !get_count(object, "bytes", &shard->bytes) || !get_digest(object, &shard->digest)) {
            return bad(p, "a shard needs file, bytes and xxh3");
        }
        if (json_object_get(object, "host") != NULL && !get_text(p, object, "host", &shard->host)) {
            return bad(p, "the host of a shard");
        }
        if (!dsi_path_is_plain(shard->file)) {
            return ds_fail(p->ctx, DS_ERR_FORMAT,
                           "%s: expected the name of a file in this folder, found '%.80s'", p->path,
                           shard->file);
        }
        m->info.bytes += shard->bytes;
    }
    m->n_shards = n;
    m->info.n_shards = (uint32_t)n;
    return DS_OK;
}

static ds_status read_slice(const parse *p, const json_t *object, const ds_checkpoint_tensor *t,
                            dsi_ckpt_slice *slice)
{
    uint64_t shard = 0;
    uint32_t n = 0;
    int64_t range[2];
    const uint32_t n_dims = t->meta.shape.n_dims;
    const json_t *flat = json_object_get(object, "flat");
    bool right = get_count(object, "shard", &shard) && shard < p->m->n_shards &&
                 get_text(p, object, "entry", &slice->entry) && get_digest(object, &slice->digest);
    if (flat != NULL) {
        right = right && get_list(flat, 2, true, range, &n);
        slice->extent = right ? ds_extent_flat(range[0], range[1]) : ds_extent_flat(0, 0);
    } else {
        right =
            right &&
            get_list(json_object_get(object, "offset"), n_dims, true, slice->extent.offset, &n) &&
            get_list(json_object_get(object, "lengths"), n_dims, true, slice->extent.lengths, &n);
    }
    if (!right || !dsi_extent_is_inside(&slice->extent, t->meta.shape)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: a slice of tensor '%s/%s' is wrong", p->path,
                       t->kind, t->name);
    }
    slice->shard = (uint32_t)shard;
    return DS_OK;
}

static ds_status read_slices(const parse *p, const json_t *slices, ds_checkpoint_tensor *t)
{
    dsi_ckpt_manifest *m = p->m;
    const size_t n = json_array_size(slices);
    t->first_slice = (uint32_t)m->n_slices;
    t->n_slices = (uint32_t)n;
    ds_extent *extents = calloc(n + 1, sizeof *extents);
    if (extents == NULL) {
        return no_memory(p);
    }
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        dsi_ckpt_slice *slice = &m->slices[m->n_slices++];
        status = read_slice(p, json_array_get(slices, i), t, slice);
        extents[i] = slice->extent;
    }
    dsi_cover cover = DSI_COVER_EXACT;
    if (status == DS_OK && dsi_extent_cover(extents, n, t->meta.shape, &cover) < 0) {
        status = no_memory(p);
    }
    if (status == DS_OK && cover != DSI_COVER_EXACT) {
        status = ds_fail(p->ctx, DS_ERR_FORMAT, "%s: the slices of tensor '%s/%s' %s", p->path,
                         t->kind, t->name, cover == DSI_COVER_GAP ? "leave a gap" : "overlap");
    }
    free(extents);
    return status;
}

static ds_status read_tensor(const parse *p, const json_t *object, ds_checkpoint_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(object, "dtype"));
    if (!get_text(p, object, "kind", &t->kind) || !dsi_ckpt_is_word(t->kind) ||
        !get_text(p, object, "name", &t->name) || dtype == NULL) {
        return bad(p, "a tensor needs kind, name and dtype");
    }
    t->meta.dtype = ds_dtype_from_safetensors(dtype);
    if (t->meta.dtype == DS_DTYPE_NONE ||
        !get_list(json_object_get(object, "shape"), DS_MAX_DIMS, false, t->meta.shape.dims,
                  &t->meta.shape.n_dims) ||
        ds_meta_bytes(t->meta) > SIZE_MAX / 4) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s/%s' has a wrong dtype or shape",
                       p->path, t->kind, t->name);
    }
    return read_slices(p, json_object_get(object, "slices"), t);
}

static ds_status read_tensors(const parse *p, const json_t *tensors)
{
    dsi_ckpt_manifest *m = p->m;
    const size_t n = json_array_size(tensors);
    size_t n_slices = 0;
    if (!json_is_array(tensors)) {
        return bad(p, "tensors");
    }
    for (size_t i = 0; i < n; ++i) {
        n_slices += json_array_size(json_object_get(json_array_get(tensors, i), "slices"));
    }
    m->tensors = dsi_arena_array(m->arena, n + 1, sizeof *m->tensors);
    m->slices = dsi_arena_array(m->arena, n_slices + 1, sizeof *m->slices);
    if (m->tensors == NULL || m->slices == NULL || n_slices > UINT32_MAX) {
        return no_memory(p);
    }
    for (size_t i = 0; i < n; ++i) {
        ds_checkpoint_tensor *t = &m->tensors[i];
        DS_TRY(read_tensor(p, json_array_get(tensors, i), t));
        if (i > 0 && dsi_ckpt_compare_tensors(&m->tensors[i - 1], t) >= 0) {
            return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s/%s' is twice or out of order",
                           p->path, t->kind, t->name);
        }
        m->n_tensors = i + 1;
    }
    return DS_OK;
}

static ds_status read_root(const parse *p, json_t *root)
{
    if (!json_is_object(root)) {
        return bad(p, "expected an object");
    }
    DS_TRY(read_head(p, root));
    DS_TRY(read_states(p, json_object_get(root, "states")));
    DS_TRY(read_shards(p, json_object_get(root, "shards")));
    return read_tensors(p, json_object_get(root, "tensors"));
}

ds_status dsi_ckpt_manifest_parse(ds_ctx *ctx, const char *path, const char *text, size_t n,
                                  dsi_ckpt_manifest *m)
{
    bool full = false;
    const parse p = {.ctx = ctx, .path = path, .m = m, .full_out = &full};
    if (n > DSI_CKPT_MANIFEST_BYTES) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than %zu bytes", path,
                       DSI_CKPT_MANIFEST_BYTES);
    }
    DS_TRY(check_digest(&p, text, n));
    json_t *root = NULL;
    DS_TRY(dsi_json_load(ctx, path, text, n, 0, DS_ERR_FORMAT, &root));
    const ds_status status = read_root(&p, root);
    json_decref(root);
    return status < 0 && full ? no_memory(&p) : status;
}
