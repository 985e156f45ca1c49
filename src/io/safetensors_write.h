/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors into an open file, and sets of them into a folder; for checkpoints and model
 * folders, which add their own names and checks. */
#ifndef DSI_IO_SAFETENSORS_WRITE_H
#define DSI_IO_SAFETENSORS_WRITE_H

#include "io/file.h"
#include <deepspeed/safetensors.h>

/* What a file will be, and all memory that writing it needs. sources (and what they refer to) are
 * borrowed until the plan ends. Errors: those of ds_safetensors_write but for the file's. */
typedef struct dsi_safetensors_plan dsi_safetensors_plan;
ds_status dsi_safetensors_plan_create(ds_ctx *ctx, const char *path,
                                      const ds_tensor_source *sources, size_t n,
                                      const ds_safetensors_params *params,
                                      dsi_safetensors_plan **plan_out);
void dsi_safetensors_plan_destroy(dsi_safetensors_plan **plan);
uint64_t dsi_safetensors_plan_bytes(const dsi_safetensors_plan *plan); /* of the file */
/* Writes header and data; allocates nothing (the sources' fill aside). digests_out as below. */
ds_status dsi_safetensors_plan_write(const dsi_safetensors_plan *plan, dsi_file_out *file,
                                     uint64_t *digests_out);

/* Plans, reserves the room and writes header and data. digests_out: NULL, or n places that get the
 * XXH3-64 of each source's stored bytes, in the order of sources. */
ds_status dsi_safetensors_stream(ds_ctx *ctx, dsi_file_out *file, const char *path,
                                 const ds_tensor_source *sources, size_t n,
                                 const ds_safetensors_params *params, uint64_t *digests_out);

/* Writes the files of ds_safetensors_write_folder under their own names into a folder that has none
 * of them. */
ds_status dsi_safetensors_write_set(ds_ctx *ctx, const char *folder,
                                    const ds_tensor_source *sources, size_t n,
                                    uint64_t max_shard_bytes, const ds_safetensors_params *params);

/* Removes weight files from `folder` whose names are not in the sorted list. */
ds_status dsi_safetensors_remove_stale(ds_ctx *ctx, const char *folder, char *const *kept,
                                       size_t n_kept);

#endif
