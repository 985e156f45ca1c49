/* SPDX-License-Identifier: Apache-2.0 */
/* Whether ds_train would take a configuration file, by ds_train's own start. */
#ifndef DSI_TOOLS_CONFIG_CHECK_H
#define DSI_TOOLS_CONFIG_CHECK_H

#include "common/train.h"

/* Prints the verdict to stdout, errors too. world_size 0: that of the file's batch sizes, else 1.
 * Returns 0 when it is right, 1 when ds_train would refuse it, 3 when it cannot be read. */
int config_check(ds_ctx *ctx, const train_options *options, uint32_t world_size, const char *file);

#endif
