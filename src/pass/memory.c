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

/* An item that has its place. */
typedef struct spot {
    size_t offset;
    size_t end;
    uint32_t first;
    uint32_t last;
} spot;

/* By offset; of the same offset, in the order in which they were placed. */
typedef struct spots {
    spot *items;
    uint32_t n;
    uint32_t room;
} spots;

/* Most items live for a few steps. Time is divided into parts, each with the items that live in
 * it, so that an item within one part is compared with these alone. */
enum { TIME_PARTS = 64 };

typedef struct placed {
    spots all;
    spots parts[TIME_PARTS];
    uint32_t steps_a_part;
} placed;

static bool meet(const spot *a, const dsi_memory_item *b)
{
    const bool a_wraps = a->last < a->first;
    const bool b_wraps = b->last < b->first;
    if (a_wraps || b_wraps) { /* two of these meet at the end */
        return (a_wraps && b_wraps) || a->first <= b->last || b->first <= a->last;
    }
    return a->first <= b->last && b->first <= a->last;
}

static size_t at_align(const dsi_memory_item *item, size_t offset)
{
    const size_t align = item->align > 0 ? item->align : 1;
    return (offset + align - 1) / align * align;
}

static uint32_t part_of(const placed *p, uint32_t step)
{
    const uint32_t part = step / p->steps_a_part;
    return part < TIME_PARTS ? part : TIME_PARTS - 1;
}

/* Lowest offset where `item` fits among those that are placed. */
static size_t lowest_fit(const placed *p, const dsi_memory_item *item)
{
    const uint32_t part = part_of(p, item->first);
    const bool within = item->first <= item->last && part == part_of(p, item->last);
    const spots *others = within ? &p->parts[part] : &p->all;
    const size_t bytes = padded(item->bytes);
    size_t at = 0;
    for (uint32_t i = 0; i < others->n; ++i) {
        const spot *other = &others->items[i];
        if (!meet(other, item)) {
            continue;
        }
        if (other->offset >= at && other->offset - at >= bytes) {
            return at;
        }
        const size_t end = at_align(item, other->end);
        at = end > at ? end : at;
    }
    return at;
}

static bool insert(spots *s, const spot *added)
{
    if (s->n == s->room) {
        const uint32_t room = s->room > 0 ? 2 * s->room : 64;
        spot *items = realloc(s->items, room * sizeof *items);
        if (items == NULL) {
            return false;
        }
        s->items = items;
        s->room = room;
    }
    uint32_t at = 0;
    for (uint32_t high = s->n; at < high;) {
        const uint32_t middle = at + (high - at) / 2;
        if (s->items[middle].offset > added->offset) {
            high = middle;
        } else {
            at = middle + 1;
        }
    }
    memmove(&s->items[at + 1], &s->items[at], (s->n - at) * sizeof *s->items);
    s->items[at] = *added;
    s->n += 1;
    return true;
}

static bool place(placed *p, const dsi_memory_item *item)
{
    const spot added = {item->offset, item->offset + padded(item->bytes), item->first, item->last};
    const bool wraps = item->last < item->first;
    const uint32_t end = wraps ? TIME_PARTS - 1 : part_of(p, item->last);
    bool ok = insert(&p->all, &added);
    for (uint32_t part = wraps ? 0 : part_of(p, item->first); part <= end && ok; ++part) {
        ok = insert(&p->parts[part], &added);
    }
    return ok;
}

static void forget(placed *p)
{
    free(p->all.items);
    for (uint32_t i = 0; i < TIME_PARTS; ++i) {
        free(p->parts[i].items);
    }
}

ds_status dsi_memory_assign(ds_ctx *ctx, dsi_memory_item *items, uint32_t n, bool reuse,
                            size_t *total_out)
{
    dsi_memory_item **order = malloc((n + (size_t)1) * sizeof(dsi_memory_item *));
    placed done = {.steps_a_part = 1};
    bool ok = order != NULL;
    uint32_t latest = 0; /* `last` may be "for ever" */
    for (uint32_t i = 0; i < n && ok; ++i) {
        order[i] = &items[i];
        latest = items[i].first > latest ? items[i].first : latest;
    }
    done.steps_a_part += latest / TIME_PARTS;
    if (ok) {
        qsort(order, n, sizeof *order, by_size);
    }
    size_t total = 0;
    for (uint32_t i = 0; i < n && ok; ++i) {
        dsi_memory_item *item = order[i];
        if (item->bytes == 0) {
            continue;
        }
        if (!item->fixed) {
            item->offset = reuse ? lowest_fit(&done, item) : at_align(item, total);
        }
        ok = !reuse || place(&done, item);
        const size_t end = item->offset + padded(item->bytes);
        total = end > total ? end : total;
    }
    free(order);
    forget(&done);
    *total_out = total;
    return ok ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory to plan memory");
}
