/* SPDX-License-Identifier: Apache-2.0 */
/* Out of a merged model folder (ds_adapter_merge) the model that it was made of, byte for byte.
 *
 *     ds_adapter_merge(ctx, adapter, &(ds_adapter_merge_params){.model_folder = "model", …});
 *     ds_unmerge_keep(ctx, "model", "merged");     what the two differ by, into the merged folder
 *     … "model" is gone …
 *     ds_unmerge(ctx, "merged", "model again");
 *
 * A sum that is rounded to 16 bits cannot be taken back by subtracting what was added; so the
 * difference of the bits of each changed tensor is kept, as large as those tensors.
 *
 * Thread rule: any thread; folders must not change during a call.
 */
#ifndef DEEPSPEED_UNMERGE_H
#define DEEPSPEED_UNMERGE_H

#include <deepspeed/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes ds_unmerge.safetensors into the merged folder. Memory is bounded. Errors: ERR_ARG (a
 * tensor of the model is not in the merged folder: it was merged from another), those of folders.
 */
DS_API ds_status ds_unmerge_keep(ds_ctx *ctx, const char *model_folder, const char *merged_folder);

/* Writes the model's tensors, config.json and the tokenizer files of the merged folder into another
 * one. Each tensor has the name, dtype, shape and bytes that it had; how they are dealt to files
 * may be another. Errors: ERR_NOT_FOUND (nothing was kept), ERR_FORMAT (what was kept is of another
 * merged folder), ERR_ARG (out_folder is merged_folder), those of folders. */
DS_API ds_status ds_unmerge(ds_ctx *ctx, const char *merged_folder, const char *out_folder);

#ifdef __cplusplus
}
#endif
#endif
