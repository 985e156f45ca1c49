/* SPDX-License-Identifier: Apache-2.0 */
/* A folder that a user gives where a checkpoint is wanted: a save folder, or that of one checkpoint
 * in it. Used by zero_to_fp32 and ds_train. */
#ifndef DS_TOOLS_CHECKPOINT_FOLDER_H
#define DS_TOOLS_CHECKPOINT_FOLDER_H

#include <deepspeed/status.h>

/* The save folder, and the tag in it (NULL: the newest); the caller frees both. Errors: ERR_NOMEM.
 */
ds_status checkpoint_folder(ds_ctx *ctx, const char *given, char **folder_out, char **tag_out);

#endif
