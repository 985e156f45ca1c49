/* SPDX-License-Identifier: Apache-2.0 */
/* The names of cache entries: hashes of what tokens depend on. See data_cache.h.
 *
 * 1. The name of an entry changes with every byte of the data files, of the tokenizer's files and
 * of the chat templates, with the flags that shape tokens, with the form of an entry (VERSION), and
 *    with the build of this library: a repaired tokenizer takes no old tokens.
 * 2. What ds_dataset_params gains that shapes tokens is added to hash_rules.
 * 3. Contents are hashed once: NAME.source keeps the hash for files of the same paths, sizes, times
 *    and inodes. It is not written for a file changed within the last seconds, whose next change
 *    might not show in its time.
 */
#include "base/build_id.h"
#include "data/chat_template.h"
#include "data/data_cache.h"
#include "data/rows/data_bytes.h"
#include "data/tokenizer.h"

#include <deepspeed/op.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

enum {
    VERSION = 1,
    PIECE_BYTES = 16 << 20,
    PIECES_AT_ONCE = 64,
    HEX = 33,
    UNCHANGED_SECONDS = 3 /* from a change of a file on, until its hash is kept */
};

/* A data file, or the other file of its pair. */
typedef ds_status visit_fn(ds_ctx *ctx, const char *path, void *user);

static ds_status visit_files(ds_ctx *ctx, const ds_dataset_params *params, visit_fn *visit,
                             void *user)
{
    for (uint32_t i = 0; i < params->n_files; ++i) {
        const char *path = params->files[i];
        DS_TRY(visit(ctx, path, user));
        if (dsi_take_is_indexed(path)) {
            char *other = strdup(path);
            if (other == NULL) {
                return ds_fail(ctx, DS_ERR_NOMEM, "no memory to hash %s", path);
            }
            char *ending = other + strlen(other) - 3;
            memcpy(ending, ending[0] == 'b' ? "idx" : "bin", 3);
            const ds_status status = visit(ctx, other, user);
            free(other);
            DS_TRY(status);
        }
    }
    return DS_OK;
}

static void add_number(XXH3_state_t *hash, uint64_t number)
{
    (void)XXH3_128bits_update(hash, &number, sizeof number);
}

/* NULL is another text than "". */
static void add_text(XXH3_state_t *hash, const char *text)
{
    const size_t n = text != NULL ? strlen(text) : 0;
    add_number(hash, text != NULL ? n : UINT64_MAX);
    (void)XXH3_128bits_update(hash, text != NULL ? text : "", n);
}

static void to_hex(XXH128_hash_t hash, char text[HEX])
{
    (void)snprintf(text, HEX, "%016llx%016llx", (unsigned long long)hash.high64,
                   (unsigned long long)hash.low64);
}

/* ---- paths, sizes and times ---- */

typedef struct stats {
    XXH3_state_t *hash;
    time_t newest;
} stats;

static ds_status add_stat(ds_ctx *ctx, const char *path, void *user)
{
    stats *s = user;
    struct stat st;
    if (stat(path, &st) != 0) {
        return dsi_io_fail(ctx, "read", path, errno);
    }
    char *real = realpath(path, NULL);
    add_text(s->hash, real);
    free(real);
    add_number(s->hash, (uint64_t)st.st_dev);
    add_number(s->hash, (uint64_t)st.st_ino);
    add_number(s->hash, (uint64_t)st.st_size);
    add_number(s->hash, (uint64_t)st.st_mtim.tv_sec);
    add_number(s->hash, (uint64_t)st.st_mtim.tv_nsec);
    s->newest = st.st_mtim.tv_sec > s->newest ? st.st_mtim.tv_sec : s->newest;
    return DS_OK;
}

static ds_status hash_stats(ds_ctx *ctx, const ds_dataset_params *params, XXH3_state_t *hash,
                            XXH128_hash_t *hash_out, time_t *newest_out)
{
    stats s = {.hash = hash};
    (void)XXH3_128bits_reset(hash);
    add_number(hash, VERSION);
    DS_TRY(visit_files(ctx, params, add_stat, &s));
    *hash_out = XXH3_128bits_digest(hash);
    *newest_out = s.newest;
    return DS_OK;
}

/* ---- contents ---- */

typedef struct contents {
    const ds_dataset_params *params;
    XXH3_state_t *hash;
    uint64_t done, all;
} contents;

typedef struct pieces {
    dsi_map map;
    uint64_t at;
    XXH128_hash_t hashes[PIECES_AT_ONCE];
} pieces;

