/* SPDX-License-Identifier: Apache-2.0 */
/* Which replica a request goes to. See balance.h.
 *
 * The least loaded one; but one that has had the begin of the prompt, so that its prefix cache has
 * it, may have more running: one request for each two blocks of 256 bytes that it knows,
 * BALANCE_SLACK at most. So a long shared begin stays where its keys are, and a short one that all
 * requests have does not send all of them to one replica.
 */
#include "balance.h"

void route_mark(route_marks *marks, const void *data, size_t n)
{
    const unsigned char *p = data;
    if (marks->n_bytes == 0) {
        marks->state = 0xcbf29ce484222325u; /* FNV-1a */
    }
    for (size_t i = 0; i < n && marks->n < BALANCE_MARKS; ++i) {
        marks->state = (marks->state ^ p[i]) * 0x100000001b3u;
        if (++marks->n_bytes % BALANCE_MARK_BYTES == 0) {
            marks->items[marks->n++] = marks->state;
        }
    }
}

static size_t slot_of(uint64_t mark)
{
    return (size_t)((mark ^ mark >> 32) % BALANCE_PREFIXES);
}

void route_remember(route_prefixes *prefixes, const route_marks *marks, size_t k)
{
    for (size_t i = 0; i < marks->n; ++i) {
        prefixes->items[slot_of(marks->items[i])].mark = marks->items[i];
        prefixes->items[slot_of(marks->items[i])].replica = (uint32_t)k + 1;
    }
}

static size_t least_loaded(const route_view *views, size_t n)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < n; ++i) {
        if (!views[i].may) {
            continue;
        }
        if (best == SIZE_MAX || views[i].n_running < views[best].n_running ||
            (views[i].n_running == views[best].n_running &&
             views[i].n_taken < views[best].n_taken)) {
            best = i;
        }
    }
    return best;
}

size_t route_pick(const route_prefixes *prefixes, const route_view *views, size_t n,
                  const route_marks *marks, size_t *cached_out)
{
    const size_t least = least_loaded(views, n);
    *cached_out = 0;
    for (size_t k = marks->n; least != SIZE_MAX && k > 0; --k) {
        const size_t slot = slot_of(marks->items[k - 1]);
        const size_t r = prefixes->items[slot].replica;
        if (r == 0 || r > n || prefixes->items[slot].mark != marks->items[k - 1] ||
            !views[r - 1].may) {
            continue;
        }
        const int64_t slack = k / 2 < BALANCE_SLACK ? (int64_t)(k / 2) : BALANCE_SLACK;
        if (views[r - 1].n_running <= views[least].n_running + slack) {
            *cached_out = k;
            return r - 1;
        }
        break; /* much busier: the others compute it anew */
    }
    return least;
}
