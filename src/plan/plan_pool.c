/* SPDX-License-Identifier: Apache-2.0 */
/* One pool for the slots of all chunks. See plan_pool.h. */
#include "plan/plan_pool.h"

#include <deepspeed/status.h>

#include <stdlib.h>
#include <string.h>

typedef struct pool {
    uint32_t n; /* of chunks and slots: chunk * n_slots + slot */
    bool *meet; /* n·n: taken at once */
    uint32_t *taken, n_taken;
    uint32_t *order, n_order; /* as they begin first */
    bool *known;
    uint32_t n_slots;
    size_t *bytes; /* per chunk */
} pool;

/* Walks through the events: who is taken at once, and who begins first. */
static void find_meetings(pool *p, const dsi_slot_events *events)
{
    for (uint32_t e = 0; e < events->n; ++e) {
        const dsi_slot_event *event = &events->items[e];
        const uint32_t key = event->chunk * p->n_slots + event->micro % p->n_slots;
        uint32_t at = 0;
        while (at < p->n_taken && p->taken[at] != key) {
            p->meet[(size_t)key * p->n + p->taken[at]] = true;
            p->meet[(size_t)p->taken[at] * p->n + key] = true;
            ++at;
        }
        if (event->ends && at < p->n_taken) {
            p->taken[at] = p->taken[--p->n_taken];
        } else if (!event->ends && at == p->n_taken) {
            p->taken[p->n_taken++] = key;
        }
        if (!p->known[key]) {
            p->known[key] = true;
            p->order[p->n_order++] = key;
        }
    }
}

/* The end of what lies in the way of `bytes` at `from`, of those placed before; from: nothing. */
static size_t behind(const pool *p, uint32_t n_placed, uint32_t key, const size_t *at, size_t from)
{
    const size_t bytes = p->bytes[key / p->n_slots];
    for (uint32_t i = 0; i < n_placed; ++i) {
        const uint32_t other = p->order[i];
        const size_t end = at[other] + p->bytes[other / p->n_slots];
        if (p->meet[(size_t)key * p->n + other] && at[other] < from + bytes && from < end) {
            return end;
        }
    }
    return from;
}

/* Larger ones first; those of a size stay in their order. */
static void sort_by_size(pool *p)
{
    for (uint32_t i = 1; i < p->n_order; ++i) {
        const uint32_t key = p->order[i];
        uint32_t at = i;
        while (at > 0 && p->bytes[p->order[at - 1] / p->n_slots] < p->bytes[key / p->n_slots]) {
            p->order[at] = p->order[at - 1];
            --at;
        }
        p->order[at] = key;
    }
}

static size_t place(pool *p, size_t *at)
{
    size_t total = 0;
    sort_by_size(p);
    for (uint32_t i = 0; i < p->n_order; ++i) {
        const uint32_t key = p->order[i];
        size_t from = 0;
        size_t next = behind(p, i, key, at, from);
        while (next != from) {
            from = next;
            next = behind(p, i, key, at, from);
        }
        at[key] = from;
        const size_t end = from + p->bytes[key / p->n_slots];
        total = end > total ? end : total;
    }
    return total;
}

/* Both ways; at: n of the one, n of the other. The offsets of the smaller are given. */
static const size_t *place_best(pool *p, const size_t *bytes, uint32_t n_chunks, size_t *at,
                                size_t *total)
{
    size_t most = 0;
    for (uint32_t c = 0; c < n_chunks; ++c) {
        most = bytes[c] > most ? bytes[c] : most;
    }
    for (uint32_t c = 0; c < n_chunks; ++c) {
        p->bytes[c] = most;
    }
    const size_t alike = place(p, at);
    for (uint32_t c = 0; c < n_chunks; ++c) {
        p->bytes[c] = bytes[c];
    }
    const size_t own = place(p, at + p->n);
    *total = own < alike ? own : alike;
    return own < alike ? at + p->n : at;
}

static void place_apart(uint32_t n_chunks, uint32_t n_slots, const size_t *bytes, size_t *at,
                        size_t *total)
{
    for (uint32_t key = 0; key < n_chunks * n_slots; ++key) {
        at[key] = *total;
        *total += bytes[key / n_slots];
    }
}

ds_status dsi_slot_pool(ds_ctx *ctx, const dsi_slot_events *events, uint32_t n_chunks,
                        uint32_t n_slots, const size_t *bytes, size_t *at_out, size_t *total_out)
{
    pool p = {.n = n_chunks * n_slots, .n_slots = n_slots};
    *total_out = 0;
    if (events->items == NULL) {
        place_apart(n_chunks, n_slots, bytes, at_out, total_out);
        return DS_OK;
    }
    p.meet = calloc((size_t)p.n * p.n + p.n + 1, sizeof *p.meet);
    p.taken = malloc(2 * ((size_t)p.n + 1) * sizeof *p.taken);
    size_t *at = calloc(2 * (size_t)p.n + n_chunks + 1, sizeof *at);
    ds_status status = DS_OK;
    if (p.meet == NULL || p.taken == NULL || at == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for the slots of a plan");
    } else {
        p.known = p.meet + (size_t)p.n * p.n;
        p.order = p.taken + p.n + 1;
        p.bytes = at + 2 * (size_t)p.n;
        find_meetings(&p, events);
        memcpy(at_out, place_best(&p, bytes, n_chunks, at, total_out), p.n * sizeof *at_out);
    }
    free(at);
    free(p.meet);
    free(p.taken);
    return status;
}
