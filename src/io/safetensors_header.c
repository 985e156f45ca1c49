/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file: parsed by jansson, then every entry checked against the file.
 *
 * 1. 8 + header size <= file size; the header is UTF-8 JSON, an object, without duplicate keys.
 * 2. An entry has exactly dtype, shape and data_offsets, of the right types.
 * 3. bytes of shape and dtype == end - begin, computed without overflow.
 * 4. Sorted by begin, each entry begins where the one before ended; the last ends with the file.
 */
#include "io/safetensors_internal.h"

#include "io/json_load.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct parse {
    ds_safetensors *st;
    ds_ctx *ctx;
    const char *path;
    const uint8_t *data; /* of the whole file */
    size_t data_begin;   /* offset of the tensors' bytes in it */
    size_t data_bytes;
} parse;

/* Dtypes that the format has and this library has not. */
static const char *const foreign_dtypes[] = {"U16", "I16",     "U32",     "U64",
                                             "C64", "F6_E2M3", "F6_E3M2", "F4"};

static ds_status read_dtype(const parse *p, const char *name, const json_t *value, ds_dtype *out)
{
    const char *text = json_string_value(value);
    if (text == NULL) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s': dtype is missing or not a text",
                       p->path, name);
    }
    *out = ds_dtype_from_safetensors(text);
    if (*out != DS_DTYPE_NONE) {
        return DS_OK;
    }
    for (size_t i = 0; i < sizeof foreign_dtypes / sizeof foreign_dtypes[0]; ++i) {
        if (strcmp(text, foreign_dtypes[i]) == 0) {
            return ds_fail(p->ctx, DS_ERR_UNSUPPORTED,
                           "%s: tensor '%s' has dtype %s, which is not supported; convert it to "
                           "F32, BF16 or F16",
                           p->path, name, text);
        }
    }
    return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s' has the unknown dtype '%.40s'", p->path,
                   name, text);
}

static ds_status read_shape(const parse *p, const char *name, const json_t *value, ds_shape *out)
{
    const size_t n = json_array_size(value);
    if (!json_is_array(value)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s': shape is missing or not a list",
                       p->path, name);
    }
    if (n > DS_MAX_DIMS) {
        return ds_fail(p->ctx, DS_ERR_UNSUPPORTED,
                       "%s: tensor '%s' has %zu dimensions, at most %d are supported", p->path,
                       name, n, DS_MAX_DIMS);
    }
    *out = (ds_shape){.n_dims = (uint32_t)n};
    for (size_t i = 0; i < n; ++i) {
        const json_t *dim = json_array_get(value, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0) {
            return ds_fail(p->ctx, DS_ERR_FORMAT,
                           "%s: tensor '%s': dimension %zu of its shape is not a number >= 0",
                           p->path, name, i);
        }
        out->dims[i] = json_integer_value(dim);
    }
    return DS_OK;
}

static ds_status read_offsets(const parse *p, const char *name, const json_t *value,
                              uint64_t *begin_out, uint64_t *end_out)
{
    const json_t *begin = json_array_get(value, 0);
    const json_t *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT,
                       "%s: tensor '%s': data_offsets is missing or not a pair of whole numbers",
                       p->path, name);
    }
    const json_int_t b = json_integer_value(begin);
    const json_int_t e = json_integer_value(end);
    if (b < 0 || e < b || (uint64_t)e > p->data_bytes) {
        return ds_fail(p->ctx, DS_ERR_FORMAT,
                       "%s: tensor '%s': data_offsets [%lld,%lld] are not inside of the file's %zu "
                       "bytes of data (is the file cut short?)",
                       p->path, name, (long long)b, (long long)e, p->data_bytes);
    }
    *begin_out = (uint64_t)b;
    *end_out = (uint64_t)e;
    return DS_OK;
}

/* Bytes of the tensor; false when they do not fit a size_t. */
static bool count_bytes(const ds_meta *meta, size_t *bytes_out)
{
    size_t bytes = ds_dtype_bytes(meta->dtype);
    for (uint32_t i = 0; i < meta->shape.n_dims; ++i) {
        if (meta->shape.dims[i] == 0) {
            *bytes_out = 0;
            return true;
        }
    }
    for (uint32_t i = 0; i < meta->shape.n_dims; ++i) {
        if (!dsi_mul_size(bytes, (size_t)meta->shape.dims[i], &bytes)) {
            return false;
        }
    }
    *bytes_out = bytes;
    return true;
}

static ds_status read_entry(const parse *p, const char *name, const json_t *value,
                            ds_safetensor *out)
{
    uint64_t begin = 0;
    uint64_t end = 0;
    ds_safetensor t = {.path = p->path};
    if (!json_is_object(value) || name[0] == '\0') {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: entry '%s' of the header is not a tensor",
                       p->path, name);
    }
    DS_TRY(read_dtype(p, name, json_object_get(value, "dtype"), &t.meta.dtype));
    DS_TRY(read_shape(p, name, json_object_get(value, "shape"), &t.meta.shape));
    DS_TRY(read_offsets(p, name, json_object_get(value, "data_offsets"), &begin, &end));
    if (json_object_size(value) != 3) {
        return ds_fail(p->ctx, DS_ERR_FORMAT,
                       "%s: tensor '%s' has more keys than dtype, shape and data_offsets", p->path,
                       name);
    }
    char meta[128];
    if (!count_bytes(&t.meta, &t.bytes)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: tensor '%s': the size of %s overflows", p->path,
                       name, ds_meta_text(t.meta, meta, sizeof meta));
    }
    if (t.bytes != end - begin) {
        return ds_fail(p->ctx, DS_ERR_FORMAT,
                       "%s: tensor '%s': %s has %zu bytes, its data_offsets [%llu,%llu] span %llu",
                       p->path, name, ds_meta_text(t.meta, meta, sizeof meta), t.bytes,
                       (unsigned long long)begin, (unsigned long long)end,
                       (unsigned long long)(end - begin));
    }
    t.file_offset = p->data_begin + begin;
    t.data = t.bytes > 0 ? p->data + t.file_offset : NULL;
    t.name = dsi_arena_strdup(p->st->arena, name);
    if (t.name == NULL) {
        return ds_fail(p->ctx, DS_ERR_NOMEM, "out of memory opening %s", p->path);
    }
    *out = t;
    return DS_OK;
}

