/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of an open ds_safetensors; shared by the reader of files and that of folders.
 *
 * Invariants once open: entries are in the order of files and data; by_name is sorted and has no
 * two equal names; every range lies inside of its file's map.
 */
#ifndef DSI_IO_SAFETENSORS_INTERNAL_H
#define DSI_IO_SAFETENSORS_INTERNAL_H

#include "base/arena.h"
#include "io/file.h"
#include <deepspeed/safetensors.h>

#define DSI_SAFETENSORS_MAX_HEADER ((uint64_t)100000000) /* as the safetensors package */

typedef struct dsi_st_file {
    char *path; /* in the arena */
    dsi_map map;
} dsi_st_file;

struct ds_safetensors {
    ds_ctx *ctx;
    dsi_arena *arena; /* names, texts */
    dsi_arena
        *turned; /* a reader's own, of tensors in another order than the file's; may be NULL */
    dsi_st_file *files;
    size_t n_files;
    ds_safetensor *entries;
    size_t n_entries;
    const ds_safetensor **by_name;
    ds_text_pair *metadata;
    size_t n_metadata;
};

/* Where bytes that lie in a map are in its file: the path, borrowed from st. False: in none. */
bool dsi_safetensors_locate(const ds_safetensors *st, const void *data, const char **path_out,
                            uint64_t *offset_out);

/* Parses the header of n bytes at `data` (a whole file) and appends its entries; metadata only from
 * the first file. For readers and the fuzzer. */
ds_status dsi_safetensors_parse(ds_safetensors *st, const char *path, const uint8_t *data,
                                size_t n);
ds_status dsi_safetensors_create(ds_ctx *ctx, size_t max_files, ds_safetensors **st_out);
/* Maps and parses one more file. map_flags: DSI_MAP_*. */
ds_status dsi_safetensors_add_file(ds_safetensors *st, const char *path, uint32_t map_flags);
/* Maps one more file of torch.save, whose value is a dict of tensors, as torch_weights.c says. */
ds_status dsi_safetensors_add_torch(ds_safetensors *st, const char *path, uint32_t map_flags);
/* The one of the two that the file's name says. */
ds_status dsi_safetensors_add_any(ds_safetensors *st, const char *path);
/* The files that a description of a checkpoint lists: safetensors_described.c. */
ds_status dsi_safetensors_described(ds_ctx *ctx, const char *path, ds_safetensors **st_out);
/* Room for n more entries behind those that are there. */
ds_status dsi_safetensors_grow(ds_safetensors *st, size_t n);
/* Sorts by name; a name twice is an error. */
ds_status dsi_safetensors_index(ds_safetensors *st);
/* One file, with DSI_MAP_* flags. */
ds_status dsi_safetensors_open_flags(ds_ctx *ctx, const char *path, uint32_t map_flags,
                                     ds_safetensors **st_out);

#endif
