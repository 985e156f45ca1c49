/* SPDX-License-Identifier: Apache-2.0 */
/* The bump allocator: a list of blocks, newest first. */
#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, BLOCK_BYTES = 64 * 1024 };

typedef struct block {
    struct block *older;
    size_t used;
    size_t size;
    _Alignas(ALIGN) unsigned char bytes[];
} block;

struct dsi_arena {
    block *newest;
    size_t used;
    size_t ceiling;
};

bool dsi_mul_size(size_t a, size_t b, size_t *product_out)
{
    if (b != 0 && a > SIZE_MAX / b) {
        return false;
    }
    *product_out = a * b;
    return true;
}

bool dsi_add_size(size_t a, size_t b, size_t *sum_out)
{
    if (a > SIZE_MAX - b) {
        return false;
    }
    *sum_out = a + b;
    return true;
}

ds_status dsi_arena_create(size_t ceiling_bytes, dsi_arena **arena_out)
{
    dsi_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) {
        return DS_ERR_NOMEM;
    }
    arena->ceiling = ceiling_bytes;
    *arena_out = arena;
    return DS_OK;
}

void dsi_arena_destroy(dsi_arena **arena_inout)
{
    dsi_arena *arena = arena_inout != NULL ? *arena_inout : NULL;
    if (arena == NULL) {
        return;
    }
    for (block *b = arena->newest; b != NULL;) {
        block *older = b->older;
        free(b);
        b = older;
    }
    free(arena);
    *arena_inout = NULL;
}

void *dsi_arena_alloc(dsi_arena *arena, size_t bytes)
{
    size_t padded = 0;
    size_t total = 0;
    if (!dsi_add_size(bytes, ALIGN - 1, &padded)) {
        return NULL;
    }
    padded -= padded % ALIGN;
    if (!dsi_add_size(arena->used, padded, &total) || total > arena->ceiling) {
        return NULL;
    }
    block *b = arena->newest;
    if (b == NULL || b->size - b->used < padded) {
        const size_t size = padded > BLOCK_BYTES ? padded : BLOCK_BYTES;
        b = calloc(1, sizeof *b + size);
        if (b == NULL) {
            return NULL;
        }
        b->size = size;
        b->older = arena->newest;
        arena->newest = b;
    }
    void *result = b->bytes + b->used;
    b->used += padded;
    arena->used = total;
    return result;
}

void *dsi_arena_array(dsi_arena *arena, size_t n, size_t size)
{
    size_t bytes = 0;
    return dsi_mul_size(n, size, &bytes) ? dsi_arena_alloc(arena, bytes) : NULL;
}

void *dsi_arena_copy(dsi_arena *arena, const void *data, size_t bytes)
{
    void *copy = dsi_arena_alloc(arena, bytes);
    if (copy != NULL && bytes > 0) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

char *dsi_arena_strndup(dsi_arena *arena, const char *text, size_t n)
{
    char *copy = dsi_arena_alloc(arena, n + 1);
    if (copy != NULL) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

char *dsi_arena_strdup(dsi_arena *arena, const char *text)
{
    return dsi_arena_strndup(arena, text, strlen(text));
}

size_t dsi_arena_used(const dsi_arena *arena)
{
    return arena->used;
}
