/* SPDX-License-Identifier: Apache-2.0 */
/* Offset assignment: greedy by size, lowest gap first (the "greedy by size" strategy of Pisarchyk
 * and Lee, "Efficient memory management for deep neural net inference", 2020). */
#include "pass/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t padded(size_t bytes)
{
    return (bytes + DSI_MEMORY_ALIGN - 1) / DSI_MEMORY_ALIGN * DSI_MEMORY_ALIGN;
}

static int by_size(const void *a, const void *b)
{
    const dsi_memory_item *x = *(dsi_memory_item *const *)a;
    const dsi_memory_item *y = *(dsi_memory_item *const *)b;
    if (x->fixed != y->fixed) {
        return x->fixed ? -1 : 1;
    }
    if (x->bytes != y->bytes) {
        return x->bytes > y->bytes ? -1 : 1;
    }
    return x < y ? -1 : x > y; /* the array's order: deterministic */
}

static bool wraps(const dsi_memory_item *item)
{
    return item->last < item->first;
}

static bool meet(const dsi_memory_item *a, const dsi_memory_item *b)
{
    if (wraps(a) || wraps(b)) { /* two of these meet at the end */
        return (wraps(a) && wraps(b)) || a->first <= b->last || b->first <= a->last;
    }
    return a->first <= b->last && b->first <= a->last;
}

static size_t at_align(const dsi_memory_item *item, size_t offset)
{
    const size_t align = item->align > 0 ? item->align : 1;
    return (offset + align - 1) / align * align;
}

/* Lowest offset where `item` fits among `placed`, which is sorted by offset. */
static size_t lowest_fit(dsi_memory_item *const *placed, uint32_t n, const dsi_memory_item *item)
{
    size_t at = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (!meet(placed[i], item)) {
            continue;
        }
        if (placed[i]->offset >= at && placed[i]->offset - at >= padded(item->bytes)) {
            return at;
        }
        const size_t end = at_align(item, placed[i]->offset + padded(placed[i]->bytes));
        at = end > at ? end : at;
    }
    return at;
}

static void insert_sorted(dsi_memory_item **placed, uint32_t n, dsi_memory_item *item)
{
    uint32_t at = n;
    while (at > 0 && placed[at - 1]->offset > item->offset) {
        placed[at] = placed[at - 1];
        --at;
    }
    placed[at] = item;
}

ds_status dsi_memory_assign(ds_ctx *ctx, dsi_memory_item *items, uint32_t n, bool reuse,
                            size_t *total_out)
{
    dsi_memory_item **order = malloc((n + 1) * 2 * sizeof(dsi_memory_item *));
    if (order == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to plan memory");
    }
    dsi_memory_item **placed = order + n;
    for (uint32_t i = 0; i < n; ++i) {
        order[i] = &items[i];
    }
    qsort(order, n, sizeof *order, by_size);
    size_t total = 0;
    uint32_t n_placed = 0;
    for (uint32_t i = 0; i < n; ++i) {
        dsi_memory_item *item = order[i];
        if (item->bytes == 0) {
            continue;
        }
        if (!item->fixed) {
            item->offset = reuse ? lowest_fit(placed, n_placed, item) : at_align(item, total);
        }
        insert_sorted(placed, n_placed++, item);
        const size_t end = item->offset + padded(item->bytes);
        total = end > total ? end : total;
    }
    free(order);
    *total_out = total;
    return DS_OK;
}
