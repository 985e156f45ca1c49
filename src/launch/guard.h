/* SPDX-License-Identifier: Apache-2.0 */
/* A small process that outlives the launcher for a moment: when the launcher dies by whatever
 * means, the guard kills every process group that it had started. The death signal of process.c
 * reaches only the children themselves; this reaches theirs too. Called by supervise.c.
 */
#ifndef DSI_LAUNCH_GUARD_H
#define DSI_LAUNCH_GUARD_H

#include <deepspeed/status.h>
#include <sys/types.h>

typedef struct dsi_guard {
    pid_t pid; /* 0: none */
    int pipe;  /* end for writing; its end is the signal */
} dsi_guard;

/* Errors: ERR_IO. Call it before any thread is started. */
ds_status dsi_guard_start(ds_ctx *ctx, dsi_guard *guard_out);
/* A process group lives, or is gone. */
void dsi_guard_add(const dsi_guard *guard, pid_t group);
void dsi_guard_remove(const dsi_guard *guard, pid_t group);
/* Ends the guard; groups not removed are killed. Accepts a zeroed one. */
void dsi_guard_stop(dsi_guard *guard);

#endif
