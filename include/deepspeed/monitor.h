/* SPDX-License-Identifier: Apache-2.0 */
/* Monitors: scalars to TensorBoard event files and CSV, with DeepSpeed's tags and paths.
 *
 * TensorBoard writes output_path/job_name/events.out.tfevents.*, CSV writes
 * output_path/job_name/TAG.csv ('/' and ' ' of the tag become '_'), a row "step,value" a call.
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
/* Writes one scalar; step is DeepSpeed's x value, the global samples. Errors: ERR_IO, ERR_LIMIT on
 * more than 256 tags. One thread. */
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
