/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens in memory or mapped. See token_store.h. */
#include "data/token_store.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int32_t dsi_store_get(const dsi_store *tokens, uint64_t at)
{
    if (tokens->ids != NULL) {
        return tokens->ids[at];
    }
    const uint32_t bytes = tokens->mapped_bytes;
    uint64_t value = 0;
    memcpy(&value, tokens->mapped + at * bytes, bytes);
    const bool negative = tokens->mapped_signed && value >> (8 * bytes - 1) != 0;
    return negative || value > INT32_MAX ? -1 : (int32_t)value;
}

dsi_store *dsi_store_make(void)
{
    dsi_store *tokens = calloc(1, sizeof *tokens);
    uint64_t *begin = calloc(1, sizeof *begin);
    if (tokens == NULL || begin == NULL) {
        free(tokens);
        free(begin);
        return NULL;
    }
    tokens->n_users = 1;
    tokens->begin = tokens->own_begin = begin;
    return tokens;
}

void dsi_store_release(dsi_store *tokens)
{
    if (tokens == NULL || --tokens->n_users > 0) {
        return;
    }
    dsi_indexed_close(&tokens->indexed);
    for (size_t i = 0; i < 3; ++i) {
        dsi_map_close(&tokens->maps[i]);
    }
    free(tokens->own_ids);
    free(tokens->own_counted);
    free(tokens->own_begin);
    free(tokens);
}

static ds_status no_memory(ds_ctx *ctx, const dsi_store *tokens)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %llu tokens", (unsigned long long)tokens->n);
}

static ds_status reserve(ds_ctx *ctx, dsi_store *tokens, uint64_t n)
{
    if (tokens->n + n <= tokens->room) {
        return DS_OK;
    }
    const uint64_t room = tokens->room * 2 > tokens->n + n ? tokens->room * 2 : tokens->n + n;
    int32_t *ids = realloc(tokens->own_ids, room * sizeof *ids);
    if (ids == NULL) {
        return no_memory(ctx, tokens);
    }
    tokens->ids = tokens->own_ids = ids;
    uint8_t *counted = tokens->own_counted == NULL ? NULL : realloc(tokens->own_counted, room);
    if (tokens->own_counted != NULL) {
        if (counted == NULL) {
            return no_memory(ctx, tokens);
        }
        tokens->counted = tokens->own_counted = counted;
    }
    tokens->room = room;
    return DS_OK;
}

/* Makes the flags of what is there so far, when the first document with flags arrives. */
static ds_status need_flags(ds_ctx *ctx, dsi_store *tokens)
{
    if (tokens->own_counted == NULL) {
        tokens->own_counted = malloc(tokens->room + 1);
        if (tokens->own_counted == NULL) {
            return no_memory(ctx, tokens);
        }
        memset(tokens->own_counted, 1, tokens->n);
        tokens->counted = tokens->own_counted;
    }
    return DS_OK;
}

static ds_status reserve_document(ds_ctx *ctx, dsi_store *tokens)
{
    const uint64_t n = tokens->n_docs;
    if ((n & (n + 1)) == 0) { /* the table is full at 2^k - 1 documents */
        uint64_t *begin = realloc(tokens->own_begin, (n + 1) * 2 * sizeof *begin);
        if (begin == NULL) {
            return no_memory(ctx, tokens);
        }
        tokens->begin = tokens->own_begin = begin;
    }
    return DS_OK;
}

ds_status dsi_store_add(ds_ctx *ctx, dsi_store *tokens, const uint32_t *ids, const uint8_t *counted,
                        uint64_t n, bool joins)
{
    DS_TRY(joins ? DS_OK : reserve_document(ctx, tokens));
    DS_TRY(reserve(ctx, tokens, n));
    DS_TRY(counted != NULL ? need_flags(ctx, tokens) : DS_OK);
    for (uint64_t i = 0; i < n; ++i) {
        tokens->own_ids[tokens->n + i] = (int32_t)ids[i];
    }
    if (tokens->own_counted != NULL && counted != NULL) {
        memcpy(tokens->own_counted + tokens->n, counted, n);
    } else if (tokens->own_counted != NULL) {
        memset(tokens->own_counted + tokens->n, 1, n);
    }
    tokens->n += n;
    tokens->n_docs += !joins;
    tokens->own_begin[tokens->n_docs] = tokens->n;
    return DS_OK;
}

void dsi_store_take_indexed(dsi_store *tokens, const dsi_indexed *indexed)
{
    tokens->indexed = *indexed;
    tokens->begin = NULL;
    tokens->n = indexed->n_tokens;
    tokens->n_docs = dsi_indexed_n_documents(indexed);
    tokens->mapped = indexed->bin.data;
    tokens->mapped_bytes = indexed->width;
    tokens->mapped_signed = indexed->is_signed;
}

uint64_t dsi_hash_spread(const uint8_t *data, uint64_t n)
{
    enum { BLOCK = 64 << 10, BLOCKS = 4096 };
    uint64_t hash = n;
    if (n <= (uint64_t)BLOCK * BLOCKS) {
        return XXH3_64bits(data, n);
    }
    for (uint64_t i = 0; i < BLOCKS; ++i) {
        const uint64_t at = (n - BLOCK) / (BLOCKS - 1) * i;
        hash = XXH3_64bits_withSeed(data + at, BLOCK, hash);
    }
    return hash;
}

/* Of the table as it would lie in memory. */
static uint64_t hash_documents(const dsi_store *tokens)
{
    enum { PART = 512 };
    uint64_t part[PART];
    uint64_t hash = tokens->n_docs;
    if (tokens->begin != NULL) {
        return XXH3_64bits(tokens->begin, (tokens->n_docs + 1) * sizeof *tokens->begin);
    }
    for (uint64_t d = 0; d <= tokens->n_docs; d += PART) {
        uint64_t n = 0;
        for (; n < PART && d + n <= tokens->n_docs; ++n) {
            part[n] = dsi_store_begin(tokens, d + n);
        }
        hash = XXH3_64bits_withSeed(part, n * sizeof *part, hash);
    }
    return hash;
}

void dsi_store_set_content(dsi_store *tokens, uint64_t docs, uint64_t ids, uint64_t counted)
{
    const uint64_t parts[3] = {docs, ids, counted};
    tokens->content = XXH3_64bits(parts, sizeof parts);
}

void dsi_store_seal(dsi_store *tokens)
{
    const uint64_t ids = tokens->ids != NULL
                             ? XXH3_64bits(tokens->ids, tokens->n * sizeof *tokens->ids)
                             : dsi_hash_spread(tokens->mapped, tokens->n * tokens->mapped_bytes);
    const uint64_t counted = tokens->counted != NULL ? XXH3_64bits(tokens->counted, tokens->n) : 0;
    dsi_store_set_content(tokens, hash_documents(tokens), ids, counted);
}
