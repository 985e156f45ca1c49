/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher itself: from options to an exit code. Called by tools/ds_launcher.c. */
#ifndef DSI_LAUNCH_HEAD_H
#define DSI_LAUNCH_HEAD_H

#include "launch/hosts.h"
#include "launch/launch_options.h"
#include "launch/supervise.h"

/* Runs the job, or prints what it would run. Errors: whatever keeps the job from running, with the
 * remedy; a job that ran and failed is no error: *exit_code_out says. */
ds_status dsi_head_run(ds_ctx *ctx, const dsi_launch_options *options, int *exit_code_out);

/* The same for a caller that must know how the job ended. Nothing is started with --dry_run. */
ds_status dsi_head_run_outcome(ds_ctx *ctx, const dsi_launch_options *options,
                               dsi_outcome *outcome_out);

/* The hosts and slots that the options select; *local_out: there is no hostfile, the one host is
 * this machine. The caller frees *hosts_out. Errors: of the hostfile, of the selection. */
ds_status dsi_head_hosts(ds_ctx *ctx, const dsi_launch_options *options, dsi_hosts *hosts_out,
                         bool *local_out);

/* Devices that a rank may be given here: what CUDA_VISIBLE_DEVICES leaves of /dev/nvidia*; 0 on a
 * machine without, or with DS_ACCELERATOR=cpu. */
uint32_t dsi_devices_here(void);

#endif
