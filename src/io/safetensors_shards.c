/* SPDX-License-Identifier: Apache-2.0 */
/* A set of weight files with its index: how tensors are dealt to shards, and what stays of an
 * earlier set. The cut is that of huggingface_hub: tensors in order, a new shard when the next one
 * would pass the limit, a tensor above the limit by itself. */
#include "io/safetensors_write.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shards {
    ds_ctx *ctx;
    const char *folder;
    const ds_tensor_source *sources;
    size_t n;
    uint32_t *shard_of; /* by source */
    uint32_t n_shards;
    uint64_t total_bytes;
    uint64_t total_elements;
} shards;

static uint64_t stored_bytes(const ds_tensor_source *source)
{
    const ds_dtype stored = source->stored != DS_DTYPE_NONE ? source->stored : source->meta.dtype;
    return ds_meta_bytes((ds_meta){stored, source->meta.shape});
}

/* Numbers the shards in the order in which they are closed, as huggingface_hub does: one that holds
 * a too large tensor comes before the one that was open. */
static void deal(shards *s, uint64_t limit)
{
    uint64_t open_bytes = 0;
    size_t open_first = 0; /* sources of the open shard are marked UINT32_MAX */
    bool open = false;
    for (size_t i = 0; i < s->n; ++i) {
        const uint64_t bytes = stored_bytes(&s->sources[i]);
        s->total_bytes += bytes;
        s->total_elements += (uint64_t)ds_shape_count(s->sources[i].meta.shape);
        if (limit > 0 && bytes > limit) {
            s->shard_of[i] = s->n_shards++;
            continue;
        }
        if (limit > 0 && open && open_bytes + bytes > limit) {
            for (size_t k = open_first; k < i; ++k) {
                s->shard_of[k] = s->shard_of[k] == UINT32_MAX ? s->n_shards : s->shard_of[k];
            }
            ++s->n_shards;
            open = false;
        }
        if (!open) {
            open = true;
            open_first = i;
            open_bytes = 0;
        }
        s->shard_of[i] = UINT32_MAX;
        open_bytes += bytes;
    }
    if (open) {
        for (size_t k = open_first; k < s->n; ++k) {
            s->shard_of[k] = s->shard_of[k] == UINT32_MAX ? s->n_shards : s->shard_of[k];
        }
        ++s->n_shards;
    }
}

static void shard_name(const shards *s, uint32_t shard, char *name, size_t n)
{
    if (s->n_shards <= 1) {
        (void)snprintf(name, n, "model.safetensors");
    } else {
        (void)snprintf(name, n, "model-%05u-of-%05u.safetensors", shard + 1, s->n_shards);
    }
}

static ds_status write_shard(const shards *s, uint32_t shard, const ds_safetensors_params *params)
{
    char name[64];
    shard_name(s, shard, name, sizeof name);
    char *path = dsi_path_join(s->folder, name);
    ds_tensor_source *own = calloc(s->n > 0 ? s->n : 1, sizeof *own);
    dsi_file_out *file = NULL;
    ds_status status = DS_OK;
    if (path == NULL || own == NULL) {
        status = ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->folder);
    }
    size_t n = 0;
    for (size_t i = 0; status == DS_OK && i < s->n; ++i) {
        if (s->shard_of[i] == shard) {
            own[n++] = s->sources[i];
        }
    }
    if (status == DS_OK) {
        status = dsi_file_create(s->ctx, path, &file);
    }
    if (status == DS_OK) {
        status = dsi_safetensors_stream(s->ctx, file, path, own, n, params, NULL);
    }
    if (status == DS_OK) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    free(own);
    free(path);
    return status;
}

/* {"metadata": {...}, "weight_map": {...}} as transformers writes it. NULL when out of memory. */
static char *index_text(const shards *s)
{
    json_t *map = json_object();
    for (size_t i = 0; i < s->n; ++i) {
        char name[64];
        shard_name(s, s->shard_of[i], name, sizeof name);
        (void)json_object_set_new(map, s->sources[i].name, json_string(name));
    }
    json_t *root = json_pack("{s:{s:I,s:I},s:o}", "metadata", "total_parameters",
                             (json_int_t)s->total_elements, "total_size",
                             (json_int_t)s->total_bytes, "weight_map", map);
    char *text = root != NULL && json_object_size(map) == s->n
                     ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENSURE_ASCII)
                     : NULL;
    json_decref(root);
    return text;
}

