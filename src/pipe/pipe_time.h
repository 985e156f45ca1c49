/* SPDX-License-Identifier: Apache-2.0 */
/* How long a step takes by the order of a schedule alone: each rank runs its turns as soon as it is
 * behind the turn before and what the phase reads is made; messages take no time and no room. For
 * stages that take different times, where no formula says it. */
#ifndef DSI_PIPE_PIPE_TIME_H
#define DSI_PIPE_PIPE_TIME_H

#include "pipe/pipe_schedule.h"

/* stages: seconds of a micro-batch's phases on each stage, n_ranks · n_chunks of them, in the order
 * of the model. *seconds_out: until the last rank has ended. Errors: ERR_NOMEM, ERR_INTERNAL (the
 * turns block). */
ds_status dsi_schedule_seconds(ds_ctx *ctx, const dsi_schedule *s, const dsi_schedule_times *stages,
                               double *seconds_out);

#endif