static ds_status read_metadata(const parse *p, json_t *object)
{
    ds_safetensors *st = p->st;
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: __metadata__ is not an object", p->path);
    }
    ds_text_pair *pairs =
        dsi_arena_array(st->arena, json_object_size(object) + 1, sizeof(ds_text_pair));
    size_t n = 0;
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value)) {
            return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: __metadata__: '%s' is not a text", p->path,
                           key);
        }
        ds_text_pair pair = {dsi_arena_strdup(st->arena, key),
                             dsi_arena_strdup(st->arena, json_string_value(value))};
        if (pairs == NULL || pair.key == NULL || pair.value == NULL) {
            return ds_fail(p->ctx, DS_ERR_NOMEM, "out of memory opening %s", p->path);
        }
        pairs[n++] = pair;
    }
    if (st->metadata == NULL) {
        st->metadata = pairs;
        st->n_metadata = n;
    }
    return DS_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const ds_safetensor *x = a;
    const ds_safetensor *y = b;
    if (x->file_offset != y->file_offset) {
        return x->file_offset < y->file_offset ? -1 : 1;
    }
    if (x->bytes != y->bytes) { /* an empty one first: it ends where it begins */
        return x->bytes < y->bytes ? -1 : 1;
    }
    return 0;
}

/* qsort is free to swap equals: empty tensors at one place are ordered by name for sameness. */
static int compare_places(const void *a, const void *b)
{
    const int order = compare_offsets(a, b);
    return order != 0 ? order
                      : strcmp(((const ds_safetensor *)a)->name, ((const ds_safetensor *)b)->name);
}

static ds_status check_cover(const parse *p, const ds_safetensor *entries, size_t n)
{
    uint64_t at = p->data_begin;
    for (size_t i = 0; i < n; ++i) {
        const ds_safetensor *t = &entries[i];
        if (t->file_offset != at) {
            return ds_fail(p->ctx, DS_ERR_FORMAT,
                           t->file_offset < at
                               ? "%s: the data of tensor '%s' overlaps that of another"
                               : "%s: unused bytes before the data of tensor '%s'",
                           p->path, t->name);
        }
        at += t->bytes;
    }
    const uint64_t end = (uint64_t)p->data_begin + p->data_bytes;
    if (at != end) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: %llu bytes after the data of the last tensor",
                       p->path, (unsigned long long)(end - at));
    }
    return DS_OK;
}

static ds_status read_root(const parse *p, json_t *root)
{
    ds_safetensors *st = p->st;
    const size_t n_new = json_object_size(root);
    const char *name;
    json_t *value;
    if (!json_is_object(root)) {
        return ds_fail(p->ctx, DS_ERR_FORMAT, "%s: the header is not a JSON object", p->path);
    }
    DS_TRY(dsi_safetensors_grow(st, n_new));
    ds_safetensor *first = st->entries + st->n_entries;
    size_t n = 0;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) {
            DS_TRY(read_metadata(p, value));
        } else {
            DS_TRY(read_entry(p, name, value, &first[n]));
            ++n;
        }
    }
    qsort(first, n, sizeof *first, compare_places);
    DS_TRY(check_cover(p, first, n));
    st->n_entries += n;
    return DS_OK;
}

static uint64_t read_u64(const uint8_t *p)
{
    uint64_t value = 0;
    for (int i = 7; i >= 0; --i) {
        value = value << 8 | p[i];
    }
    return value;
}

ds_status dsi_safetensors_parse(ds_safetensors *st, const char *path, const uint8_t *data, size_t n)
{
    parse p = {.st = st, .ctx = st->ctx, .path = path, .data = data};
    if (n < 8) {
        return ds_fail(p.ctx, DS_ERR_FORMAT,
                       "%s: %zu bytes are too few for a safetensors file (is it cut short?)", path,
                       n);
    }
    const uint64_t header = read_u64(data);
    if (header > DSI_SAFETENSORS_MAX_HEADER) {
        return ds_fail(p.ctx, DS_ERR_LIMIT,
                       "%s: no safetensors file: its header would have %llu bytes, the limit is "
                       "%llu",
                       path, (unsigned long long)header,
                       (unsigned long long)DSI_SAFETENSORS_MAX_HEADER);
    }
    if (header > n - 8) {
        return ds_fail(p.ctx, DS_ERR_FORMAT,
                       "%s: the header should have %llu bytes, the file has %zu more (is it cut "
                       "short?)",
                       path, (unsigned long long)header, n - 8);
    }
    p.data_begin = 8 + (size_t)header;
    p.data_bytes = n - p.data_begin;
    char label[1024];
    json_t *root = NULL;
    (void)snprintf(label, sizeof label, "%s: JSON header", path);
    DS_TRY(dsi_json_load(p.ctx, label, (const char *)data + 8, (size_t)header, 0, DS_ERR_FORMAT,
                         &root));
    const ds_status status = read_root(&p, root);
    json_decref(root);
    return status;
}
