/* SPDX-License-Identifier: Apache-2.0 */
/* Where the slots of a rank's chunks lie: one pool for all, in which memory that one micro-batch
 * gives back is another's. Called by plan_place.c, and by the schedules, which choose how many
 * slots there are. Pure. */
#ifndef DSI_PLAN_PLAN_POOL_H
#define DSI_PLAN_PLAN_POOL_H

#include <deepspeed/context.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A chunk of a micro-batch begins and takes its memory, or has ended and gives it back. */
typedef struct dsi_slot_event {
    uint32_t chunk, micro; /* its slot: micro % n_slots */
    bool ends;
} dsi_slot_event;

/* What a rank does in a step, in order. */
typedef struct dsi_slot_events {
    const dsi_slot_event *items; /* NULL: any order; then all slots are apart */
    uint32_t n;
} dsi_slot_events;

/* Offsets at_out[chunk * n_slots + slot] for bytes[chunk] each, such that what is taken at once
 * does not overlap: who begins first, at the lowest place that is free, where each takes as much as
 * the largest; or largest first, at the lowest offset that is free: what is smaller. *total_out:
 * bytes of the pool. Errors: ERR_NOMEM. */
ds_status dsi_slot_pool(ds_ctx *ctx, const dsi_slot_events *events, uint32_t n_chunks,
                        uint32_t n_slots, const size_t *bytes, size_t *at_out, size_t *total_out);

#endif
