/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `deepspeed`. */
#ifndef DSI_TOOLS_LAUNCH_FLAGS_H
#define DSI_TOOLS_LAUNCH_FLAGS_H

#include "launch/launch_options.h"

/* Fills *options_out. *help_out: the help was asked for and is printed. The caller frees
 * options_out->command. Errors: ERR_ARG. */
ds_status launch_flags_parse(ds_ctx *ctx, int argc, char **argv, dsi_launch_options *options_out,
                             bool *help_out);

#endif
