/* SPDX-License-Identifier: Apache-2.0 */
/* How long a step takes by the order of a schedule alone: each rank runs its turns as soon as it is
 * behind the turn before and what the phase reads is there: made, and come from the stage beside
 * it. Nobody waits to send, and messages take no room. For stages that take different times, where
 * no formula says it. */
#ifndef DSI_PIPE_PIPE_TIME_H
#define DSI_PIPE_PIPE_TIME_H

#include "pipe/pipe_schedule.h"

/* stages: seconds of a micro-batch's phases on each stage, n_ranks · n_chunks of them, in the order
 * of the model. ways: seconds from each stage to the next one, and from there back; NULL: none.
 * *seconds_out: until the last rank has ended. Errors: ERR_NOMEM, ERR_INTERNAL (the turns block).
 */
typedef struct dsi_stage_way {
    double down, back;
} dsi_stage_way;
ds_status dsi_schedule_seconds(ds_ctx *ctx, const dsi_schedule *s, const dsi_schedule_times *stages,
                               const dsi_stage_way *ways, double *seconds_out);

#endif
