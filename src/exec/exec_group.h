/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of plans that the accelerator's devices carry out (ds_accel_groups): a communicator
 * like any other, over one of the host's, its control, which has the same ranks.
 *
 * The control carries the group's id when it is opened, and afterwards only what a failure needs:
 * when a call is late, its barrier says who is missing; when one fails, its abort tells the others.
 * Called by exec.c for plans whose memory the host does not reach.
 */
#ifndef DSI_EXEC_GROUP_H
#define DSI_EXEC_GROUP_H

#include "comm/comm.h"
#include <deepspeed/accel.h>

/* Collective. *comm_out: operands are device memory; it has no splits. control is borrowed. Errors:
 * those of the accelerator and of control. */
ds_status dsi_exec_group_open(ds_ctx *ctx, const ds_accel *accel, ds_accel_device *device,
                              dsi_comm *control, dsi_comm **comm_out);
/* So that calls of up to so many bytes need nothing new. */
ds_status dsi_exec_group_reserve(dsi_comm *comm, size_t bytes, uint32_t n_parts);
/* Before memory, events and the group itself go: waits shortly for what is under way, and aborts
 * the group when that does not end, because another rank has failed: a device waits for it for
 * ever, and whoever frees memory for the device. */
void dsi_exec_group_end(dsi_comm *comm);

#endif
