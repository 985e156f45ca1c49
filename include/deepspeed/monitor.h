/* SPDX-License-Identifier: Apache-2.0 */
/* Monitors: scalars to TensorBoard event files, CSV, and offline files of Weights & Biases and
 * Comet, with DeepSpeed's tags and paths.
 *
 * TensorBoard writes output_path/job_name/events.out.tfevents.*, CSV writes
 * output_path/job_name/TAG.csv ('/' and ' ' of the tag become '_'), a row "step,value" a call.
 * W&B's run is ./wandb/offline-run-TIME-ID/run-ID.wandb, Comet's experiment
 * ./.cometml-runs/KEY.zip; their packages send them ("wandb sync", "comet upload"), this library
 * sends nothing.
 */
#ifndef DEEPSPEED_MONITOR_H
#define DEEPSPEED_MONITOR_H

#include <deepspeed/config.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_monitor ds_monitor;

/* Opens what is enabled; either may be NULL. Folders are made. A run that is resumed appends. The
 * caller owns *monitor_out. Errors: ERR_IO and ERR_NOT_FOUND name path and reason. */
DS_API ds_status ds_monitor_open(ds_ctx *ctx, const ds_config_monitor *tensorboard,
                                 const ds_config_monitor *csv, ds_monitor **monitor_out);
typedef struct ds_monitor_params {
    const ds_config_monitor *tensorboard, *csv; /* default NULL: none; so the next two */
    const ds_config_wandb *wandb;
    const ds_config_comet *comet;
    const char *config; /* a JSON object: the run's configuration, for W&B and Comet
                           (ds_config_print gives one, without secrets). Default NULL: none */
    DS_RESERVED(8);
} ds_monitor_params;

/* The same for every kind of monitor. What params refers to must outlive the monitor. Errors too:
 * ERR_CONFIG (an experiment_key or a variable of the environment that is none), ERR_STATE (an
 * experiment of that key is there). */
DS_API ds_status ds_monitor_create(ds_ctx *ctx, const ds_monitor_params *params,
                                   ds_monitor **monitor_out);
/* How the run ended, for W&B and Comet: 0 without this call. error: why it failed, NULL; copied. */
DS_API ds_status ds_monitor_end(ds_monitor *monitor, int exit_code, const char *error);
/* Writes one scalar; step is DeepSpeed's x value, the global samples. Errors: ERR_IO, after which
 * the file that it names gets no more, and the others go on; ERR_LIMIT on more than 256 tags. One
 * thread. */
DS_API ds_status ds_monitor_write(ds_monitor *monitor, const char *tag, double value,
                                  uint64_t step);
/* Makes what was written visible to readers. */
DS_API ds_status ds_monitor_flush(ds_monitor *monitor);
/* Flushes, closes, frees and nulls. Accepts NULL. */
DS_API ds_status ds_monitor_close(ds_monitor **monitor);

#ifdef __cplusplus
}
#endif
#endif
