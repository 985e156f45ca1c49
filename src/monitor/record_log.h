/* SPDX-License-Identifier: Apache-2.0 */
/* A file of records in blocks, as W&B keeps a run: 7 bytes of head, then LevelDB's log format with
 * zlib's CRC-32. A record that reaches over the end of a block is cut into parts. */
#ifndef DSI_MONITOR_RECORD_LOG_H
#define DSI_MONITOR_RECORD_LOG_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct dsi_record_log {
    FILE *file; /* owned by the caller */
    size_t at;  /* bytes of the file, of the newest block that counts from its begin */
} dsi_record_log;

/* Writes the head into an empty file. false, here and below: errno says why. */
bool dsi_record_log_begin(dsi_record_log *log, FILE *file);
/* Appends a record and flushes it, so that a run that is killed loses none. */
bool dsi_record_log_add(dsi_record_log *log, const void *data, size_t n);

#endif
