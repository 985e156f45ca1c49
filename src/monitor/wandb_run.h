/* SPDX-License-Identifier: Apache-2.0 */
/* A run of Weights & Biases, kept offline: wandb/offline-run-DATE_TIME-ID/run-ID.wandb in the
 * current folder (or in $WANDB_DIR), which the package sends with "wandb sync". Called by
 * monitor.c; nothing is ever sent from here, and no key is read. */
#ifndef DSI_MONITOR_WANDB_RUN_H
#define DSI_MONITOR_WANDB_RUN_H

#include <deepspeed/config.h>

typedef struct dsi_wandb dsi_wandb;

/* $WANDB_MODE "disabled": *out stays NULL. config_json: an object whose members become the run's
 * configuration, NULL: none. Errors: ERR_IO, ERR_NOT_FOUND; ERR_CONFIG for a bad WANDB_MODE or
 * WANDB_RUN_ID. */
ds_status dsi_wandb_open(ds_ctx *ctx, const ds_config_wandb *config, const char *config_json,
                         dsi_wandb **out);
/* Values with the same step become one row of the history, which is written when the next begins.
 */
ds_status dsi_wandb_write(dsi_wandb *run, const char *tag, double value, uint64_t step);
/* Writes the row that is waiting and the exit code, frees and nulls. */
ds_status dsi_wandb_close(dsi_wandb **run, int exit_code);

#endif
