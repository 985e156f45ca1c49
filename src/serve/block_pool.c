/* SPDX-License-Identifier: Apache-2.0 */
/* See block_pool.h. Free blocks are a ring by index: those without content at its head, those with
 * it behind, the least recently used first. Registered blocks are chained by hash. */
#include "serve/block_pool.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct entry {
    int32_t refs;
    int32_t before, after; /* in the ring of free blocks */
    int32_t chain;         /* the next of the same hash, -1 */
    bool registered;
    uint64_t serial, parent, hash;
} entry;

struct dsi_block_pool {
    int64_t n_blocks, block, n_free;
    entry *entries; /* [n_blocks], and the ring's head behind them */
    int32_t *heads; /* [n_heads], a power of two */
    uint64_t n_heads, serial;
    uint32_t *ids; /* [n_blocks][block] */
};

static void unlink_free(dsi_block_pool *p, int32_t b)
{
    entry *e = &p->entries[b];
    p->entries[e->before].after = e->after;
    p->entries[e->after].before = e->before;
    p->n_free -= 1;
}

/* In front of `at`. */
static void link_free(dsi_block_pool *p, int32_t b, int32_t at)
{
    entry *e = &p->entries[b];
    e->after = at;
    e->before = p->entries[at].before;
    p->entries[e->before].after = b;
    p->entries[at].before = b;
    p->n_free += 1;
}

ds_status dsi_block_pool_create(ds_ctx *ctx, int64_t n_blocks, int64_t block,
                                dsi_block_pool **pool_out)
{
    dsi_block_pool *p = calloc(1, sizeof *p);
    if (p == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a pool of blocks");
    }
    p->n_blocks = n_blocks;
    p->block = block;
    p->n_heads = 64;
    while (p->n_heads < 2 * (uint64_t)n_blocks) {
        p->n_heads *= 2;
    }
    p->entries = calloc((size_t)n_blocks + 1, sizeof *p->entries);
    p->heads = malloc((size_t)p->n_heads * sizeof *p->heads);
    p->ids = malloc((size_t)(n_blocks * block) * sizeof *p->ids);
    if (p->entries == NULL || p->heads == NULL || p->ids == NULL) {
        dsi_block_pool_destroy(&p);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a pool of %lld blocks",
                       (long long)n_blocks);
    }
    memset(p->heads, 0xff, (size_t)p->n_heads * sizeof *p->heads);
    const int32_t head = (int32_t)n_blocks;
    p->entries[head].before = p->entries[head].after = head;
    for (int32_t b = 0; b < head; ++b) {
        link_free(p, b, head);
    }
    *pool_out = p;
    return DS_OK;
}

void dsi_block_pool_destroy(dsi_block_pool **pool)
{
    dsi_block_pool *p = *pool;
    if (p != NULL) {
        free(p->entries);
        free(p->heads);
        free(p->ids);
        free(p);
        *pool = NULL;
    }
}

int64_t dsi_block_pool_n_free(const dsi_block_pool *p)
{
    return p->n_free;
}

bool dsi_block_pool_is_free(const dsi_block_pool *p, int32_t block)
{
    return p->entries[block].refs == 0;
}

static uint64_t hash_of(const dsi_block_pool *p, uint64_t before, const uint32_t *ids)
{
    return XXH3_64bits_withSeed(ids, (size_t)p->block * sizeof *ids, before);
}

static void forget(dsi_block_pool *p, int32_t b)
{
    int32_t *at = &p->heads[p->entries[b].hash & (p->n_heads - 1)];
    while (*at != b) {
        at = &p->entries[*at].chain;
    }
    *at = p->entries[b].chain;
    p->entries[b].registered = false;
}

int32_t dsi_block_pool_take(dsi_block_pool *p)
{
    const int32_t b = p->entries[p->n_blocks].after;
    if (b == p->n_blocks) {
        return -1;
    }
    unlink_free(p, b);
    if (p->entries[b].registered) {
        forget(p, b);
    }
    p->entries[b].refs = 1;
    return b;
}

void dsi_block_pool_release(dsi_block_pool *p, int32_t b)
{
    const int32_t head = (int32_t)p->n_blocks;
    if (--p->entries[b].refs == 0) {
        link_free(p, b, p->entries[b].registered ? head : p->entries[head].after);
    }
}

void dsi_block_pool_share(dsi_block_pool *p, int32_t b)
{
    if (p->entries[b].refs++ == 0) {
        unlink_free(p, b);
    }
}

static int32_t find(const dsi_block_pool *p, uint64_t hash, uint64_t before, const uint32_t *ids)
{
    const size_t bytes = (size_t)p->block * sizeof *ids;
    int32_t b = p->heads[hash & (p->n_heads - 1)];
    while (b >= 0 && (p->entries[b].hash != hash || p->entries[b].parent != before ||
                      memcmp(p->ids + b * p->block, ids, bytes) != 0)) {
        b = p->entries[b].chain;
    }
    return b;
}

int32_t dsi_block_pool_find(const dsi_block_pool *p, uint64_t before, const uint32_t *ids)
{
    return find(p, hash_of(p, before, ids), before, ids);
}

int32_t dsi_block_pool_register(dsi_block_pool *p, int32_t b, uint64_t before, const uint32_t *ids)
{
    const uint64_t hash = hash_of(p, before, ids);
    const int32_t there = find(p, hash, before, ids);
    if (there >= 0) {
        return there;
    }
    entry *e = &p->entries[b];
    memcpy(p->ids + b * p->block, ids, (size_t)p->block * sizeof *ids);
    e->hash = hash;
    e->parent = before;
    e->serial = ++p->serial;
    e->registered = true;
    e->chain = p->heads[hash & (p->n_heads - 1)];
    p->heads[hash & (p->n_heads - 1)] = b;
    return b;
}

void dsi_block_pool_forget(dsi_block_pool *p)
{
    memset(p->heads, 0xff, (size_t)p->n_heads * sizeof *p->heads);
    for (int64_t b = 0; b < p->n_blocks; ++b) {
        p->entries[b].registered = false;
    }
}

uint64_t dsi_block_pool_serial(const dsi_block_pool *p, int32_t b)
{
    return p->entries[b].serial;
}

bool dsi_block_pool_holds(const dsi_block_pool *p, int32_t b, uint64_t serial)
{
    return p->entries[b].registered && p->entries[b].serial == serial;
}
