/* SPDX-License-Identifier: Apache-2.0 */
/* A bump allocator for things that die together: a graph, a plan, a parsed file. */
#ifndef DSI_BASE_ARENA_H
#define DSI_BASE_ARENA_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct dsi_arena dsi_arena;

/* ceiling_bytes: allocations past it fail with ERR_LIMIT semantics (NULL). */
ds_status dsi_arena_create(size_t ceiling_bytes, dsi_arena **arena_out);
void dsi_arena_destroy(dsi_arena **arena);

/* Zeroed, aligned to 16 bytes; NULL when out of memory or past the ceiling. */
void *dsi_arena_alloc(dsi_arena *arena, size_t bytes);
/* n * size with overflow check. */
void *dsi_arena_array(dsi_arena *arena, size_t n, size_t size);
/* Copies; NULL on failure. */
void *dsi_arena_copy(dsi_arena *arena, const void *data, size_t bytes);
char *dsi_arena_strdup(dsi_arena *arena, const char *text);
char *dsi_arena_strndup(dsi_arena *arena, const char *text, size_t n);
size_t dsi_arena_used(const dsi_arena *arena);

/* Overflow-checked size arithmetic: false when the result does not fit. */
bool dsi_mul_size(size_t a, size_t b, size_t *product_out);
bool dsi_add_size(size_t a, size_t b, size_t *sum_out);

#endif
