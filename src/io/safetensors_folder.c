/* SPDX-License-Identifier: Apache-2.0 */
/* A model folder's weights: one file, or the shards of an index; as safetensors, else as files of
 * torch.save (pytorch_model.bin). */
#include "io/safetensors_internal.h"

#include "io/json_load.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_BYTES ((size_t)256 << 20) /* ceiling of an index file */

static ds_status no_weights(ds_ctx *ctx, const char *folder)
{
    static const char *const others[] = {"tf_model.h5", "flax_model.msgpack"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        char *path = dsi_path_join(folder, others[i]);
        const bool there = path != NULL && access(path, F_OK) == 0;
        free(path);
        if (there) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "%s has its weights only as %s; save the model again as safetensors",
                           folder, others[i]);
        }
    }
    return ds_fail(ctx, DS_ERR_NOT_FOUND,
                   "%s has no weights: expected model.safetensors or model.safetensors.index.json, "
                   "pytorch_model.bin or pytorch_model.bin.index.json",
                   folder);
}

static ds_status load_index(ds_ctx *ctx, const char *path, json_t **root_out, json_t **map_out)
{
    dsi_map text;
    json_t *root = NULL;
    DS_TRY(dsi_map_open(ctx, path, 0, &text));
    ds_status status;
    if (text.size > INDEX_BYTES) {
        status = ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than %zu bytes", path, INDEX_BYTES);
    } else {
        status = dsi_json_load(ctx, path, text.size > 0 ? (const char *)text.data : "", text.size,
                               0, DS_ERR_FORMAT, &root);
    }
    dsi_map_close(&text);
    DS_TRY(status);
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        json_decref(root);
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: weight_map is missing or not a list of tensors with their files", path);
    }
    *root_out = root;
    *map_out = map;
    return DS_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different file names of the map, sorted. */
static ds_status list_shards(ds_ctx *ctx, const char *path, json_t *map, const char ***names_out,
                             size_t *n_out)
{
    const char *tensor;
    json_t *value;
    const char **names = calloc(json_object_size(map), sizeof *names);
    if (names == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening %s", path);
    }
    size_t n = 0;
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || !dsi_path_is_plain(name)) {
            free(names);
            return ds_fail(ctx, DS_ERR_FORMAT,
                           "%s: tensor '%s': expected the name of a file in this folder, found "
                           "'%.80s'",
                           path, tensor, name != NULL ? name : "no text");
        }
        names[n++] = name;
    }
    qsort(names, n, sizeof *names, compare_texts);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) {
            names[kept++] = names[i];
        }
    }
    *names_out = names;
    *n_out = kept;
    return DS_OK;
}

static bool is_torch(const char *name)
{
    const size_t n = strlen(name);
    static const char *const endings[] = {".bin", ".pt", ".pth"};
    bool is = false;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; ++i) {
        const size_t m = strlen(endings[i]);
        is = is || (n > m && strcmp(name + n - m, endings[i]) == 0);
    }
    return is;
}

ds_status dsi_safetensors_add_any(ds_safetensors *st, const char *path)
{
    return is_torch(path) ? dsi_safetensors_add_torch(st, path, 0)
                          : dsi_safetensors_add_file(st, path, 0);
}

static ds_status add_shard(ds_safetensors *st, const char *folder, const char *index,
                           const char *name)
{
    char *path = dsi_path_join(folder, name);
    if (path == NULL) {
        return ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory opening %s", folder);
    }
    ds_status status = DS_OK;
    if (access(path, F_OK) != 0) {
        status = ds_fail(st->ctx, DS_ERR_NOT_FOUND, "%s: shard %s is missing in %s", index, name,
                         folder);
    } else {
        status = dsi_safetensors_add_any(st, path);
    }
    free(path);
    return status;
}

/* Index and shards must list the same tensors at the same places. */
static ds_status check_map(const ds_safetensors *st, const char *index, json_t *map)
{
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const ds_safetensor *t = ds_safetensors_find(st, name);
        if (t == NULL || strcmp(dsi_path_name(t->path), json_string_value(value)) != 0) {
            return ds_fail(st->ctx, DS_ERR_FORMAT, "%s: tensor '%s' is not in its shard %s", index,
                           name, json_string_value(value));
        }
    }
    for (size_t i = 0; i < st->n_entries; ++i) {
        if (json_object_get(map, st->entries[i].name) == NULL) {
            return ds_fail(st->ctx, DS_ERR_FORMAT, "%s: tensor '%s' of %s is not listed", index,
                           st->entries[i].name, st->entries[i].path);
        }
    }
    return DS_OK;
}

static ds_status open_shards(ds_ctx *ctx, const char *folder, const char *index,
                             ds_safetensors **st_out)
{
    json_t *root = NULL;
    json_t *map = NULL;
    const char **names = NULL;
    size_t n = 0;
    ds_safetensors *st = NULL;
    DS_TRY(load_index(ctx, index, &root, &map));
    ds_status status = list_shards(ctx, index, map, &names, &n);
    DS_TRY_GOTO(status, status, undo_root);
    DS_TRY_GOTO(status, dsi_safetensors_create(ctx, n, &st), undo_names);
    for (size_t i = 0; i < n; ++i) {
        DS_TRY_GOTO(status, add_shard(st, folder, index, names[i]), undo_st);
    }
    DS_TRY_GOTO(status, dsi_safetensors_index(st), undo_st);
    DS_TRY_GOTO(status, check_map(st, index, map), undo_st);
    *st_out = st;
    st = NULL;
undo_st:
    ds_safetensors_close(&st);
undo_names:
    free(names);
undo_root:
    json_decref(root);
    return status;
}

static ds_status open_single(ds_ctx *ctx, const char *folder, const char *path,
                             ds_safetensors **st_out)
{
    (void)folder;
    ds_safetensors *st = NULL;
    DS_TRY(dsi_safetensors_create(ctx, 1, &st));
    ds_status status = dsi_safetensors_add_any(st, path);
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

static ds_status open_described(ds_ctx *ctx, const char *folder, const char *path,
                                ds_safetensors **st_out)
{
    (void)folder;
    return dsi_safetensors_described(ctx, path, st_out);
}

ds_status ds_safetensors_open_folder(ds_ctx *ctx, const char *folder, ds_safetensors **st_out)
{
    typedef ds_status (*open_fn)(ds_ctx * ctx, const char *folder, const char *path,
                                 ds_safetensors **st_out);
    static const struct {
        const char *name;
        open_fn open;
    } rows[] = {{"model.safetensors", open_single},
                {"model.safetensors.index.json", open_shards},
                {"pytorch_model.bin", open_single},
                {"pytorch_model.bin.index.json", open_shards},
                {"ds_inference_config.json", open_described}};
    struct stat s;
    if (stat(folder, &s) == 0 && S_ISREG(s.st_mode)) {
        return dsi_safetensors_described(ctx, folder, st_out);
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char *path = dsi_path_join(folder, rows[i].name);
        if (path == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening %s", folder);
        }
        if (access(path, F_OK) == 0) {
            const ds_status status = rows[i].open(ctx, folder, path, st_out);
            free(path);
            return status;
        }
        free(path);
    }
    return no_weights(ctx, folder);
}