static ds_status write_index(const shards *s)
{
    char *path = dsi_path_join(s->folder, "model.safetensors.index.json");
    char *text = index_text(s);
    dsi_file_out *file = NULL;
    ds_status status = DS_OK;
    if (path == NULL || text == NULL) {
        status = ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->folder);
    }
    if (status == DS_OK) {
        status = dsi_file_create(s->ctx, path, &file);
    }
    if (status == DS_OK) {
        status = dsi_file_write(file, text, strlen(text));
    }
    if (status == DS_OK) {
        status = dsi_file_write(file, "\n", 1);
    }
    if (status == DS_OK) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    free(text);
    free(path);
    return status;
}

static int compare_source_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The stream checks one file; a name in two shards is found here. */
static ds_status check_names(const shards *s)
{
    const char **names = calloc(s->n > 0 ? s->n : 1, sizeof *names);
    if (names == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->folder);
    }
    for (size_t i = 0; i < s->n; ++i) {
        names[i] = s->sources[i].name != NULL ? s->sources[i].name : "";
    }
    qsort(names, s->n, sizeof *names, compare_source_names);
    ds_status status = DS_OK;
    for (size_t i = 1; i < s->n && status == DS_OK; ++i) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            status =
                ds_fail(s->ctx, DS_ERR_ARG, "%s: tensor '%s' is given twice", s->folder, names[i]);
        }
    }
    free(names);
    return status;
}

ds_status dsi_safetensors_write_set(ds_ctx *ctx, const char *folder,
                                    const ds_tensor_source *sources, size_t n,
                                    uint64_t max_shard_bytes, const ds_safetensors_params *params)
{
    shards s = {.ctx = ctx, .folder = folder, .sources = sources, .n = n};
    s.shard_of = calloc(n > 0 ? n : 1, sizeof *s.shard_of);
    if (s.shard_of == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", folder);
    }
    ds_status status = check_names(&s);
    if (status == DS_OK) {
        deal(&s, max_shard_bytes);
        s.n_shards = s.n_shards > 0 ? s.n_shards : 1; /* no tensors: one empty file */
    }
    for (uint32_t i = 0; status == DS_OK && i < s.n_shards; ++i) {
        status = write_shard(&s, i, params);
    }
    if (status == DS_OK && s.n_shards > 1) {
        status = write_index(&s);
    }
    free(s.shard_of);
    return status;
}

static bool is_weight_file(const char *name)
{
    unsigned a = 0;
    unsigned b = 0;
    int end = 0;
    if (strcmp(name, "model.safetensors") == 0 ||
        strcmp(name, "model.safetensors.index.json") == 0) {
        return true;
    }
    return sscanf(name, "model-%5u-of-%5u.safetensors%n", &a, &b, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

ds_status dsi_safetensors_remove_stale(ds_ctx *ctx, const char *folder, char *const *kept,
                                       size_t n_kept)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return dsi_io_fail(ctx, "list folder", folder, errno);
    }
    ds_status status = DS_OK;
    for (const struct dirent *e = readdir(dir); e != NULL && status == DS_OK; e = readdir(dir)) {
        bool stays = !is_weight_file(e->d_name);
        for (size_t i = 0; i < n_kept && !stays; ++i) {
            stays = strcmp(kept[i], e->d_name) == 0;
        }
        char *path = stays ? NULL : dsi_path_join(folder, e->d_name);
        if (path != NULL) {
            status = dsi_folder_remove(ctx, path);
        }
        free(path);
    }
    (void)closedir(dir);
    return status;
}

ds_status ds_safetensors_write_folder(ds_ctx *ctx, const char *folder,
                                      const ds_tensor_source *sources, size_t n,
                                      uint64_t max_shard_bytes, const ds_safetensors_params *params)
{
    dsi_stage stage = {.lock = -1};
    char **names = NULL;
    size_t n_names = 0;
    dsi_folder_clean(folder, "model");
    DS_TRY(dsi_folder_stage(ctx, folder, "model", &stage));
    ds_status status =
        dsi_safetensors_write_set(ctx, stage.path, sources, n, max_shard_bytes, params);
    if (status == DS_OK) {
        status = dsi_folder_merge(ctx, &stage, folder, &names, &n_names);
    }
    if (status == DS_OK) {
        status = dsi_safetensors_remove_stale(ctx, folder, names, n_names);
    }
    dsi_names_free(names, n_names);
    dsi_folder_unstage(&stage);
    return status;
}
