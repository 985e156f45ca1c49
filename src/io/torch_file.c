/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_file.h. */
#include "io/torch_file.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 512 };

/* An opcode of one byte makes a value, and lists grow by doubling. */
#define ARENA_FOR_BYTE 256
#define ARENA_LEAST    ((size_t)1 << 20)
#define ARENA_MOST     ((size_t)8 << 30)

/* The files before PyTorch 1.6: a pickle of a number of ten bytes first. */
static bool is_old(const uint8_t *data, size_t n)
{
    static const uint8_t begin[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c};
    return n >= sizeof begin && memcmp(data, begin, sizeof begin) == 0;
}

static ds_status check_begin(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n)
{
    if (is_old(data, n)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s was written by a version of PyTorch before 1.6; load it and save it "
                       "again with a newer one, or as safetensors",
                       path);
    }
    return dsi_zip_begins(data, n) ? DS_OK
                                   : ds_fail(ctx, DS_ERR_FORMAT,
                                             "%s is no file of torch.save: it does not begin as a "
                                             "zip archive does",
                                             path);
}

/* The folder that all entries of the archive are in: that of data.pkl. */
static const char *find_root(const dsi_zip *zip, size_t *n_out)
{
    for (size_t i = 0; i < zip->n; ++i) {
        const char *slash = strchr(zip->entries[i].name, '/');
        if (slash != NULL && strcmp(slash, "/data.pkl") == 0) {
            *n_out = (size_t)(slash - zip->entries[i].name);
            return zip->entries[i].name;
        }
    }
    return NULL;
}

static const dsi_zip_entry *find_entry(const dsi_zip *zip, const char *root, size_t n_root,
                                       const char *folder, const char *name)
{
    char text[NAME_BYTES];
    const int n = snprintf(text, sizeof text, "%.*s/%s%s", (int)n_root, root, folder, name);
    return n > 0 && n < NAME_BYTES ? dsi_zip_find(zip, text) : NULL;
}

typedef struct storages {
    const dsi_zip *zip;
    const char *root;
    size_t n_root;
} storages;

static bool find_storage(void *user, const char *key, const uint8_t **data_out, size_t *bytes_out)
{
    const storages *s = user;
    const dsi_zip_entry *entry = find_entry(s->zip, s->root, s->n_root, "data/", key);
    if (entry == NULL) {
        return false;
    }
    *data_out = entry->data;
    *bytes_out = entry->bytes;
    return true;
}

static ds_status load_values(ds_ctx *ctx, dsi_torch_file *f)
{
    char path[2 * NAME_BYTES];
    storages s = {.zip = &f->zip};
    dsi_pickle *root = NULL;
    s.root = find_root(&f->zip, &s.n_root);
    if (s.root == NULL || s.n_root > NAME_BYTES / 2) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s is no file of torch.save: it has no data.pkl",
                       f->path);
    }
    const dsi_zip_entry *order = find_entry(&f->zip, s.root, s.n_root, "", "byteorder");
    const dsi_zip_entry *values = find_entry(&f->zip, s.root, s.n_root, "", "data.pkl");
    if (order != NULL && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: its byteorder is not \"little\"; save it again on a machine that has "
                       "the low byte first",
                       f->path);
    }
    (void)snprintf(path, sizeof path, "%s: data.pkl", f->path);
    const dsi_pickle_source source = {.path = path,
                                      .data = values->data,
                                      .n = values->bytes,
                                      .find_storage = find_storage,
                                      .user = &s};
    DS_TRY(dsi_pickle_load(ctx, &source, f->arena, &root));
    f->root = root;
    return DS_OK;
}

/* Directory and values cost memory in proportion to their bytes, not to those of the storages. */
static ds_status make_arena(ds_ctx *ctx, const char *path, size_t n, dsi_torch_file *f)
{
    const size_t room = n < ARENA_MOST / ARENA_FOR_BYTE ? n * ARENA_FOR_BYTE : ARENA_MOST;
    if (dsi_arena_create(room > ARENA_LEAST ? room : ARENA_LEAST, &f->arena) < 0 ||
        (f->path = dsi_arena_strdup(f->arena, path)) == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening %s", path);
    }
    return DS_OK;
}

ds_status dsi_torch_parse(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n,
                          dsi_torch_file *file_out)
{
    dsi_torch_file f = {0};
    DS_TRY(check_begin(ctx, path, data, n));
    ds_status status = make_arena(ctx, path, n, &f);
    if (status >= 0) {
        status = dsi_zip_read(ctx, path, data, n, f.arena, &f.zip);
    }
    if (status >= 0) {
        status = load_values(ctx, &f);
    }
    if (status < 0) {
        dsi_torch_close(&f);
        return status;
    }
    *file_out = f;
    return DS_OK;
}

ds_status dsi_torch_open(ds_ctx *ctx, const char *path, uint32_t map_flags,
                         dsi_torch_file *file_out)
{
    dsi_map map = {0};
    dsi_torch_file f = {0};
    *file_out = f;
    DS_TRY(dsi_map_open(ctx, path, map_flags, &map));
    const ds_status status = dsi_torch_parse(ctx, path, map.data, map.size, &f);
    if (status < 0) {
        dsi_map_close(&map);
        return status;
    }
    f.map = map;
    *file_out = f;
    return DS_OK;
}

dsi_map dsi_torch_take_map(dsi_torch_file *file)
{
    const dsi_map map = file->map;
    file->map = (dsi_map){0};
    dsi_torch_close(file);
    return map;
}

void dsi_torch_close(dsi_torch_file *file)
{
    dsi_map_close(&file->map);
    dsi_arena_destroy(&file->arena);
    *file = (dsi_torch_file){0};
}

ds_status dsi_torch_verify(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n)
{
    dsi_torch_file f = {0};
    dsi_zip zip = {0};
    ds_status status = make_arena(ctx, path, n, &f);
    if (status >= 0) {
        status = dsi_zip_read(ctx, path, data, n, f.arena, &zip);
    }
    for (size_t i = 0; i < zip.n && status >= 0; ++i) {
        if (!dsi_zip_is_right(&zip.entries[i])) {
            status = ds_fail(ctx, DS_ERR_CORRUPT, "%s: entry '%.120s' does not have its CRC-32",
                             path, zip.entries[i].name);
        }
    }
    dsi_torch_close(&f);
    return status;
}
