/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary names with locks, shared by staged files and staged folders. */
#ifndef DSI_IO_FILE_TEMP_H
#define DSI_IO_FILE_TEMP_H

#include <deepspeed/status.h>

#define DSI_TEMP_MARK ".ds_tmp." /* ".NAME.ds_tmp.1a2b3c4d" */
#define DSI_OLD_MARK  ".ds_old"  /* ".NAME.ds_old" */

/* Creates and locks folder/.NAME.ds_tmp.XXXXXXXX: an empty file open for writing, or an empty
 * folder whose descriptor only holds the lock. The caller frees *path_out and closes *fd_out. */
ds_status dsi_temp_file(ds_ctx *ctx, const char *folder, const char *name, char **path_out,
                        int *fd_out);
ds_status dsi_temp_folder(ds_ctx *ctx, const char *folder, const char *name, char **path_out,
                          int *fd_out);

#endif
