/* SPDX-License-Identifier: Apache-2.0 */
/* How long a step takes by the order of a schedule alone: each rank runs its turns as soon as it is
 * behind the turn before and what the phase reads is there: made, and come from the stage beside
 * it. Nobody waits to send, and messages take no room. For stages that take different times, where
 * no formula says it. */
#ifndef DSI_PIPE_PIPE_TIME_H
#define DSI_PIPE_PIPE_TIME_H

#include "cost/cores.h"
#include "pipe/pipe_schedule.h"

typedef struct dsi_stage_way {
    double down, back;
} dsi_stage_way;

/* Ranks of `together` stages that follow one another, n_ranks of each, share the cores of a host:
 * while some stages wait, the phases of others go faster (cost/cores.h). Zero: each has its own. */
typedef struct dsi_stage_cores {
    dsi_cores cores;
    uint32_t together, n_ranks;
} dsi_stage_cores;

typedef struct dsi_stage_times {
    const dsi_schedule_times *stages; /* seconds of a micro-batch's phases on each stage while all
                          are busy, n_ranks · n_chunks of them, in the order of the model */
    const dsi_stage_way *ways; /* seconds from each stage to the next one, and from there back;
                                  NULL: none */
    dsi_stage_cores shared;
} dsi_stage_times;

/* *seconds_out: until the last rank has ended. Errors: ERR_NOMEM, ERR_INTERNAL (the turns block).
 */
ds_status dsi_schedule_seconds(ds_ctx *ctx, const dsi_schedule *s, const dsi_stage_times *times,
                               double *seconds_out);

#endif
