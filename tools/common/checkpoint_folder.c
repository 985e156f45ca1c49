/* SPDX-License-Identifier: Apache-2.0 */
/* See checkpoint_folder.h. */
#include "common/checkpoint_folder.h"

#include "ckpt/ckpt_deepspeed.h"
#include "ckpt/ckpt_distcp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ds_status checkpoint_folder(ds_ctx *ctx, const char *given, char **folder_out, char **tag_out)
{
    char *manifest = dsi_path_join(given, DSI_CKPT_MANIFEST);
    const bool is_one =
        manifest != NULL &&
        (access(manifest, F_OK) == 0 || dsi_ckpt_deepspeed_is(given) || dsi_ckpt_distcp_is(given));
    char *path = is_one ? realpath(given, NULL) : strdup(given);
    char *slash = is_one && path != NULL ? strrchr(path, '/') : NULL;
    char *tag = slash != NULL ? strdup(slash + 1) : NULL;
    const bool right = manifest != NULL && path != NULL && (slash == NULL || tag != NULL);
    free(manifest);
    if (!right) {
        free(path);
        free(tag);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the name of a checkpoint");
    }
    if (slash != NULL) {
        slash[slash == path ? 1 : 0] = '\0';
    }
    *folder_out = path;
    *tag_out = tag;
    return DS_OK;
}