static void hash_piece(void *arg, uint32_t task, uint32_t thread)
{
    pieces *p = arg;
    const uint64_t begin = p->at + (uint64_t)task * PIECE_BYTES;
    const uint64_t left = p->map.size - begin;
    (void)thread;
    p->hashes[task] = XXH3_128bits(p->map.data + begin, left < PIECE_BYTES ? left : PIECE_BYTES);
}

static ds_status hash_mapped(ds_ctx *ctx, contents *c, pieces *p)
{
    while (p->at < p->map.size) {
        const uint64_t left = (p->map.size - p->at + PIECE_BYTES - 1) / PIECE_BYTES;
        const uint32_t n = left < PIECES_AT_ONCE ? (uint32_t)left : PIECES_AT_ONCE;
        ds_parallel(ctx, hash_piece, p, n);
        (void)XXH3_128bits_update(c->hash, p->hashes, n * sizeof *p->hashes);
        p->at += (uint64_t)n * PIECE_BYTES;
        DS_TRY(dsi_take_say(c->params, DS_DATASET_HASHES, c->done + p->at, c->all, 0));
    }
    c->done += p->map.size;
    return DS_OK;
}

/* The ending says how the bytes are read; the rest of the name does not matter. */
static ds_status add_content(ds_ctx *ctx, const char *path, void *user)
{
    contents *c = user;
    pieces p = {.at = 0};
    const char *end = path + dsi_bytes_plain_name(path);
    while (end > path && end[-1] != '/' && *end != '.') {
        --end;
    }
    DS_TRY(dsi_map_open(ctx, path, 0, &p.map));
    add_text(c->hash, end);
    add_number(c->hash, p.map.size);
    const ds_status status = hash_mapped(ctx, c, &p);
    dsi_map_close(&p.map);
    return status;
}

static ds_status add_size(ds_ctx *ctx, const char *path, void *user)
{
    contents *c = user;
    struct stat st;
    (void)ctx;
    c->all += stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
    return DS_OK;
}

static ds_status hash_contents(ds_ctx *ctx, const ds_dataset_params *params, XXH3_state_t *hash,
                               char hex_out[HEX])
{
    contents c = {.params = params, .hash = hash};
    (void)XXH3_128bits_reset(hash);
    DS_TRY(visit_files(ctx, params, add_size, &c));
    DS_TRY(visit_files(ctx, params, add_content, &c));
    to_hex(XXH3_128bits_digest(hash), hex_out);
    return DS_OK;
}

/* ---- the hash that is kept ---- */

static bool read_kept(const char *path, char hex_out[HEX])
{
    char text[HEX + 2] = "";
    FILE *file = fopen(path, "re");
    const size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (n != HEX || text[HEX - 1] != '\n' || strspn(text, "0123456789abcdef") != HEX - 1) {
        return false;
    }
    memcpy(hex_out, text, HEX - 1);
    hex_out[HEX - 1] = '\0';
    return true;
}

/* A cache that is lost is work done twice, no error. */
static void keep(ds_ctx *ctx, const char *path, const char *hex)
{
    char text[HEX + 1];
    const int n = snprintf(text, sizeof text, "%s\n", hex);
    if (dsi_file_replace(ctx, path, text, (size_t)n) < 0) {
        ds_log(ctx, DS_LOG_WARN, "%s; the data's hash is not kept", ds_ctx_error(ctx));
    }
}

static ds_status content_of(ds_ctx *ctx, const ds_dataset_params *params, XXH3_state_t *hash,
                            XXH128_hash_t files, time_t newest, char hex_out[HEX])
{
    char name[HEX];
    char *path = NULL;
    const bool unchanged = newest + UNCHANGED_SECONDS < time(NULL);
    to_hex(files, name);
    if (asprintf(&path, "%s/%s.source", params->cache, name) < 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to hash data");
    }
    ds_status status = DS_OK;
    if (!unchanged || !read_kept(path, hex_out)) {
        status = hash_contents(ctx, params, hash, hex_out);
        if (status >= 0 && unchanged) {
            keep(ctx, path, hex_out);
        }
    }
    free(path);
    return status;
}

/* ---- names ---- */

static ds_status add_file(ds_ctx *ctx, XXH3_state_t *hash, const char *path)
{
    dsi_map map;
    DS_TRY(dsi_map_open(ctx, path, 0, &map));
    add_text(hash, dsi_path_name(path));
    add_number(hash, map.size);
    (void)XXH3_128bits_update(hash, map.data, map.size);
    dsi_map_close(&map);
    return DS_OK;
}

