/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens of large data on disk: made once, mapped afterwards. See data_cache.c.
 *
 * An entry is a folder of the cache:
 *   tokens.bin     ids, u16 or u32, little endian
 *   documents.u64  where each document begins, in tokens, and the end
 *   counts.u8      a byte a token, whether it counts in the loss; absent when all do
 *   entry.meta     JSON: what the dataset's info says, sizes and hashes
 * Beside the entries lie NAME.lock, held by who makes one, and NAME.source, the hash of the
 * contents of files as they were at sizes and times. Everything may be removed at any time.
 */
#ifndef DSI_DATA_CACHE_H
#define DSI_DATA_CACHE_H

#include "data/data_take.h"
#include "data/token_store.h"

enum { DSI_CACHE_FILES = 3, DSI_CACHE_NAME = 96 };

/* What an entry says of itself. */
typedef struct dsi_cache_meta {
    ds_dataset_info info;
    uint64_t longest, content;
    uint32_t token_bytes;
    bool has_counts;
    uint64_t hashes[DSI_CACHE_FILES]; /* of all documents; of tokens and counts dsi_hash_spread */
} dsi_cache_meta;

typedef struct dsi_cache_key {
    char plain[DSI_CACHE_NAME];   /* the entry's name, of plain text */
    char samples[DSI_CACHE_NAME]; /* of samples, which depend on the length of a row */
    uint64_t files[2];            /* a hash of paths, sizes and times */
} dsi_cache_key;

/* Whether the files are to be cached: there is a cache, and they are large enough. */
bool dsi_cache_wanted(const ds_dataset_params *params);
/* Maps the entry of the files, made first where there is no good one, into an empty store. Errors:
 * those of ds_dataset_open, and of writing into the cache. */
ds_status dsi_cache_open(ds_ctx *ctx, const ds_dataset_params *params, dsi_store *tokens,
                         dsi_cache_meta *meta_out);

/* ---- data_cache_key.c ---- */

/* Hashes the files' contents, or finds their hash in the cache. */
ds_status dsi_cache_key_make(ds_ctx *ctx, const ds_dataset_params *params, dsi_cache_key *key_out);
/* ERR_STATE when a file is another than it was then. */
ds_status dsi_cache_key_check(ds_ctx *ctx, const ds_dataset_params *params,
                              const dsi_cache_key *key);

/* ---- data_cache_entry.c ---- */

extern const char *const dsi_cache_file_names[DSI_CACHE_FILES]; /* tokens, documents, counts */
#define DSI_CACHE_META "entry.meta"
/* Maps the entry of this name. ERR_NOT_FOUND: there is none, or it lacks more bad rows than
 * skip_bad allows; ERR_FORMAT: it is damaged, and how. */
ds_status dsi_cache_entry_map(ds_ctx *ctx, const ds_dataset_params *params, const char *name,
                              dsi_store *tokens, dsi_cache_meta *meta_out);
/* The text of entry.meta, from malloc; NULL when out of memory. */
char *dsi_cache_meta_print(const dsi_cache_meta *meta);

/* ---- data_cache_write.c ---- */

typedef struct dsi_cache_writer dsi_cache_writer;
/* Begins an entry under a temporary name. n_ids: of the tokenizer. */
ds_status dsi_cache_write_begin(ds_ctx *ctx, const char *cache, const char *name, uint32_t n_ids,
                                dsi_cache_writer **writer_out);
/* A dsi_take's add. user: the writer. */
ds_status dsi_cache_write_add(void *user, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                              bool joins);
/* Brings it to the disk and gives it its name. Frees *writer whatever the outcome. */
ds_status dsi_cache_write_end(dsi_cache_writer **writer, const char *name, const dsi_take *take);
/* Leaves nothing. Accepts *writer == NULL. */
void dsi_cache_write_abort(dsi_cache_writer **writer);
/* Adds to a failure to write that the cache may lie elsewhere. */
ds_status dsi_cache_write_failed(ds_ctx *ctx, ds_status status);

#endif
