/* SPDX-License-Identifier: Apache-2.0 */
/* A zip archive of stored entries, as torch.save writes them: written once from front to back, each
 * entry's data at a multiple of 64 bytes, sizes and CRC-32 in a descriptor behind the data and in
 * the directory at the end; in zip64 form where a number needs it. Called by torch_write.c; read
 * back by zip_read.c.
 */
#ifndef DSI_IO_ZIP_WRITE_H
#define DSI_IO_ZIP_WRITE_H

#include "base/buf.h"
#include "io/file.h"

typedef struct dsi_zip_out {
    ds_ctx *ctx;
    dsi_file_out *file; /* borrowed */
    dsi_buf directory;
    uint64_t n; /* entries */
    uint64_t begin, bytes,
        given; /* of the open entry: its head's place, its size, what was given */
    uint32_t crc;
    char name[96];
} dsi_zip_out;

/* Starts at the beginning of `file`. */
dsi_zip_out dsi_zip_out_make(ds_ctx *ctx, dsi_file_out *file);
/* An entry of exactly `bytes` bytes, which dsi_zip_out_give passes in any number of parts. name: at
 * most 95 bytes. Errors: as dsi_file_write, ERR_NOMEM. */
ds_status dsi_zip_out_begin(dsi_zip_out *zip, const char *name, uint64_t bytes);
ds_status dsi_zip_out_give(dsi_zip_out *zip, const void *data, size_t n);
ds_status dsi_zip_out_end(dsi_zip_out *zip);
/* The directory. */
ds_status dsi_zip_out_finish(dsi_zip_out *zip);
void dsi_zip_out_free(dsi_zip_out *zip);

#endif
