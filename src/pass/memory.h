/* SPDX-License-Identifier: Apache-2.0 */
/* Static memory: offsets for intervals of bytes over time, decided before anything runs. */
#ifndef DSI_PASS_MEMORY_H
#define DSI_PASS_MEMORY_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

enum { DSI_MEMORY_ALIGN = 64 };

typedef struct dsi_memory_item {
    size_t bytes;
    uint32_t first, last; /* steps, both inclusive, at which the bytes are in use; last < first: up
                             to the end, and again from the start up to last */
    size_t offset;        /* out; in when fixed */
    size_t align;         /* a multiple of DSI_MEMORY_ALIGN; 0: that */
    bool fixed;
} dsi_memory_item;

/* Assigns offsets, multiples of DSI_MEMORY_ALIGN, such that items in use at the same step do not
 * overlap; largest first, lowest offset that fits. *total_out: bytes of the arena. reuse false:
 * every item gets bytes of its own (for comparison). Pure. Errors: ERR_NOMEM. */
ds_status dsi_memory_assign(ds_ctx *ctx, dsi_memory_item *items, uint32_t n, bool reuse,
                            size_t *total_out);

#endif
