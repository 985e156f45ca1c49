/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots a rank of a pipeline has, and when it takes them. Micro-batch i is in slot i %
 * n_slots; each chunk has memory of its own there, which lies in one pool (plan/plan_pool.h). A
 * slot more costs inputs and the executor's tables; more of them leave the pool more ways to give
 * memory back to others, so that as much suffices as there are chunks of micro-batches in flight.
 */
#ifndef DSI_PIPE_PIPE_SLOTS_H
#define DSI_PIPE_PIPE_SLOTS_H

#include "pipe/pipe_schedule.h"

enum { DSI_PIPE_SLOTS_MOST = 64 };

typedef struct dsi_pipe_slots {
    uint32_t n;
    dsi_slot_events events; /* owned; of one chunk NULL: in whatever order */
    uint32_t n_places;      /* of the pool, where all chunks need as much */
} dsi_pipe_slots;

/* Errors: ERR_NOMEM. */
ds_status dsi_pipe_slots_make(ds_ctx *ctx, const dsi_schedule *s, uint32_t rank,
                              dsi_pipe_slots *slots_out);
void dsi_pipe_slots_free(dsi_pipe_slots *slots);

#endif
