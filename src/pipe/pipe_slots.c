/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of slots. See pipe_slots.h. */
#include "pipe/pipe_slots.h"

#include <stdlib.h>

enum { TIMES_MORE = 4 }; /* slots at most for each micro-batch in flight */

typedef struct chooser {
    ds_ctx *ctx;
    const dsi_schedule *s;
    dsi_slot_event *events; /* as many as a step has */
    size_t *at;
    uint32_t rank;
} chooser;

/* Places that n slots take. In the middle of a long step the same comes again and again: then of
 * fewer micro-batches. */
static ds_status count_places(const chooser *c, uint32_t n, uint32_t in_flight, uint32_t *n_out)
{
    dsi_schedule s = *c->s;
    size_t ones[DSI_STAGES_MOST];
    size_t total = 0;
    const uint32_t p = s.n_ranks;
    const uint32_t enough = (n + 2 * in_flight + 3 * p) / p * p;
    s.n_micro = enough < s.n_micro ? enough : s.n_micro;
    for (uint32_t chunk = 0; chunk < s.n_chunks; ++chunk) {
        ones[chunk] = 1;
    }
    dsi_schedule_events(&s, c->rank, c->events);
    const dsi_slot_events events = {c->events, 2 * s.n_chunks * s.n_micro};
    DS_TRY(dsi_slot_pool(c->ctx, &events, s.n_chunks, n, ones, c->at, &total));
    *n_out = (uint32_t)total;
    return DS_OK;
}

/* The fewest places; of those the fewest slots. */
static ds_status choose(const chooser *c, uint32_t in_flight, uint32_t chunks, uint32_t *n_out,
                        uint32_t *n_places_out)
{
    uint32_t most = TIMES_MORE * in_flight < c->s->n_micro ? TIMES_MORE * in_flight : c->s->n_micro;
    most = most < DSI_PIPE_SLOTS_MOST ? most : DSI_PIPE_SLOTS_MOST;
    *n_places_out = UINT32_MAX;
    for (uint32_t n = in_flight; (n <= most || n == in_flight) && *n_places_out > chunks; ++n) {
        uint32_t places = 0;
        DS_TRY(count_places(c, n, in_flight, &places));
        if (places < *n_places_out) {
            *n_places_out = places;
            *n_out = n;
        }
    }
    return DS_OK;
}

ds_status dsi_pipe_slots_make(ds_ctx *ctx, const dsi_schedule *s, uint32_t rank,
                              dsi_pipe_slots *slots_out)
{
    const uint32_t n_events = 2 * s->n_chunks * s->n_micro;
    uint32_t chunks = 0;
    const uint32_t in_flight = dsi_schedule_in_flight(s, rank, &chunks);
    dsi_pipe_slots slots = {.n = in_flight, .n_places = in_flight};
    if (s->n_chunks > 1) {
        const uint32_t most = TIMES_MORE * in_flight;
        chooser c = {.ctx = ctx, .s = s, .rank = rank};
        c.events = malloc(((size_t)n_events + 1) * sizeof *c.events);
        c.at = malloc(((size_t)most * s->n_chunks + 1) * sizeof *c.at);
        ds_status status = c.events != NULL && c.at != NULL
                               ? choose(&c, in_flight, chunks, &slots.n, &slots.n_places)
                               : ds_fail(ctx, DS_ERR_NOMEM, "no memory for the slots of a stage");
        free(c.at);
        if (status < 0) {
            free(c.events);
            return status;
        }
        dsi_schedule_events(s, rank, c.events);
        slots.events = (dsi_slot_events){c.events, n_events};
    }
    *slots_out = slots;
    return DS_OK;
}

void dsi_pipe_slots_free(dsi_pipe_slots *slots)
{
    free((void *)(uintptr_t)slots->events.items);
    *slots = (dsi_pipe_slots){0};
}
