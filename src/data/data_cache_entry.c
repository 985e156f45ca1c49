/* SPDX-License-Identifier: Apache-2.0 */
/* An entry of the data cache, mapped and checked. See data_cache.h.
 *
 * Sizes must fit, the table of documents ascends (all of it is read, and its hash checked), and so
 * do the hashes of tokens and flags: of all bytes up to 256 MiB, of 4096 blocks spread over more.
 */
#include "base/buf.h"
#include "data/data_cache.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { META_BYTES = 64 << 10, TOKENS = 0, DOCUMENTS = 1, COUNTS = 2 };

const char *const dsi_cache_file_names[DSI_CACHE_FILES] = {"tokens.bin", "documents.u64",
                                                           "counts.u8"};

/* The fields of entry.meta: one table reads and writes them. */
typedef struct field {
    const char *name;
    uint64_t *at;
} field;
enum { N_FIELDS = 15 };

typedef struct numbers {
    uint64_t max_id, samples, token_bytes, has_counts;
} numbers;

static void list_fields(dsi_cache_meta *meta, numbers *n, field fields[N_FIELDS])
{
    ds_dataset_info *info = &meta->info;
    const field all[N_FIELDS] = {{"documents", &info->n_documents},
                                 {"tokens", &info->n_tokens},
                                 {"truncated", &info->n_truncated},
                                 {"dropped", &info->n_dropped},
                                 {"uncounted", &info->n_uncounted},
                                 {"bad", &info->n_bad},
                                 {"samples", &n->samples},
                                 {"max_id", &n->max_id},
                                 {"longest", &meta->longest},
                                 {"content", &meta->content},
                                 {"token_bytes", &n->token_bytes},
                                 {"has_counts", &n->has_counts},
                                 {"hash_tokens", &meta->hashes[TOKENS]},
                                 {"hash_documents", &meta->hashes[DOCUMENTS]},
                                 {"hash_counts", &meta->hashes[COUNTS]}};
    memcpy(fields, all, sizeof all);
}

static uint64_t check_of(const field fields[N_FIELDS])
{
    uint64_t hash = 0;
    for (size_t i = 0; i < N_FIELDS; ++i) {
        hash = XXH3_64bits_withSeed(fields[i].at, sizeof *fields[i].at, hash);
    }
    return hash;
}

char *dsi_cache_meta_print(const dsi_cache_meta *meta)
{
    dsi_cache_meta copy = *meta;
    numbers n = {copy.info.max_id, copy.info.samples, copy.token_bytes, copy.has_counts};
    field fields[N_FIELDS];
    json_t *json = json_object();
    list_fields(&copy, &n, fields);
    for (size_t i = 0; i < N_FIELDS; ++i) {
        (void)json_object_set_new(json, fields[i].name, json_integer((json_int_t)*fields[i].at));
    }
    (void)json_object_set_new(json, "check", json_integer((json_int_t)check_of(fields)));
    char *text = json_object_size(json) == N_FIELDS + 1 ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    return text;
}

static bool parse_meta(const char *text, dsi_cache_meta *meta)
{
    numbers n = {0};
    field fields[N_FIELDS];
    json_t *json = json_loads(text, 0, NULL);
    list_fields(meta, &n, fields);
    bool good = json_is_object(json);
    for (size_t i = 0; i < N_FIELDS && good; ++i) {
        const json_t *value = json_object_get(json, fields[i].name);
        good = json_is_integer(value);
        *fields[i].at = (uint64_t)json_integer_value(value);
    }
    const uint64_t check = (uint64_t)json_integer_value(json_object_get(json, "check"));
    good = good && check == check_of(fields) && n.max_id <= INT32_MAX &&
           (n.token_bytes == 2 || n.token_bytes == 4);
    json_decref(json);
    meta->info.max_id = (uint32_t)n.max_id;
    meta->info.samples = n.samples != 0;
    meta->token_bytes = (uint32_t)n.token_bytes;
    meta->has_counts = n.has_counts != 0;
    return good;
}

static ds_status damaged(ds_ctx *ctx, const char *folder, const char *what)
{
    return ds_fail(ctx, DS_ERR_FORMAT, "the data cache %s is damaged: %s", folder, what);
}

static ds_status read_meta(ds_ctx *ctx, const char *folder, dsi_cache_meta *meta)
{
    dsi_buf text = dsi_buf_make(META_BYTES);
    char *path = dsi_path_join(folder, DSI_CACHE_META);
    const bool good = path != NULL && dsi_buf_read_file(ctx, path, &text) >= 0 &&
                      parse_meta(dsi_buf_text(&text), meta);
    free(path);
    dsi_buf_free(&text);
    return good ? DS_OK : damaged(ctx, folder, DSI_CACHE_META " is missing or wrong");
}

