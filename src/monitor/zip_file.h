/* SPDX-License-Identifier: Apache-2.0 */
/* A zip archive of a few files, deflated. */
#ifndef DSI_MONITOR_ZIP_FILE_H
#define DSI_MONITOR_ZIP_FILE_H

#include <deepspeed/status.h>
#include <stddef.h>

/* A file and its name in the archive. */
typedef struct dsi_zip_entry {
    const char *name, *path;
} dsi_zip_entry;

/* Writes `path` whole or not at all; n at most 8, each file below 4 GiB, as the archive. Errors:
 * ERR_IO, ERR_NOT_FOUND, ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_zip_pack(ds_ctx *ctx, const char *path, const dsi_zip_entry *entries, size_t n);

#endif
