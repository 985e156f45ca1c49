/* SPDX-License-Identifier: Apache-2.0 */
/* Where the tokens of a dataset lie, and where its documents begin: in memory, in mapped indexed
 * data, or in a mapped entry of the data cache. Shared by the parts of a split, and const once it
 * is filled.
 *
 * Invariants: begin 0 .. begin n_docs ascend from 0 to n; document d is tokens [begin d, begin
 * d+1).
 */
#ifndef DSI_DATA_TOKEN_STORE_H
#define DSI_DATA_TOKEN_STORE_H

#include "data/indexed.h"
#include "io/file.h"

typedef struct dsi_store {
    uint32_t n_users;
    uint64_t n, n_docs;
    uint64_t content; /* a hash of all documents, tokens and flags, wherever they lie */
    /* tokens */
    const int32_t *ids;    /* NULL when mapped */
    const uint8_t *mapped; /* numbers of mapped_bytes, little endian */
    uint32_t mapped_bytes; /* 1, 2, 4 or 8 */
    bool mapped_signed;
    const uint8_t *counted; /* per token: counts in the loss; NULL: all do */
    /* documents */
    const uint64_t *begin; /* n_docs + 1; NULL: those of `indexed` */
    /* what is owned */
    int32_t *own_ids;
    uint8_t *own_counted;
    uint64_t *own_begin;
    uint64_t room; /* of own_ids, while it grows */
    dsi_indexed indexed;
    dsi_map maps[3]; /* of a cache's entry */
} dsi_store;

/* Empty, with one user; NULL when out of memory. */
dsi_store *dsi_store_make(void);
/* One user less; the last one frees. Accepts NULL. */
void dsi_store_release(dsi_store *tokens);

/* Adds n > 0 tokens in memory: a document, or to the last one (joins). counted NULL: all count. */
ds_status dsi_store_add(ds_ctx *ctx, dsi_store *tokens, const uint32_t *ids, const uint8_t *counted,
                        uint64_t n, bool joins);
/* Takes over opened indexed data. */
void dsi_store_take_indexed(dsi_store *tokens, const dsi_indexed *indexed);
/* Everything is there: sets `content`. Of mapped indexed data beyond 256 MiB it is a hash of blocks
 * spread over them. */
void dsi_store_seal(dsi_store *tokens);
/* Sets `content` of hashes of the table of documents, of the tokens as i32 and of the flags (0:
 * none), which are equal for equal data in memory and in a cache. */
void dsi_store_set_content(dsi_store *tokens, uint64_t docs, uint64_t ids, uint64_t counted);

/* First token of document d <= n_docs. */
static inline uint64_t dsi_store_begin(const dsi_store *tokens, uint64_t d)
{
    return tokens->begin != NULL ? tokens->begin[d] : dsi_indexed_begin(&tokens->indexed, d);
}

/* Token `at`; -1 for a number of a mapped file that can be no id: negative, or above INT32_MAX. */
int32_t dsi_store_get(const dsi_store *tokens, uint64_t at);

/* A hash of n mapped bytes: of all, or of 4096 blocks spread over them where they are more than 256
 * MiB, which takes a tenth of a second at most. */
uint64_t dsi_hash_spread(const uint8_t *data, uint64_t n);

#endif
