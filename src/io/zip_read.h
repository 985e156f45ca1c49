/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a mapped zip archive whose entries are stored, not compressed: what torch.save
 * writes. Called by torch_file.c.
 *
 * Sizes come from the directory at the end (the local heads have none: flag 3), also in zip64 form.
 * Nothing is trusted: every entry lies between its own head and the directory, and names are
 * unique. Nothing is copied but names.
 */
#ifndef DSI_IO_ZIP_READ_H
#define DSI_IO_ZIP_READ_H

#include "base/arena.h"

#include <stdint.h>

typedef struct dsi_zip_entry {
    const char *name;    /* in the arena, without zero bytes inside */
    const uint8_t *data; /* into the map */
    size_t bytes;
    uint32_t crc; /* CRC-32 of the data, as the directory has it; not compared by dsi_zip_read */
} dsi_zip_entry;

typedef struct dsi_zip {
    dsi_zip_entry *entries; /* by name, in the arena */
    size_t n;
} dsi_zip;

/* Whether the bytes begin as a zip archive does. */
bool dsi_zip_begins(const uint8_t *data, size_t n);
/* path is for messages; data of n bytes outlives zip_out. Errors: ERR_FORMAT, ERR_UNSUPPORTED
 * (compressed or encrypted entries, several disks), ERR_LIMIT (the arena), each naming the entry.
 */
ds_status dsi_zip_read(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n,
                       dsi_arena *arena, dsi_zip *zip_out);
/* NULL when there is none of that name. */
const dsi_zip_entry *dsi_zip_find(const dsi_zip *zip, const char *name);
/* Whether the entry's data has its CRC-32. */
bool dsi_zip_is_right(const dsi_zip_entry *entry);

#endif