static ds_status map_files(ds_ctx *ctx, const char *folder, bool has_counts,
                           dsi_map maps[DSI_CACHE_FILES])
{
    for (int i = 0; i < DSI_CACHE_FILES; ++i) {
        if (i != COUNTS || has_counts) {
            char *path = dsi_path_join(folder, dsi_cache_file_names[i]);
            const ds_status status =
                path != NULL ? dsi_map_open(ctx, path, 0, &maps[i]) : DS_ERR_NOMEM;
            free(path);
            if (status < 0) {
                return damaged(ctx, folder, "a file is missing");
            }
        }
    }
    return DS_OK;
}

/* Ascending from 0 to the number of tokens. */
static bool documents_good(const dsi_cache_meta *meta, const uint64_t *begin)
{
    const uint64_t n = meta->info.n_documents;
    bool good = begin[0] == 0 && begin[n] == meta->info.n_tokens;
    uint64_t longest = 0;
    for (uint64_t d = 0; d < n && good; ++d) {
        good = begin[d] <= begin[d + 1];
        longest = begin[d + 1] - begin[d] > longest ? begin[d + 1] - begin[d] : longest;
    }
    return good && longest == meta->longest;
}

static ds_status check_maps(ds_ctx *ctx, const char *folder, const dsi_cache_meta *meta,
                            const dsi_map maps[DSI_CACHE_FILES])
{
    const uint64_t n = meta->info.n_tokens;
    const uint64_t limit = UINT64_MAX / 16;
    if (n == 0 || n > limit || meta->info.n_documents > limit ||
        maps[TOKENS].size != n * meta->token_bytes ||
        maps[DOCUMENTS].size != (meta->info.n_documents + 1) * sizeof(uint64_t) ||
        maps[COUNTS].size != (meta->has_counts ? n : 0)) {
        return damaged(ctx, folder, "a file has another size than it was written with");
    }
    if (XXH3_64bits(maps[DOCUMENTS].data, maps[DOCUMENTS].size) != meta->hashes[DOCUMENTS] ||
        !documents_good(meta, (const uint64_t *)(const void *)maps[DOCUMENTS].data)) {
        return damaged(ctx, folder, "its table of documents was changed");
    }
    if (dsi_hash_spread(maps[TOKENS].data, maps[TOKENS].size) != meta->hashes[TOKENS] ||
        (meta->has_counts &&
         dsi_hash_spread(maps[COUNTS].data, maps[COUNTS].size) != meta->hashes[COUNTS])) {
        return damaged(ctx, folder, "its tokens or their flags were changed");
    }
    return DS_OK;
}

/* The store takes the maps over; they are freed with it also where something is wrong. */
static ds_status fill_store(ds_ctx *ctx, const char *folder, const dsi_cache_meta *meta,
                            dsi_store *tokens)
{
    DS_TRY(map_files(ctx, folder, meta->has_counts, tokens->maps));
    DS_TRY(check_maps(ctx, folder, meta, tokens->maps));
    tokens->n = meta->info.n_tokens;
    tokens->n_docs = meta->info.n_documents;
    tokens->mapped = tokens->maps[TOKENS].data;
    tokens->mapped_bytes = meta->token_bytes;
    tokens->begin = (const uint64_t *)(const void *)tokens->maps[DOCUMENTS].data;
    tokens->counted = meta->has_counts ? tokens->maps[COUNTS].data : NULL;
    tokens->content = meta->content;
    return DS_OK;
}

ds_status dsi_cache_entry_map(ds_ctx *ctx, const ds_dataset_params *params, const char *name,
                              dsi_store *tokens, dsi_cache_meta *meta_out)
{
    dsi_cache_meta meta = {.info = {0}};
    char *folder = dsi_path_join(params->cache, name);
    ds_status status = DS_OK;
    if (folder == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read the data cache");
    }
    if (access(folder, F_OK) != 0) {
        status = DS_ERR_NOT_FOUND; /* nothing to report */
    }
    if (status >= 0) {
        status = read_meta(ctx, folder, &meta);
    }
    if (status >= 0 && meta.info.n_bad > params->skip_bad) {
        status = DS_ERR_NOT_FOUND; /* reading the files again reports which row it is */
    }
    if (status >= 0) {
        status = fill_store(ctx, folder, &meta, tokens);
    }
    for (int i = 0; status < 0 && i < DSI_CACHE_FILES; ++i) {
        dsi_map_close(&tokens->maps[i]);
    }
    free(folder);
    DS_TRY(status);
    meta.info.rows = (uint8_t)params->rows;
    *meta_out = meta;
    return DS_OK;
}