static ds_status add_tokenizer(ds_ctx *ctx, const ds_tokenizer *tok, XXH3_state_t *hash)
{
    add_number(hash, tok == NULL ? 0 : tok->bytes ? 1 : 2);
    for (uint32_t i = 0; tok != NULL && i < tok->n_files; ++i) {
        DS_TRY(add_file(ctx, hash, tok->files[i]));
    }
    for (size_t i = 0; tok != NULL && i < tok->n_chat_templates; ++i) {
        add_text(hash, tok->chat_templates[i].name);
        add_text(hash, tok->chat_templates[i].text);
    }
    return DS_OK;
}

/* All but the data itself. */
static ds_status hash_rules(ds_ctx *ctx, const ds_dataset_params *params, XXH3_state_t *hash)
{
    char build[128] = "";
    dsi_build_id(build, sizeof build);
    add_number(hash, VERSION);
    add_text(hash, build);
    DS_TRY(add_tokenizer(ctx, params->tokenizer, hash));
    add_text(hash, params->chat != NULL ? params->chat->name : NULL);
    add_text(hash, params->column_map);
    add_number(hash, params->append_eos);
    add_number(hash, params->alpaca);
    add_number(hash, params->n_classes);
    add_number(hash, params->n_negatives);
    add_number(hash, params->problem);
    for (uint64_t i = 0; params->classes != NULL && i < params->n_classes; ++i) {
        add_text(hash, params->classes[i]);
    }
    return DS_OK;
}

static ds_status make_key(ds_ctx *ctx, const ds_dataset_params *params, XXH3_state_t *hash,
                          dsi_cache_key *key)
{
    XXH128_hash_t files;
    char content[HEX];
    char name[HEX];
    time_t newest = 0;
    DS_TRY(hash_stats(ctx, params, hash, &files, &newest));
    DS_TRY(content_of(ctx, params, hash, files, newest, content));
    (void)XXH3_128bits_reset(hash);
    DS_TRY(hash_rules(ctx, params, hash));
    add_text(hash, content);
    to_hex(XXH3_128bits_digest(hash), name);
    *key = (dsi_cache_key){.files = {files.high64, files.low64}};
    (void)snprintf(key->plain, sizeof key->plain, "%s", name);
    static const char *const too_long[] = {[DS_TOO_LONG_TRUNCATE] = "truncate",
                                           [DS_TOO_LONG_DROP] = "drop",
                                           [DS_TOO_LONG_KEEP_END] = "keep_end"};
    static const char *const rows[] = {[DS_ROWS_TEXT] = "",
                                       [DS_ROWS_PAIRS] = "-pairs",
                                       [DS_ROWS_LABELLED] = "-labelled",
                                       [DS_ROWS_CLASSES] = "-classes",
                                       [DS_ROWS_TOKEN_CLASSES] = "-token_classes",
                                       [DS_ROWS_SOURCES] = "-sources",
                                       [DS_ROWS_VALUES] = "-values",
                                       [DS_ROWS_CONTRAST] = "-contrast"};
    (void)snprintf(key->samples, sizeof key->samples, "%s-%lld-%s%s", name,
                   (long long)params->seq_length, too_long[params->too_long], rows[params->rows]);
    return DS_OK;
}

ds_status dsi_cache_key_make(ds_ctx *ctx, const ds_dataset_params *params, dsi_cache_key *key_out)
{
    XXH3_state_t *hash = XXH3_createState();
    const ds_status status = hash != NULL ? make_key(ctx, params, hash, key_out)
                                          : ds_fail(ctx, DS_ERR_NOMEM, "no memory to hash data");
    (void)XXH3_freeState(hash);
    return status;
}

ds_status dsi_cache_key_check(ds_ctx *ctx, const ds_dataset_params *params,
                              const dsi_cache_key *key)
{
    XXH128_hash_t files;
    time_t newest = 0;
    XXH3_state_t *hash = XXH3_createState();
    ds_status status = hash != NULL ? hash_stats(ctx, params, hash, &files, &newest)
                                    : ds_fail(ctx, DS_ERR_NOMEM, "no memory to hash data");
    (void)XXH3_freeState(hash);
    if (status >= 0 && (files.high64 != key->files[0] || files.low64 != key->files[1])) {
        status = ds_fail(ctx, DS_ERR_STATE,
                         "%s, or a file beside it, changed while it was read: start again",
                         params->files[0]);
    }
    return status;
}
