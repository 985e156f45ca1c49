/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary (spelling <-> id) and the table of merges.
 *
 * Called while a tokenizer is read; both are const afterwards. Invariant: tables are at most half
 * full, so a probe always ends.
 */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* A power of two, at least 16, at least twice n. */
static uint32_t table_size(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n) {
        size *= 2;
    }
    return size;
}

static uint32_t spelling_hash(const char *text, size_t n)
{
    return (uint32_t)XXH3_64bits(text, n);
}

static bool is_spelled(const dsi_vocab *vocab, uint32_t id, const char *text, size_t n)
{
    const dsi_spelling at = vocab->spelled[id];
    return at.size == n && at.offset != DSI_NO_ID && memcmp(vocab->text + at.offset, text, n) == 0;
}

uint32_t dsi_vocab_find(const dsi_vocab *vocab, const char *text, size_t n)
{
    if (vocab->slots == NULL) {
        return DSI_NO_ID;
    }
    const uint32_t hash = spelling_hash(text, n);
    for (uint32_t i = hash & vocab->slot_mask;; i = (i + 1) & vocab->slot_mask) {
        const dsi_vocab_slot slot = vocab->slots[i];
        if (slot.id == DSI_NO_ID) {
            return DSI_NO_ID;
        }
        if (slot.hash == hash && is_spelled(vocab, slot.id, text, n)) {
            return slot.id;
        }
    }
}

/* Adds an entry; its spelling and its id must be new. */
static ds_status insert(ds_ctx *ctx, const char *path, dsi_vocab *vocab, dsi_vocab_entry entry)
{
    const char *text = vocab->text + entry.offset;
    const uint32_t hash = spelling_hash(text, entry.size);
    uint32_t i = hash & vocab->slot_mask;
    for (; vocab->slots[i].id != DSI_NO_ID; i = (i + 1) & vocab->slot_mask) {
        if (vocab->slots[i].hash == hash &&
            is_spelled(vocab, vocab->slots[i].id, text, entry.size)) {
            return ds_fail(ctx, DS_ERR_FORMAT, "%s: token \"%.60s\" is in the vocabulary twice",
                           path, text);
        }
    }
    dsi_spelling *spelled = &vocab->spelled[entry.id];
    if (spelled->offset != DSI_NO_ID) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: tokens \"%.60s\" and \"%.60s\" have the same id %u",
                       path, vocab->text + spelled->offset, text, entry.id);
    }
    *spelled = (dsi_spelling){entry.offset, entry.size};
    vocab->slots[i] = (dsi_vocab_slot){entry.id, hash};
    ++vocab->n_tokens;
    return DS_OK;
}

ds_status dsi_vocab_build(ds_ctx *ctx, const char *path, dsi_vocab_entry *entries, size_t n,
                          char *text, dsi_vocab *vocab)
{
    *vocab = (dsi_vocab){.text = text};
    ds_status status = DS_OK;
    for (size_t i = 0; i < n; ++i) {
        if (entries[i].id >= DSI_TOK_MAX_ID) {
            status = ds_fail(ctx, DS_ERR_LIMIT, "%s: token \"%.60s\" has id %u; the limit is %d",
                             path, text + entries[i].offset, entries[i].id, DSI_TOK_MAX_ID - 1);
            goto fail;
        }
        vocab->n_ids = entries[i].id >= vocab->n_ids ? entries[i].id + 1 : vocab->n_ids;
    }
    const uint32_t n_slots = table_size(n);
    vocab->slot_mask = n_slots - 1;
    vocab->spelled = malloc(((size_t)vocab->n_ids + 1) * sizeof *vocab->spelled);
    vocab->slots = malloc((size_t)n_slots * sizeof *vocab->slots);
    if (vocab->spelled == NULL || vocab->slots == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for %zu tokens", path, n);
        goto fail;
    }
    for (size_t id = 0; id <= vocab->n_ids; ++id) {
        vocab->spelled[id] = (dsi_spelling){DSI_NO_ID, 0};
    }
    memset(vocab->slots, 0xFF, (size_t)n_slots * sizeof *vocab->slots);
    for (size_t i = 0; i < n; ++i) {
        DS_TRY_GOTO(status, insert(ctx, path, vocab, entries[i]), fail);
    }
    return DS_OK;
fail:
    dsi_vocab_free(vocab);
    return status;
}

void dsi_vocab_free(dsi_vocab *vocab)
{
    free(vocab->text);
    free(vocab->spelled);
    free(vocab->slots);
    *vocab = (dsi_vocab){0};
}

ds_status dsi_merges_reserve(ds_ctx *ctx, dsi_merges *merges, size_t n)
{
    if (n > DSI_TOK_MAX_ID) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%zu merges; the limit is %d", n, DSI_TOK_MAX_ID);
    }
    const uint32_t n_slots = table_size(n);
    merges->slots = malloc((size_t)n_slots * sizeof *merges->slots);
    if (merges->slots == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %zu merges", n);
    }
    memset(merges->slots, 0xFF, (size_t)n_slots * sizeof *merges->slots);
    merges->slot_mask = n_slots - 1;
    merges->n = 0;
    return DS_OK;
}

/* The id of a merge's part or result, with an error when the vocabulary lacks it. */
static ds_status need(ds_ctx *ctx, const char *path, const dsi_vocab *vocab, uint32_t rank,
                      const char *text, size_t n, uint32_t *id_out)
{
    *id_out = dsi_vocab_find(vocab, text, n);
    if (*id_out == DSI_NO_ID) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: merge %u needs the token \"%.*s\", which the vocabulary lacks", path,
                       rank, (int)(n < 60 ? n : 60), text);
    }
    return DS_OK;
}

ds_status dsi_merges_add(ds_ctx *ctx, const char *path, const dsi_vocab *vocab, dsi_merges *merges,
                         const char *left, size_t n_left, const char *right, size_t n_right)
{
    enum { JOINED = 2048 };
    char joined[JOINED];
    if (merges->n > merges->slot_mask / 2) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: merges are written in two ways", path);
    }
    if (n_left + n_right > JOINED) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s: merge %u is longer than %d bytes", path, merges->n,
                       JOINED);
    }
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right, n_right);
    dsi_merge merge = {.rank = merges->ranks != NULL ? merges->ranks[merges->n] : merges->n};
    DS_TRY(need(ctx, path, vocab, merge.rank, left, n_left, &merge.left));
    DS_TRY(need(ctx, path, vocab, merge.rank, right, n_right, &merge.right));
    /* Merges mostly make the vocabulary in its order: try the next id before the hash. */
    const uint32_t next = merges->newest + 1;
    if (next < vocab->n_ids && is_spelled(vocab, next, joined, n_left + n_right)) {
        merge.id = next;
    } else {
        DS_TRY(need(ctx, path, vocab, merge.rank, joined, n_left + n_right, &merge.id));
    }
    merges->newest = merge.id;
    uint32_t i = dsi_pair_hash(merge.left, merge.right) & merges->slot_mask;
    while (merges->slots[i].left != DSI_NO_ID &&
           (merges->slots[i].left != merge.left || merges->slots[i].right != merge.right)) {
        i = (i + 1) & merges->slot_mask;
    }
    merges->slots[i] = merge;
    ++merges->n;
    return DS_OK;
}

void dsi_merges_free(dsi_merges *merges)
{
    free(merges->slots);
    *merges = (dsi_merges){0};
}
