/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard event files: records of Event messages with scalars. Used by monitor.c.
 *
 * Format: TFRecord (length u64, masked CRC-32C of it, data, masked CRC-32C of it; little endian)
 * around protocol-buffer Event messages (tensorflow/core/util/event.proto: wall_time 1, step 2,
 * file_version 3, summary 5; summary.proto: value 1 {tag 1, simple_value 2}). Only these four
 * fields are needed, so they are encoded here by hand instead of through a protocol-buffer library.
 */
#ifndef DSI_MONITOR_TFEVENTS_H
#define DSI_MONITOR_TFEVENTS_H

#include <deepspeed/context.h>
#include <stdint.h>
#include <stdio.h>

/* Writes the file's first record. stream is open for binary writing. Errors: ERR_IO. */
ds_status dsi_tfevents_begin(ds_ctx *ctx, FILE *stream, double wall_time);
/* Writes one scalar. */
ds_status dsi_tfevents_scalar(ds_ctx *ctx, FILE *stream, double wall_time, uint64_t step,
                              const char *tag, double value);

#endif
