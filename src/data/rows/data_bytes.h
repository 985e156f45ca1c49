/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a data file, front to back: as they are, or decompressed where the name ends in .gz
 * or .zst. A plain file is mapped and comes in one piece; a compressed one in pieces of bounded
 * size, whatever it grows to. Used by rows of text files and by source.c.
 */
#ifndef DSI_DATA_BYTES_H
#define DSI_DATA_BYTES_H

#include "io/file.h"
#include <deepspeed/context.h>

typedef struct dsi_bytes dsi_bytes;

/* Errors: ERR_NOT_FOUND, ERR_IO, ERR_NOMEM, ERR_FORMAT (no gzip or zstd data). */
ds_status dsi_bytes_open(ds_ctx *ctx, const char *path, dsi_bytes **bytes_out);
void dsi_bytes_close(dsi_bytes **bytes);
/* The next piece, valid until the next call; n 0 at the end. Errors: ERR_FORMAT (damaged, or cut
 * short), ERR_NOMEM. */
ds_status dsi_bytes_next(dsi_bytes *bytes, const char **data_out, size_t *n_out);
/* How far the file, as it lies on disk, is read. */
void dsi_bytes_progress(const dsi_bytes *bytes, uint64_t *done_out, uint64_t *all_out);

/* Length of `path` without .gz or .zst. */
size_t dsi_bytes_plain_name(const char *path);
/* The whole file as a map; a compressed one by way of a nameless file in TMPDIR (default /tmp). */
ds_status dsi_bytes_map(ds_ctx *ctx, const char *path, dsi_map *map_out);

#endif
