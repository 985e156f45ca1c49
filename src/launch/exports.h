/* SPDX-License-Identifier: Apache-2.0 */
/* The environment that nodes get from the head: chosen variables, and the file .deepspeed_env.
 *
 * It travels with the job's secret on the first line of the nodes' standard input, or inside the
 * environment of mpirun and srun; never on a command line, which every user of a machine can read.
 */
#ifndef DSI_LAUNCH_EXPORTS_H
#define DSI_LAUNCH_EXPORTS_H

#include "launch/words.h"

/* Adds to *exports (an environment) what `env` holds of the exported names, then the lines of the
 * env file: $DS_ENV_FILE or .deepspeed_env, first in `home`, then in `folder`, either may be NULL.
 * Errors: ERR_FORMAT with "file:line: …"; ERR_IO; ERR_NOMEM. */
ds_status dsi_exports_collect(ds_ctx *ctx, const dsi_words *env, const char *home,
                              const char *folder, dsi_words *exports);

/* Reads lines NAME=VALUE ('#' begins a line of comment, "export " before the name and quotes around
 * the value are taken off). Errors: ERR_FORMAT names file and line. */
ds_status dsi_exports_parse(ds_ctx *ctx, const char *name, const char *text, size_t n,
                            dsi_words *exports);

/* An environment as one line, and back. Errors of the second: ERR_FORMAT. */
void dsi_control_line(const dsi_words *env, dsi_buf *line);
ds_status dsi_control_read(ds_ctx *ctx, const char *line, size_t n, dsi_words *env);

#endif
