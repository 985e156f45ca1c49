/* SPDX-License-Identifier: Apache-2.0 */
/* A shared counter from which the lanes of one parallel loop claim pieces of work, when a lane
 * keeps scratch memory or looks ahead over more than one piece. What a piece computes must not
 * depend on the lane that took it. */
#ifndef DSI_BASE_TICKET_H
#define DSI_BASE_TICKET_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct dsi_ticket {
    atomic_uint next;
} dsi_ticket;

static inline void dsi_ticket_reset(dsi_ticket *ticket)
{
    atomic_init(&ticket->next, 0);
}

/* 0, 1, 2, … each once over all threads. The caller stops at its own count; at most 2^32 - 1
 * claims. */
static inline uint32_t dsi_ticket_take(dsi_ticket *ticket)
{
    return atomic_fetch_add_explicit(&ticket->next, 1, memory_order_relaxed);
}

#endif
