/* SPDX-License-Identifier: Apache-2.0 */
/* Open safetensors: life, look-up, copies. The header is parsed in safetensors_header.c. */
#include "io/safetensors_internal.h"

#include "io/convert.h"
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)1 << 31)

ds_status dsi_safetensors_create(ds_ctx *ctx, size_t max_files, ds_safetensors **st_out)
{
    ds_safetensors *st = calloc(1, sizeof *st);
    if (st == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening safetensors");
    }
    st->ctx = ctx;
    st->files = calloc(max_files > 0 ? max_files : 1, sizeof *st->files);
    if (st->files == NULL || dsi_arena_create(ARENA_BYTES, &st->arena) < 0) {
        ds_safetensors_close(&st);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening safetensors");
    }
    *st_out = st;
    return DS_OK;
}

void ds_safetensors_close(ds_safetensors **st_inout)
{
    ds_safetensors *st = st_inout != NULL ? *st_inout : NULL;
    if (st == NULL) {
        return;
    }
    for (size_t i = 0; i < st->n_files; ++i) {
        dsi_map_close(&st->files[i].map);
    }
    dsi_arena_destroy(&st->arena);
    dsi_arena_destroy(&st->turned);
    free(st->files);
    free(st->entries);
    free(st->by_name);
    free(st);
    *st_inout = NULL;
}

ds_status dsi_safetensors_add_file(ds_safetensors *st, const char *path, uint32_t map_flags)
{
    dsi_st_file *file = &st->files[st->n_files];
    file->path = dsi_arena_strdup(st->arena, path);
    if (file->path == NULL) {
        return ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory opening %s", path);
    }
    DS_TRY(dsi_map_open(st->ctx, path, map_flags, &file->map));
    ++st->n_files;
    return dsi_safetensors_parse(st, file->path, file->map.data, file->map.size);
}

ds_status dsi_safetensors_grow(ds_safetensors *st, size_t n)
{
    ds_safetensor *grown = realloc(st->entries, (st->n_entries + n + 1) * sizeof *grown);
    if (grown == NULL) {
        return ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory listing %zu tensors", n);
    }
    st->entries = grown;
    return DS_OK;
}

static int compare_names(const void *a, const void *b)
{
    const ds_safetensor *x = *(const ds_safetensor *const *)a;
    const ds_safetensor *y = *(const ds_safetensor *const *)b;
    return strcmp(x->name, y->name);
}

ds_status dsi_safetensors_index(ds_safetensors *st)
{
    const size_t n = st->n_entries;
    st->by_name = calloc(n > 0 ? n : 1, sizeof(ds_safetensor *));
    if (st->by_name == NULL) {
        return ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory opening safetensors");
    }
    for (size_t i = 0; i < n; ++i) {
        st->by_name[i] = &st->entries[i];
    }
    qsort(st->by_name, n, sizeof(ds_safetensor *), compare_names);
    for (size_t i = 1; i < n; ++i) {
        const ds_safetensor *a = st->by_name[i - 1];
        const ds_safetensor *b = st->by_name[i];
        if (strcmp(a->name, b->name) == 0) {
            return ds_fail(st->ctx, DS_ERR_FORMAT, "tensor '%s' is twice: in %s and in %s", a->name,
                           a->path, b->path);
        }
    }
    return DS_OK;
}

ds_status dsi_safetensors_open_flags(ds_ctx *ctx, const char *path, uint32_t map_flags,
                                     ds_safetensors **st_out)
{
    ds_safetensors *st = NULL;
    DS_TRY(dsi_safetensors_create(ctx, 1, &st));
    ds_status status = dsi_safetensors_add_file(st, path, map_flags);
    if (status == DS_OK) {
        status = dsi_safetensors_index(st);
    }
    if (status < 0) {
        ds_safetensors_close(&st);
        return status;
    }
    *st_out = st;
    return DS_OK;
}

ds_status ds_safetensors_open(ds_ctx *ctx, const char *path, ds_safetensors **st_out)
{
    return dsi_safetensors_open_flags(ctx, path, 0, st_out);
}

size_t ds_safetensors_count(const ds_safetensors *st)
{
    return st->n_entries;
}

const ds_safetensor *ds_safetensors_at(const ds_safetensors *st, size_t i)
{
    return i < st->n_entries ? &st->entries[i] : NULL;
}

const ds_safetensor *ds_safetensors_find(const ds_safetensors *st, const char *name)
{
    size_t low = 0;
    size_t high = st->n_entries;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, st->by_name[middle]->name);
        if (order == 0) {
            return st->by_name[middle];
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

bool ds_safetensors_metadata(const ds_safetensors *st, size_t i, const char **key_out,
                             const char **value_out)
{
    if (i >= st->n_metadata) {
        return false;
    }
    *key_out = st->metadata[i].key;
    *value_out = st->metadata[i].value;
    return true;
}

ds_status ds_safetensors_read(ds_ctx *ctx, const ds_safetensor *tensor, ds_dtype dtype, void *data)
{
    if (!dsi_can_convert(tensor->meta.dtype, dtype)) {
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor '%s' is stored as %s, cannot be read as %s",
                       tensor->path, tensor->name, ds_dtype_name(tensor->meta.dtype),
                       ds_dtype_name(dtype));
    }
    const size_t n = tensor->bytes / ds_dtype_bytes(tensor->meta.dtype);
    const size_t overflows = dsi_convert(tensor->meta.dtype, tensor->data, dtype, data, n);
    if (overflows > 0) {
        return ds_fail(ctx, DS_ERR_NUMERIC,
                       "%s: %zu values of tensor '%s' (%s) are beyond the range of %s",
                       tensor->path, overflows, tensor->name, ds_dtype_name(tensor->meta.dtype),
                       ds_dtype_name(dtype));
    }
    return DS_OK;
}

bool dsi_safetensors_locate(const ds_safetensors *st, const void *data, const char **path_out,
                            uint64_t *offset_out)
{
    const uintptr_t at = (uintptr_t)data;
    for (size_t i = 0; i < st->n_files; ++i) {
        const dsi_st_file *file = &st->files[i];
        const uintptr_t begin = (uintptr_t)file->map.data;
        if (at >= begin && at - begin < file->map.size) {
            *path_out = file->path;
            *offset_out = at - begin;
            return true;
        }
    }
    return false;
}
