/* SPDX-License-Identifier: Apache-2.0 */
/* A file of torch.save (PyTorch 1.6 and later): a zip archive with one pickle and the bytes of its
 * storages. The file is mapped; tensors point into the map. Nothing of it is run: see pickle.h.
 *
 *     NAME/data.pkl       the values
 *     NAME/byteorder      "little"; absent means the same
 *     NAME/data/KEY       the bytes of a storage
 *     NAME/version, …     not read
 *
 * Called by torch_weights.c and by the readers of DeepSpeed's checkpoints in src/ckpt.
 */
#ifndef DSI_IO_TORCH_FILE_H
#define DSI_IO_TORCH_FILE_H

#include "io/file.h"
#include "io/pickle.h"
#include "io/zip_read.h"

typedef struct dsi_torch_file {
    const char *path; /* borrowed from the arena */
    dsi_map map;
    dsi_arena *arena;
    dsi_zip zip;
    const dsi_pickle *root;
} dsi_torch_file;

/* Maps and reads. map_flags: DSI_MAP_*. dsi_torch_close frees; the file is empty after an error.
 * Errors: as dsi_map_open, dsi_zip_read and dsi_pickle_load; ERR_UNSUPPORTED for the files of older
 * versions of PyTorch and for those of machines with the high byte first. */
ds_status dsi_torch_open(ds_ctx *ctx, const char *path, uint32_t map_flags,
                         dsi_torch_file *file_out);
/* The same of n bytes in memory, which outlive the file: for the fuzzer. */
ds_status dsi_torch_parse(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n,
                          dsi_torch_file *file_out);
/* Unmaps and frees; accepts an empty file. */
void dsi_torch_close(dsi_torch_file *file);
/* Keeps the map alone and returns it: the caller closes it. Values and names are gone. */
dsi_map dsi_torch_take_map(dsi_torch_file *file);
/* Compares the CRC-32 of every entry of an archive. Errors: ERR_CORRUPT, naming the entry. */
ds_status dsi_torch_verify(ds_ctx *ctx, const char *path, const uint8_t *data, size_t n);

#endif
