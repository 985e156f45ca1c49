/* SPDX-License-Identifier: Apache-2.0 */
/* What the autotuner of `deepspeed` learns without running: the plan of a ds_train command, and the
 * memory that its ranks may use. */
#ifndef DS_TOOLS_TUNE_PLANNER_H
#define DS_TOOLS_TUNE_PLANNER_H

#include "launch/launch_options.h"
#include "tune/tune.h"

/* Reads a command line as ds_train does and plans each configuration whole, as ds_plan does. */
extern const dsi_tune_planner tune_planner_ds_train;

/* Bytes that a rank on this machine may use: what is free now, or what the memory control group
 * allows when that is less, a twentieth left alone, divided by the ranks. Errors: those of the
 * hostfile. */
ds_status tune_find_memory(ds_ctx *ctx, const dsi_launch_options *options, uint64_t *bytes_out);

/* The device that the ranks of a ds_train command compute on, where that is one of this machine
 * with memory of its own and a shipped profile: the profile's name and the device's whole GiB.
 * *profile_out: NULL where there is none; of a device without a profile a warning says so. Errors:
 * ERR_NOMEM. */
ds_status tune_find_device(ds_ctx *ctx, const dsi_launch_options *options, const char **profile_out,
                           uint64_t *bytes_out);

#endif
