/* SPDX-License-Identifier: Apache-2.0 */
/* An experiment of Comet, kept offline: .cometml-runs/KEY.zip in the current folder (or in
 * $COMET_OFFLINE_DIRECTORY), which the package sends with "comet upload". While the run goes on its
 * two files are in .cometml-runs/KEY. Called by monitor.c; nothing is ever sent from here, and no
 * API key is read or written. */
#ifndef DSI_MONITOR_COMET_RUN_H
#define DSI_MONITOR_COMET_RUN_H

#include <deepspeed/config.h>

typedef struct dsi_comet dsi_comet;

/* config_json: an object whose members become the parameters, NULL: none. Errors: ERR_CONFIG names
 * the key; ERR_IO, ERR_NOT_FOUND. */
ds_status dsi_comet_open(ds_ctx *ctx, const ds_config_comet *config, const char *config_json,
                         dsi_comet **out);
/* Of each tag the first value is kept, then one every samples_log_interval samples. Errors: ERR_IO,
 * ERR_LIMIT on more than 256 tags. */
ds_status dsi_comet_write(dsi_comet *run, const char *tag, double value, uint64_t samples);
/* error: why the run failed, NULL. Makes the archive, frees and nulls. */
ds_status dsi_comet_close(dsi_comet **run, const char *error);

#endif
